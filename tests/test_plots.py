"""What the plot cells draw: numbers that agree with the theory, with default fonts, by the learner's own class."""

import warnings
from contextlib import contextmanager

import matplotlib
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
    exec(cell.source, names)


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
