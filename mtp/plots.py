"""Figures of a comparison. English labels: matplotlib's default fonts have no CJK glyphs."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .measure import RouteResult

# Okabe and Ito's colour-blind-safe palette.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"


def plot_comparison(results: Sequence[RouteResult], title: str = "") -> Figure:
    """Speed-up, tokens a round, a round's time and survival by position, one bar or line a route."""
    fig, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    plot_speedup(axes[0, 0], results)
    plot_length(axes[0, 1], results)
    plot_round_time(axes[1, 0], results)
    plot_survival(axes[1, 1], results)
    if title:
        fig.suptitle(title)
    return fig


def plot_speedup(ax: Axes, results: Sequence[RouteResult]) -> None:
    """Median speed-up with quartiles."""
    middle = [result.speedup for result in results]
    low, high = zip(*(result.speedup_quartiles for result in results), strict=True)
    below = [max(0.0, m - q) for m, q in zip(middle, low, strict=True)]
    above = [max(0.0, q - m) for m, q in zip(middle, high, strict=True)]
    ax.bar(_names(results), middle, color=BLUE, yerr=[below, above], capsize=3)
    ax.axhline(1, color=GREY, linestyle="--", linewidth=1)
    ax.set(ylabel="speed-up (times, median and quartiles)", title="Speed-up over autoregression")


def plot_length(ax: Axes, results: Sequence[RouteResult]) -> None:
    """Mean acceptance length, bonus token included."""
    ax.bar(_names(results), [result.mean_acceptance_length for result in results], color=GREEN)
    ax.set(ylabel="tokens a round (bonus included)", title="Mean acceptance length")


def plot_round_time(ax: Axes, results: Sequence[RouteResult]) -> None:
    """Where a round's time goes, stacked, in milliseconds."""
    bottom = [0.0] * len(results)
    for part, colour in (("verify", BLUE), ("draft", ORANGE), ("rollback", GREY)):
        height = [1e3 * getattr(result, part) for result in results]
        ax.bar(_names(results), height, bottom=bottom, color=colour, label=part)
        bottom = [b + h for b, h in zip(bottom, height, strict=True)]
    ax.set(ylabel="milliseconds a round", title="Time of a round")
    ax.legend()


def plot_survival(ax: Axes, results: Sequence[RouteResult]) -> None:
    """Share of rounds in which a position was accepted."""
    colours = plt.get_cmap("viridis")
    drafting = [result for result in results if result.survival]
    for number, result in enumerate(drafting):
        positions = range(1, len(result.survival) + 1)
        colour = colours(number / max(1, len(drafting)))
        ax.plot(positions, result.survival, marker="o", color=colour, label=result.name)
    ax.set(xlabel="draft position", ylabel="share of rounds", ylim=(0, 1), title="Survival by position")
    if drafting:
        ax.legend(fontsize="small")


def _names(results: Sequence[RouteResult]) -> list[str]:
    return [result.name for result in results]
