"""Speculative-decoding counters of a running server: read before and after, their difference is the run's acceptance.

| engine | counters | source |
|---|---|---|
| vLLM | `vllm:spec_decode_num_*_total`, only where a speculative config is set | vllm/v1/spec_decode/metrics.py |
| llama.cpp | `llamacpp:spec_decode_num_*` with vLLM's meaning, with `--metrics` | ggml-org/llama.cpp#26389 |
| SGLang | `sglang:spec_verify_calls_total`, with `--enable-metrics` | python/sglang/srt/observability |

SGLang counts verifications but neither drafted nor accepted tokens: what was accepted follows from the tokens it
generated, of which each request's first comes from the prefill and one more from each verification. Its gauge
`sglang:spec_accept_length` covers an unknown stretch of time and is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

ON, OFF, UNKNOWN = "on", "off", "unknown"

_GENERATED = {
    "vllm": "vllm:generation_tokens",
    "sglang": "sglang:generation_tokens",
    "llamacpp": "llamacpp:tokens_predicted",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True)
class Snapshot:
    """Counters at one moment, summed over a server's engines. Names are without `_total`."""

    engine: str | None  # None: none of the three was recognised
    totals: Mapping[str, float] = field(default_factory=dict)
    accepted_at: Mapping[int, float] = field(default_factory=dict)
    problem: str | None = None  # why there is nothing to read

    @property
    def generated(self) -> float:
        return self.totals.get(_GENERATED.get(self.engine, ""), 0.0)

    def count(self, name: str) -> float:
        return self.totals.get(f"{self.engine}:{name}", 0.0)


@dataclass(frozen=True)
class Speculation:
    """What a server's counters say about a run. Counts are None where the server does not tell."""

    status: str  # ON, OFF or UNKNOWN
    reason: str  # a sentence for the reader
    engine: str | None = None
    drafts: int = 0  # verifications of drafted tokens
    draft_tokens: int | None = None
    accepted: int | None = None
    accepted_at: tuple[int, ...] = ()  # by position
    generated: int | None = None  # tokens by the server's own count, anybody's

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts: the bonus token counts, as in vLLM."""
        return 1 + self.accepted / self.drafts if self.drafts and self.accepted is not None else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens."""
        return self.accepted / self.draft_tokens if self.draft_tokens and self.accepted is not None else None

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of drafts whose token at each position was accepted (unconditional)."""
        return tuple(count / self.drafts for count in self.accepted_at) if self.drafts else ()


def parse_metrics(text: str) -> Snapshot:
    """Read a /metrics page. A page that cannot be read, or of an unknown engine, gives a Snapshot with a `problem`."""
    totals: dict[str, float] = {}
    accepted_at: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name.endswith("_created"):  # a time, not a count
                    continue
                totals[name] = totals.get(name, 0.0) + sample.value
                if name.endswith(_PER_POSITION):
                    position = int(sample.labels["position"])
                    accepted_at[position] = accepted_at.get(position, 0.0) + sample.value
    except (ValueError, KeyError, IndexError, TypeError) as error:  # what the parser raises for a page of another kind
        return Snapshot(None, problem=f"the page is not in Prometheus' format ({error})")
    for engine, generated in _GENERATED.items():
        if generated in totals or any(name.startswith(f"{engine}:") for name in totals):
            return Snapshot(engine, totals, accepted_at)
    return Snapshot(None, totals, problem="none of its counters is named like vLLM's, SGLang's or llama.cpp's")


def difference(before: Snapshot, after: Snapshot) -> Speculation:
    """What happened between two snapshots of one server."""
    for snapshot in (before, after):
        if snapshot.problem:
            return Speculation(UNKNOWN, f"cannot say whether drafts were made: {snapshot.problem}")
    names = {*before.totals, *after.totals}
    relevant = {name for name in names if _only_rises(name)} | {_GENERATED[after.engine]}
    backwards = [name for name in relevant if after.totals.get(name, 0.0) < before.totals.get(name, 0.0)]
    if before.engine != after.engine or backwards:
        what = f"{min(backwards)} went back" if backwards else f"{before.engine} became {after.engine}"
        return Speculation(UNKNOWN, f"cannot say: {what}, so the server was restarted during the run")
    generated = round(after.generated - before.generated)
    read = _verifications if after.engine == "sglang" else _drafts
    return read(before, after, generated)


def _drafts(before: Snapshot, after: Snapshot, generated: int) -> Speculation:
    """vLLM and llama.cpp: every quantity has its counter."""
    engine = after.engine
    if f"{engine}:spec_decode_num_drafts" not in after.totals:
        if others := sorted(name for name in after.totals if "spec_" in name or "draft" in name):
            return Speculation(
                UNKNOWN, f"cannot say: {engine}:spec_decode_num_drafts is missing, but there is {', '.join(others)}; "
                "this version names its counters otherwise", engine, generated=generated,
            )  # fmt: skip
        return Speculation(
            OFF, "the server has no speculative-decoding counters: it was started without drafting", engine,
            generated=generated,
        )  # fmt: skip
    drafts, draft_tokens, accepted = (
        round(after.count(name) - before.count(name))
        for name in ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    )
    positions = range(max(after.accepted_at, default=-1) + 1)
    accepted_at = tuple(round(after.accepted_at.get(i, 0) - before.accepted_at.get(i, 0)) for i in positions)
    if not drafts:
        return Speculation(OFF, "the server counted no drafts during the run", engine, generated=generated)
    return Speculation(
        ON, f"{drafts} drafts, {draft_tokens} tokens drafted, {accepted} accepted", engine, drafts, draft_tokens,
        accepted, accepted_at, generated,
    )  # fmt: skip


def _verifications(before: Snapshot, after: Snapshot, generated: int) -> Speculation:
    """SGLang: a label set appears with its first count, so an absent counter is 0."""
    calls = round(after.count("spec_verify_calls") - before.count("spec_verify_calls"))
    if not calls:
        return Speculation(OFF, "the server counted no verifications during the run", "sglang", generated=generated)
    requests = round(after.count("num_requests") - before.count("num_requests"))
    accepted = max(0, generated - requests - calls)
    return Speculation(
        ON, f"{calls} verifications; accepted tokens derived from {generated} generated ones of {requests} requests",
        "sglang", calls, None, accepted, (), generated,
    )  # fmt: skip


def _only_rises(name: str) -> bool:
    """Gauges may fall; these counters may not."""
    return "spec_decode_num_" in name or name.endswith("spec_verify_calls")
