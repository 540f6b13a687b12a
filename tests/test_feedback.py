"""A learner's page: right about what was checked, silent about hidden checks, safe whatever a submission holds."""

import ast
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from answers import CHAPTER, CLASS_CELL, REFERENCE, STUBS

from grading.chapter import ROOT, fill
from grading.report.feedback import (
    FAULTS,
    FLAGS,
    MAX_SHOWN,
    WORDS,
    chapter_title,
    clean,
    complaint,
    feedback_html,
    feedback_text,
    file_name,
    message_parts,
    reason_words,
    unreadable_reason,
    write_feedback,
)
from grading.report.misconceptions import known
from grading.result import GRADED, MISSING, UNREADABLE, CheckResult, Result

TITLE = chapter_title(CHAPTER)
MARKER = "H1DDEN-MARKER"
VOID = {"meta", "br", "img"}
TAGS = VOID | {"html", "head", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "ol", "li", "strong", "span"}
TAGS |= {
    "div",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "dl",
    "dt",
    "dd",
    "pre",
    "code",
    "a",
    "figure",
    "figcaption",
}
ATTRIBUTES = {"class", "style", "lang", "charset", "content", "name", "http-equiv", "aria-hidden", "scope", "tabindex"}
ATTRIBUTES |= {"href", "src", "alt"}
EXPLAINED = (
    "\n  调用：MultiTokenDecoderSim(max_proposal_len=3).propose([10, 20])\n  期望：[10]\n  得到：{}\n  重读：Step 4"
)
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</pre></div></style><script>",
    "\x00\x07\x1b[31mred\x7f\x9b",
    "\ud800 \udfff lone",
    "evil\u202egnp.ipynb \u2066iso\u2069 \u200f\ufeff",
    "a" + "\u0301" * 500,
    "&lt;b&gt; &amp; &#60;i&#62;",
    "<!-- <a href='javascript:alert(1)'> -->",
    "\u2028\u2029\r\nnew line",
]


class Page(HTMLParser):
    """Checks nesting, tags and attributes while it reads; `text` is what a reader sees."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.stack, self.text, self.links, self.comments = [], "", [], []
        self.feed(source)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        for name, value in attrs:
            if name == "src":
                assert value.startswith("data:image/png;base64,")
            if name == "href":
                self.links.append(value)
            if name == "style":
                assert re.fullmatch(r"width:\d+\.\d%", value)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if "style" not in self.stack:
            self.text += data

    def handle_comment(self, data):
        self.comments.append(data)


def assert_safe(source: str) -> Page:
    page = Page(source)
    assert page.comments == []
    assert "<script" not in source.lower() and "javascript:" not in "".join(page.links)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", source
    )
    assert "\u0301" * 4 not in source
    source.encode("utf-8")
    assert "default-src 'none'" in source and 'lang="zh-CN"' in source
    assert not re.search(r"url\(|@import|https?:", source)
    return page


def result(failed=(), **more) -> Result:
    """A graded submission; failed: {grade_id: fields of its check}, all other checks passed."""
    checks = []
    for cell in CHAPTER.tests:
        base = CheckResult(cell.grade_id, cell.mechanism, cell.hidden, cell.points, cell.points)
        if cell.grade_id in failed:
            base = replace(base, score=0.0, **failed[cell.grade_id])
        checks.append(base)
    fields = {"file": "ann/35.ipynb", "max_score": CHAPTER.max_score, "seed": 987654321, "status": GRADED} | more
    return Result(fields.pop("student_id", "ann"), fields.pop("status"), tuple(checks), **fields)


def explained(got: str = "[10, 20]") -> dict:
    return {"error": "AssertionError", "message": EXPLAINED.format(got)}


def text_of(one: Result) -> str:
    return assert_safe(feedback_html(one, CHAPTER, TITLE)).text


def test_full_marks():
    text = text_of(result())
    assert "100 / 100 分" in text and "公开检查通过 5 / 5" in text and "全部通过" in text
    assert text.count("✓ 隐藏检查") == 4 and "✗" not in text
    for name in (
        "形成候选 propose：20 / 20",
        "接受规则 accept：25 / 25",
        "顺序验证 verify：35 / 35",
        "一轮汇总 decode：20 / 20",
    ):
        assert name in text


def test_a_failed_public_check_says_what_was_called_expected_and_got():
    text = text_of(result({"test_propose_public": explained()}))
    assert "92 / 100 分" in text and "公开检查通过 4 / 5" in text
    for part in (
        "MultiTokenDecoderSim(max_proposal_len=3).propose([10, 20])",
        "[10]",
        "[10, 20]",
        "Step 4",
        "调用",
        "期望",
    ):
        assert part in text
    assert "✗ 没有通过 · 公开检查 · propose（8 分）" in text


def test_message_parts():
    assert message_parts(EXPLAINED.format("[1]")) == (
        "MultiTokenDecoderSim(max_proposal_len=3).propose([10, 20])", "[10]", "[1]", "Step 4"
    )  # fmt: skip
    assert message_parts(EXPLAINED.format("tensor([[1],\n [2]])"))[2] == "tensor([[1],\n [2]])"
    assert message_parts("  调用：f()\n  期望：1\n  得到：2")[3] == ""  # cut before its end
    assert message_parts("something else") is None and message_parts("") is None


def test_every_public_test_cell_explains_itself_in_the_form_that_is_parsed():
    for cell in CHAPTER.tests:
        assert cell.source.count("assert ") <= cell.source.count("explain("), cell.grade_id


COMPLAINTS = [
    ({"error": "NotImplementedError", "message": "TODO 2：按规则"}, "TODO 2 还没有写"),
    ({"error": "NotImplementedError"}, "有一处 TODO 还没有写"),
    ({"error": "IndexError", "message": "list index out of range", "call": "Sim.propose([1])"}, "下标越过"),
    ({"error": "IndexError", "message": "list index out of range"}, "IndexError: list index out of range"),
    ({"error": "TypeError", "message": "f() takes 1"}, "参数个数"),
    ({"error": "OddError", "message": "odd"}, "OddError: odd"),
    ({"error": "AssertionError", "message": "plain words"}, "plain words"),
    ({"error": "AssertionError"}, "条件没有满足"),
    *[({"fault": kind, "message": "x", "call": "Sim.propose([])"}, said[:12]) for kind, said in FAULTS.items()],
    ({"fault": "novel"}, "novel"),
]


@pytest.mark.parametrize(("fields", "said"), COMPLAINTS)
def test_other_failures_are_explained(fields, said):
    one = result({"test_verify_public": fields})
    assert said in text_of(one)
    assert said in feedback_text(one, CHAPTER) or len(said) > MAX_SHOWN
    if fields.get("call"):
        failed = next(check for check in one.checks if not check.passed)
        assert ("调用", fields["call"]) in complaint(failed, one, CHAPTER)


def test_hidden_checks_show_nothing_but_how_many_passed():
    leak = {
        "message": f"\n  调用：{MARKER}\n  期望：1\n  得到：2\n  重读：{MARKER}",
        "error": "AssertionError",
        "call": MARKER,
    }
    hidden = [cell.grade_id for cell in CHAPTER.tests if cell.hidden]
    faulty = {"message": MARKER, "fault": "timeout", "call": MARKER}
    flags = tuple(f"timeout:{grade_id}" for grade_id in hidden)
    for fields in (leak, faulty):
        one = result(dict.fromkeys(hidden, fields), flags=flags, misconceptions=("accept_public_only",))
        source = feedback_html(one, CHAPTER, TITLE)
        for secret in (MARKER, "987654321", *hidden):
            assert secret not in source and secret not in feedback_text(one, CHAPTER)
        text = text_of(one)
        assert text.count("✗ 隐藏检查：通过 0 / 2") == 3 and "✗ 隐藏检查：通过 0 / 1" in text
        assert "公开的例子都通过了" in text and "只对公开的例子成立" in text
    for cell in CHAPTER.tests:  # no code of hidden checks either
        if cell.hidden:
            lines = [line.strip() for line in cell.source.split("\n") if len(line.strip()) > 25]
            assert not any(line in source for line in lines)


def test_known_mistakes_are_named_with_a_hint_and_without_the_answer():
    failed = {"test_accept_public": explained(), "test_accept_boundary": {"error": "AssertionError"}}
    one = result(failed, misconceptions=("accept_strict_boundary", "no_such_key"))
    text, entry = text_of(one), known(CHAPTER.name)["accept_strict_boundary"]
    assert entry.name in text and entry.hint in text and "看起来是这样" in text
    assert not any(body in text for body in entry.bodies) and "no_such_key" not in text
    assert entry.hint in feedback_text(one, CHAPTER)
    two = replace(one, misconceptions=("accept_strict_boundary", "accept_random"))
    assert "可能是下面几种情形之一" in text_of(two)


def test_flags_and_own_cells_are_explained():
    errors = (("cell 3", "NameError: name 'x' is not defined"), ("cell 7", "timeout: time is up"))
    flags = ("several_notebooks:2", "platform_call", "brand_new:thing", "no_sandbox")
    text = text_of(result(flags=flags, cell_errors=errors))
    assert "按最完整的一份评分" in text and "brand_new" in text and "thing" in text and "no_sandbox" not in text
    assert "cell 3" in text and "没有定义的名字" in text and "运行超过了时限" in text
    broken = text_of(result(cell_errors=(("answer", "SyntaxError: invalid syntax"),)))
    assert broken.index("答案所在的格子") < broken.index("形成候选 propose：")
    assert "后面的代码没有运行" in broken, "the class is there: all checks passed"


PUBLIC = [cell.grade_id for cell in CHAPTER.tests if not cell.hidden]
UNDEFINED = {"error": "NameError", "message": "name 'MultiTokenDecoderSim' is not defined"}
OPEN = {"error": "NotImplementedError"}
KEYS = ("propose_todo_open", "accept_todo_open", "verify_todo_open")


def test_a_syntax_error_is_said_once_with_its_place():
    source = fill(CLASS_CELL.source, {2: "accepted = (target_prob >= draft_prob"})
    at = next(n for n, text in enumerate(source.split("\n"), start=1) if "accepted = (" in text)
    error = ("answer", f"SyntaxError: '(' was never closed (<ipython-input-1-df09f6>, line {at})")
    one = result({cell.grade_id: UNDEFINED for cell in CHAPTER.tests}, cell_errors=(error,), answer=source)
    for text in (text_of(one), feedback_text(one, CHAPTER)):
        assert text.count("SyntaxError") == 1 and "NameError" not in text and "拼错" not in text
        assert text.count("没有运行成功") == 1 and f"第 {at} 行：accepted = (target_prob >= draft_prob" in text
        assert "ipython-input" not in text
    assert "括号、引号与缩进" in text_of(one)
    without = replace(one, cell_errors=(("answer", "timeout: time is up"),))
    assert "运行超过了时限" in text_of(without) and "位置" not in text_of(without)


def test_a_deleted_cell_is_said_to_be_missing_and_not_unwritten():
    failed = {cell.grade_id: OPEN | {"message": "TODO 1：x"} for cell in CHAPTER.tests}
    one = result(failed, flags=("answer_missing",), misconceptions=KEYS, answer=fill(CLASS_CELL.source, STUBS))
    for text in (text_of(one), feedback_text(one, CHAPTER)):
        assert text.count("没有找到定义类的那一格") == 1 and "占位" not in text and "还没有写" not in text
    assert "answer_missing" in WORDS["for_the_instructor"]


STUB_LEFT = {
    "code above it": f"{REFERENCE[1]}\n{STUBS[1]}",
    "code below it": f"{STUBS[1]}\n{REFERENCE[1]}",
    "in the midst": f"size = self.max_proposal_len\n\n{STUBS[1]}\nproposed = list(draft_tokens)[:size]",
}


def open_page(body):
    failed = {name: OPEN | {"message": "TODO 1：x"} for name in ("test_propose_public", "test_decode_public")}
    one = result(failed, misconceptions=KEYS[:1], answer=fill(CLASS_CELL.source, {1: body}))
    return text_of(one), feedback_text(one, CHAPTER)


@pytest.mark.parametrize("body", STUB_LEFT.values(), ids=STUB_LEFT)
def test_code_beside_a_placeholder_that_was_left_in_is_seen(body):
    for text in open_page(body):
        assert "TODO 1 写了，但占位的 raise 还在" in text and "删掉" in text and "还没有写" not in text


@pytest.mark.parametrize("body", [STUBS[1], f"# proposed = draft_tokens\n{STUBS[1]}", "raise NotImplementedError"])
def test_a_placeholder_alone_is_unwritten(body):
    for text in open_page(body):
        assert "TODO 1 还没有写" in text and "写了，但" not in text


# --- all that grading may note has a wording --------------------------------------------------------------------------

PHRASE = re.compile(r"[A-Za-z][a-z']* [A-Za-z]|^encrypted$")


def written(node: ast.AST) -> str:
    """A string of the code as a reader meets it, 9 for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "9" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def trees(*patterns):
    for pattern in patterns:
        for path in sorted((ROOT / "grading").glob(pattern)):
            yield path.name, ast.parse(path.read_text("utf-8"))


def called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", ""))


def reasons_in_the_code() -> set[str]:
    """Every English phrase of intake that is no docstring, no pattern, nothing that stops the whole grading."""
    found = set()
    for name, tree in trees("intake/*.py", "unit.py"):
        skipped = set()
        for node in ast.walk(tree):
            other = called(node) in {"InboxError", "RosterError", "ValueError", "compile", "replace", "fromkeys"}
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if other or docstring:
                skipped |= {id(inner) for inner in ast.walk(node)}
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(inner) for inner in ast.walk(node) if inner is not node and written(inner) == ""}
                skipped |= {id(part) for part in node.values}
        if name == "roster.py":
            continue  # what a roster lacks is the instructor's to read
        for node in ast.walk(tree):
            if id(node) not in skipped and PHRASE.search(written(node)):
                found.add(written(node))
    return found


# Parts of other reasons, and what is compared or named.
FRAGMENTS = {" and more", "Unterminated string", "a list", "a notebook", "a number", "a string", "a truth value"}
FRAGMENTS |= {"the chapter's definitions", "own cell 9", "permission denied", "the folder"}


def test_every_reason_that_intake_can_give_has_words_for_the_learner():
    reasons = reasons_in_the_code() - FRAGMENTS
    for known_one in (
        "encrypted",
        "an empty file",
        "a truncated file: it breaks off after 9 characters",
        "a PDF document",
    ):
        assert known_one in reasons
    assert len(reasons) > 60
    silent = [reason for reason in sorted(reasons) if reason_words(reason) == WORDS["unknown_reason"]]
    assert silent == [], "no entry in `reasons` of feedback_words.json"


def test_no_entry_for_a_reason_is_unused():
    said = {reason_words(reason) for reason in reasons_in_the_code()}
    assert [text for _, text in WORDS["reasons"] if text not in said] == []


REASONS = {
    "my image.ipynb: an empty file": "文件是空的",
    "a PDF.ipynb: a truncated file: it breaks off after 19999 characters": "到一半就断了",
    "archive of mine.zip: a Word, Excel or PowerPoint document, not an archive": "Office",
    "x.zip: the archive has more than 5000 members": "太多",
    "no notebook was handed in, only a.pdf, link.url": "没有笔记本",
    "no notebook was handed in: nothing there but links": "链接",
    "x.zip/a.ipynb: damaged: its checksum is wrong": "损坏",
    "too much code: more than 1000000 characters": "代码太长",
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_told_by_what_it_says_and_not_by_the_file_s_name(reason):
    assert REASONS[reason] in reason_words(reason)
    one = replace(result(status=UNREADABLE, reason=reason), checks=())
    assert REASONS[reason] in text_of(one) and REASONS[reason] in feedback_text(one, CHAPTER)


def test_a_reason_that_nobody_foresaw_has_words_too():
    assert re.search("[一-鿿]", unreadable_reason("utterly new")) and "utterly new" in unreadable_reason("utterly new")


def flags_in_the_code() -> set[str]:
    """What is put among the flags: added to something that is named so, or given to an Answer."""
    found = set()
    for _, tree in trees("intake/*.py", "judge/*.py", "box/*.py", "unit.py"):
        for node in ast.walk(tree):
            values = []
            if isinstance(node, ast.Call) and called(node) in ("append", "add"):
                owner = node.func.value
                if getattr(owner, "id", getattr(owner, "attr", "")).endswith("flags"):
                    values = node.args
            elif called(node) == "Answer":
                values = node.args
            elif (
                isinstance(node, ast.AugAssign)
                and getattr(node.target, "id", getattr(node.target, "attr", "")) == "flags"
            ):
                values = [node.value]
            for value in values:
                inside = ast.walk(value)
                found |= {match[0] for one in inside if (match := re.match(r"[a-z]+(_[a-z]+)*(?=:|$)", written(one)))}
    return found


def test_every_flag_has_words():
    found = flags_in_the_code()
    assert {"answer_missing", "answer_by", "late", "merged", "input", "several_notebooks", "trailing_garbage"} <= found
    # of `cell_<how it was lost>` the parts of the name are filled in
    assert sorted(found - set(FLAGS) - set(FAULTS)) == [], "no entry in `flags` of feedback_words.json"


def test_wording_is_complete():
    assert set(WORDS["for_the_instructor"]) <= set(FLAGS)
    assert set(WORDS["mechanisms"]) == set(CHAPTER.mechanisms)


def test_unreadable_and_missing_say_what_to_do():
    for status, said in ((UNREADABLE, "没能读出来"), (MISSING, "没有收到")):
        one = replace(result(status=status, reason="a.ipynb: an empty file"), checks=())
        text = text_of(one)
        assert said in text and "Colab：文件 → 下载 → 下载 .ipynb" in text and "JupyterLab" in text
        assert "ModelScope" in text and "/ 100 分" not in text
        assert "没" in feedback_text(one, CHAPTER)
    assert "文件是空的" in unreadable_reason("an empty file") and "&lt;b&gt;" in unreadable_reason("<b>")
    assert unreadable_reason("")


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_submission_holds_the_page_stays_safe(bad):
    failed = {
        "test_propose_public": explained(bad),
        "test_accept_public": {"error": bad, "message": bad, "call": bad},
        "test_verify_public": {"error": "AssertionError", "message": bad},
        "test_verify_inputs": {"error": "NotImplementedError", "message": bad},
        "test_decode_public": {"fault": bad, "call": bad, "message": bad},
    }
    common = {"flags": (bad, f"{bad}:{bad}"), "file": bad, "answer": bad, "misconceptions": (bad,), "student_id": bad}
    one = result(failed, cell_errors=((bad, bad),), **common)
    assert_safe(feedback_html(one, CHAPTER, TITLE))
    assert_safe(feedback_html(replace(one, status=UNREADABLE, reason=bad), CHAPTER, bad))
    assert_safe(feedback_html(replace(one, status=bad), CHAPTER, TITLE))
    feedback_text(one, CHAPTER).encode("utf-8")


def test_long_values_are_cut():
    one = result({"test_propose_public": explained("[" + "7, " * 100_000 + "]")}, flags=("x" * 10_000,) * 500)
    source = feedback_html(replace(one, cell_errors=(("cell", "y" * 100_000),) * 400), CHAPTER, TITLE)
    assert "…" in source and len(source) < 60_000
    assert clean("é" * 10, 3) == "ééé…" and clean("abc", 3) == "abc"


IDS = [
    "../../x",
    "a/b",
    "",
    "..",
    ".",
    "\x00",
    "CON:",
    "a" * 5_000,
    "王" * 300,
    "\ud800",
    ".hidden",
    "x.html/../../y",
    "王小明",
    "ann",
]


def test_files_stay_in_their_folder_and_apart(tmp_path):
    folder = tmp_path / "feedback"
    for student_id in IDS:
        path = write_feedback(folder, result(student_id=student_id), CHAPTER)
        assert path.parent == folder and path.is_file() and not path.name.startswith(".")
        Page(path.read_text("utf-8"))
    assert len(list(folder.iterdir())) == len(IDS) and list(tmp_path.iterdir()) == [folder]
    assert file_name("王小明") == "王小明.html" and file_name("ann") == "ann.html"


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path):
    outside, folder = tmp_path / "grades.csv", tmp_path / "feedback"
    outside.write_text("kept")
    folder.mkdir()
    (folder / "ann.html").symlink_to(outside)
    path = write_feedback(folder, result(), CHAPTER)
    assert outside.read_text() == "kept" and not path.is_symlink() and "100 / 100" in path.read_text("utf-8")


def test_text_has_no_more_than_what_the_page_has():
    text = feedback_text(result({"test_accept_public": explained()}), CHAPTER)
    assert text.startswith("总分 90 / 100") and "期望：[10]" in text and "隐藏检查通过 2 / 2" in text
