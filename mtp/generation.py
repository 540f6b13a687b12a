"""What a decoding run returns: the tokens, and a record of every round to compute figures from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RowRound(NamedTuple):
    """One sequence in one round."""

    row: int
    proposed: int  # drafts that were verified
    accepted: int  # length of the accepted prefix (of the accepted path in a tree)
    emitted: int  # accepted + 1 unless cut by EOS or max_new_tokens
    levels: int  # draft positions: proposed in a chain, the depth of a tree


class Round(NamedTuple):
    """One round of the loop; seconds are wall time. Sequences that had ended before are absent."""

    rows: tuple[RowRound, ...]
    draft_seconds: float
    verify_seconds: float  # the target's pass and the decision
    rollback_seconds: float  # emitting, moving the caches' lengths, handing hidden states to the drafter

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.rollback_seconds


@dataclass
class Generation:
    """Output of `decode`. The first token of each sequence comes from the prefill, all others from `rounds`."""

    tokens: list[list[int]]  # new ids of each sequence, without the prompt
    rounds: list[Round]
    prefill_seconds: float
    decode_cpu_seconds: float  # of this process, over all rounds
    prompt_lengths: list[int]
    kv_bytes: int  # of the target's cache, at the end

    @property
    def decode_seconds(self) -> float:
        return sum(r.seconds for r in self.rounds)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts, the bonus token counted, as vLLM's metric has it; rounds without drafts left out."""
        entries = [row for r in self.rounds for row in r.rows if row.proposed]
        return 1 + sum(row.accepted for row in entries) / len(entries) if entries else 1.0

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a sequence and a round; below the mean acceptance length where rounds were cut short."""
        entries = [row for r in self.rounds for row in r.rows]
        return sum(row.emitted for row in entries) / len(entries) if entries else 0.0

    def survival(self) -> list[float]:
        """Share of rounds that drafted a position in which it was accepted, by position (unconditional)."""
        entries = [row for r in self.rounds for row in r.rows]
        depth = max((row.levels for row in entries), default=0)
        return [sum(row.accepted > i for row in entries) / sum(row.levels > i for row in entries) for i in range(depth)]

    def tpot(self, row: int = 0) -> float:
        """Seconds per output token of a sequence after its first: (t_last - t_first) / (n - 1)."""
        seconds = sum(r.seconds for r in self.rounds if any(entry.row == row for entry in r.rows))
        after_first = len(self.tokens[row]) - 1
        return seconds / after_first if after_first else float("nan")
