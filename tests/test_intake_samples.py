"""The sample class from files to points: collected, read, rebuilt, and run in this process: its code is trusted."""

import builtins
import json
import random

import pytest
import torch
from answers import CHAPTER, _compiled, _failure, standing
from intake_cases import got

from grading.chapter import ROOT
from grading.intake.choose import choose
from grading.intake.reading import Unreadable
from samples import make_class

PATH = ROOT / "release" / CHAPTER.name / f"{CHAPTER.name}.ipynb"
RELEASE = json.loads(PATH.read_text("utf-8"))
EXPECTED = make_class.expected(with_roster=True)


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    make_class.make(PATH, folder / "inbox")
    (folder / "roster.csv").write_text(make_class.roster(), "utf-8")
    return got(folder / "inbox", folder / "roster.csv")


def judged(plan, seconds: float) -> dict[str, str | None]:
    """Outcome by test cell, None for a pass; the tests see fixtures that the learner's code does not."""
    namespace, fixtures, out = {"__name__": "__main__", "__builtins__": builtins}, {}, {}
    for cell in CHAPTER.of("import", "fixture"):
        exec(cell.source, fixtures)
    random.seed(0)
    torch.manual_seed(0)
    for step in plan.steps:
        if step.grade_id:
            cell = next(cell for cell in CHAPTER.tests if cell.grade_id == step.grade_id)
            out[step.grade_id] = _failure(_compiled(cell, True), fixtures | namespace, seconds)
        else:
            _failure(step.source, namespace, seconds)
    return out


def test_everyone_on_the_roster_has_a_row(handed):
    assert set(handed) == set(EXPECTED)
    assert {name for name, one in handed.items() if one.missing} == {make_class.TABLE["absent"]["student"]}


@pytest.mark.parametrize("student", [name for name, row in EXPECTED.items() if row["status"] == "graded"])
def test_the_rebuilt_notebook_earns_what_the_table_says(handed, student):
    chosen = choose(CHAPTER, RELEASE, handed[student])
    outcome = judged(chosen.rebuilt.plan, 0.3 if student == "08_loops_forever" else 5.0)
    assert standing(outcome) == {name: EXPECTED[student][name] for name in CHAPTER.mechanisms}, outcome


@pytest.mark.parametrize("student", [name for name, row in EXPECTED.items() if row["status"] == "unreadable"])
def test_what_cannot_be_read_has_a_reason(handed, student):
    with pytest.raises(Unreadable, match="empty file|sign-in page"):
        choose(CHAPTER, RELEASE, handed[student])


def test_flags_of_the_class(handed):
    flags = {}
    for student, row in EXPECTED.items():
        if row["status"] == "graded":
            flags[student] = [flag.split(":")[0] for flag in choose(CHAPTER, RELEASE, handed[student]).flags]
    odd = {student: set(found) for student, found in flags.items() if found}
    assert odd == {
        "10_copied_cell": {"answer_cell_twice"},
        "17_two_versions": {"several_notebooks"},
        "19_edited_tests": {"test_cell_edited"},
    }
