"""From logits to probabilities, and from probabilities and uniform numbers to tokens.

`Sampling.probabilities` is the only place where temperature, top-k and top-p act. Target and drafter both go through
it: the exact rule keeps the target's distribution whatever the drafter's is, but a drafter shaped differently is
accepted less often, and a target shaped differently is another target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_k keeps the k likeliest tokens; top_p the fewest that together reach p."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not (isinstance(self.temperature, (int, float)) and 0 <= self.temperature < float("inf")):
            raise ValueError(f"temperature must be 0 (greedy) or a positive number, got {self.temperature!r}")
        if self.top_k is not None and not (isinstance(self.top_k, int) and self.top_k >= 1):
            raise ValueError(f"top_k must be a whole number of at least 1, or None, got {self.top_k!r}")
        if self.top_p is not None and not (isinstance(self.top_p, (int, float)) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must lie in (0, 1], or be None, got {self.top_p!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (…, V) to probabilities (…, V): temperature, then top-k, then top-p (Hugging Face's order).

        Greedy gives a one-hot of the argmax. Ties at top-k's edge are all kept.
        """
        if self.greedy:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            edge = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < edge, float("-inf"))
        p = torch.softmax(logits, dim=-1)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = p.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered  # mass of the likelier ones: the first token always stays
            p = p.masked_fill(torch.empty_like(p, dtype=torch.bool).scatter_(-1, order, before >= self.top_p), 0.0)
            p = p / p.sum(-1, keepdim=True)
        return p


GREEDY = Sampling(temperature=0.0)


class Uniforms:
    """The one source of randomness of a decoding run: uniform numbers in [0, 1) from an explicit generator.

    Every random choice is a function of such a number, so a test can put in its own source and enumerate all outcomes.
    """

    def __init__(self, generator: torch.Generator | None = None):
        self.generator = generator

    def draw(self, batch: int, count: int) -> Tensor:
        """(batch, count) fresh numbers."""
        return torch.rand(batch, count, generator=self.generator)


def pick(p: Tensor, u: Tensor) -> Tensor:
    """Token of each row by inverting the cumulative sum: p (…, V) not necessarily normalised, u (…) in [0, 1).

    Returns ids (…). A token of weight 0 is never picked: the first cumulative sum that exceeds u * total belongs to a
    positive weight.
    """
    cumulative = p.cumsum(-1)  # (…, V)
    return torch.searchsorted(cumulative, u.unsqueeze(-1) * cumulative[..., -1:], right=True).squeeze(-1)
