"""One page for each learner: what was checked, what was expected, what came back, which Step to reread.

The wording stands in feedback_words.json, the style in feedback.css.

The page is opened in other people's browsers, so all that comes from a submission is escaped, cut and freed of
characters that change how text is read; nothing is loaded, no script runs. Of hidden checks it says only how many
passed, by mechanism; the seed is not named.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from unicodedata import category

from grading.chapter import BEGIN_SOLUTION, END_SOLUTION, Chapter, regions
from grading.report.grades import number
from grading.report.misconceptions import known
from grading.result import GRADED, MISSING, CheckResult, Result

MAX_SHOWN = 600  # characters of any one value
MAX_ITEMS = 12  # of a list that a submission makes long
MAX_MARKS = 3  # combining marks on one character
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PARTS = re.compile(r"\s*调用：(.*?)\n\s*期望：(.*?)\n\s*得到：(.*?)(?:\n\s*重读：([^\n]*))?\s*", re.DOTALL)
FILE = re.compile(r"[^:]{1,200}\.\w{1,12}\s*: ")  # the file that a reason is about
NO_CELL = "answer_missing"
HEADING = re.compile(r"#\s*(.+?（\d+ 分）)(?:：([^\n。]+))?")

WORDS = json.loads(Path(__file__).with_name("feedback_words.json").read_text("utf-8"))
MECHANISMS, ERRORS, FAULTS, FLAGS = (WORDS[name] for name in ("mechanisms", "errors", "faults", "flags"))
AGAIN = "\n".join(WORDS["again"])


def clean(value: object, limit: int = MAX_SHOWN) -> str:
    """Any text as safe HTML: cut, escaped, without control and direction characters, surrogates or piled-up marks."""
    text, out, marks = str(value), [], 0
    for char in text[:limit]:
        kind = category(char)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if marks > MAX_MARKS:
            continue
        plain = char in "\n\t" or kind not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        out.append(char if plain else "\ufffd")
    return html.escape("".join(out), quote=True) + ("…" if len(text) > limit else "")


def line(value: object, limit: int = MAX_SHOWN) -> str:
    """`clean`, in one line."""
    return clean(" ".join(str(value)[: 4 * limit].split()), limit)


@cache
def stylesheet() -> str:
    return Path(__file__).with_name("feedback.css").read_text("utf-8")


def page(title: str, body: str, kind: str = "") -> str:
    """A whole page. title: plain text; body: HTML."""
    return (
        f'<!DOCTYPE html>\n<html lang="zh-CN">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<title>{line(title)}</title>\n'
        f'<style>\n{stylesheet()}</style>\n</head>\n<body class="{kind}">\n{body}\n</body>\n</html>\n'
    )


def bar(score: float, most: float) -> str:
    """A score as a bar; the numbers stand beside it, so it is hidden from screen readers."""
    share = 100 * min(1.0, max(0.0, score / most)) if most else 0.0
    return f'<div class="bar" aria-hidden="true"><span style="width:{share:.1f}%"></span></div>'


def chapter_title(chapter: Chapter) -> str:
    """The notebook's first heading, otherwise the chapter's name."""
    found = (re.match(r"#\s+(.+)", cell.source) for cell in chapter.cells if cell.kind == "markdown")
    return next((match[1].strip() for match in found if match), chapter.name)


def mechanism_name(mechanism: str) -> str:
    return f"{MECHANISMS[mechanism]} {mechanism}" if mechanism in MECHANISMS else mechanism


def message_parts(message: str) -> tuple[str, str, str, str] | None:
    """Call, expected, got and Step of a test cell's complaint (the fixture's `explain`); None if it is none."""
    match = PARTS.fullmatch(message)
    return None if match is None else tuple(part or "" for part in match.groups())


def heading(chapter: Chapter, grade_id: str) -> str:
    """What a public test cell calls itself in its first line; its id otherwise."""
    source = next((cell.source for cell in chapter.tests if cell.grade_id == grade_id and not cell.hidden), "")
    match = HEADING.match(source)
    return grade_id if match is None else "：".join(part for part in match.groups() if part)


def _after_regions(chapter: Chapter) -> list[str]:
    """For each TODO, the line of the skeleton that comes after its region."""
    after = []
    for cell in chapter.of("solution"):
        lines = cell.source.split("\n")
        for region in regions(cell.source, BEGIN_SOLUTION, END_SOLUTION):
            after.append(next((line.strip() for line in lines[region.stop + 1 :] if line.strip()), ""))
    return after


def open_todo(result: Result, chapter: Chapter, number: int) -> tuple[str, str] | None:
    """Why a TODO counts as open although it is not simply unwritten, as (name, what to do); None if it is.

    Either the cell is gone, or code stands beside the placeholder that was left in.
    """
    if NO_CELL in result.flags:
        return tuple(text.format(todo=f"TODO {number}") for text in WORDS["todos"]["gone"])
    lines = [line.strip() for line in result.answer.split("\n") if line.strip()]
    after = dict(enumerate(_after_regions(chapter), start=1)).get(number, "")
    for place, text in enumerate(lines):
        if not re.match(rf"raise\s+NotImplementedError\s*\(.TODO {number}\b", text):
            continue
        above, below = (lines[place - 1] if place else ""), (lines[place + 1] if place + 1 < len(lines) else "")
        if not above.startswith("#") or below not in ("", after):
            return tuple(text.format(todo=f"TODO {number}") for text in WORDS["todos"]["left"])
    return None


def complaint(check: CheckResult, result: Result, chapter: Chapter) -> list[tuple[str, str]]:
    """Why a public check failed, as (label, text) pairs of plain text, labels '' for sentences of ours."""
    if check.fault:
        why = FAULTS.get(check.fault, f"运行没有完成（{check.fault}）。")
        return [*([("调用", check.call)] if check.call else []), ("", why)]
    if check.error == "NotImplementedError":
        todo = re.match(r"TODO (\d+)", check.message)
        if todo and (said := open_todo(result, chapter, int(todo[1]))):
            return [("", f"{said[0]}。")]
        return [("", f"{todo[0] if todo else '有一处 TODO '} 还没有写。".replace("  ", " "))]
    if check.error == "AssertionError":
        parts = message_parts(check.message)
        if parts is None:
            return [("说明", check.message or "这一项检查的条件没有满足。")]
        return [(label, part) for label, part in zip(("调用", "期望", "得到", "重读"), parts, strict=True) if part]
    why = ERRORS.get(check.error, "代码在运行时抛出了异常。")
    raised = f"{check.error}: {check.message}" if check.message else check.error
    return [*([("调用", check.call)] if check.call else []), ("异常", raised), ("", why)]


def broken_answer(result: Result) -> tuple[str, str] | None:
    """Of an answer's cell that did not run through: (its error, the line where it is, '' if that is not known)."""
    error = next((error for name, error in result.cell_errors if name.startswith("answer")), None)
    if error is None:
        return None
    place, lines = re.search(r"line (\d{1,6})\)", error), result.answer.split("\n")
    number_ = int(place[1]) if place else 0
    where = f"第 {number_} 行：{lines[number_ - 1].strip()}" if 0 < number_ <= len(lines) else ""
    return re.sub(r" \(<[^<>]*>, line \d+\)$", "", error), where


def follows(check: CheckResult, result: Result) -> bool:
    """Whether a check failed only since the answer's cell did not run, which is said once, elsewhere."""
    return check.error == "NameError" and broken_answer(result) is not None


def _complaint_html(check: CheckResult, result: Result, chapter: Chapter) -> str:
    rows = []
    for label, text in complaint(check, result, chapter):
        if not label:
            rows.append(f"<dt>说明</dt><dd><p>{clean(text)}</p></dd>")
        elif label in ("重读", "说明"):
            rows.append(f"<dt>{label}</dt><dd><p>{clean(text)}</p></dd>")
        else:
            rows.append(f"<dt>{label}</dt><dd><pre>{clean(text)}</pre></dd>")
    return f"<dl>{''.join(rows)}</dl>"


def _public(check: CheckResult, result: Result, chapter: Chapter) -> str:
    state, mark = ("passed", "✓ 通过") if check.passed else ("failed", "✗ 没有通过")
    colour = "good" if check.passed else "bad"
    why = "" if check.passed or follows(check, result) else _complaint_html(check, result, chapter)
    name = line(heading(chapter, check.grade_id))
    return f'<div class="check {state}"><h3><span class="{colour}">{mark}</span> · {name}</h3>{why}</div>'


def _hidden(checks: list[CheckResult], public_passed: bool, explained: bool) -> str:
    passed, total = sum(check.passed for check in checks), len(checks)
    mark, colour = ("✓", "good") if passed == total else ("✗", "bad")
    text = f'<p><span class="{colour}">{mark} 隐藏检查：通过 {passed} / {total}</span>'
    text += '<span class="soft small">（输入随机生成，不公开）</span></p>'
    if passed < total and public_passed and not explained:
        text += "<p>公开的例子都通过了，换别的输入还不行。自己多试几组：更长、更短、空的、有重复的、恰在边界上的。</p>"
    return text


def _mistakes(result: Result, chapter: Chapter, mechanism: str) -> list[tuple[str, str]]:
    """The known mistakes that a mechanism's checks show: (name, hint), plain text."""
    out = []
    for key in result.misconceptions:
        entry = known(chapter.name).get(key)
        if entry is not None and entry.mechanism == mechanism:
            stub = entry.shown_by == ("error", "NotImplementedError")
            out.append((stub and open_todo(result, chapter, entry.todo)) or (entry.name, entry.hint))
    return out


def _hints(result: Result, chapter: Chapter, mechanism: str) -> str:
    mistakes = [] if NO_CELL in result.flags else _mistakes(result, chapter, mechanism)
    if not mistakes:
        return ""
    lead = "看起来是这样：" if len(mistakes) == 1 else "可能是下面几种情形之一："
    said = "".join(f"<p><strong>{line(name)}</strong>：{line(hint)}</p>" for name, hint in mistakes)
    return f'<div class="note"><p class="soft small">{lead}</p>{said}</div>'


def _section(result: Result, chapter: Chapter, mechanism: str) -> str:
    own = [check for check in result.checks if check.mechanism == mechanism]
    public, hidden = [c for c in own if not c.hidden], [c for c in own if c.hidden]
    score, most = sum(check.score for check in own), sum(check.points for check in own)
    hints = _hints(result, chapter, mechanism)
    parts = [f"<h2>{line(mechanism_name(mechanism))}：{number(score)} / {number(most)} 分</h2>", hints]
    others = [check for check in result.checks if check.mechanism != mechanism]
    if mechanism == "decode" and score < most and not all(check.passed for check in others):
        parts.append("<p>这一部分把整个类一起运行，前面有一处不对，这里也会丢分。先修好前面的，再回来看这里。</p>")
    parts += [_public(check, result, chapter) for check in public]
    if hidden:
        parts.append(_hidden(hidden, all(check.passed for check in public), bool(hints)))
    return "\n".join(part for part in parts if part)


def _overview(result: Result, chapter: Chapter) -> str:
    rows = []
    for mechanism in chapter.mechanisms:
        score, most = result.mechanism(mechanism) or 0.0, chapter.points(mechanism)
        numbers = f"{number(score)} / {number(most)}"
        rows.append(
            f'<tr><th scope="row">{line(mechanism_name(mechanism))}</th><td class="wide">{bar(score, most)}</td>'
            f'<td class="number">{numbers}</td></tr>'
        )
    score, public = result.score or 0.0, [check for check in result.checks if not check.hidden]
    passed = sum(check.passed for check in public)
    end = "全部通过，做得好！" if score == result.max_score else "往下看每一部分差在哪里，改好之后再运行公开检查。"
    return (
        f'<div class="score"><strong>{number(score)} / {number(result.max_score)} 分</strong>'
        f"<span>公开检查通过 {passed} / {len(public)}</span></div>{bar(score, result.max_score)}"
        f'<div class="scroll"><table>{"".join(rows)}</table></div><p>{end}</p>'
    )


def flag_texts(flags: Iterable[str]) -> list[str]:
    """What the flags say to the learner, as HTML. Faults of checks are left out: they stand beside the checks."""
    out = []
    for flag in list(flags)[:MAX_ITEMS]:
        kind, _, detail = flag.partition(":")
        if kind in FAULTS or FLAGS.get(kind) == "":
            continue
        text = FLAGS[kind] if kind in FLAGS else f"批改记录：<code>{line(kind, 80)}</code>"
        out.append(text + (f" <code>{line(detail, 120)}</code>" if detail else ""))
    return out


def reason_words(reason: str) -> str:
    """Why a submission could not be read, in Chinese, as plain text."""
    if not reason:
        return "没有记下原因。"
    about = FILE.sub("", reason, count=1).lower()  # a file's name must not be taken for the reason
    return next((text for part, text in WORDS["reasons"] if part.lower() in about), WORDS["unknown_reason"])


def unreadable_reason(reason: str) -> str:
    """`reason_words` as HTML, with the reason as it was noted."""
    noted = f'<span class="soft small">（{line(reason)}）</span>' if reason else ""
    return f"{reason_words(reason)}{noted}"


def _flags(result: Result) -> str:
    items = "".join(f"<li>{text}</li>" for text in flag_texts(flag for flag in result.flags if flag != NO_CELL))
    return f"<h2>批改时注意到的事</h2><ul>{items}</ul>" if items else ""


def _no_answer(result: Result) -> str:
    """What all else on the page follows from: the answer's cell did not run, or is not there."""
    if NO_CELL in result.flags:
        return f'<div class="note"><p><strong>{FLAGS[NO_CELL]}</strong></p></div>'
    broken = broken_answer(result)
    if broken is None:
        return ""
    error, where = broken
    why = _why_cell(error)
    rows = [("错误", error), *([("位置", where)] if where else [])]
    said = "".join(f"<dt>{label}</dt><dd><pre>{clean(text)}</pre></dd>" for label, text in rows)
    after = "里面的类因此没有定义，所有的检查都没有通过。先修好这一处，从上到下重新运行，再看下面。"
    if not any(follows(check, result) for check in result.checks):
        after = "运行停在这里，这一格后面的代码没有运行。"
    return (
        f'<div class="check failed"><h3>答案所在的格子没有运行成功</h3><dl>{said}</dl><p>{why}</p><p>{after}</p></div>'
    )


def _why_cell(error: str) -> str:
    kind = re.split(r"\W", error, maxsplit=1)[0]
    return FAULTS.get(kind) or ERRORS.get(kind, "")


def _cell_errors(result: Result) -> str:
    others = [(name, error) for name, error in result.cell_errors if not name.startswith("answer")]
    parts = ["<h2>没有运行成功的格子</h2><p>答案用不到它们时不影响得分；用得到时，请先修好这里。</p>"]
    for name, error in others[:MAX_ITEMS]:
        shown, why = line(name, 120), _why_cell(error)
        parts.append(f'<div class="check failed"><h3>{shown}</h3><pre>{clean(error)}</pre><p>{why}</p></div>')
    return "\n".join(parts) if others else ""


def feedback_html(result: Result, chapter: Chapter, title: str) -> str:
    """The learner's page, whole: one file, nothing loaded. title: of the chapter, as the learner knows it."""
    who = f'<p class="soft">{line(result.student_id, 120)}'
    who += f" · {line(result.file, 200)}</p>" if result.file else "</p>"
    parts = [f"<h1>{line(title)}：反馈</h1>", who]
    if result.status == GRADED:
        sections = [_section(result, chapter, mechanism) for mechanism in chapter.mechanisms]
        parts += [_overview(result, chapter), _no_answer(result), *sections, _cell_errors(result), _flags(result)]
    elif result.status == MISSING:
        parts.append("<p><strong>没有收到你的作业。</strong>如果已经交过，请和老师核对交的地方与学号。</p>" + AGAIN)
    else:
        reason = unreadable_reason(result.reason)
        parts.append(
            f'<div class="note"><p><strong>这份作业没能读出来，所以还没有评分。</strong>这不是 0 分，'
            f"改好之后重新交即可。</p><p>原因：{reason}</p></div>{AGAIN}"
        )
        parts.append(_flags(result))
    return page(f"{title}：反馈", "\n".join(part for part in parts if part))


def feedback_text(result: Result, chapter: Chapter) -> str:
    """The same in a few lines of plain text, for a comment in nbgrader."""
    if result.status != GRADED:
        if result.status == MISSING:
            return "没有收到作业。"
        noted = f"（{result.reason[:MAX_SHOWN]}）" if result.reason else ""
        return f"没能读出来，还没有评分：{reason_words(result.reason)}{noted}"
    lines = [f"总分 {number(result.score)} / {number(result.max_score)}"]
    if NO_CELL in result.flags:
        lines.append(f"  ✗ {FLAGS[NO_CELL]}")
    elif broken := broken_answer(result):
        lines.append("  ✗ 答案所在的格子没有运行成功：" + "；".join(part for part in broken if part)[:MAX_SHOWN])
    for mechanism in chapter.mechanisms:
        own = [check for check in result.checks if check.mechanism == mechanism]
        hidden = [check for check in own if check.hidden]
        score, most = result.mechanism(mechanism), chapter.points(mechanism)
        said = f"隐藏检查通过 {sum(check.passed for check in hidden)} / {len(hidden)}"
        lines.append(f"{mechanism_name(mechanism)}：{number(score)} / {number(most)}，{said}")
        for check in (check for check in own if not (check.hidden or check.passed or follows(check, result))):
            why = "；".join(f"{label}：{text}" if label else text for label, text in complaint(check, result, chapter))
            lines.append("  ✗ " + " ".join(why.split())[:MAX_SHOWN])
        mistakes = [] if NO_CELL in result.flags else _mistakes(result, chapter, mechanism)
        lines += [f"  → {name}：{hint}" for name, hint in mistakes]
    return html.unescape(clean("\n".join(lines), 20 * MAX_SHOWN))


def file_name(student_id: str) -> str:
    """A learner's file in feedback/: the id itself where it is a plain name, otherwise made plain and told apart."""
    plain = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*\ud800-\udfff]', "_", student_id).strip(". ")[:80]
    while len(plain.encode()) > 180:
        plain = plain[:-1]
    if plain and plain == student_id:
        return f"{plain}.html"
    digest = hashlib.sha256(student_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain or 'learner'}-{digest}.html"


def write_feedback(folder: Path, result: Result, chapter: Chapter) -> Path:
    """Writes the learner's page into `folder`, never outside, in one step; a link that lies there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file_name(result.student_id)
    text = feedback_html(result, chapter, chapter_title(chapter))
    number_, partial = tempfile.mkstemp(dir=folder, prefix=".", suffix=".partial")
    with open(number_, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.chmod(partial, 0o644)
    os.replace(partial, target)
    return target
