"""The class report: its counts are right, groups are worth a look, nothing of a submission gets loose in it."""

import warnings
from dataclasses import replace

import pytest
from answers import CHAPTER, CLASS_CELL, REFERENCE
from test_feedback import HOSTILE, assert_safe, explained, result

from grading.chapter import fill
from grading.report.class_report import UNUSUAL, class_report, reasons_to_look, similar_answers
from grading.result import MISSING, UNREADABLE, Result

LONG = """proposed = []
{position} = 0
for {token} in draft_tokens:  # {comment}
    if {position} < self.max_proposal_len:
        proposed.append({token})
        {position} = {position} + 1
    elif {position} == self.max_proposal_len:
        {position} = {position} + 2
    elif 100 < {position} < 200:
        {position} = {position} - 1
    else:
        break"""
LOOP = (
    "proposed = []\nfor t in draft_tokens:\n    if len(proposed) < self.max_proposal_len:\n        proposed.append(t)"
)


def answer(body: str, todo: int = 1) -> str:
    return fill(CLASS_CELL.source, {todo: body})


def named(student_id: str, **more) -> Result:
    return result(student_id=student_id, **more)


def report(results, sandbox="bwrap", seed=4711):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return assert_safe(class_report(results, CHAPTER, sandbox=sandbox, seed=seed))


def small_class() -> list[Result]:
    strict = {"test_accept_public": explained(), "test_accept_boundary": explained()}
    bare = {"checks": (), "max_score": 100.0}
    return [
        named("ann"),
        replace(result(strict, misconceptions=("accept_strict_boundary",)), student_id="bob"),
        replace(result(strict, misconceptions=("accept_strict_boundary",)), student_id="cho"),
        replace(
            result({"test_propose_public": {"fault": "timeout"}}), student_id="dan", flags=("several_notebooks:2",)
        ),
        Result("eve", UNREADABLE, reason="an empty file", **bare),
        Result("fay", MISSING, **bare),
    ]


def test_counts_and_names():
    text = report(small_class()).text
    for part in ("6人", "4已评分", "1读不出来", "1没有交", "1人满分", "90.0平均分"):
        assert part in text, part
    assert "恰在阈值上时拒绝了accept_strict_boundary接受规则 accept2bob、cho" in text
    assert "17.08.0 / 25" in text and "2 / 4（50%）" in text  # accept: 25, 9, 9, 25
    assert "接受规则 accept" in text and "没有用沙箱" not in text and "4711" in text
    for name in ("ann", "bob", "cho", "dan", "eve", "fay"):
        assert name in text


def test_pictures_are_inside_the_page():
    source = class_report(small_class(), CHAPTER, sandbox="bwrap", seed=0)
    assert source.count("data:image/png;base64,") == 3 and source.count("<figcaption>") == 3


def test_without_a_sandbox_the_page_says_so():
    assert "这次批改没有用沙箱" in report(small_class(), sandbox="none").text


def test_who_needs_a_human_eye():
    people = {one.student_id: reasons_to_look(one) for one in small_class()}
    assert [name for name, reasons in people.items() if reasons] == ["dan", "eve"]
    assert "timeout × 1" in people["dan"][0] and "several_notebooks" in people["dan"][1]
    assert "an empty file" in people["eve"][0]
    assert reasons_to_look(result(flags=("platform_call", "no_sandbox"))) == []
    assert reasons_to_look(result(flags=("never_seen_before:x",)))  # what nobody has judged is worth a look
    for flag in ("test_cell_edited:test_accept_public", "output_dropped", "cell_timeout:cell 3"):
        assert reasons_to_look(result(flags=(flag,)))


def test_near_identical_answers_are_found_under_other_names_and_layout():
    first = answer(LONG.format(position="position", token="token", comment="mine"))
    second = answer(LONG.format(position="n", token="x", comment="not his"))
    others = answer(LONG.format(position="n", token="x", comment="") .replace("+ 2", "+ 3"))  # fmt: skip
    class_ = [named("ann", answer=first), named("bob", answer=second), named("cho", answer=others)]
    assert similar_answers(class_, CHAPTER) == [(["propose"], ["ann", "bob"])]
    page = report(class_)
    assert "不是结论" in page.text and page.text.count("ann、bob") == 1


def test_common_and_reference_answers_are_not_listed():
    same = [answer(LOOP), answer(REFERENCE[1]), answer("proposed = list(draft_tokens[: self.max_proposal_len])")]
    same.append(answer("accepted = target_prob > draft_prob * self.min_accept_ratio", todo=2))
    for source in same:
        assert similar_answers([named("ann", answer=source), named("bob", answer=source)], CHAPTER) == []
    assert UNUSUAL > 0


def test_a_group_that_shares_two_functions_stands_once():
    source = fill(CLASS_CELL.source, {1: LONG.format(position="a", token="b", comment=""), 3: (
        "q = float(draft_probs[i][token_id])\np = float(target_probs[i][token_id])\nverdict = None\n"
        "if q == draft_prob and p == target_prob:\n    verdict = self._accept_token(q, p)\nelse:\n"
        "    verdict = self._accept_token(draft_prob, target_prob)\naccepted = True if verdict else False"
    )})  # fmt: skip
    assert similar_answers([named("ann", answer=source), named("bob", answer=source)], CHAPTER) == [
        (["propose", "verify"], ["ann", "bob"])
    ]


@pytest.mark.parametrize(
    "source", ["", "class A(", "(" * 5_000, "-" * 19_000 + "1", "x = '\ud800'", "\x00", "def f(): 0"]
)
def test_answers_that_cannot_be_compared_are_passed_over(source):
    assert similar_answers([named("ann", answer=source), named("bob", answer=source)], CHAPTER) == []


def test_links_lead_to_the_feedback_and_nowhere_else():
    page = report([named("ann"), named("王小明"), named("../x"), named('a"b')])
    assert page.links and all(link.startswith("feedback/") and link.endswith(".html") for link in page.links)
    assert all("/" not in link.removeprefix("feedback/") and '"' not in link for link in page.links)
    assert "feedback/ann.html" in page.links and "feedback/%E7%8E%8B%E5%B0%8F%E6%98%8E.html" in page.links


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_submissions_hold_the_page_stays_safe(bad):
    common = {"flags": (bad, f"{bad}:{bad}"), "file": bad, "answer": bad, "student_id": bad}
    one = result({"test_accept_public": {"fault": bad}}, misconceptions=(bad, "accept_random"), **common)
    report([one, replace(one, status=UNREADABLE, reason=bad), replace(one, status=bad)], sandbox=bad, seed=bad)


@pytest.mark.parametrize("few", [[], small_class()[4:], small_class()[:1]], ids=["nobody", "none graded", "one"])
def test_small_classes_have_a_report_too(few):
    assert "全班报告" in report(few).text


def test_zero_for_all_has_a_report_too():
    zero = {check.grade_id: {"error": "NotImplementedError"} for check in result().checks}
    assert "0.0平均分" in report([replace(result(zero), student_id=name) for name in ("ann", "bob")]).text
