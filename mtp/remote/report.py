"""A benchmark of servers as figures, as a table, and as JSON."""

from __future__ import annotations

import math
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ..measure import quantile
from .client import Reply, RequestSettings
from .equality import OutputDifference
from .measure import Side
from .metrics import OFF, ON, UNKNOWN


@dataclass
class Report:
    """Everything that a run has shown. `findings` want attention (exit status 1), `notes` are for reading."""

    sides: Sequence[Side]  # the server first, then the baseline if there is one
    speedup: float | None = None  # median over prompts of (baseline's TPOT / server's)
    speedup_quartiles: tuple[float, float] | None = None
    compared: int = 0  # prompts whose outputs were compared (temperature 0 only)
    differences: list[OutputDifference] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def build_report(
    sides: Sequence[Side], wanted: RequestSettings, compared: int = 0, differences: Sequence[OutputDifference] = ()
) -> Report:
    """Draw the conclusions from what the sides measured."""
    report = Report(sides, compared=compared, differences=list(differences))
    server = sides[0]
    for side in sides:
        _look_at_faults(side, report)
        _look_at_traffic(side, report)
    if server.speculation.status == OFF:
        report.findings.append(f"MTP was not on: {server.speculation.reason}")
    elif server.speculation.status == UNKNOWN:
        report.notes.append(f"server: {server.speculation.reason}")
    elif not server.speculation.accepted:
        report.findings.append("MTP drafted, but nothing was accepted: wrong weights for the modules, or a bug")
    if len(sides) == 1:
        report.notes.append("no --baseline: no speed-up, no comparison of outputs")
        return report
    _look_at_pair(server, sides[1], report)
    if wanted.temperature == 0:
        broken = [found for found in differences if not found.is_rounding]
        if broken:
            report.findings.append(f"{len(broken)} of {compared} outputs differ from the baseline's, not by rounding")
    else:
        report.notes.append("outputs are not compared at a temperature above 0: they are random on both sides")
    return report


def _look_at_faults(side: Side, report: Report) -> None:
    if side.faults:
        kinds = Counter(fault.kind for fault in side.faults)
        total = len(side.faults) + len(side.replies)
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        report.findings.append(f"{side.name}: {len(side.faults)} of {total} requests failed ({listed})")
        for kind in kinds:
            example = next(fault.detail for fault in side.faults if fault.kind == kind)
            report.notes.append(f"{side.name}: {kind}: {example}")


def _look_at_traffic(side: Side, report: Report) -> None:
    """Counters are everybody's: say when they have seen more than this run."""
    counted, own = side.speculation.generated, sum(reply.tokens for reply in side.replies)
    slack = max(len(side.replies), 0.01 * own)  # engines differ in whether EOS counts
    if counted is not None and not side.faults and abs(counted - own) > slack:
        report.notes.append(
            f"{side.name}: the server counted {counted} tokens, these requests got {own}: others used it at the same "
            "time, or its counters lag; acceptance is not of these requests alone"
        )


def _look_at_pair(server: Side, baseline: Side, report: Report) -> None:
    if baseline.speculation.status == ON:
        report.findings.append(f"the baseline drafts as well ({baseline.speculation.reason}): it is no baseline")
    elif baseline.speculation.status == UNKNOWN:
        report.notes.append(f"baseline: {baseline.speculation.reason}")
    if server.model != baseline.model:
        report.notes.append(f"model names differ ({server.model!r}, {baseline.model!r}): are the weights the same?")
    ratios = [
        base / own
        for own, base in zip(map(_prompt_tpot, server.results), map(_prompt_tpot, baseline.results), strict=True)
        if own and base
    ]
    if ratios:
        report.speedup = statistics.median(ratios)
        report.speedup_quartiles = (quantile(ratios, 0.25), quantile(ratios, 0.75))
    else:
        report.notes.append("no prompt was completed by both servers with two tokens or more: no speed-up")


def _prompt_tpot(runs: Sequence) -> float | None:
    """A prompt's TPOT: the median over its completed runs."""
    values = [run.tpot for run in runs if isinstance(run, Reply) and run.tpot is not None]
    return statistics.median(values) if values else None


def side_figures(side: Side) -> dict[str, float | int | None]:
    """A side's figures; times in seconds, None where nothing was measured."""
    ttfts = [reply.ttft for reply in side.replies]
    tpots = [reply.tpot for reply in side.replies if reply.tpot is not None]
    tokens = sum(reply.tokens for reply in side.replies)
    figures = {
        "completed": len(side.replies),
        "failed": len(side.faults),
        "output_tokens": tokens,
        "ttft_p50": quantile(ttfts, 0.5),
        "ttft_p95": quantile(ttfts, 0.95),
        "tpot_p50": quantile(tpots, 0.5),
        "tpot_p95": quantile(tpots, 0.95),
        "tokens_per_second": tokens / side.seconds if side.seconds else None,
        "tokens_per_chunk": tokens / max(1, sum(reply.chunks for reply in side.replies)),
    }
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


def table(report: Report) -> str:
    """The run for reading: a line a side, then what follows from them. Times in milliseconds."""
    lines = [
        f"{'':<9} {'ok':>4} {'failed':>6} {'TTFT50':>8} {'TTFT95':>8} {'TPOT50':>8} {'TPOT95':>8} {'tok/s':>8} "
        f"{'MAL':>5} {'rate':>5}  survival by position"
    ]
    for side in report.sides:
        figures, spec = side_figures(side), side.speculation
        times = " ".join(_cell(figures[name], 8, 1e3) for name in ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95"))
        survival = " ".join(f"{share:.2f}" for share in spec.survival) or "-"
        lines.append(
            f"{side.name:<9} {figures['completed']:>4} {figures['failed']:>6} {times} "
            f"{_cell(figures['tokens_per_second'], 8)} {_cell(spec.mean_acceptance_length, 5)} "
            f"{_cell(spec.acceptance_rate, 5)}  {survival}"
        )
    if report.speedup is not None:
        low, high = report.speedup_quartiles
        spread = f"median over prompts of TPOT ratios; quartiles {low:.2f}-{high:.2f}"
        lines.append(f"speed-up: {report.speedup:.2f}, {spread}")
    server = report.sides[0]
    if server.speculation.status == ON:
        lines.append(f"drafting was on: {server.speculation.reason}")
    if report.compared:
        equal = report.compared - len(report.differences)
        lines.append(f"outputs at temperature 0: {equal} of {report.compared} equal to the baseline's")
    lines += [_difference_line(found) for found in report.differences]
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"ATTENTION: {finding}" for finding in report.findings]
    return "\n".join(lines)


def _cell(value: float | None, width: int, factor: float = 1.0) -> str:
    return f"{'-':>{width}}" if value is None else f"{factor * value:>{width}.2f}"


def _difference_line(found: OutputDifference) -> str:
    margin = found.remark if found.margin is None else f"top-2 margin {found.margin:.1e} nats"
    verdict = "rounding" if found.is_rounding else "a defect" if found.margin is not None else "unexplained"
    return (
        f"  prompt {found.prompt} differs from character {found.position} on: {found.baseline!r} became "
        f"{found.server!r}; {margin}: {verdict}"
    )


def as_json(report: Report, settings: dict) -> dict:
    """All figures with what is needed to read them, each request included; not the texts."""
    return {
        "python": platform.python_version(),
        "settings": settings,
        "sides": [
            {
                "name": side.name, "url": side.client.url, "model": side.model, **side_figures(side),
                "speculation": asdict(side.speculation) | {
                    "mean_acceptance_length": side.speculation.mean_acceptance_length,
                    "acceptance_rate": side.speculation.acceptance_rate,
                    "survival": side.speculation.survival,
                },
                "requests": [[_request(run) for run in runs] for runs in side.results],
            }
            for side in report.sides
        ],
        "speedup": report.speedup,
        "speedup_quartiles": report.speedup_quartiles,
        "outputs_compared": report.compared,
        "outputs_different": [asdict(found) | {"is_rounding": found.is_rounding} for found in report.differences],
        "findings": report.findings,
        "notes": report.notes,
    }  # fmt: skip


def _request(run) -> dict:
    if not isinstance(run, Reply):
        return {"fault": run.kind, "detail": run.detail}
    return {
        "tokens": run.tokens, "prompt_tokens": run.prompt_tokens, "finish_reason": run.finish_reason,
        "ttft": run.ttft, "tpot": run.tpot, "chunks": run.chunks,
    }  # fmt: skip
