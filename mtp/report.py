"""A comparison as a text table and as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from types import MappingProxyType

import torch

from .measure import RouteResult
from .memory import DrafterMemory
from .sampling import Sampling

NOTHING = DrafterMemory(0, 0)


def header_line(work: str, sampling: Sampling, batch: int, threads: int, weights: Mapping[str, int]) -> str:
    """What was run, and on what: `weights` in bytes, by part, as `measure.weight_bytes` gives them."""
    sizes = " + ".join(f"{size / 2**20:.1f} MiB ({part})" for part, size in weights.items())
    counted = f"{threads} thread" + "s" * (threads != 1)
    return f"{work}, {_sampling(sampling)}, batch {batch}, {counted}; prefill apart; weights {sizes}, fp32"


def _sampling(sampling: Sampling) -> str:
    if sampling.greedy:
        return "temperature 0 (greedy)"
    cuts = {"top-k": sampling.top_k, "top-p": sampling.top_p}
    listed = ", ".join(f"{name} {'off' if value is None else value}" for name, value in cuts.items())
    return f"temperature {sampling.temperature:g}, {listed}"


def table(results: Sequence[RouteResult], memory: Mapping[str, DrafterMemory] = MappingProxyType({})) -> str:
    """One line a route; milliseconds, and speed-ups against the first route. memory: of routes, by their names."""
    header = (
        f"{'route':<12} {'MAL':>5} {'tok/rd':>6} {'speed-up':>8} {'quartiles':>11} {'cpu':>5} "
        f"{'TPOT50':>7} {'TPOT95':>7} {'tok/s':>6} {'draft':>6} {'verify':>6} {'rollbk':>6} {'KV kB':>6} "
        f"{'+params':>9} {'+KV B/tok':>9}  survival; equality"
    )
    return "\n".join([header, *(_line(result, memory.get(result.name, NOTHING)) for result in results)])


def _line(r: RouteResult, more: DrafterMemory) -> str:
    low, high = r.speedup_quartiles
    survival = " ".join(f"{share:.2f}" for share in r.survival)
    return (
        f"{r.name:<12} {r.mean_acceptance_length:>5.2f} {r.tokens_per_round:>6.2f} {r.speedup:>8.2f} "
        f"{f'{low:.2f}-{high:.2f}':>11} {r.speedup_cpu:>5.2f} {1e3 * r.tpot_p50:>7.2f} {1e3 * r.tpot_p95:>7.2f} "
        f"{r.tokens_per_second:>6.0f} {1e3 * r.draft:>6.2f} {1e3 * r.verify:>6.2f} {1e3 * r.rollback:>6.2f} "
        f"{r.kv_bytes / 1e3:>6.0f} {more.parameters:>9,} {more.kv_bytes_per_token:>9,}  {survival}; {_equality(r)}"
    )


def _equality(r: RouteResult) -> str:
    if r.p_value is not None:
        return f"frequencies p={r.p_value:.2f}"
    if r.differences is None:
        return "baseline"
    if not r.differences:
        return "identical"
    return "differs: " + ", ".join(f"prompt {d.prompt} at {d.position}, margin {d.margin:.1e}" for d in r.differences)


def cost_line(costs: dict[int, float]) -> str:
    """t(m) / t(1) of the target."""
    ratios = ", ".join(f"t({m})/t(1) = {seconds / costs[1]:.2f}" for m, seconds in costs.items() if m > 1)
    return f"target pass: t(1) = {1e3 * costs[1]:.2f} ms, {ratios}"


def as_json(
    results: Sequence[RouteResult],
    costs: dict[int, float],
    weights: dict[str, int],
    settings: dict,
    memory: Mapping[str, DrafterMemory] = MappingProxyType({}),
) -> dict:
    """All figures with what is needed to read them: versions, machine, settings."""
    plain = [field.name for field in fields(RouteResult) if field.name not in ("runs", "differences")]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "settings": {key: value for key, value in settings.items() if isinstance(value, (int, float, str, list))},
        "weight_bytes": weights,
        "forward_seconds": costs,
        "routes": [
            {name: getattr(r, name) for name in plain}
            | memory.get(r.name, NOTHING)._asdict()
            | {"differences": None if r.differences is None else [asdict(d) for d in r.differences]}
            for r in results
        ],
    }
