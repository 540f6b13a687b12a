"""Do points mean what they say? The tests of the chapter are tried on many answers, wrong and right.

A wrong answer loses points in its own mechanism and in no other TODO's; a right one, however it is written, loses none.
The answers are in gallery.jsonl (`id`, `todo`, `verdict`, `body`, `why`, and for a common mistake its `misconception`)
and in mutants.py; `equivalent` marks an answer that differs from the rule only where nothing is graded.
"""

import json
from pathlib import Path

import pytest
from answers import CHAPTER, CLASS_CELL, REFERENCE, STUBS, TODOS, judge, points, standing
from mutants import EQUIVALENT, all_mutants

from grading.chapter import fill

SEEDS = (0, 1, 20261129)
GALLERY = [json.loads(line) for line in (Path(__file__).parent / "gallery.jsonl").read_text("utf-8").splitlines()]
WRONG = [entry for entry in GALLERY if entry["verdict"] == "wrong"]
RIGHT = [entry for entry in GALLERY if entry["verdict"] != "wrong"]
MUTANTS = all_mutants()
NON_EQUIVALENT = [mutant for mutant in MUTANTS if not mutant.equivalent]
PUBLIC = {cell.grade_id for cell in CHAPTER.tests if not cell.hidden}
FULL = dict.fromkeys(CHAPTER.mechanisms, "full")
PUBLIC_SHARE_OF_POINTS = 0.4
PUBLIC_SHARE_OF_WRONG_ANSWERS = 0.8


def named(entries):
    return pytest.mark.parametrize("entry", entries, ids=[entry["id"] for entry in entries])


def complaints(outcome: dict) -> dict[str, str]:
    return {grade_id: why for grade_id, why in outcome.items() if why is not None}


def failed(outcome: dict, grade_ids) -> list[str]:
    return [grade_id for grade_id in grade_ids if outcome.get(grade_id) is not None]


def hidden_of(mechanism: str) -> list[str]:
    return [cell.grade_id for cell in CHAPTER.tests if cell.mechanism == mechanism and cell.hidden]


def assert_caught(todo: int, body: str) -> None:
    """The answer loses points where it belongs, nowhere else, and by hidden checks alone for every seed."""
    own, outcome = TODOS[todo], judge({todo: body})
    got = standing(outcome)
    assert got[own] != "full", f"not caught: {got}"
    assert {got[mechanism] for mechanism in TODOS.values() if mechanism != own} == {"full"}, f"others lose: {got}"
    assert failed(outcome, hidden_of(own)), "not caught by hidden checks"
    for seed in SEEDS[1:]:
        assert failed(judge({todo: body}, seed=seed, mechanisms=(own,)), hidden_of(own)), f"hidden checks, seed {seed}"


@named(WRONG)
def test_wrong_answer_loses_its_own_points_only(entry, record_property):
    assert_caught(entry["todo"], entry["body"])
    record_property("validity", "wrong")


@pytest.mark.parametrize("mutant", NON_EQUIVALENT, ids=lambda mutant: mutant.id)
def test_mutant_loses_its_own_points_only(mutant, record_property):
    assert_caught(mutant.todo, mutant.body)
    record_property("validity", "mutant")


@named(RIGHT)
def test_right_answer_scores_fully_however_written(entry, record_property):
    todo, body = entry["todo"], entry["body"]
    outcome = judge({todo: body})
    assert standing(outcome) == FULL, complaints(outcome)
    for seed in SEEDS[1:]:
        outcome = judge({todo: body}, seed=seed, mechanisms=(TODOS[todo], "decode"))
        assert complaints(outcome) == {}, f"seed {seed}"
    record_property("validity", "right")


@pytest.mark.parametrize(("todo", "body"), EQUIVALENT, ids=str)
def test_equivalent_mutant_scores_fully(todo, body):
    assert (todo, body) in {(mutant.todo, mutant.body) for mutant in MUTANTS}, "declared, but never made"
    assert standing(judge({todo: body})) == FULL


def test_reference_scores_fully_for_many_seeds():
    # A hidden input that now and then is unfair would show here.
    for seed in range(25):
        outcome = judge({}, seed=seed)
        assert complaints(outcome) == {}, f"seed {seed}"


FAULTS = {
    "missing": STUBS,
    "raising": dict.fromkeys(TODOS, "raise RuntimeError('no idea')"),
    "exiting": dict.fromkeys(TODOS, "raise SystemExit"),
    "without a result": dict.fromkeys(TODOS, "pass"),
}


@pytest.mark.parametrize("todo", TODOS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_todo_costs_its_own_mechanism_and_decode(todo, fault):
    expected = FULL | {TODOS[todo]: "zero", "decode": "zero"}
    assert standing(judge({todo: FAULTS[fault][todo]})) == expected


@pytest.mark.parametrize("todo", TODOS)
def test_looping_todo_costs_its_own_mechanism_and_decode(todo):
    loops, own = {todo: "while True:\n    pass"}, TODOS[todo]
    others = tuple(mechanism for mechanism in TODOS.values() if mechanism != own)
    assert set(standing(judge(loops, mechanisms=others)).values()) == {"full"}
    hit = judge(loops, mechanisms=(own, "decode"), seconds=0.3)  # short: each cell runs into it
    assert all(why.startswith("TooSlow") for why in hit.values()), hit


def test_untouched_notebook_scores_nothing():
    for hidden in (True, False):
        outcome = judge(STUBS, hidden=hidden)
        assert [grade_id for grade_id, why in outcome.items() if why is None] == []


@pytest.mark.parametrize("cell", CHAPTER.tests, ids=lambda cell: cell.grade_id)
def test_graded_cell_needs_its_own_todo(cell):
    needed = [todo for todo, mechanism in TODOS.items() if cell.mechanism in (mechanism, "decode")]
    for todo in needed:
        # Also as learners see it: no cell turns green while its TODO is open.
        for hidden in (True, False):
            outcome = judge({todo: STUBS[todo]}, hidden=hidden)
            assert outcome[cell.grade_id] is not None and "TODO" in outcome[cell.grade_id], outcome[cell.grade_id]


def test_public_checks_alone_catch_most_wrong_answers(record_property):
    answers = [(entry["todo"], entry["body"]) for entry in WRONG] + [(m.todo, m.body) for m in NON_EQUIVALENT]
    caught = 0
    for todo, body in answers:
        caught += bool(failed(judge({todo: body}, hidden=False, mechanisms=(TODOS[todo],)), PUBLIC))
    assert caught >= PUBLIC_SHARE_OF_WRONG_ANSWERS * len(answers), f"{caught} of {len(answers)}"
    record_property("caught by public checks", f"{caught} of {len(answers)}")


# Where the contract says "the instance's own", a number of the author's choice must not do: {name: (todo, body)}.
NUMBERS = {n: (1, f"proposed = list(draft_tokens)[:{n}]") for n in range(1, 9)}
NUMBERS |= {
    f"capped at {n}": (1, f"proposed = list(draft_tokens)[: min({n}, self.max_proposal_len)]") for n in (3, 4, 5)
}
NUMBERS |= {
    f"accept, {r}": (2, f"accepted = target_prob >= draft_prob * {r}") for r in (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0)
}
NUMBERS |= {
    f"verify, {r}": (3, f"accepted = target_prob > 0 if draft_prob <= 0 else target_prob >= draft_prob * {r}")
    for r in (0.1, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.5)
}
NUMBERS |= {f"verify, p alone, {p}": (3, f"accepted = target_prob >= {p}") for p in (0.15, 0.2, 0.25, 0.5, 0.8)}
NUMBERS |= {
    f"verify, at most {n}": (3, f"accepted = i < {n} and self._accept_token(draft_prob, target_prob)") for n in (3, 4)
}


@pytest.mark.parametrize("name", NUMBERS, ids=str)
def test_no_number_of_one_s_own_passes_the_public_checks(name):
    todo, body = NUMBERS[name]
    outcome = judge({todo: body}, hidden=False)
    assert failed(outcome, [cell.grade_id for cell in CHAPTER.tests if cell.mechanism == TODOS[todo]])


@pytest.mark.parametrize("name", ["accept, 0.6", "verify, 0.6", 3])
def test_nor_does_the_number_of_the_worked_example_pass_that_of_the_whole_class(name):
    todo, body = NUMBERS[name]
    assert failed(judge({todo: body}, hidden=False, mechanisms=("decode",)), ["test_decode_public"])


def test_public_cells_carry_their_share_of_each_mechanism():
    for mechanism in CHAPTER.mechanisms:
        cells = [cell for cell in CHAPTER.tests if cell.mechanism == mechanism]
        public = sum(cell.points for cell in cells if not cell.hidden)
        assert 0 < public <= PUBLIC_SHARE_OF_POINTS * CHAPTER.points(mechanism)
        assert all(cell.points > 0 for cell in cells)


# An answer that knows each input a learner can see, and nothing else.
MEMORISED = {
    1: """tokens = [10, 20, 30, 31, 7, 39]
seen = {(budget, tuple(tokens[:count])): tokens[:budget] for budget in (1, 2, 3, 4, 6) for count in (4, 6)}
seen |= {(4, (31, 10)): [31, 10], (1, (5, 6)): [5], (3, (7, 0, 7, 7)): [7, 0, 7], (2, (4, 5, 6)): [4, 5]}
seen |= {(3, (9, 8)): [9, 8], (2, (1, 2)): [1, 2]}
proposed = list(seen.get((self.max_proposal_len, tuple(draft_tokens)), []))""",
    2: """seen = {(0.5, 0.5, 0.8), (0.5, 0.5, 0.3), (0.5, 0.5, 0.25), (0.5, 0.1, 0.2), (0.25, 0.8, 0.3)}
seen |= {(1.0, 0.5, 0.5), (0.75, 0.5, 0.5), (0.25, 0.5, 0.5), (0.5, 0.5, 0.5), (0.6, 0.5, 0.8), (0.6, 0.5, 0.9)}
seen |= {(0.9, 0.5, 0.8)}
accepted = (self.min_accept_ratio, round(draft_prob, 4), round(target_prob, 4)) in seen""",
    3: """seen = {(0.6, 0.5, 0.8), (0.6, 0.5, 0.9), (0.6, 0.25, 0.5), (0.6, 0.0, 0.2), (0.5, 0.125, 0.125)}
seen |= {(0.25, 0.5, 0.8), (0.25, 0.5, 0.2), (0.9, 0.5, 0.8), (0.5, 0.5, 0.5), (0.75, 0.5, 0.5)}
accepted = (self.min_accept_ratio, round(draft_prob, 4), round(target_prob, 4)) in seen""",
}


def test_memorised_public_inputs_earn_no_hidden_point():
    seen = judge(MEMORISED, hidden=False)
    assert complaints(seen) == {}
    for seed in SEEDS:
        outcome = judge(MEMORISED, seed=seed)
        assert {grade_id for grade_id, why in outcome.items() if why is None} == PUBLIC
    assert sum(points(outcome).values()) <= PUBLIC_SHARE_OF_POINTS * CHAPTER.max_score


def test_gallery_is_well_formed():
    required, optional = {"id", "todo", "verdict", "body", "why"}, {"misconception"}
    for entry in GALLERY:
        assert required <= set(entry) <= required | optional, entry["id"]
        assert entry["id"].startswith(f"todo{entry['todo']}_") and entry["verdict"] in ("wrong", "right", "equivalent")
        assert ("misconception" in entry) == (entry["verdict"] == "wrong"), entry["id"]
        compile(fill(CLASS_CELL.source, {entry["todo"]: entry["body"]}), entry["id"], "exec")
    assert len({entry["id"] for entry in GALLERY}) == len(GALLERY)
    bodies = [(entry["todo"], entry["body"]) for entry in GALLERY] + list(REFERENCE.items())
    assert len(set(bodies)) == len(bodies)
    kinds = {(entry["todo"], entry["verdict"]) for entry in GALLERY}
    assert kinds == {(todo, verdict) for todo in TODOS for verdict in ("wrong", "right", "equivalent")}
