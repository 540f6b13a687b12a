"""Measuring decoding routes side by side.

Routes are interleaved prompt by prompt, so that whatever else the machine does falls on all of them alike; a route's
speed-up is the median over prompts of (baseline seconds per token / its own), with the quartiles as spread. Prefill is
apart from all times. CPU time is given beside wall time: on a busy machine it is the steadier of the two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from .decoding import decode
from .drafters.scheduler import LinearCost, Scheduler
from .equality import Difference, differences
from .generation import Generation
from .model import Transformer
from .proposer import Proposer
from .sampling import GREEDY, Sampling


@dataclass(frozen=True)
class Route:
    """A way to decode: its name in tables, the drafter (None: autoregression) and its k."""

    name: str
    proposer: Proposer | None = None
    k: int = 0


@dataclass
class RouteResult:
    """What one route did on all prompts; times in seconds."""

    name: str
    k: int
    mean_acceptance_length: float  # 1 + accepted / drafts, bonus counted
    tokens_per_round: float  # as emitted, cut rounds included
    survival: list[float]  # unconditional, by position
    speedup: float  # median over prompts, wall time
    speedup_quartiles: tuple[float, float]
    speedup_cpu: float  # the same in CPU time
    tpot_p50: float  # seconds per output token of a request, first token excluded
    tpot_p95: float
    tokens_per_second: float  # all sequences together, prefill excluded
    draft: float  # mean seconds a round, by part
    verify: float
    rollback: float
    kv_bytes: int  # of the target's cache at the end of a run, largest
    differences: list[Difference] | None = None  # greedy only: against the first route
    p_value: float | None = None  # sampling only: same token frequencies as the first route's?
    runs: list[Generation] = field(default_factory=list, repr=False)


def compare(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    routes: Sequence[Route],
    *,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    eos: int | None = None,
    batch: int = 1,
    repeats: int = 1,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[RouteResult]:
    """Run all routes on all prompts, `batch` at a time; the first route is the baseline.

    `on_progress(done, total)` counts runs. With `repeats` > 1 a group's time is its median over repeats. Raises
    ValueError for no routes, no prompts, or a batch or repeats below 1.
    """
    if not routes or not prompts:
        raise ValueError(f"nothing to compare: {len(routes)} routes, {len(prompts)} prompts")
    if batch < 1 or repeats < 1:
        raise ValueError(f"batch and repeats must be at least 1, got {batch} and {repeats}")
    groups = [list(prompts[i : i + batch]) for i in range(0, len(prompts), batch)]
    runs: list[list[list[Generation]]] = [[[] for _ in groups] for _ in routes]  # [route][group][repeat]
    total = len(groups) * repeats * len(routes)

    def run(route: Route, group: list, number: int) -> Generation:
        # One seed a group: routes may draw differently from it, repeats of a route do not.
        generator = torch.Generator().manual_seed(seed + number)
        return decode(
            model, group, route.proposer, k=route.k, max_new_tokens=max_new_tokens, sampling=sampling, eos=eos,
            generator=generator,
        )  # fmt: skip

    for route in routes:  # warm-up
        run(route, groups[0], 0)
    done = 0
    for repeat in range(repeats):
        for number, group in enumerate(groups):
            # Every route gets every place in the order.
            first = (number + repeat) % len(routes)
            for index in [*range(first, len(routes)), *range(first)]:
                runs[index][number].append(run(routes[index], group, number))
                done += 1
                if on_progress:
                    on_progress(done, total)
    baseline = runs[0]
    results = [_summary(route, own, baseline) for route, own in zip(routes, runs, strict=True)]
    expected = [tokens for group in baseline for tokens in group[0].tokens]
    for result, own in zip(results, runs, strict=True):
        actual = [tokens for group in own for tokens in group[0].tokens]
        if sampling.greedy:
            result.differences = differences(model, prompts, expected, actual)
        elif own is not baseline:
            result.p_value = frequency_p_value(expected, actual)
    return results


def _summary(route: Route, runs: list[list[Generation]], baseline: list[list[Generation]]) -> RouteResult:
    firsts = [group[0] for group in runs]
    rounds = [r for run in firsts for r in run.rounds]
    every = [r for group in runs for run in group for r in run.rounds]
    pooled = Generation([], rounds, 0.0, 0.0, [], 0)

    def ratios(seconds: Callable[[Generation], float]) -> list[float]:
        return [
            statistics.median(map(seconds, base)) / statistics.median(map(seconds, own))
            for base, own in zip(baseline, runs, strict=True)
        ]

    def per_token(of: Callable[[Generation], float]) -> Callable[[Generation], float]:
        return lambda run: of(run) / max(1, sum(len(tokens) - 1 for tokens in run.tokens))

    wall = ratios(per_token(lambda run: run.decode_seconds))
    tpots = sorted(run.tpot(row) for run in firsts for row in range(len(run.tokens)) if len(run.tokens[row]) > 1)
    emitted = sum(row.emitted for r in every for row in r.rows)
    return RouteResult(
        name=route.name,
        k=route.k,
        mean_acceptance_length=pooled.mean_acceptance_length,
        tokens_per_round=pooled.tokens_per_round,
        survival=pooled.survival(),
        speedup=statistics.median(wall),
        speedup_quartiles=(quantile(wall, 0.25), quantile(wall, 0.75)),
        speedup_cpu=statistics.median(ratios(per_token(lambda run: run.decode_cpu_seconds))),
        tpot_p50=quantile(tpots, 0.5),
        tpot_p95=quantile(tpots, 0.95),
        tokens_per_second=emitted / sum(r.seconds for r in every),
        draft=statistics.fmean(r.draft_seconds for r in every),
        verify=statistics.fmean(r.verify_seconds for r in every),
        rollback=statistics.fmean(r.rollback_seconds for r in every),
        kv_bytes=max(run.kv_bytes for run in firsts),
        runs=firsts,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated; nan for none."""
    if not values:
        return float("nan")
    return torch.tensor(values, dtype=torch.float64).quantile(share).item()


def frequency_p_value(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]], permutations: int = 999) -> float:
    """Permutation test: do two sets of outputs have the same token frequencies?

    The statistic is the squared distance of the two frequency vectors; whole outputs are permuted, since tokens within
    one depend on each other. The same prompt's outputs stay a pair. A small p-value says that they differ; a large one
    proves nothing (that the rule is lossless is shown by enumeration, not here).
    """
    size = 1 + max((token for tokens in [*one, *other] for token in tokens), default=0)

    def counts(outputs: Sequence[Sequence[int]]) -> torch.Tensor:
        rows = [torch.bincount(torch.tensor(tokens, dtype=torch.long), minlength=size) for tokens in outputs]
        return torch.stack(rows).double()  # (prompts, V)

    difference = counts(one) - counts(other)
    signs = torch.randint(2, (permutations, len(one)), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    observed = difference.sum(0).square().sum()
    permuted = (signs @ difference).square().sum(1)
    return (1 + int((permuted >= observed * (1 - 1e-9)).sum())) / (permutations + 1)


@torch.inference_mode()
def forward_cost(
    model: Transformer,
    widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7),
    *,
    batch: int = 1,
    context: int = 192,
    repeats: int = 60,
) -> dict[int, float]:
    """Seconds of one target pass over m new tokens of each of `batch` sequences after `context` others, for each m:
    medians, interleaved.

    t(k + 1) / t(1) is what verification costs in units of an autoregressive step. Includes the head.
    """
    cache = model.new_cache(batch, context + max(widths))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (batch, context + max(widths)), generator=generator).to(model.device)
    model.forward(ids[:, :context], cache)
    seconds: dict[int, list[float]] = {m: [] for m in widths}
    for m in [*widths] * (repeats + 1):  # the first turn of each is the warm-up
        cache.rollback([context] * batch)
        began = time.perf_counter()
        model.head(model.forward(ids[:, context : context + m], cache).hidden).sum().item()
        seconds[m].append(time.perf_counter() - began)
    return {m: statistics.median(values[1:]) for m, values in seconds.items()}


def measured_scheduler(
    model: Transformer, batch: int = 1, budget: int | None = None, *, repeats: int = 20
) -> Scheduler:
    """DSpark's scheduler with what a step of `batch` sequences costs on this machine, measured now.

    `budget` bounds the tokens that the target is fed a step over the whole batch.
    """
    seconds = forward_cost(model, (1, 2, 4, 6), batch=batch, repeats=20)
    return Scheduler(budget, LinearCost.fit({batch * m: value for m, value in seconds.items()}), padded=True)


def weight_bytes(model: Transformer) -> dict[str, int]:
    """Bytes of the target's and of the MTP modules' parameters, as computed with."""
    modules = sum(p.numel() * p.element_size() for p in model.mtp.parameters())
    return {"target": sum(p.numel() * p.element_size() for p in model.parameters()) - modules, "modules": modules}
