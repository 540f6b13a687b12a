"""What a learner sees while working: what passed, what did not and why, the failing round as a picture, progress."""

import contextlib
import io
import json
import re

import matplotlib
import nbformat
import pytest
from answers import CHAPTER, CLASS_CELL, REFERENCE, STUBS

from grading.chapter import ROOT, fill, without_hidden
from grading.release.build import execute

matplotlib.use("Agg")

FEEDBACK = next(cell for cell in CHAPTER.cells if cell.id == "feedback")
KEEPS_REJECTED = (
    f"{REFERENCE[3]}\nif not accepted:\n    accepted_tokens.append(token_id)\n    rejected_at = i\n    break"
)
TOO_SHORT = "proposed = [draft_tokens[k] for k in range(self.max_proposal_len)]"


def source_of(cell_id):
    return without_hidden(next(cell.source for cell in CHAPTER.cells if cell.id == cell_id))


def answer(bodies):
    return fill(CLASS_CELL.source, bodies)


def run(*sources, feedback=FEEDBACK.source):
    """Outputs of code cells, in a kernel that has run the import, fixture and feedback cells first."""
    before = [cell.source for cell in CHAPTER.of("import", "fixture")] + [feedback]
    cells = [nbformat.v4.new_code_cell(source) for source in (*before, *sources)]
    for number, cell in enumerate(cells):
        cell.id = f"c{number}"
    notebook = nbformat.v4.new_notebook(cells=cells)
    execute(notebook, allow_errors=True)
    return [cell.outputs for cell in notebook.cells[len(before) :]]


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


def error_of(outputs):
    (error,) = [output for output in outputs if output.output_type == "error"]
    return "\n".join(error.traceback)


def has_picture(outputs):
    return any("image/png" in output.get("data", {}) for output in outputs)


# --- in a kernel ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong():
    """A class that keeps the rejected token, and then the right one: what each cell shows."""
    cells = [answer({3: KEEPS_REJECTED}), source_of("test-propose-public"), source_of("test-verify-public"), "%tb"]
    cells += [source_of("test-decode-public"), source_of("failed-round"), "[][1]", answer({})]
    cells += [source_of("test-verify-public"), source_of("failed-round")]
    names = ["class", "propose", "verify", "tb", "decode", "drawn", "own", "mended", "verify again", "drawn again"]
    return dict(zip(names, run(*cells), strict=True))


def test_a_pass_names_every_case_and_says_how_far_one_is(wrong):
    said = printed(wrong["propose"])
    assert said.count("✓") == 7 and "空草稿" in said and "隐藏检查在批改时运行" in said
    assert "进度：3 个 TODO 完成 1 个，还有 TODO 2、TODO 3" in said


def test_a_failure_is_a_message_and_no_traceback(wrong):
    text = error_of(wrong["verify"])
    assert text.startswith("✗ 没有通过\n")
    for part in ("调用：verify", "期望：([10, 20], 2)", "得到：([10, 20, 30], 2)", "重读：Step 2", "完成 1 个"):
        assert part in text
    assert len(text.split("\n")) <= 8 and "Traceback" not in text and "check_round" not in text


def test_the_round_that_failed_is_drawn_below_its_message(wrong):
    kinds = [output.output_type for output in wrong["verify"]]
    assert kinds.index("error") < kinds.index("display_data") and has_picture(wrong["verify"])
    assert "下面一行是你的：接受 [10, 20, 30]，首次拒绝在位置 2" in printed(wrong["verify"])
    assert has_picture(wrong["decode"]) and has_picture(wrong["drawn"])


def test_decode_s_complaint_shows_only_what_differs(wrong):
    text = error_of(wrong["decode"])
    assert "'accepted_len': 2" in text and "'accepted_len': 3" in text and "proposed_tokens" not in text


def test_the_traceback_is_one_command_away(wrong):
    assert "check_round" in error_of(wrong["tb"])


def test_one_s_own_cells_keep_the_usual_traceback(wrong):
    text = error_of(wrong["own"])
    assert "Traceback" in text and "✗" not in text


def test_a_mended_class_forgets_the_failure_and_what_the_old_one_passed(wrong):
    said = printed(wrong["verify again"])
    assert "完成 0 个，还有 TODO 1、TODO 2、TODO 3" in said, "the class is new: propose has not been checked again"
    assert not has_picture(wrong["drawn again"]) and "没有失败的那一轮" in printed(wrong["drawn again"])


def test_an_exception_comes_with_the_call_and_the_line():
    checked, unwritten, undefined = run(
        answer({1: TOO_SHORT}),
        source_of("test-propose-public"),
        answer({2: STUBS[2]}),
        source_of("test-accept-public"),
        "del MultiTokenDecoderSim",
        source_of("test-verify-inputs"),
    )[1::2]
    text = error_of(checked)
    assert "IndexError" in text and "propose([31, 10])" in text and TOO_SHORT in text and "site-packages" not in text
    assert printed(checked).count("✓") == 2, "what passed before"
    assert error_of(unwritten).startswith("✗ 还没有写 TODO 2：") and "Step 4" in error_of(unwritten)
    assert "先运行上面的格子" in error_of(undefined)


SLIPS = {
    "a method": (3, "accepted = _accept_token(draft_prob, target_prob)", "verify-public", "少了 self.：_accept_token"),
    "in another of its checks": (
        3,
        "accepted = _accept_token(draft_prob, target_prob)",
        "verify-inputs",
        "self._accept_token",
    ),
    "an attribute": (1, "proposed = draft_tokens[:max_proposal_len]", "propose-public", "少了 self.：max_proposal_len"),
    "in a comprehension": (
        1,
        "proposed = [t for i, t in enumerate(draft_tokens) if i < max_proposal_len]",
        "propose-public",
        "要写成 self.max_proposal_len",
    ),
    "misspelt": (3, "accepted = self._accept_token(draft_prob, targt_prob)", "verify-public", "是不是 target_prob"),
    "misspelt, and no self": (3, "accepted = accept_token(draft_prob, target_prob)", "verify-public", "self._accept_"),
    "never assigned": (2, "accept = target_prob >= draft_prob", "accept-public", "没有定义的名字 accepted"),
    "a name that the check has too": (3, "accepted = this_round", "verify-public", "没有定义的名字 this_round"),
}


@pytest.fixture(scope="module")
def slips():
    """Each slip with what its check then shows."""
    sources = [
        source
        for todo, body, check, _ in SLIPS.values()
        for source in (answer({todo: body}), source_of(f"test-{check}"))
    ]
    return dict(zip(SLIPS, run(*sources)[1::2], strict=True))


@pytest.mark.parametrize("slip", SLIPS)
def test_a_name_that_one_s_own_code_lacks_is_not_blamed_on_cells_that_were_not_run(slips, slip):
    _, body, _, says = SLIPS[slip]
    text = error_of(slips[slip])
    assert says in text and "先运行" not in text and "Traceback" not in text
    assert "位置：" in text and (body in text or slip == "never assigned"), "where"


def test_what_the_check_itself_lacks_is_a_cell_to_run():
    sources = [answer({}), "del torch", source_of("test-verify-public"), source_of("test-decode-public")]
    sources += ["del passed", source_of("test-propose-public")]
    *_, verify, decode, _, propose = run(*sources)
    for output, name in ((verify, "torch"), (decode, "torch"), (propose, "passed")):
        assert f"还没有 {name}" in error_of(output) and "先运行上面的格子" in error_of(output)


def test_the_short_messages_can_be_switched_off():
    switched = FEEDBACK.source.replace("short_messages = True", "short_messages = False")
    assert switched != FEEDBACK.source
    (failed,) = run(answer({1: "proposed = []"}), source_of("test-propose-public"), feedback=switched)[1:]
    assert "Traceback" in error_of(failed)


# --- the class cell's last run failed ---------------------------------------------------------------------------------

PUBLIC = ["propose-public", "accept-public", "verify-public", "verify-inputs", "decode-public"]
NO_SYNTAX = "accepted = (target_prob >= draft_prob * self.min_accept_ratio"
OLD = "没有运行成功"


@pytest.fixture(scope="module")
def broken():
    """What each public check shows after a class cell that did not run, by how it failed."""
    syntax, decorated, own = answer({2: NO_SYNTAX}), "undefined\n" + answer({}), "def helper(:"
    sources = [answer({}), syntax, *[source_of(f"test-{check}") for check in PUBLIC], answer({}), own]
    sources += [source_of("test-propose-public"), decorated, source_of("test-propose-public")]
    sources += ["%%time\n" + answer({}), source_of("test-propose-public"), "del MultiTokenDecoderSim", syntax]
    sources += [source_of("test-propose-public"), "%matplotlib inline\n" + answer({}), source_of("test-propose-public")]
    outputs = run(*sources)
    names = ["right", "syntax", *PUBLIC, "mended", "own", "after", "raising", "raised", "timed", "after the timed"]
    names += ["del", "syntax again", "none at all", "with a magic", "at the end"]
    return dict(zip(names, outputs, strict=True))


@pytest.mark.parametrize("check", PUBLIC)
def test_after_a_syntax_error_the_check_says_so_and_does_not_judge_the_old_class(broken, check):
    text = error_of(broken[check])
    assert OLD in text and "语法错误" in text and NO_SYNTAX in text and "改之前的" in text and "Traceback" not in text
    assert "✓" not in printed(broken[check]) and "完成 0 个" in text


def test_a_class_cell_that_raised_is_told_too(broken):
    assert OLD in error_of(broken["raised"]) and "改之前的" in error_of(broken["raised"])
    assert OLD in error_of(broken["none at all"]) and "还没有这个类" in error_of(broken["none at all"])


@pytest.mark.parametrize("check", ["after", "after the timed", "at the end"])
def test_a_class_that_is_current_is_judged(broken, check):
    assert printed(broken[check]).count("✓") == 7


def test_outside_ipython_nothing_is_said_of_the_class():
    names = namespace()
    names["class_is_current"]()
    del names["MultiTokenDecoderSim"]
    names["class_is_current"]()


# --- without a kernel -------------------------------------------------------------------------------------------------


def namespace(bodies=None):
    names = {"__name__": "__main__"}
    for cell in CHAPTER.of("import", "fixture"):
        exec(cell.source, names)
    exec(answer(bodies or {}), names)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(FEEDBACK.source, names)
    assert said.getvalue() == "", "nothing to switch on outside IPython"
    return names


def test_what_grading_runs_does_not_lean_on_the_feedback_cell():
    helpers = set(re.findall(r"^def (\w+)", FEEDBACK.source, re.MULTILINE))
    assert "show_failed_round" in helpers
    for cell in CHAPTER.of("import", "fixture", "solution", "test"):
        assert not helpers & set(re.findall(r"[A-Za-z_]\w*", cell.source)), cell.id


@pytest.mark.parametrize("todo", [1, 2, 3])
def test_an_unfinished_class_gets_a_hint_instead_of_the_strip(capsys, todo):
    namespace({todo: STUBS[todo]})["show_failed_round"]()
    assert f"TODO {todo}：" in capsys.readouterr().out


def test_without_the_class_the_hint_says_what_to_run(capsys):
    names = namespace()
    del names["MultiTokenDecoderSim"]
    names["show_failed_round"]()
    assert "先运行" in capsys.readouterr().out


def failed(names, got, expected=([10, 20], 2)):
    names["failed_round"].update(tokens=[10, 20, 30], q=[0.5] * 3, p=[0.8, 0.8, 0.2], ratio=0.6)
    names["failed_round"].update(expected=expected, got=got)


def drawn(names, monkeypatch):
    """The texts and the thick frames of the strips that are shown."""
    import matplotlib.pyplot as plt

    seen = []

    def look():
        axes = plt.gcf().axes[0]
        plt.gcf().canvas.draw()
        seen.append(
            ([text.get_text() for text in axes.texts], [p for p in axes.patches if p.get_linewidth() > 2], axes)
        )

    monkeypatch.setattr(plt, "show", look)
    names["show_failed_round"]()
    plt.close("all")
    return seen


GOT = {
    "keeps the rejected": (([10, 20, 30], 2), 1),
    "goes on": (([10, 20, 30], None), 1),
    "stops early": (([10], 1), 2),
    "nothing at all": (([], None), 3),
    "too long": (([10, 20, 30, 31, 7], None), 3),
    "as a dict": ({"accepted_tokens": [10], "rejected_at": 1}, 2),
    "position of another type": (([10, 20], "2"), 1),
}


@pytest.mark.parametrize("case", GOT)
def test_the_strip_frames_what_differs(monkeypatch, case):
    names, (got, differing) = namespace(), GOT[case]
    failed(names, got)
    ((texts, thick, _),) = drawn(names, monkeypatch)
    assert len(thick) == differing
    assert {"expected", "yours", "10", "first rejection"} <= set(texts)


@pytest.mark.parametrize("got", [None, 3, [], ([1], 2, 3), (None, 1), {"accepted_tokens": None}, "x"], ids=repr)
def test_what_cannot_be_drawn_is_said_and_never_raised(monkeypatch, capsys, got):
    names = namespace()
    failed(names, got)
    ((texts, thick, _),) = drawn(names, monkeypatch)
    assert "not a prefix and a position" in texts and thick == []
    assert "期望：接受 [10, 20]，首次拒绝在位置 2" in capsys.readouterr().out


def test_a_spoilt_record_is_said_and_never_raised(capsys):
    names = namespace()
    names["failed_round"]["tokens"] = None
    names["show_failed_round"]()
    assert "没有画成" in capsys.readouterr().out


def luminance(color):
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_in_the_strip_is_readable_whatever_the_theme(monkeypatch):
    """Contrast of at least 4.5 (WCAG 2.1 AA), on a ground that is set and not taken from a dark theme."""
    names = namespace()
    failed(names, ([10], 1))
    with matplotlib.rc_context({"figure.facecolor": "#111111", "text.color": "#eeeeee"}):
        ((_, _, axes),) = drawn(names, monkeypatch)
    ground = axes.figure.get_facecolor()
    assert ground[3] == 1.0
    for text in [*axes.texts, axes.title]:
        box = text.get_bbox_patch()
        assert contrast(text.get_color(), ground if box is None else box.get_facecolor()) >= 4.5, text.get_text()


def test_setup_cells_are_forms_and_no_cell_sets_colours_in_html():
    release = json.loads((ROOT / "release" / CHAPTER.name / f"{CHAPTER.name}.ipynb").read_text("utf-8"))
    for cell in release["cells"]:
        source, meta = "".join(cell["source"]), cell["metadata"]
        titled = source.startswith("# @title")
        assert titled == ("form" in meta.get("tags", [])) == (meta.get("cellView") == "form"), cell["id"]
        assert not re.search(r"<\w+ [^>]*(style|color)=|<font", source), cell["id"]
    fields = [
        c for c in release["cells"] if re.search(r"^student_\w+ = .*# @param", "".join(c["source"]), re.MULTILINE)
    ]
    assert len(fields) == 1 and "jupyter" not in fields[0]["metadata"], "to be filled in, so not folded in JupyterLab"
