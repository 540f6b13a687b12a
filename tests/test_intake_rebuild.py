"""The learner's own code keeps its place in the instructor's structure; the tests are always the instructor's."""

import copy
import json

import intake_cases as cases
import pytest
from intake_cases import (
    CHAPTER,
    RELEASE,
    RIGHT,
    STUB,
    TESTS,
    answer,
    at,
    built,
    cell,
    flags,
    notebook,
    own,
    passed,
    put,
)

from grading.intake.reading import Unreadable
from grading.intake.rebuild import rebuild

ALL = set(TESTS)
HELPER = "def first(numbers, limit):\n    return list(numbers)[:limit]"
WITH_HELPER = answer(RIGHT | {1: "kept = first(numbers, self.limit)"})


def names(made: dict) -> list[str]:
    return [step.name for step in built(made).plan.steps]


# --- code around the answer ------------------------------------------------------------------------------------------


def test_helper_in_a_cell_above_and_in_the_same_cell():
    assert passed(built(put(notebook(WITH_HELPER), "box", own(HELPER))).plan) == ALL
    together = built(notebook(HELPER + "\n\n\n" + WITH_HELPER)).plan
    assert passed(together) == ALL
    assert [step.name for step in together.steps] == ["imports", "answer", *TESTS]


@pytest.mark.parametrize("edited", ["setup", "imports", "fixture", "plot", "test-keep-public", "test-keep-hidden"])
def test_helper_put_into_an_instructors_cell(edited):
    made = notebook(WITH_HELPER)
    at(made, edited)["source"] += "\n" + HELPER + "\nprint('side effect')\nBox().keep([1])"
    if edited == "test-keep-hidden":  # after the first test: in its place it comes too late for that one
        assert passed(built(made).plan) == {"test_keep_hidden", "test_total_public"}
    elif edited == "plot":
        assert passed(built(made).plan) == {"test_total_public"}
    else:
        assert passed(built(made).plan) == ALL
    (step,) = [step for step in built(made).plan.steps if step.name.startswith("own cell")]
    assert "side effect" not in step.source and "Box()" not in step.source
    kind = "test_cell_edited" if edited.startswith("test") else "instructor_cell_edited"
    name = edited.replace("-", "_")
    assert f"{kind}:{name}" in flags(made)


def test_import_added_to_the_imports_cell():
    made = notebook(answer(RIGHT | {1: "kept = list(it.islice(numbers, self.limit))"}))
    at(made, "imports")["source"] = "import nowhere_at_all\nimport math\nimport itertools as it"
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL, "an import that fails must not take the next one with it"
    assert set(rebuilt.plan.flags) == {"instructor_cell_edited:imports"}


def test_edited_cell_that_is_no_python_is_named():
    made = notebook()
    at(made, "setup")["source"] += "\nthis is no python"
    assert "cell_not_python:2" in flags(made)
    assert passed(built(made).plan) == ALL


def test_unchanged_instructors_cells_are_not_run():
    sources = "\n".join(step.source for step in built(notebook()).plan.steps)
    assert "pip install" not in sources and "bars" not in sources and "explain" not in sources


def test_answer_may_use_what_the_setup_cell_imports():
    made = notebook(answer(RIGHT | {1: "kept = list(numbers)[: self.limit] if patterns and os else []"}))
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    (step,) = [step for step in rebuilt.plan.steps if step.name == "the chapter's definitions"]
    assert step.source == "import os\nimport re as patterns"


def test_helper_of_an_earlier_copy_is_kept():
    made = put(notebook(WITH_HELPER), "box", own(HELPER + "\n\n\n" + answer({}), name="first"))
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    assert sum("class Box" in step.source for step in rebuilt.plan.steps) == 1


def test_a_demonstration_in_the_answer_cell_is_run_apart():
    made = notebook("print('look')\n" + answer() + "\n\nprint(Box().keep([1, 2]))\nraise SystemExit")
    steps = [(step.name, step.source) for step in built(made).plan.steps if not step.grade_id]
    assert [name for name, _ in steps] == ["imports", "own cell 5", "answer", "own cell 5"]
    assert steps[2][1].strip() == answer().strip()
    assert "".join(text + "\n" for _, text in steps[1:]).strip() == at(made, "box")["source"].strip()


def test_import_of_a_module_that_is_missing_here_costs_nothing_else():
    top = "import nowhere_at_all as na\nimport itertools\n"
    made = notebook(top + answer(RIGHT | {1: "kept = list(itertools.islice(numbers, self.limit))"}))
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    assert rebuilt.plan.flags == ("module_missing:nowhere_at_all",)
    made = put(notebook(WITH_HELPER), "box", own("import nowhere_at_all\n" + HELPER))
    assert passed(built(made).plan) == ALL


def test_own_cells_keep_their_place_relative_to_the_tests():
    spoil, mend = own("Box.keep = None", name="spoil"), own("Box.keep = right", name="mend")
    made = put(notebook(), "box", own("right = Box.keep", name="keep"), after=True)
    put(made, "test-keep-public", spoil, after=True)
    put(made, "test-keep-hidden", mend, after=True)
    expected = ["imports", "answer", "own cell 6", TESTS[0], "own cell 9", TESTS[1], "own cell 11", TESTS[2]]
    assert names(made) == expected
    assert passed(built(made).plan) == {TESTS[0], TESTS[2]}


def test_own_cells_before_the_answer_run_before_it():
    made = put(notebook(), "title", own("early = 1"))
    assert names(made)[:3] == ["imports", "own cell 1", "answer"]


def test_own_cells_after_tests_that_were_moved_to_the_top():
    made = notebook(STUB)
    tests = [one for one in made["cells"] if one["id"].startswith("test-")]
    made["cells"] = tests + [one for one in made["cells"] if one not in tests]
    put(made, "box", own("def keep(self, n):\n    return list(n)[: self.limit]\nBox.keep = keep"), after=True)
    assert passed(built(made).plan) == {TESTS[0], TESTS[1]}


def test_markdown_raw_and_empty_cells_of_the_learner_are_left_out():
    cells = [own("x = 1", "markdown"), own("x = 1", "raw"), own("  \n"), own("```\nx = 1\n```", "markdown")]
    assert names(put(notebook(), "box", *cells)) == ["imports", "answer", *TESTS]


# --- tests come from the instructor ----------------------------------------------------------------------------------


def test_edited_tests_are_named_and_not_run():
    made = notebook(answer({}))
    for name in ("test-keep-public", "test-total-public"):
        at(made, name)["source"] = "print('passed')"
    assert flags(made) == {"test_cell_edited:test_keep_public", "test_cell_edited:test_total_public"}
    assert names(made) == ["imports", "answer", *TESTS]


def test_edited_test_is_recognised_by_its_text_alone():
    made = cases.strip(notebook())
    at_test = next(one for one in made["cells"] if one["source"] == cases.KEEP)
    at_test["source"] = cases.KEEP.replace("[1, 2], got", "got, got")
    assert "test_cell_edited:test_keep_public" in flags(made)
    assert names(made) == ["imports", "answer", *TESTS]


def test_deleted_moved_and_copied_tests_are_run_once_in_the_instructors_order():
    gone = cases.remove(notebook(), "test-keep-hidden", "test-total-public")
    moved = notebook()
    moved["cells"].reverse()
    twice = put(notebook(), "box", copy.deepcopy(at(notebook(), "test-keep-public")))
    for made, expected in ((gone, {"test_cells_restored:2"}), (moved, set()), (twice, {"test_cell_twice"})):
        assert names(made) == ["imports", "answer", *TESTS]
        assert flags(made) == expected


def test_copy_of_a_test_that_was_emptied_for_own_code_is_own_code():
    copied = copy.deepcopy(at(notebook(), "test-keep-public"))
    copied["source"], copied["id"] = HELPER, "mine"
    assert passed(built(put(notebook(WITH_HELPER), "box", copied)).plan) == ALL


def test_test_merged_into_the_answer_cell():
    made = cases.remove(notebook(answer() + "\n\n" + cases.KEEP), "test-keep-public")
    assert flags(made) == {"test_in_answer", "test_cells_restored:1"}
    assert passed(built(made).plan) == ALL


def test_foreign_graded_cell_is_own_code():
    foreign = cell("elsewhere", "assert True", grade_id="cell-from-elsewhere", grade=True, points=50)
    made = notebook()
    made["cells"].append(foreign)
    assert names(made) == ["imports", "answer", *TESTS, "own cell 12"]


def test_skip_tags_and_odd_schema_never_matter():
    made = notebook()
    for one in made["cells"]:
        one["metadata"]["tags"] = ["skip-execution", "raises-exception"]
        if "nbgrader" in one["metadata"]:
            one["metadata"]["nbgrader"]["schema_version"] = "four"
    made["metadata"] = {"kernelspec": {"name": "julia-1.9"}}
    assert built(made).plan == built(notebook()).plan


def test_hidden_text_and_solutions_never_enter_the_plan():
    text = json.dumps(built(notebook(STUB)).plan.to_json())
    assert "HIDDEN" not in text and "sqrt" not in text and "same(" not in text


# --- something else, and too much ------------------------------------------------------------------------------------


def test_notebook_of_something_else_is_unreadable():
    other = {"cells": [own("import math"), own("print(1)"), cell("imports", "import pandas", grade_id="imports")]}
    with pytest.raises(Unreadable, match="something else"):
        built(other)
    sister = {"cells": [at(notebook(), "setup"), at(notebook(), "imports"), own("class Crate:\n    pass")]}
    with pytest.raises(Unreadable, match="something else"):
        built(sister)


def test_prose_alone_shows_the_chapter():
    kept = ("title", "step1", "closing", "setup")
    rebuilt = built({"cells": [at(notebook(), name) for name in kept]})
    assert {"answer_missing", "test_cells_restored:3"} <= set(rebuilt.plan.flags)


def test_too_much_code_is_unreadable():
    with pytest.raises(Unreadable, match="too much code"):
        built(put(notebook(), "box", own("x = 1\n" * 400_000)))


@pytest.mark.parametrize("hostile", ["-" * 100_000 + "1", "(" * 5_000, "x" + ".a" * 90_000, "if 1:\n" * 300, "\x00"])
def test_hostile_cells_do_not_stop_the_others(hostile):
    made = put(notebook(), "box", own(hostile + "\nBox"))
    assert passed(built(made).plan) == ALL
    at(made, "setup")["source"] += "\n" + hostile
    assert passed(built(made).plan) == ALL


def test_rebuilding_what_was_rebuilt_changes_nothing():
    """nbgrader's own command rebuilds a notebook that was made of a plan."""
    made = put(notebook("import nowhere_at_all\n" + WITH_HELPER + "\nprint(Box().keep([1]))"), "box", own(HELPER))
    at(made, "setup")["source"] += "\nimport itertools"
    plan = built(made).plan
    cells = copy.deepcopy(RELEASE["cells"])
    place, inserted = 4, {}
    for step in plan.steps:
        if step.name == "answer":
            cells[4]["source"], place = step.source, 5
        elif step.grade_id:
            place = next(n for n, one in enumerate(cells) if step.grade_id == one["id"].replace("-", "_")) + 1
        elif step.name.startswith("own cell"):
            inserted.setdefault(place, []).append(own(step.source, name="own"))
    again = {"cells": [one for n, kept in enumerate(cells) for one in (*inserted.get(n, ()), kept)]}
    code = [(step.source, step.grade_id) for step in rebuild(CHAPTER, RELEASE, again).plan.steps]
    assert code == [(step.source, step.grade_id) for step in plan.steps]
