"""The picture of the class, for the instructor: one HTML page that loads nothing.

Everything from submissions is escaped as in the learners' pages. Groups of near-identical answers are a place to look,
never a verdict; `similar_answers` says what counts.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from urllib.parse import quote

from grading.chapter import BEGIN_SOLUTION, END_SOLUTION, Chapter, fill, regions
from grading.report.feedback import FLAGS, MAX_ITEMS, WORDS, bar, chapter_title, file_name, line, mechanism_name, page
from grading.report.grades import number
from grading.report.misconceptions import known
from grading.result import GRADED, MISSING, UNREADABLE, Result

STATUSES = {GRADED: "已评分", UNREADABLE: "读不出来", MISSING: "没有交"}
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#999999"  # Okabe-Ito
MAX_ANSWER = 20_000  # characters of an answer that is compared
UNUSUAL = 64  # nodes of syntax that a learner added to a function: plain loops, if/else and slices stay below
MAX_NAMES = 40  # learners named in one cell


# --- near-identical answers ------------------------------------------------------------------------------------------


class _Canonical(ast.NodeTransformer):
    """Renames what a function binds in the order of appearance, drops annotations and docstrings."""

    def __init__(self, function: ast.AST):
        bound = [
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        bound += [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)]
        self._bound, self._names = set(bound), {}

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}") if name in self._bound else name

    def visit_Name(self, node: ast.Name):
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg):
        return ast.arg(self._name(node.arg))

    def visit_AnnAssign(self, node: ast.AnnAssign):
        if node.value is None:
            return None
        return self.visit(ast.Assign([node.target], node.value))

    def visit_FunctionDef(self, node: ast.FunctionDef):
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
        node.returns = None
        return self.generic_visit(node)


@cache  # asked for when a result comes in, while nothing waits for it, and again by the report
def functions(source: str) -> dict[str, tuple[str, int]]:
    """{function: (its canonical form, nodes of syntax)} of an answer; nothing for what does not parse.

    The form is a digest: forms are only compared.
    """
    try:
        nodes = [node for node in ast.walk(ast.parse(source[:MAX_ANSWER])) if isinstance(node, ast.FunctionDef)]
        out = {}
        for node in nodes:
            plain = _Canonical(node).visit(node)
            form = hashlib.sha256(ast.dump(plain).encode("utf-8", "replace")).hexdigest()
            out[node.name] = (form, sum(1 for _ in ast.walk(plain)))
        return out
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _given(chapter: Chapter) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, int]]]:
    """The functions of the chapter's solution cells that hold regions: as the reference has them, and left empty."""
    reference, empty = {}, {}
    for cell in chapter.of("solution"):
        count = len(regions(cell.source, BEGIN_SOLUTION, END_SOLUTION))
        reference |= functions(fill(cell.source, {}))
        empty |= functions(fill(cell.source, {n: "pass" for n in range(1, count + 1)}))
    return {name: form for name, form in reference.items() if form != empty[name]}, empty


def similar_answers(results: Sequence[Result], chapter: Chapter) -> list[tuple[list[str], list[str]]]:
    """Groups (functions, learners) of answers that are the same but for names, comments and layout, and unusual.

    Unusual: not the reference, and at least UNUSUAL nodes of syntax more than the given code; what everyone writes is
    shorter. Functions are compared one by one, since one alone may be copied; a group that shares several stands once.
    """
    reference, empty = _given(chapter)
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        for name, (form, size) in functions(result.answer).items() if result.status == GRADED else ():
            if name in reference and form != reference[name][0] and size - empty[name][1] >= UNUSUAL:
                alike[name, form].append(result.student_id)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (name, _), learners in alike.items():
        if len(learners) > 1:
            groups[tuple(sorted(learners))].append(name)
    return sorted((sorted(names), list(learners)) for learners, names in groups.items())


# --- pictures --------------------------------------------------------------------------------------------------------


def import_pictures() -> None:
    """Imports what pictures need (half a second), for a caller that has time now and none later."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


def _picture(draw, alt: str, caption: str, height: float = 3.2) -> str:
    """A figure as HTML with a PNG inside; `draw(ax)` draws it. No pyplot: no state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, height), layout="constrained", dpi=150)
    canvas = FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    draw(ax)
    ax.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    image = f'<img src="data:image/png;base64,{data}" alt="{line(alt)}">'
    return f"<figure>{image}<figcaption>{line(caption)}</figcaption></figure>"


def _scores_picture(scores: Sequence[float], most: float) -> str:
    bins = 10
    counts = Counter(min(bins - 1, int(bins * score / most)) if most else 0 for score in scores)

    def draw(ax):
        heights = [counts[i] for i in range(bins)]
        bars = ax.bar([(i + 0.5) * most / bins for i in range(bins)], heights, 0.92 * most / bins, color=BLUE)
        ax.bar_label(bars, [str(height) if height else "" for height in heights], padding=2)
        median = statistics.median(scores)
        ax.plot([median], [1.18 * max(heights)], "v", color=VERMILION, markersize=11, clip_on=False, zorder=3)
        ax.plot([], [], "v", color=VERMILION, label=f"median {median:g}")
        ax.set(xlim=(0, most), xlabel=f"score (of {most:g})", ylabel="learners", title="Scores")
        ax.set_ylim(0, 1.18 * max(heights))
        ax.yaxis.get_major_locator().set_params(integer=True)
        ax.legend(frameon=False, loc="upper left")

    caption = f"总分的分布：{len(scores)} 人，中位数 {number(statistics.median(scores))}，满分 {number(most)}。"
    return _picture(draw, caption, caption)


def _loss_picture(graded: Sequence[Result], chapter: Chapter) -> str:
    names = list(chapter.mechanisms)
    most = [chapter.points(name) for name in names]
    got = [statistics.fmean(result.mechanism(name) for result in graded) for name in names]
    full = [sum(result.mechanism(name) == chapter.points(name) for result in graded) / len(graded) for name in names]

    def draw(ax):
        rows = range(len(names))
        ax.barh(rows, got, color=GREEN, label="earned")
        lost = [m - g for m, g in zip(most, got, strict=True)]
        ax.barh(rows, lost, left=got, color=ORANGE, hatch="//", edgecolor="white", label="lost")
        for i in rows:
            ax.text(most[i] + 0.01 * max(most), i, f"-{lost[i]:.1f}  ({full[i]:.0%} full)", va="center", fontsize=9)
        ax.set_yticks(rows, names)
        ax.invert_yaxis()
        ax.set(xlim=(0, 1.38 * max(most)), xlabel="points, mean of the class", title="Where points were lost")
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)

    caption = "每种机制平均得到与失去的分；括号里是拿满这一部分的学生比例。"
    return _picture(draw, caption, caption, height=3.4)


def _mistakes_picture(counts: Sequence[tuple[str, int]]) -> str:
    def draw(ax):
        keys, numbers = [key for key, _ in counts], [count for _, count in counts]
        colours = {"propose": BLUE, "accept": ORANGE, "verify": GREEN}
        bars = ax.barh(range(len(keys)), numbers, color=[colours.get(key.split("_")[0], GREY) for key in keys])
        ax.bar_label(bars, padding=3)
        ax.set_yticks(range(len(keys)), keys)
        ax.invert_yaxis()
        ax.set(xlabel="learners", title="Commonest mistakes", xlim=(0, 1.12 * max(numbers)))
        ax.xaxis.get_major_locator().set_params(integer=True)

    caption = "最常见的错误，按人数；中文名与提示见下表。"
    return _picture(draw, caption, caption, height=1.4 + 0.32 * len(counts))


# --- the page --------------------------------------------------------------------------------------------------------


def reasons_to_look(result: Result) -> list[str]:
    """Why an instructor should look at a submission, as HTML; nothing for one that went as usual."""
    reasons = []
    if result.status == UNREADABLE:
        reasons.append(f"读不出来：{line(result.reason, 200)}")
    faults = Counter(check.fault for check in result.checks if check.fault)
    if faults:
        reasons.append("检查没能运行完：" + "，".join(f"{line(kind, 40)} × {n}" for kind, n in faults.items()))
    answer_error = dict(result.cell_errors).get("answer")
    if answer_error and result.score == 0:
        reasons.append(f"答案格子没有运行成功，全部为 0：{line(answer_error, 200)}")
    for flag in result.flags:
        kind, _, detail = flag.partition(":")
        if kind in WORDS["faults"] or kind == "no_sandbox":
            continue  # said above, or for the whole class
        if kind not in FLAGS or kind in WORDS["for_the_instructor"]:
            said = FLAGS.get(kind) or "没有登记过的标记"
            reasons.append(f"{said} <code>{line(kind, 60)}{':' if detail else ''}{line(detail, 120)}</code>")
    return reasons[:MAX_ITEMS]


def _link(student_id: str) -> str:
    name = file_name(student_id).encode("utf-8", "replace")
    return f'<a href="feedback/{quote(name, safe="")}">{line(student_id, 80)}</a>'


def _people(students: Iterable[str]) -> str:
    listed = list(students)
    more = f" 等 {len(listed)} 人" if len(listed) > MAX_NAMES else ""
    return "、".join(_link(student) for student in listed[:MAX_NAMES]) + more


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        marks = [' class="number"' if i in numeric else "" for i in range(len(row))]
        return "".join(f"<{tag}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    table = f"<thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{table}</table></div>'


def _tiles(results: Sequence[Result], scores: Sequence[float], most: float) -> str:
    counts = Counter(result.status for result in results)
    tiles = [(str(len(results)), "人"), *((str(counts[status]), name) for status, name in STATUSES.items())]
    if scores:
        tiles += [(f"{statistics.fmean(scores):.1f}", f"平均分（满分 {number(most)}）")]
        tiles += [(str(sum(score == most for score in scores)), "人满分")]
    items = "".join(f"<li><strong>{value}</strong>{name}</li>" for value, name in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _mechanisms(graded: Sequence[Result], chapter: Chapter) -> str:
    rows = []
    for name in chapter.mechanisms:
        most, points = chapter.points(name), [result.mechanism(name) for result in graded]
        mean, full = statistics.fmean(points), sum(score == most for score in points)
        share = f"{full} / {len(points)}（{full / len(points):.0%}）"
        lost = f"{most - mean:.1f} / {number(most)}"
        rows.append([line(mechanism_name(name)), bar(mean, most), f"{mean:.1f}", lost, share])
    return _table(["机制", "得分", "平均得分", "平均失分", "拿满的人数"], rows, numeric=(2, 3, 4))


def _mistakes(graded: Sequence[Result], chapter: Chapter) -> tuple[str, str]:
    """(picture, table) of the known mistakes, the commonest first; empty where there are none."""
    who: dict[str, list[str]] = defaultdict(list)
    for result in graded:
        for key in result.misconceptions:
            who[key].append(result.student_id)
    ordered = sorted(((key, who[key]) for key in known(chapter.name) if key in who), key=lambda item: -len(item[1]))
    if not ordered:
        return "", "<p>没有认出已知的错误。</p>"
    entries = known(chapter.name)
    rows = [
        [f"<strong>{line(entries[key].name)}</strong><br><code>{line(key)}</code>",
         line(mechanism_name(entries[key].mechanism)), str(len(students)), _people(students)]
        for key, students in ordered
    ]  # fmt: skip
    picture = _mistakes_picture([(key, len(students)) for key, students in ordered[:MAX_ITEMS]])
    return picture, _table(["错误", "机制", "人数", "谁"], rows, numeric=(2,))


def _learners(results: Sequence[Result], chapter: Chapter) -> str:
    rows = []
    for result in results:
        points = [number(result.mechanism(name)) for name in chapter.mechanisms]
        flags = "、".join(f"<code>{line(flag, 60)}</code>" for flag in result.flags[:MAX_ITEMS])
        status = STATUSES.get(result.status, line(result.status))
        rows.append([_link(result.student_id), status, *points, f"<strong>{number(result.score)}</strong>", flags])
    head = ["学生", "状态", *(line(name) for name in chapter.mechanisms), "总分", "标记"]
    return _table(head, rows, numeric=range(2, 3 + len(chapter.mechanisms)))


def class_report(results: Sequence[Result], chapter: Chapter, *, sandbox: str, seed: int) -> str:
    """The instructor's page, whole. sandbox: what submissions were run in; "none" is said where nobody misses it."""
    results = sorted(results, key=lambda result: result.student_id)
    graded = [result for result in results if result.status == GRADED]
    scores, title = [result.score for result in graded], chapter_title(chapter)
    parts = [f"<h1>{line(title)}：全班报告</h1>"]
    parts.append(f'<p class="soft">沙箱 {line(sandbox, 40)} · 种子 {line(seed, 40)}（不要告诉学生）</p>')
    if sandbox == "none":
        parts.append(
            '<div class="note warning"><p><strong>⚠ 这次批改没有用沙箱。</strong>学生的代码以你的身份运行过，'
            "可能读过、改过这台机器上的任何文件，包括成绩。只对信得过的代码这样做。</p></div>"
        )
    parts.append(_tiles(results, scores, chapter.max_score))
    if graded:
        picture, mistakes = _mistakes(graded, chapter)
        pictures = _scores_picture(scores, chapter.max_score) + _loss_picture(graded, chapter)
        parts.append(f'<div class="pictures">{pictures}</div>')
        parts += ["<h2>各机制</h2>", _mechanisms(graded, chapter), "<h2>常见的错误</h2>", picture, mistakes]
        parts.append('<p class="soft small">按行为认出，不看代码的写法；同一人可能不止一种。</p>')
    look = [(result, reasons_to_look(result)) for result in results]
    rows = [[_link(result.student_id), "<br>".join(reasons)] for result, reasons in look if reasons]
    parts += ["<h2>需要人看一眼的</h2>", _table(["学生", "原因"], rows) if rows else "<p>没有。</p>"]
    groups = similar_answers(graded, chapter)
    parts.append("<h2>几乎相同的答案</h2>")
    parts.append(
        '<p class="soft small">去掉注释、排版与变量名之后完全相同，而且写法较长、与参考不同。'
        "这里只告诉你该看哪里，不是结论：同组讨论、同一份网上的代码都会这样。</p>"
    )
    rows = [["、".join(f"<code>{line(name)}</code>" for name in names), _people(who)] for names, who in groups]
    parts.append(_table(["函数", "谁"], rows) if rows else "<p>没有。</p>")
    parts += ["<h2>所有人</h2>", _learners(results, chapter)]
    return page(f"{title}：全班报告", "\n".join(parts), kind="wide")
