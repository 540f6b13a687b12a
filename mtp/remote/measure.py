"""Sending the same prompts to one or two servers, fairly: warm-up apart, the servers taking turns, faults counted.

`concurrency` requests are in flight at one server while the other rests: the two may share a GPU. With 1, the servers
take turns request by request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .client import NOT_SENT, Client, Fault, Reply, RequestSettings
from .metrics import Snapshot, Speculation, difference, parse_metrics

GIVE_UP_AFTER = 3
"""Requests in a row that found a server gone or silent; what follows is not sent, or a run could take hours."""

SETTLE_SECONDS = 0.2
SETTLE_READS = 10
"""Engines count a step shortly after its tokens were sent: the page is read until it stands still."""


@dataclass
class Side:
    """One server's part of a benchmark. results[prompt][repeat] is what became of each request."""

    name: str
    client: Client
    model: str
    results: list[list[Reply | Fault]] = field(default_factory=list)
    seconds: float = 0.0  # wall time with requests in flight
    speculation: Speculation | None = None
    gone: int = 0  # faults in a row that say that the server is gone

    @property
    def replies(self) -> list[Reply]:
        return [result for runs in self.results for result in runs if isinstance(result, Reply)]

    @property
    def faults(self) -> list[Fault]:
        return [result for runs in self.results for result in runs if isinstance(result, Fault)]

    async def ask(self, prompt: str, wanted: RequestSettings) -> Reply | Fault:
        """One request; a fault costs no more than this request."""
        if self.gone >= GIVE_UP_AFTER:
            return Fault(NOT_SENT, f"{self.gone} requests in a row had found the server gone or silent")
        try:
            return await self.client.stream(wanted.body(prompt, self.model), wanted.path)
        except Fault as fault:
            return fault

    async def ask_together(self, prompts: Sequence[str], wanted: RequestSettings) -> list[Reply | Fault]:
        """Several requests at once, timed together."""
        began = time.perf_counter()
        results = await asyncio.gather(*(self.ask(prompt, wanted) for prompt in prompts))
        self.seconds += time.perf_counter() - began
        for result in results:
            if isinstance(result, Fault) and result.server_is_gone:
                self.gone += 1
            elif isinstance(result, Reply) or result.kind != NOT_SENT:
                self.gone = 0
        return results

    async def snapshot(self) -> Snapshot:
        """The server's counters, once they stand still."""
        last: Snapshot | None = None
        for _ in range(SETTLE_READS):
            try:
                now = parse_metrics(await self.client.get("/metrics"))
            except Fault as fault:
                hint = "; SGLang shows it with --enable-metrics, llama.cpp with --metrics"
                return Snapshot(None, problem=f"/metrics: {fault}{hint if fault.kind.startswith('HTTP') else ''}")
            if now.problem or (last and now.totals == last.totals):
                return now
            last = now
            await asyncio.sleep(SETTLE_SECONDS)
        return last


async def measure(
    sides: Sequence[Side],
    prompts: Sequence[str],
    wanted: RequestSettings,
    *,
    concurrency: int = 1,
    repeats: int = 1,
    warmup: Sequence[str] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fill in `results`, `seconds` and `speculation` of each side.

    `warmup` prompts are sent to each side first and not counted; they had better not be among `prompts`, whose prefill
    would then be cached. `on_progress(done, total)` counts requests. Raises ValueError for counts below 1.
    """
    if not prompts or concurrency < 1 or repeats < 1:
        raise ValueError(
            f"prompts, concurrency and repeats must be at least 1, got {len(prompts)}, {concurrency} and {repeats}"
        )
    for side in sides:
        for group in _groups(warmup, concurrency):
            await asyncio.gather(*(side.ask(prompt, wanted) for prompt in group))
    before = [await side.snapshot() for side in sides]
    done, total = 0, len(sides) * len(prompts) * repeats
    for side in sides:
        side.results = [[] for _ in prompts]
    for repeat in range(repeats):
        for turn, group in enumerate(_groups(range(len(prompts)), concurrency)):
            # Every side gets every place in the order.
            first = (turn + repeat) % len(sides)
            for side in [*sides[first:], *sides[:first]]:
                for number, result in zip(
                    group, await side.ask_together([prompts[n] for n in group], wanted), strict=True
                ):
                    side.results[number].append(result)
                done += len(group)
                if on_progress:
                    on_progress(done, total)
    for side, start in zip(sides, before, strict=True):
        side.speculation = difference(start, await side.snapshot())


def _groups(items: Sequence, size: int) -> list[Sequence]:
    return [items[start : start + size] for start in range(0, len(items), size)]
