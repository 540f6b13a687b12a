"""The answer is found whatever became of its cell, and of several the most complete one counts."""

import intake_cases as cases
import pytest
from intake_cases import (
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

ALL = set(TESTS)
HELPER = "def first(numbers, limit):\n    return list(numbers)[:limit]"
WITH_HELPER = answer(RIGHT | {1: "kept = first(numbers, self.limit)"})


def test_plain_answer_is_run_between_imports_and_all_tests():
    rebuilt = built(notebook())
    assert [step.name for step in rebuilt.plan.steps] == ["imports", "answer", *TESTS]
    assert rebuilt.plan.flags == ()
    assert rebuilt.answer == answer()
    assert passed(rebuilt.plan) == ALL


def test_untouched_notebook_runs_the_stub_and_passes_nothing():
    rebuilt = built(notebook(STUB))
    assert rebuilt.completeness == 0 and rebuilt.plan.flags == ()
    assert passed(rebuilt.plan) == set()


def test_metadata_and_ids_are_not_needed():
    rebuilt = built(cases.strip(notebook()))
    assert passed(rebuilt.plan) == ALL
    assert rebuilt.plan.flags == ("answer_by:name",)


def test_colab_keeps_ids_in_metadata():
    made = notebook()
    for one in made["cells"]:
        one["metadata"] = {"id": one.pop("id")}
    assert flags(made) == set()


@pytest.mark.parametrize("above", [True, False])
def test_stub_beside_the_answer_does_not_count(above):
    made = put(notebook(), "box", cell("copy", STUB, grade_id="the_box", solution=True), after=not above)
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    assert set(rebuilt.plan.flags) == {"answer_cell_twice"}


def test_answer_in_a_new_cell_at_the_end():
    made = notebook(STUB)
    made["cells"].append(own(answer()))
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    assert {"answer_by:name", "answer_cell_twice"} == set(rebuilt.plan.flags)


def test_answer_pasted_over_a_test_cell_and_the_imports():
    made = notebook(STUB)
    at(made, "test-keep-public")["source"] = "import math\n\n\n" + answer()
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    assert "test_cells_restored:1" in rebuilt.plan.flags


def test_of_two_answers_the_one_with_fewer_stubs_counts():
    made = put(notebook(), "box", own(answer({1: RIGHT[1]})), after=True)
    assert passed(built(made).plan) == ALL


def test_of_two_complete_answers_the_later_counts():
    wrong = answer(RIGHT | {1: "kept = list(numbers)[-1:]"})
    assert passed(built(put(notebook(wrong), "box", own(answer()), after=True)).plan) == ALL
    assert passed(built(put(notebook(), "box", own(wrong), after=True)).plan) == {"test_total_public"}


def test_a_broken_copy_does_not_replace_an_answer_that_parses():
    broken = answer().replace("return kept", "return kept)")
    for made in (put(notebook(), "box", own(broken), after=True), put(notebook(broken), "box", own(answer()))):
        assert passed(built(made).plan) == ALL


def test_a_broken_answer_counts_more_than_the_stub():
    broken = answer().replace("return kept", "return kept)")
    rebuilt = built(put(notebook(broken), "box", own(STUB), after=True))
    assert rebuilt.answer == broken and passed(rebuilt.plan) == set()


def test_pass_in_place_of_the_stub_is_not_an_answer():
    made = put(notebook(), "box", own(answer({1: "pass", 2: "root = None"})), after=True)
    assert passed(built(made).plan) == ALL


@pytest.mark.parametrize("kind", ["markdown", "raw", "heading", "sql"])
@pytest.mark.parametrize("form", ["{}", "```python\n{}\n```", "My answer:\n\n```py\n{}```\n\nThat is all.", "```\n{}"])
def test_answer_cell_of_another_type(kind, form):
    made = notebook(form.format(answer()))
    at(made, "box")["cell_type"] = kind
    rebuilt = built(made)
    assert passed(rebuilt.plan) == ALL
    assert "answer_retyped" in rebuilt.plan.flags


def test_fences_in_a_code_cell_are_taken_off():
    rebuilt = built(notebook("```python\n" + answer() + "```"))
    assert passed(rebuilt.plan) == ALL
    assert rebuilt.plan.flags == ("answer_fences_removed",)


def test_notes_that_quote_an_answer_do_not_replace_code():
    notes = own("```python\n" + answer() + "```", "markdown")
    made = put(notebook(answer({1: RIGHT[1]})), "box", notes, after=True)
    assert passed(built(made).plan) == {"test_keep_public", "test_keep_hidden"}


def test_deleted_answer_leaves_the_stub():
    rebuilt = built(cases.remove(notebook(), "box"))
    assert rebuilt.answer == STUB and "answer_missing" in rebuilt.plan.flags
    assert passed(rebuilt.plan) == set()


def test_emptied_answer_cell_leaves_the_stub():
    assert built(notebook("\n  \n")).answer == STUB


def test_class_made_by_other_means_still_counts():
    made = put(cases.remove(notebook(), "box"), "fixture", own(answer().replace("class Box", "class Mine")))
    put(made, "fixture", own("Box = Mine", name="alias"))
    assert passed(built(made).plan) == ALL


def test_renamed_class_is_shown_as_the_answer():
    renamed = answer().replace("class Box", "class MyBox")
    assert built(cases.strip(notebook(renamed))).answer == renamed


def test_answer_known_by_its_place_alone():
    odd = "class Crate:\n    limit = 3"
    rebuilt = built(cases.strip(notebook(odd)))
    assert rebuilt.answer == odd and "answer_by:position" in rebuilt.plan.flags


def test_methods_patched_in_own_cells():
    patch = "def keep(self, numbers):\n    return list(numbers)[: self.limit]\n\nBox.keep = keep"
    rebuilt = built(put(notebook(STUB), "box", own(patch), after=True))
    assert passed(rebuilt.plan) == {"test_keep_public", "test_keep_hidden"}
    assert rebuilt.completeness == 2
    # a copy of the stub further down must not undo them
    made = put(put(notebook(STUB), "box", own(patch), after=True), "plot", own(STUB, name="again"))
    assert passed(built(made).plan) == {"test_keep_public", "test_keep_hidden"}


def test_class_that_extends_itself_is_run_after_the_answer():
    body = "    def keep(self, numbers):\n        return list(numbers)[: self.limit]"
    for head in ("class Box(Box):\n", "Base = Box\n\n\nclass Box(Base):\n"):
        rebuilt = built(put(notebook(answer({2: RIGHT[2]})), "box", own(head + body), after=True))
        assert passed(rebuilt.plan) == ALL and rebuilt.completeness == 5


def test_magics_do_not_hide_the_answer():
    made = put(notebook("!pip install -q torch\n%matplotlib inline\nfiles = !ls\n" + answer()), "box", own(STUB))
    assert built(made).answer.startswith("!pip install")


def test_timed_answer_keeps_its_magic_and_is_not_cut():
    timed = "%%time\n" + answer() + "\nprint(Box().keep([1]))"
    steps = {step.name: step.source for step in built(notebook(timed)).plan.steps}
    assert steps["answer"] == timed


def test_stub_and_answer_in_one_cell():
    rebuilt = built(notebook(STUB + "\n\n" + answer()))
    assert passed(rebuilt.plan) == ALL and rebuilt.completeness == 5
    assert built(notebook(answer() + "\n\n" + STUB)).completeness == 1


def test_an_indented_cell_is_python_to_ipython():
    indented = "\n".join("    " + line for line in answer().split("\n"))
    assert built(notebook(indented)).completeness == 5


@pytest.mark.parametrize("nothing", ["raise NotImplementedError", "...", "kept = None", "# later", "return None"])
def test_what_counts_as_not_written(nothing):
    assert built(notebook(answer({1: nothing, 2: RIGHT[2]}))).completeness == 3
