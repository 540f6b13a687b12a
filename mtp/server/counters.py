"""What /metrics shows: the counters of vLLM that a benchmark reads, under vLLM's names.

As in vLLM (vllm/v1/spec_decode/metrics.py), the spec_decode counters exist only where drafting is configured, and one
position is one label value.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from ..generation import Round


class ServerCounters:
    """The server's Prometheus counters, apart from the process-wide registry so that two servers do not share them."""

    def __init__(self, model_name: str, k: int):
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"vllm:{name}", text, ["model_name", *labels], registry=self.registry)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens processed.").labels(model_name)
        self.generated = counter("generation_tokens", "Tokens generated.").labels(model_name)
        success = counter("request_success", "Requests that were completed.", "finished_reason")
        self.success = {reason: success.labels(model_name, reason) for reason in ("stop", "length")}
        waiting, running = (
            Gauge(f"vllm:num_requests_{state}", f"Requests {state}.", ["model_name"], registry=self.registry)
            for state in ("waiting", "running")
        )
        self.waiting, self.running = waiting.labels(model_name), running.labels(model_name)
        self.k = k
        if k:
            self.drafts = counter("spec_decode_num_drafts", "Rounds that drafted.").labels(model_name)
            self.draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens drafted.").labels(model_name)
            self.accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens accepted.").labels(model_name)
            by_position = counter(
                "spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by position.", "position"
            )
            self.accepted_at = [by_position.labels(model_name, str(position)) for position in range(k)]

    def count(self, record: Round) -> None:
        """Add one round of the decoding loop."""
        for row in record.rows:
            self.generated.inc(row.emitted)
            if row.proposed:
                self.drafts.inc()
                self.draft_tokens.inc(row.proposed)
                self.accepted.inc(row.accepted)
                for position in range(row.accepted):
                    self.accepted_at[position].inc()

    def text(self) -> bytes:
        """The page, in Prometheus' text format."""
        return generate_latest(self.registry)
