"""The sample class: the same bytes each time, and every learner does what the table says of them."""

import json

import pytest
from answers import CHAPTER, STUBS, judge, standing

from grading.chapter import ROOT
from samples import make_class
from samples.make_class import LEARNERS, TABLE

RELEASE = ROOT / "release" / CHAPTER.name / f"{CHAPTER.name}.ipynb"
README = (ROOT / "samples" / "README.md").read_text("utf-8")
GRADED = [student for student, result in make_class.expected().items() if result["status"] == "graded"]


@pytest.fixture(scope="module")
def inbox(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inbox")
    make_class.make(RELEASE, folder)
    return folder


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def notebook_of(inbox, student: str) -> dict:
    # Of two versions, the later name in the alphabet's order is the untouched one: "… (1)" sorts before "….".
    return json.loads(min((inbox / student).iterdir()).read_text("utf-8"))


def test_class_is_the_same_each_time(inbox, tmp_path):
    make_class.make(RELEASE, tmp_path)
    make_class.make(RELEASE, tmp_path)  # over an earlier one
    assert contents(tmp_path) == contents(inbox)
    assert {path.name for path in inbox.iterdir()} == set(LEARNERS)
    assert len(LEARNERS) == len(TABLE["learners"]) >= 12


def test_other_files_of_the_folder_are_left_alone(tmp_path):
    other = tmp_path / "somebody" / "notes.txt"
    other.parent.mkdir()
    other.write_text("mine")
    make_class.make(RELEASE, tmp_path)
    assert other.read_text() == "mine"


def test_readme_names_every_sample_and_no_other():
    assert make_class.readme_table() in README, "put make_class.readme_table() into samples/README.md"
    assert README.count("\n| `") == len(LEARNERS) + 1


def test_roster_has_the_class_and_one_who_handed_in_nothing():
    assert (ROOT / "samples" / "roster.csv").read_text("utf-8") == make_class.roster()
    absent = set(make_class.expected(with_roster=True)) - set(LEARNERS)
    assert absent == {TABLE["absent"]["student"]}


@pytest.mark.parametrize("student", GRADED)
def test_answer_earns_what_the_table_says(student):
    learner = LEARNERS[student]
    bodies = {todo: STUBS[todo] if body is None else body for todo, body in make_class.bodies(learner).items()}
    # An endless loop fails in any time; the others get enough of it.
    seconds = 0.3 if student == "08_loops_forever" else 5.0
    outcome = judge(bodies, seconds=seconds, before="\n".join(learner.get("before", [])))
    assert standing(outcome) == {name: make_class.expected()[student][name] for name in CHAPTER.mechanisms}, outcome


@pytest.mark.parametrize("student", GRADED)
def test_written_notebook_holds_the_answer(inbox, student):
    sources = ["".join(cell["source"]) for cell in notebook_of(inbox, student)["cells"]]
    for todo, body in make_class.bodies(LEARNERS[student]).items():
        first, *_, last = ("raise NotImplementedError" if body is None else body).split("\n") * 2
        found = [text for text in sources if first in text and last in text and "class MultiTokenDecoderSim" in text]
        assert found, f"TODO {todo}"


def test_stubs_are_gone_where_all_is_written(inbox):
    for student in ("01_complete", "09_colab_saved", "16_helper_cell", "17_two_versions"):
        assert "raise NotImplementedError" not in json.dumps(notebook_of(inbox, student)), student


def test_forms_are_what_they_are_called(inbox):
    names = {student: sorted(path.name for path in (inbox / student).iterdir()) for student in LEARNERS}
    usual = f"{CHAPTER.name}.ipynb"
    assert names["11_renamed_file"] == [f"“{usual}”的副本.ipynb"]
    assert names["17_two_versions"] == [f"{CHAPTER.name} (1).ipynb", usual]
    assert {tuple(found) for student, found in names.items() if student[:2] not in ("11", "17")} == {(usual,)}
    assert (inbox / "15_empty_file" / usual).read_bytes() == b""
    assert (inbox / "12_not_a_notebook" / usual).read_text("utf-8").startswith("<!DOCTYPE html>")

    colab = notebook_of(inbox, "09_colab_saved")
    assert colab["nbformat_minor"] == 0 and "colab" in colab["metadata"]
    assert all("id" not in cell and cell["metadata"]["id"] for cell in colab["cells"])
    assert any(cell.get("outputs") for cell in colab["cells"])
    stripped = notebook_of(inbox, "13_metadata_stripped")
    assert all(cell["metadata"] == {} for cell in stripped["cells"])
    copied = [cell["metadata"].get("nbgrader", {}) for cell in notebook_of(inbox, "10_copied_cell")["cells"]]
    assert [meta.get("solution") for meta in copied].count(True) == 2
    edited = notebook_of(inbox, "19_edited_tests")["cells"]
    graded = ["".join(cell["source"]) for cell in edited if cell["metadata"].get("nbgrader", {}).get("grade")]
    assert graded and not any("assert" in text for text in graded)


def test_script_reads_the_release_of_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["make_class.py", "--out", str(tmp_path / "inbox")])
    make_class.main()
    assert f"{len(LEARNERS)} learners" in capsys.readouterr().out
