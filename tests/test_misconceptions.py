"""Known mistakes are recognised by what an answer does: each from its own bodies, none from right or unknown ones."""

import json
import os
import random
import re
from functools import cache
from pathlib import Path

import pytest
from answers import CHAPTER, CLASS_CELL, STUBS, TODOS

from grading.chapter import fill
from grading.report import misconceptions
from grading.report.misconceptions import known, packed, recognise, unpack
from grading.result import CheckResult

KNOWN = known(CHAPTER.name)
GALLERY = [json.loads(line) for line in (Path(__file__).parent / "gallery.jsonl").read_text("utf-8").splitlines()]
SEED = 20261129  # not the one that signatures are computed with


def check(cell, error: BaseException | None, **more) -> CheckResult:
    kind, message = ("", "") if error is None else (type(error).__name__, str(error))
    score = cell.points if error is None else 0.0
    return CheckResult(cell.grade_id, cell.mechanism, cell.hidden, cell.points, score, message, kind, **more)


@cache
def run(todo: int, body: str, mechanisms: tuple[str, ...] = ()) -> tuple[CheckResult, ...]:
    """What grading an answer with one TODO replaced yields, by plain execution."""
    mechanisms = mechanisms or (TODOS[todo],)
    start = {"__name__": "__main__", "print": lambda *values: None}
    for cell in CHAPTER.of("import", "fixture"):
        exec(cell.source, start)
    exec(fill(CLASS_CELL.source, {todo: body}), start)
    out, before = [], os.environ.get("GRADING_SEED")
    os.environ["GRADING_SEED"] = str(SEED)
    random.seed(SEED)
    for cell in CHAPTER.tests:
        error = None
        if cell.mechanism in mechanisms:
            try:
                exec(compile(cell.source, cell.grade_id, "exec"), dict(start))
            except Exception as raised:
                error = raised
        out.append(check(cell, error))
    if before is None:
        del os.environ["GRADING_SEED"]
    else:
        os.environ["GRADING_SEED"] = before
    return tuple(out)


def keys(todo: int, body: str) -> tuple[str, ...]:
    return recognise(CHAPTER, run(todo, body))


def test_data_is_well_formed():
    assert len({(entry.todo, entry.name) for entry in KNOWN.values()}) == len(KNOWN), "a name twice"
    for key, entry in KNOWN.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", key) and key.startswith(entry.mechanism + "_")
        assert TODOS[entry.todo] == entry.mechanism
        assert bool(entry.bodies) != bool(entry.shown_by), f"{key}: bodies, or what shows it"
        assert re.search("[一-鿿]", entry.name) and len(entry.name) <= 20
        assert 20 <= len(entry.hint) <= 160, key
        assert re.search(r"Step \d|骨架|签名|token", entry.hint), f"{key}: what to reread"
        for body in entry.bodies:
            assert body not in entry.hint
            compile(fill(CLASS_CELL.source, {entry.todo: body}), key, "exec")
    bodies = [(entry.todo, body) for entry in KNOWN.values() for body in entry.bodies]
    assert len(set(bodies)) == len(bodies)


@pytest.mark.parametrize("entry", [e for e in KNOWN.values() if not e.varies], ids=lambda entry: entry.key)
def test_recognised_from_its_own_bodies_and_as_nothing_else(entry):
    for body in entry.bodies:
        assert keys(entry.todo, body) == (entry.key,), body


@pytest.mark.parametrize("entry", [e for e in KNOWN.values() if e.varies], ids=lambda entry: entry.key)
def test_what_varies_with_the_seed_is_recognised_or_not_but_in_its_mechanism(entry):
    found = [keys(entry.todo, body) for body in entry.bodies]
    assert all(len(one) <= 1 for one in found)
    assert all(KNOWN[key].mechanism == entry.mechanism for one in found for key in one)


def test_repeats_dropped_is_recognised_whatever_the_seed():
    assert keys(1, "proposed = list(dict.fromkeys(draft_tokens))[: self.max_proposal_len]") == (
        "propose_repeats_dropped",
    )


SAME_KIND = [
    (1, "proposed = list(draft_tokens[-self.max_proposal_len :])", "propose_tail_not_prefix"),
    (1, "proposed = [x for x in draft_tokens]", "propose_too_many"),
    (1, "proposed = [draft_tokens[k] for k in range(self.max_proposal_len)]", "propose_short_draft"),
    (1, "proposed = draft_tokens[0 : self.max_proposal_len]", "propose_not_a_list"),
    (2, "accepted = self.min_accept_ratio * draft_prob < target_prob", "accept_strict_boundary"),
    (2, "accepted = not target_prob <= draft_prob * self.min_accept_ratio", "accept_strict_boundary"),
    (2, "accepted = int(target_prob >= draft_prob * self.min_accept_ratio)", "accept_not_a_bool"),
    (2, "accepted = 1 > 0", "accept_below_threshold"),
    (3, "accepted = self._accept_token(draft_prob=target_prob, target_prob=draft_prob)", "verify_wrong_arguments"),
    (3, "accepted = not not token_id or True", "verify_never_rejects"),
    (3, "accepted = self._accept_token(draft_prob, target_prob)\nif not accepted:\n"
        "    accepted_tokens.append(token_id)\n    rejected_at = i\n    break", "verify_keeps_rejected"),
]  # fmt: skip


@pytest.mark.parametrize(("todo", "body", "key"), SAME_KIND)
def test_another_body_of_the_same_kind_gives_the_same_key(todo, body, key):
    assert all(body not in entry.bodies for entry in KNOWN.values())
    assert keys(todo, body) == (key,)


UNKNOWN = [
    (1, "proposed = list(draft_tokens)[: self.max_proposal_len]\nproposed[:2] = proposed[1::-1]"),
    (1, "raise OSError('no idea')"),
    (2, "accepted = target_prob >= draft_prob * 0.6"),
    (3, "accepted = i % 2 == 1 or self._accept_token(draft_prob, target_prob)"),
    (3, "accepted = i < 3 and self._accept_token(draft_prob, target_prob)"),
]


@pytest.mark.parametrize(("todo", "body"), UNKNOWN)
def test_an_unknown_mistake_gives_none(todo, body):
    checks = run(todo, body)
    assert not all(one.passed for one in checks)
    assert recognise(CHAPTER, checks) == ()


@pytest.mark.parametrize("entry", [e for e in GALLERY if e["verdict"] == "right"][::4], ids=lambda entry: entry["id"])
def test_right_answers_show_none(entry):
    assert recognise(CHAPTER, run(entry["todo"], entry["body"], CHAPTER.mechanisms)) == ()


def test_most_wrong_answers_of_the_gallery_are_named_and_in_their_own_mechanism():
    wrong = [entry for entry in GALLERY if entry["verdict"] == "wrong"]
    named = 0
    for entry in wrong:
        found = keys(entry["todo"], entry["body"])
        assert {KNOWN[key].todo for key in found} <= {entry["todo"]} and len(found) <= 1, entry["id"]
        named += bool(found)
    assert named >= 0.85 * len(wrong), f"{named} of {len(wrong)}"


def test_open_todos_are_recognised_each_in_its_mechanism():
    checks = [one for todo, stub in STUBS.items() for one in run(todo, stub) if one.mechanism == TODOS[todo]]
    assert recognise(CHAPTER, checks) == ("propose_todo_open", "accept_todo_open", "verify_todo_open")


def test_a_fault_is_recognised_by_its_kind_alone():
    def faulty(kind):
        cells = [cell for cell in CHAPTER.tests if cell.mechanism == "accept"]
        return [check(cell, ValueError(), fault=kind) for cell in cells]

    assert recognise(CHAPTER, faulty("timeout")) == ("accept_never_ends",)
    assert recognise(CHAPTER, faulty("death")) == ()


def test_missing_checks_or_another_complaint_give_none():
    checks = run(2, "accepted = target_prob > draft_prob * self.min_accept_ratio")
    assert recognise(CHAPTER, checks) == ("accept_strict_boundary",)
    assert recognise(CHAPTER, [one for one in checks if one.grade_id != "test_accept_rule"]) == ()
    changed = [CheckResult(**one.__dict__ | {"message": one.message.replace("False", "None")}) for one in checks]
    assert recognise(CHAPTER, changed) == ()
    passed = [CheckResult(**one.__dict__ | {"score": one.points}) for one in checks]
    assert recognise(CHAPTER, passed) == ()


def test_signatures_leave_no_trace_and_serve_another_process(monkeypatch):
    monkeypatch.setattr(misconceptions, "_CACHE", {})
    monkeypatch.setenv("GRADING_SEED", "77")
    random.seed(1)
    state = random.getstate()
    text = packed(CHAPTER)
    assert random.getstate() == state and os.environ["GRADING_SEED"] == "77"
    (computed,) = misconceptions._CACHE.values()
    monkeypatch.setattr(misconceptions, "_CACHE", {})
    unpack(CHAPTER, text)
    monkeypatch.setattr(misconceptions, "_compute", None)  # not called again
    assert misconceptions._signatures(CHAPTER) == computed != {}
    with pytest.raises(ValueError):
        unpack(CHAPTER, "")  # of a process that died


def test_no_two_entries_share_a_signature():
    several = [found for found in misconceptions._signatures(CHAPTER).values() if len(found) > 1]
    assert several == []


def test_a_chapter_without_data_has_no_known_mistakes():
    assert known("no_such_chapter") == {}


THROUGH_A_WORKER = [
    (1, "proposed = list(draft_tokens)[-self.max_proposal_len :]", "propose_tail_not_prefix"),
    (1, "proposed = (token for token in draft_tokens[: self.max_proposal_len])", "propose_not_a_list"),
    (2, "accepted = target_prob > draft_prob * self.min_accept_ratio", "accept_strict_boundary"),
    (2, "accepted = torch.tensor(target_prob >= draft_prob * self.min_accept_ratio)", "accept_not_a_bool"),
    (3, "accepted = self._accept_token(target_prob, draft_prob)", "verify_wrong_arguments"),
    (3, "accepted = self._accept_token(draft_prob)", "verify_wrong_arguments"),
    (3, STUBS[3], "verify_todo_open"),
]


def test_results_that_come_through_a_worker_are_recognised_too():
    from grading.judge.limits import Limits
    from grading.judge.run import Bench, judge
    from grading.judge.sandbox import Sandbox
    from grading.plan import Plan, Step

    cells = {cell.grade_id: cell for cell in CHAPTER.tests}
    sandbox, bench = Sandbox("none").wait(), Bench(CHAPTER)  # our own code: what crosses is the same as in a box
    try:
        for todo, body, key in THROUGH_A_WORKER:
            steps = [Step("imports", cell.source) for cell in CHAPTER.of("import")]
            steps.append(Step("answer", fill(CLASS_CELL.source, {todo: body})))
            steps += [
                Step(cell.grade_id, grade_id=cell.grade_id) for cell in CHAPTER.tests if cell.mechanism == TODOS[todo]
            ]
            checks = []
            for verdict in judge(bench, Plan(tuple(steps)), SEED, sandbox, Limits()).verdicts:
                cell = cells[verdict.grade_id]
                score = cell.points if verdict.passed else 0.0
                checks.append(
                    CheckResult(cell.grade_id, cell.mechanism, cell.hidden, cell.points, score, verdict.message,
                                verdict.error, verdict.call, verdict.fault)
                )  # fmt: skip
            assert recognise(CHAPTER, checks) == (key,), body
    finally:
        sandbox.close()
        os.environ.pop("GRADING_SEED", None)
