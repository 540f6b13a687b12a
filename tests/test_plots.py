"""What the plot cells draw: numbers that agree with the theory, with default fonts, by the learner's own class."""

import re
import warnings
from contextlib import contextmanager

import matplotlib
import matplotlib.pyplot
import pytest

from grading import chapter

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def ch():
    return chapter.load(chapter.find()[0])


def namespace(ch, bodies=None):
    """A namespace in which all cells up to the plots have run, the answer's regions replaced where given."""
    names = {}
    for cell in ch.cells:
        if cell.role in ("import", "fixture") or cell.id == "plot-helper":
            exec(cell.source, names)
        elif cell.role == "solution":
            exec(chapter.fill(cell.source, bodies or {}), names)
    return names


@contextmanager
def figures(names):
    """Keeps open the figures that a plot cell shows, and turns warnings (missing glyphs) into errors."""
    plt = names["plt"]
    plt.close("all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield lambda: [plt.figure(number) for number in plt.get_fignums()]
    plt.close("all")


def plot_cells(ch):
    return [cell for cell in ch.cells if cell.id.startswith("plot-") and cell.id != "plot-helper"]


def run(cell, names, monkeypatch):
    monkeypatch.setattr(
        names["plt"], "show", lambda: [f.canvas.draw() for f in map(names["plt"].figure, names["plt"].get_fignums())]
    )
    exec(cell.source.replace("%matplotlib inline\n", ""), names)


def test_accepted_length_agrees_with_the_closed_form_within_the_drawn_spread(ch, monkeypatch):
    names = namespace(ch)
    with figures(names) as drawn:
        run(next(cell for cell in ch.cells if cell.id == "plot-length"), names, monkeypatch)
        (figure,) = drawn()
        axes = figure.axes[0]
        assert len(axes.containers) == 3
        for bars in axes.containers:
            alpha = float(bars.get_label().rpartition("=")[2])
            points, _, (spread,) = bars.lines
            for (k, mean), segment in zip(zip(*points.get_data(), strict=True), spread.get_segments(), strict=True):
                low, high = segment[0][1], segment[1][1]
                closed_form = sum(alpha**i for i in range(1, int(k) + 1))
                assert low <= closed_form <= high, (
                    f"alpha {alpha}, k {k}: {low} {mean} {high}, closed form {closed_form}"
                )
                assert high - low < 1.2, "a spread so wide shows nothing"


def test_closed_form_line_is_the_sum_of_powers(ch, monkeypatch):
    names = namespace(ch)
    with figures(names) as drawn:
        run(next(cell for cell in ch.cells if cell.id == "plot-length"), names, monkeypatch)
        lines = [line for line in drawn()[0].axes[0].lines if line.get_label().startswith("closed form")]
        assert len(lines) == 3
        for line in lines:
            alpha = float(line.get_label().rpartition("=")[2])
            assert line.get_ydata()[-1] == pytest.approx(sum(alpha**i for i in range(1, 9)))


def test_threshold_trades_length_for_fidelity(ch, monkeypatch):
    names = namespace(ch)
    with figures(names) as drawn:
        run(next(cell for cell in ch.cells if cell.id == "plot-threshold"), names, monkeypatch)
        for axes in drawn()[0].axes:
            for line in axes.lines:
                values = line.get_ydata()
                assert values[0] > 2 * values[-1], "a stricter ratio must cost accepted tokens"


def test_lossy_plot_prints_the_exact_distances(ch, monkeypatch, capsys):
    names = namespace(ch)
    with figures(names):
        run(next(cell for cell in ch.cells if cell.id == "plot-lossy"), names, monkeypatch)
    printed = capsys.readouterr().out.split("\n")
    assert [line.rpartition("=")[2].strip() for line in printed if line] == ["0.00", "0.00", "0.10", "0.40"]


PHONE, LEAST = 350, 10  # pixels: a phone's screen less the margins; the height of a letter that can be read


def test_the_map_of_the_routes_can_be_read_on_a_phone_and_nothing_leaves_its_box(ch, monkeypatch):
    names = {"plt": matplotlib.pyplot}
    with figures(names) as drawn:
        run(next(cell for cell in ch.cells if cell.id == "figure-routes"), names, monkeypatch)
        (figure,) = drawn()
        width, height = figure.get_size_inches()
        assert height > width and width <= 6, "taller than wide"
        scale = min(1.0, PHONE / (width * figure.dpi))
        (axes,) = figure.axes
        boxes = [patch.get_window_extent() for patch in axes.patches]
        assert len(boxes) == 9, "four sources, four steps, the project"
        words = [text for text in axes.texts if text.get_text()]
        for text in words:
            size = text.get_fontsize() * figure.dpi / 72 * scale
            assert size >= LEAST, f"{text.get_text()!r}: {size:.1f} px"
            extent = text.get_window_extent()
            over = [box for box in boxes if box.overlaps(extent)]
            inside = [
                b for b in over if b.x0 < extent.x0 and extent.x1 < b.x1 and b.y0 < extent.y0 and extent.y1 < b.y1
            ]
            assert over == inside and len(over) <= 1, text.get_text()
        for one in words:
            others = [other for other in words if other is not one]
            assert not any(one.get_window_extent().overlaps(other.get_window_extent()) for other in others)


def width_of(text):
    """How many columns of a terminal a table's text takes, code kept whole, as a rough measure of its width."""
    return sum(2 if char > "\x7f" else 1 for char in text)


def test_tables_leave_room_for_words_on_a_phone(ch):
    """Three columns, or four of which none holds a sentence; and code, which does not wrap, fits beside the others."""
    for cell in (cell for cell in ch.cells if cell.kind == "markdown"):
        rows = [line.strip("|").split("|") for line in cell.source.split("\n") if line.startswith("|")]
        rows = [row for row in rows if not set("".join(row)) <= set("- :")]
        if not rows:
            continue
        wide = max(width_of(text) for row in rows for text in row)
        assert len(rows[0]) <= 3 or (len(rows[0]) == 4 and wide < 70), f"{cell.id}: {len(rows[0])} columns"
        code = [max((len(word) for row in rows for word in re.findall(r"`([^`]+)`", row[n])), default=4)
                for n in range(len(rows[0]))]  # fmt: skip
        assert sum(code) <= 46, f"{cell.id}: {code}"


def test_every_plot_is_drawn_without_a_warning(ch, monkeypatch):
    names = namespace(ch)
    for cell in plot_cells(ch):
        with figures(names) as drawn:
            run(cell, names, monkeypatch)
            assert len(drawn()) == 1, cell.id


@pytest.mark.parametrize("todo", [1, 2, 3])
def test_an_unfinished_class_gets_a_hint_instead_of_a_plot(ch, monkeypatch, capsys, todo):
    stub = {todo: chapter.stubs(ch.of("solution")[0].source)[todo]}
    names = namespace(ch, stub)
    for cell in plot_cells(ch):
        needs = {1, 2, 3} if cell.id != "plot-lossy" else {2}
        with figures(names) as drawn:
            run(cell, names, monkeypatch)
            said = capsys.readouterr().out
            assert (f"TODO {todo}" in said) == (todo in needs), cell.id
            assert len(drawn()) == (0 if todo in needs else 1), cell.id


def test_a_wrong_class_gets_a_hint_too(ch, monkeypatch, capsys):
    names = namespace(ch, {1: "proposed = draft_tokens[99]"})
    for cell in plot_cells(ch):
        with figures(names):
            run(cell, names, monkeypatch)
    assert capsys.readouterr().out.count("IndexError") == 3
