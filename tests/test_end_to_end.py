"""The sample class through the command line: every row as it should be, the record in nbgrader, runs that go on."""

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from grading import chapter
from grading.bench import scores
from grading.chapter import ROOT
from grading.cli import main

sys.path.insert(0, str(ROOT / "samples"))
import make_class  # noqa: E402

RELEASE = ROOT / "release" / "35_multi_token_decoding" / "35_multi_token_decoding.ipynb"
MECHANISMS = ("propose", "accept", "verify", "decode")


def grade(inbox, out, *options, check=True, **named):
    command = [sys.executable, "-m", "grading", "grade", str(inbox), "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **named)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def rows(out):
    with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        listed = list(csv.DictReader(file))
    assert len({row["student_id"] for row in listed}) == len(listed), "a row is doubled"
    return {row["student_id"]: row for row in listed}


@pytest.fixture(scope="module")
def ch():
    return chapter.load(chapter.find()[0])


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The sample class, graded once with two workers; (folder, what was printed)."""
    folder = tmp_path_factory.mktemp("class")
    make_class.make(RELEASE, folder / "inbox")
    done = grade(folder / "inbox", folder / "out", "--roster", str(ROOT / "samples" / "roster.csv"), "--workers", "2")
    return folder, done.stdout


def test_every_sample_gets_what_it_should(graded, ch):
    folder, printed = graded
    found = rows(folder / "out")
    expected = make_class.expected(with_roster=True)
    assert found.keys() == expected.keys()
    for student, want in expected.items():
        row = found[student]
        assert row["status"] == want["status"], row
        assert student in printed
        for mechanism in MECHANISMS:
            points, value = ch.points(mechanism), row[mechanism]
            got = {"": "", f"{points:g}": "full", "0": "zero"}.get(value, "lost")
            assert got == want[mechanism], (student, mechanism, row)
        if want["status"] == "graded":
            assert float(row["score"]) == sum(float(row[mechanism]) for mechanism in MECHANISMS)
            assert row["max_score"] == "100" and row["seed"].isdecimal() and row["file"]
        elif want["status"] == "unreadable":
            assert row["score"] == "" and row["flags"], "the reason must be given"


def test_columns_and_quoting_are_those_of_the_interface(graded):
    folder, _ = graded
    text = (folder / "out" / "grades.csv").read_bytes()
    assert text.startswith(b"\xef\xbb\xbf")
    head = text.decode("utf-8-sig").split("\r\n")[0]
    names = ["student_id", "status", "score", "max_score", *MECHANISMS, "flags", "file", "seconds", "seed"]
    assert head == ",".join(f'"{name}"' for name in names)


def test_everything_about_every_learner_is_written(graded, ch):
    folder, _ = graded
    out = folder / "out"
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").split("\n") if line]
    assert {line["student_id"] for line in logged} == rows(out).keys() and len(logged) == len(rows(out))
    for student, row in rows(out).items():
        assert (out / "feedback" / f"{student}.html").exists()
        record = out / "autograded" / student / ch.name / f"{ch.name}.ipynb"
        assert record.exists() == (row["status"] == "graded")
    assert "<html" in (out / "report.html").read_text("utf-8")


def test_hidden_checks_never_reach_the_feedback(graded, ch):
    folder, _ = graded
    hidden = set()
    for cell in ch.tests:
        for region in chapter.regions(cell.source, chapter.BEGIN_HIDDEN, chapter.END_HIDDEN):
            hidden |= {line.strip() for line in region.lines if len(line.strip()) > 25}
    assert hidden
    for page in (folder / "out" / "feedback").iterdir():
        text = page.read_text("utf-8")
        assert "首次拒绝在 " not in text and "GRADING_SEED" not in text
        assert not [line for line in hidden if line in text]


def test_the_gradebook_holds_the_same_scores(graded):
    folder, _ = graded
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{folder / 'out' / 'gradebook.db'}") as gradebook:
        held = {s.student_id: (s.score, s.max_score) for s in gradebook.assignment_submissions(chapter.find()[0].stem)}
    graded_rows = {student: row for student, row in rows(folder / "out").items() if row["status"] == "graded"}
    assert held == {student: (float(row["score"]), 100.0) for student, row in graded_rows.items()}


def test_a_second_run_grades_nothing_and_says_so(graded):
    folder, _ = graded
    before = rows(folder / "out")
    done = grade(folder / "inbox", folder / "out", "--roster", str(ROOT / "samples" / "roster.csv"))
    assert " 0 graded now" in done.stdout and "moved" not in done.stdout
    assert rows(folder / "out") == before


# --- smaller classes -------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """An inbox of three samples."""
    make_class.make(RELEASE, tmp_path / "all")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name in ("01_complete", "03_two_of_three", "12_not_a_notebook"):
        (tmp_path / "all" / name).rename(inbox / name)
    return tmp_path


def test_only_what_changed_is_graded_again_and_manual_scores_stay(small):
    grade(small / "inbox", small / "out")
    out, student = small / "out", "03_two_of_three"
    first = rows(out)
    with sqlite3.connect(out / "gradebook.db") as database:
        database.execute("update grade set manual_score = 3, needs_manual_grade = 0 where auto_score = 0")
    (better,) = (small / "inbox" / "01_complete").glob("*.ipynb")
    (small / "inbox" / student / better.name).write_bytes(better.read_bytes())
    done = grade(small / "inbox", out)
    assert " 1 graded now, 2 unchanged" in done.stdout
    assert f"moved: {student}: {first[student]['score']} -> 100" in done.stdout
    with sqlite3.connect(out / "gradebook.db") as database:
        manual = database.execute("select count(*) from grade where manual_score = 3").fetchone()[0]
    assert manual > 0, "manual scores must survive regrading"
    assert " 3 graded now" in grade(small / "inbox", out, "--force").stdout
    assert " 3 graded now" in grade(small / "inbox", out, "--seed", "5").stdout, "another seed is another test"


def test_a_score_given_by_hand_stands_in_every_table(small, ch):
    grade(small / "inbox", small / "out")
    out, student = small / "out", "03_two_of_three"
    before = float(rows(out)[student]["score"])
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{out / 'gradebook.db'}") as gradebook:
        given = gradebook.find_grade("test_verify_public", ch.name, ch.name, student)
        given.manual_score = 5
        gradebook.db.commit()
    again = [grade(small / "inbox", out)]
    again.append(subprocess.run([sys.executable, "-m", "grading", "report", "--out", str(out)], cwd=ROOT, check=True))
    for _ in again:
        row = rows(out)[student]
        assert float(row["score"]) == before + 5 and "manual_score:1" in row["flags"]


def test_a_later_batch_keeps_the_rows_of_the_first(small):
    grade(small / "inbox", small / "out")
    (small / "late").mkdir()
    (small / "inbox" / "03_two_of_three").rename(small / "late" / "newcomer")
    done = grade(small / "late", small / "out")
    found = rows(small / "out")
    assert set(found) == {"01_complete", "03_two_of_three", "12_not_a_notebook", "newcomer"}
    assert "not_in_this_inbox" in found["01_complete"]["flags"] and found["01_complete"]["score"] == "100"
    assert "3 graded before are not in this inbox" in done.stdout


def test_late_work_in_an_inbox_of_its_own_takes_nothing_from_the_others(small):
    """As the manual has it: with the roster, on which all the others are, and who handed in nothing at all is."""
    (small / "roster.csv").write_text("学号\n01_complete\n03_two_of_three\n12_not_a_notebook\nnever\n", "utf-8")
    roster = ("--roster", str(small / "roster.csv"))
    first = grade(small / "inbox", small / "out", *roster)
    assert "roster: 4 learners, 3 of them in this inbox; 0 submissions from others" in first.stdout
    page = (small / "out" / "feedback" / "01_complete.html").read_text("utf-8")
    (small / "late").mkdir()
    (small / "inbox" / "03_two_of_three").rename(small / "late" / "03_two_of_three")
    done = grade(small / "late", small / "out", *roster)
    found = rows(small / "out")
    assert "moved" not in done.stdout, done.stdout
    assert found["01_complete"]["score"] == "100" and "not_in_this_inbox" in found["01_complete"]["flags"]
    assert found["12_not_a_notebook"]["status"] == "unreadable" and found["never"]["status"] == "missing"
    assert (small / "out" / "feedback" / "01_complete.html").read_text("utf-8") == page
    assert "01_complete" in {student for student, *_ in scores(small / "out" / "gradebook.db")}
    grade(small / "late", small / "out")  # nor does a run without the roster
    assert rows(small / "out").keys() == found.keys()
    # with another seed the two inboxes' checks are not the same, and that is said
    done = grade(small / "late", small / "out", *roster, "--seed", "5")
    assert "1 of these were graded with another seed" in done.stdout
    assert "other_checks" in rows(small / "out")["01_complete"]["flags"]


def test_a_row_is_forgotten_with_all_that_belongs_to_it(small):
    grade(small / "inbox", small / "out")
    name, out = "01_complete", small / "out"
    command = [sys.executable, "-m", "grading", "forget", "--out", str(out)]
    done = subprocess.run([*command, name, "nobody"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "nobody" in done.stderr and name in rows(out)
    subprocess.run([*command, name], cwd=ROOT, capture_output=True, check=True)
    assert name not in rows(out) and len(rows(out)) == 2
    assert name not in {student for student, *_ in scores(out / "gradebook.db")}
    assert not [path for path in out.rglob("*") if name in path.name]
    assert name not in (out / "report.html").read_text("utf-8")
    grade(small / "inbox", out)
    assert rows(out)[name]["score"] == "100"


def test_an_answer_that_does_not_even_run_is_said_in_the_table(small):
    (path,) = (small / "inbox" / "01_complete").glob("*.ipynb")
    whole, line = path.read_text("utf-8"), "class MultiTokenDecoderSim:"
    changed = {
        "01_complete": line.rstrip(":"),
        "dies": f"{line}\n    import os; os._exit(1)",
        "names": f"{line}\n    raise type('=HYPERLINK(1) ', (Exception,), {{}})",  # a name of the learner's choosing
    }
    for student, code in changed.items():
        notebook = json.loads(whole)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"]).replace(line, code)
        (small / "inbox" / student).mkdir(exist_ok=True)
        (small / "inbox" / student / path.name).write_text(json.dumps(notebook), "utf-8")
    done = grade(small / "inbox", small / "out")
    flags = {student: row["flags"] for student, row in rows(small / "out").items()}
    assert flags["01_complete"] == "answer_failed:SyntaxError" and flags["01_complete"] in done.stdout
    assert "answer_failed" not in flags["dies"] and "cell_death:answer" in flags["dies"]
    assert "answer_failed:error" in flags["names"] and "HYPERLINK" not in flags["names"]


def test_results_never_go_into_the_inbox(small):
    for out in (small / "inbox", small / "inbox" / "results"):
        before = sorted((small / "inbox").rglob("*"))
        done = grade(small / "inbox", out, check=False)
        assert done.returncode == 2 and "lies in the inbox" in done.stderr
        assert sorted((small / "inbox").rglob("*")) == before


def test_what_hidden_checks_ask_never_comes_back_in_what_public_ones_say(small):
    """A learner's code that keeps all that it is asked, and tells it in a later error."""
    (path,) = (small / "inbox" / "01_complete").glob("*.ipynb")
    notebook = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if "class MultiTokenDecoderSim" in source:
            spy = "import builtins\nbuiltins.seen = []\n" + source.replace(
                "        if draft_prob <= 0:", "        seen.append(round(target_prob, 9))\n        if draft_prob <= 0:"
            )
            cell["source"] = spy.replace(
                "        draft_probs = torch.as_tensor(draft_probs)",
                "        raise KeyError(f'{len(seen)} seen')\n        draft_probs = torch.as_tensor(draft_probs)",
                1,
            )
    path.write_text(json.dumps(notebook), "utf-8")
    grade(small / "inbox", small / "out")
    page = (small / "out" / "feedback" / "01_complete.html").read_text("utf-8")
    assert "11 seen" in page, "the public checks of accept ask eleven times, and no more may be told"


def test_the_seed_is_made_once_and_kept(small):
    grade(small / "inbox", small / "out")
    seeds = {row["seed"] for row in rows(small / "out").values()}
    assert seeds == {(small / "out" / ".grading_seed").read_text().strip()}


def test_a_killed_run_goes_on_where_it_stopped(small):
    for number in range(12):
        (small / "inbox" / f"copy{number:02}").mkdir()
        (source,) = (small / "inbox" / "01_complete").glob("*.ipynb")
        (small / "inbox" / f"copy{number:02}" / source.name).write_bytes(source.read_bytes())
    slow = json.loads(source.read_text("utf-8"))  # no run ends before it is interrupted
    cell = {"cell_type": "code", "id": "slow", "metadata": {}, "outputs": [], "execution_count": None}
    slow["cells"].append(cell | {"source": "import time; time.sleep(5)"})
    (small / "inbox" / "zz_slow").mkdir()
    (small / "inbox" / "zz_slow" / source.name).write_text(json.dumps(slow), "utf-8")
    command = [sys.executable, "-m", "grading", "grade", str(small / "inbox"), "--out", str(small / "out")]
    # the second run grades all again: however much the first had done, it does not come to its end
    for blow, options in ((signal.SIGKILL, []), (signal.SIGINT, ["--force"])):
        with (small / "said.txt").open("w+b") as errors:  # not a pipe: whatever outlives the run would hold it open
            process = subprocess.Popen(
                [*command, *options], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            log, seen = small / "out" / "log.jsonl", 0
            start = log.read_text("utf-8").count("\n") if log.exists() else 0
            while seen < start + 2 and process.poll() is None:
                time.sleep(0.02)
                seen = log.read_text("utf-8").count("\n") if log.exists() else 0
            os.killpg(process.pid, blow)
            process.wait(60)
    said = (small / "said.txt").read_text("utf-8")
    assert process.returncode == 130 and "Traceback" not in said, said
    assert said.index("ending the rest") < said.index("run the same command again"), said
    done = grade(small / "inbox", small / "out")
    found = rows(small / "out")
    assert len(found) == 16 and " 16 graded now" not in done.stdout
    assert all(row["score"] == "100" for student, row in found.items() if student.startswith("copy"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere"], "nowhere"),
        (["inbox", "--roster", "no.csv"], "no.csv"),
        (["inbox", "--workers", "0"], "positive"),
        (["inbox", "--chapter", "99"], "--chapter"),
        (["inbox", "--db", "foo://me:secret@here/x"], "gradebook foo://me:***@here/x cannot be used"),
    ],
)
def test_wrong_use_is_named_and_nothing_is_written(small, options, says):
    arguments = [str(small / options[0]), *options[1:]]
    command = [sys.executable, "-m", "grading", "grade", *arguments, "--out", str(small / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert not (small / "out" / "grades.csv").exists()


def test_a_gradebook_that_is_none_is_said(small):
    (small / "out").mkdir()
    (small / "out" / "gradebook.db").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    done = grade(small / "inbox", small / "out", check=False)
    assert done.returncode == 2 and "gradebook.db" in done.stderr and "Traceback" not in done.stderr


def test_a_python_without_what_grading_needs_is_told_what_to_do(monkeypatch, capsys):
    def lacks(arguments):
        raise metadata.PackageNotFoundError("torch")

    monkeypatch.setattr("grading.command.run", lacks)
    assert main(["grade", "inbox"]) == 2
    said = capsys.readouterr().err
    assert "torch" in said and "make env" in said


def test_results_that_cannot_be_written_are_said(small):
    (small / "taken").write_text("a file")
    done = grade(small / "inbox", small / "taken", check=False)
    assert done.returncode == 2 and "--out" in done.stderr and "Traceback" not in done.stderr


def test_help_answers_at_once():
    started = time.process_time(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "grading", "--help"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0 and started
    heavy = [name for name in (b"torch", b"numpy", b"nbgrader", b"IPython", b"matplotlib") if name in done.stderr]
    assert not heavy, "what makes a command slow must not be imported for --help"


# --- nbgrader's own commands -----------------------------------------------------------------------------------------


def test_nbgrader_autograde_gives_the_same_scores(small, ch):
    """nbgrader's own command, on the submissions as recorded, in a course of its own with the same seed."""
    grade(small / "inbox", small / "out", "--seed", "77")
    out, again = small / "out", small / "again"
    again.mkdir()
    (again / ".grading_seed").write_text("77\n", "ascii")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    common = [f"--db=sqlite:///{again}/gradebook.db", f"--CourseDirectory.submitted_directory={out / 'submitted'}"]
    common += [f"--CourseDirectory.autograded_directory={again / 'autograded'}"]
    common += [f"--CourseDirectory.release_directory={again / 'release'}"]
    for step in ("generate_assignment", "autograde"):
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", step, ch.name, *common],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    recorded = [scores(folder / "gradebook.db") for folder in (out, again)]
    assert recorded[0] == recorded[1] and len(recorded[0]) == 2 * len(ch.tests)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nbgrader",
            "generate_feedback",
            ch.name,
            *common,
            f"--CourseDirectory.feedback_directory={again / 'feedback'}",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    pages = [page.read_text("utf-8") for page in (again / "feedback").rglob("*.html")]
    assert done.returncode == 0 and len(pages) == 2
    assert not any("HIDDEN TESTS" in page or "GRADING_SEED" in page for page in pages)
    notebook = json.loads((again / "autograded" / "03_two_of_three" / ch.name / f"{ch.name}.ipynb").read_text("utf-8"))
    outputs = {
        cell["metadata"]["nbgrader"]["grade_id"]: cell["outputs"][0]["output_type"]
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade")
    }
    assert set(outputs.values()) == {"stream", "error"} and len(outputs) == len(ch.tests)
