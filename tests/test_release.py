"""The release follows from source/, gives nothing away, and what would give something away is noticed."""

import ast
import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest

from grading import chapter
from grading.chapter import ROOT, ChapterError
from grading.release import check as checking
from grading.release import opening as opening_note
from grading.release.command import out_of_date
from grading.release.leaks import leaks

STDLIB = sys.stdlib_module_names


@pytest.fixture(scope="module")
def ch():
    return chapter.load(chapter.find()[0])


def read(path):
    notebook = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


@pytest.fixture
def release(ch):
    return read(ROOT / "release" / ch.name / f"{ch.name}.ipynb")


def cell_of(notebook, cell_id):
    return next(cell for cell in notebook["cells"] if cell["id"] == cell_id)


def test_release_and_published_solution_follow_from_source():
    assert out_of_date() == []


def test_nbgraders_own_command_writes_the_same_bytes(ch, tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", ch.name, f"--db=sqlite:///{tmp_path}/g.db"]
    command += [f"--CourseDirectory.release_directory={tmp_path / 'release'}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "release" / ch.name / f"{ch.name}.ipynb"
    assert made.read_bytes() == (ROOT / "release" / ch.name / made.name).read_bytes()


def test_the_release_gives_nothing_away(ch, release):
    assert leaks(ch, release) == []


def _solution_line(ch, release):
    region = chapter.regions(ch.of("solution")[0].source, chapter.BEGIN_SOLUTION, chapter.END_SOLUTION)[1]
    cell_of(release, "guide")["source"] += "\n" + region.lines[0]


def _solution_reformatted(ch, release):
    code = "def f(self, target_prob, draft_prob):\n  return (target_prob\n  >= (draft_prob * self.min_accept_ratio))"
    cell_of(release, "plot-lossy")["source"] += "\n" + code


def _hidden_line(ch, release):
    source = next(cell.source for cell in ch.tests if cell.hidden)
    region = chapter.regions(source, chapter.BEGIN_HIDDEN, chapter.END_HIDDEN)[0]
    cell_of(release, "imports")["source"] += "\n# " + next(line for line in region.lines if "expected" in line).strip()


def _instructors_prose(ch, release):
    cell_of(release, "reading")["source"] += "\n\n" + ch.of("instructor")[0].source.strip().split("\n")[-1]


def _instructors_cell(ch, release):
    release["cells"].append({"cell_type": "markdown", "id": ch.of("instructor")[0].id, "metadata": {}, "source": "…"})


def _marker(ch, release):
    cell_of(release, "decoder")["source"] += "\n### END SOLUTION"


def _in_metadata(ch, release):
    region = chapter.regions(ch.of("solution")[0].source, chapter.BEGIN_SOLUTION, chapter.END_SOLUTION)[0]
    release["metadata"]["note"] = region.lines[0].strip()


def _in_an_output(ch, release):
    text = ["GRADING_SEED=0\n"]
    cell_of(release, "setup")["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]


PLANTED = [
    _solution_line,
    _solution_reformatted,
    _hidden_line,
    _instructors_prose,
    _instructors_cell,
    _marker,
    _in_metadata,
    _in_an_output,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_leak_is_noticed(ch, release, plant):
    plant(ch, release)
    assert leaks(ch, release)


def _run(problems, ch, release):
    return "\n".join(problems(ch, release))


def test_unsolved_and_solved_runs_are_clean(ch):
    assert checking.check(ch, ROOT / "release" / ch.name / f"{ch.name}.ipynb") == []


def test_a_release_that_fails_otherwise_is_noticed(ch, release):
    """One run, three faults: a stub of another type, a plot cell that raises, a test cell that passes unsolved."""
    cell_of(release, "decoder")["source"] = cell_of(release, "decoder")["source"].replace(
        "raise NotImplementedError", "raise TypeError", 1
    )
    cell_of(release, "plot-strip")["source"] = "1 / 0"
    cell_of(release, "test-accept-rule")["source"] = "pass"
    said = _run(checking._unsolved, ch, release)
    for expected in ("test-propose-public fails by TypeError", "plot-strip fails by ZeroDivisionError"):
        assert expected in said
    assert "test-accept-rule passes" in said


def test_a_solved_release_that_warns_or_fails_is_noticed(ch, release):
    cell_of(release, "imports")["source"] += "\nimport warnings\nwarnings.warn('old')"
    cell_of(release, "plot-helper")["source"] = "raise KeyError('x')"
    said = _run(checking._solved, ch, release)
    assert "imports writes to stderr" in said and "plot-helper fails by KeyError" in said


def test_a_missing_stub_is_named(ch, release):
    cell_of(release, "decoder")["source"] = "class MultiTokenDecoderSim: pass"
    with pytest.raises(ChapterError, match="TODO 1"):
        checking.solved(ch, release)


def test_the_release_stands_alone_on_python_3_10(release):
    for cell in release["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = [line for line in cell["source"].split("\n") if line != "%matplotlib inline"]
        tree = ast.parse("\n".join(lines), feature_version=(3, 10))
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in STDLIB | {"torch", "matplotlib"}, f"{cell['id']} imports {name}"
    for cell in release["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            assert "matplotlib" not in cell["source"], "graded cells stand on torch alone"


def test_every_graded_cell_is_locked_and_every_stub_names_its_todo(ch, release):
    released = {c["metadata"]["nbgrader"]["grade_id"]: c for c in release["cells"] if "nbgrader" in c["metadata"]}
    assert [gid for gid, cell in released.items() if cell["metadata"]["nbgrader"]["grade"]] == [
        cell.grade_id for cell in ch.tests
    ]
    assert all(cell["metadata"]["nbgrader"]["locked"] for gid, cell in released.items() if gid.startswith("test_"))
    text = cell_of(release, "decoder")["source"]
    assert [
        f"TODO {n}：" in line
        for n, line in enumerate((line for line in text.split("\n") if "raise NotImplementedError" in line), start=1)
    ] == [True] * 3


def test_the_published_solution_shows_plots_and_no_hidden_tests(ch):
    published = read(ROOT / "notebooks" / f"{ch.name}.ipynb")
    text = json.dumps(published, ensure_ascii=False)
    assert "HIDDEN" not in text and "SOLUTION" not in text and "nbgrader" not in published["metadata"]
    drawn = [c["id"] for c in published["cells"] if any("image/png" in o.get("data", {}) for o in c.get("outputs", []))]
    assert drawn == ["figure-routes", "plot-length", "plot-threshold", "plot-strip", "plot-lossy"]
    assert any(cell.id in {c["id"] for c in published["cells"]} for cell in ch.of("instructor"))


# --- the opening note ------------------------------------------------------------------------------------------------


def course(tmp_path, address):
    (tmp_path / "pyproject.toml").write_text(f'[tool.course]\nrepository = "{address}"\n', "utf-8")
    return tmp_path


def test_without_an_address_there_is_no_badge_and_no_link_into_the_repository(tmp_path):
    note = opening_note.fill_opening(
        "a<!-- open:begin -->old<!-- open:end -->b", "release/x/x.ipynb", course(tmp_path, "")
    )
    assert "上传" in note and "github.com" not in note and "old" not in note and note[0] == "a" and note[-1] == "b"


def test_with_an_address_both_badges_open_this_very_file(tmp_path):
    root = course(tmp_path, "https://github.com/owner/name/")
    note = opening_note.fill_opening("<!-- open:begin --><!-- open:end -->", "release/x/x.ipynb", root)
    assert "https://colab.research.google.com/github/owner/name/blob/main/release/x/x.ipynb" in note
    assert "modelscope.cn" in note and "git clone https://github.com/owner/name" in note


def test_an_address_that_is_none_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="tool.course.repository"):
        opening_note.repository(course(tmp_path, "example.com/me"))


# --- source rules ----------------------------------------------------------------------------------------------------


def chapter_file(tmp_path, source, **nbgrader):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, metadata={"nbgrader": nbgrader})])
    path = tmp_path / "c.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.mark.parametrize(
    ("source", "nbgrader", "says"),
    [
        ("### BEGIN SOLUTION\nx = 1", {"solution": True}, "without"),
        ("### END SOLUTION", {"solution": True}, "without"),
        ("# TODO 1：a\n### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", {"solution": True}, "inside"),
        ("### BEGIN SOLUTION\nx = 1\n### END SOLUTION", {"solution": True}, "TODO 1"),
        ("# TODO 2：a\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION", {"solution": True}, "TODO 1"),
        ("### BEGIN HIDDEN TESTS", {"grade": True, "grade_id": "test_a_b", "points": 1}, "without"),
        ("pass", {"grade": True, "grade_id": "check_a", "points": 1}, "test_<mechanism>"),
        ("pass", {"grade": True, "grade_id": "test_a_b", "points": -3}, r"test_a_b\): points must be .* found -3"),
        ("pass", {"grade": True, "grade_id": "test_a_b", "points": "5"}, "points must be"),
        ("pass", {"grade": True, "grade_id": "test_a_b"}, "points must be .* found None"),
    ],
)
def test_a_broken_source_notebook_is_refused_by_name(tmp_path, source, nbgrader, says):
    with pytest.raises(ChapterError, match=says):
        chapter.load(chapter_file(tmp_path, source, **nbgrader))


def test_fill_keeps_indentation_and_blank_lines():
    source = "def f():\n    # TODO 1：x\n    ### BEGIN SOLUTION\n    a = 1\n    ### END SOLUTION\n    return a"
    assert chapter.fill(source, {1: "if True:\n\n    a = 2"}) == (
        "def f():\n    # TODO 1：x\n    if True:\n\n        a = 2\n    return a"
    )
    assert chapter.fill(source, {}) == "def f():\n    # TODO 1：x\n    a = 1\n    return a"


def test_leak_check_itself_has_something_to_find(ch):
    """The whole source as its own release: everything hidden must be reported."""
    found = leaks(ch, deepcopy(ch.notebook))
    assert any("solution of" in leak for leak in found) and any("hidden tests of" in leak for leak in found)
    assert any("instructor's cell" in leak for leak in found)
