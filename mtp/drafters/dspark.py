"""DSpark: DFlash, a Markov head, a confidence head and a scheduler (arXiv 2607.05147).

The block's rows are computed at once, as in DFlash, and the drafts drawn from left to right: a low-rank table adds to
a row's logits what the token just drawn says about the next one. That is one table row a draft instead of a pass of a
model, and gives q_i the dependence within the block that DFlash lacks. The confidence head estimates, from a row and
the token before it, how likely its draft is to be accepted; from these the scheduler (see `scheduler.py`) decides how
many drafts the target shall verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model import TargetOutput, Transformer, contiguous
from ..proposer import Chain, Context, Proposal
from ..ragged import window
from .dflash import DFlash, DFlashConfig, DFlashModel
from .scheduler import Scheduler


@dataclass(frozen=True)
class DSparkConfig(DFlashConfig):
    """Weights of the losses: DeepSpec gives cross-entropy .1, but trains longer; at first it teaches faster than TV."""

    markov_rank: int = 32
    cross_entropy_weight: float = 0.5
    variation_weight: float = 0.9  # of |p - q|, summed over the vocabulary: twice the rejection probability
    confidence_weight: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.markov_rank, int) or self.markov_rank < 1:
            raise ValueError(f"drafter: markov_rank must be a positive integer, got {self.markov_rank!r}")


class HeadTables(NamedTuple):
    """The two heads multiplied out: what a token says about the row after it takes one look-up."""

    bias: Tensor  # (V, V) added to a row's logits, by the token before
    confidence_of_row: Tensor  # (d, 2) for sampling and for greedy decoding
    confidence_of_token: Tensor  # (V, 2)


class DSparkModel(DFlashModel):
    """DFlash's parameters and those of the two heads. Made as DSparkModel(target, **fields of DSparkConfig)."""

    config_class = DSparkConfig

    def __init__(self, target: Transformer, **config):
        super().__init__(target, **config)
        vocab, d = self.embedding.shape
        rank = self.sizes.markov_rank
        self.markov_embedding = nn.Parameter(torch.empty(vocab, rank))  # of the token before
        self.markov_out = nn.Parameter(torch.zeros(vocab, rank))  # zeros: training begins as DFlash
        nn.init.normal_(self.markov_embedding)
        # One estimate for sampling (the overlap of p and q) and one for greedy decoding (equal argmaxes).
        self.confidence_sampled = nn.Parameter(torch.zeros(d + rank))
        self.confidence_greedy = nn.Parameter(torch.zeros(d + rank))
        self.confidence_bias = nn.Parameter(torch.zeros(2))
        self._folded_tables: HeadTables | None = None

    def fold(self) -> DSparkModel:
        super().fold()
        self._folded_tables = None
        self._folded_tables = contiguous(self.tables())
        return self

    def tables(self) -> HeadTables:
        if self._folded_tables is not None:
            return self._folded_tables
        d = self.embedding.shape[1]
        confidence = torch.stack([self.confidence_sampled, self.confidence_greedy], dim=1)  # (d + r, 2)
        return HeadTables(
            self.markov_embedding @ self.markov_out.T,
            confidence[:d],
            self.markov_embedding @ confidence[d:] + self.confidence_bias,
        )

    def confidence(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Logits (…, 2) of the chance that a row's draft is accepted if all before it are: sampling, greedy.

        hidden (…, d) of the row, before (…) the token before its draft. The draft itself does not enter.
        """
        tables = self.tables()
        return hidden @ tables.confidence_of_row + tables.confidence_of_token[before]

    def loss(self, ids: Tensor, output: TargetOutput, logits: Tensor, generator: torch.Generator) -> Tensor:
        """As DFlash's, with the total variation as the main term and the confidences' cross-entropy beside it.

        The token before each draft is the text's: q_i is conditional, and so are its loss and its acceptance.
        """
        anchors = self.sample_anchors(ids, generator)
        hidden = self.train_blocks(ids, output.features, anchors)  # (B, A, K, d)
        p, before = self.aligned(ids, logits, anchors)  # (B, A, K, V), (B, A, K)
        log_q = F.log_softmax(self.head(hidden) + self.tables().bias[before], -1)
        difference = (p - log_q.exp()).abs().sum(-1)  # (B, A, K), 2 TV
        accepted = torch.stack([1 - difference / 2, (p.argmax(-1) == log_q.argmax(-1)).float()], -1).detach()
        confidence = self.confidence(hidden.detach(), before)  # (B, A, K, 2); the row is not trained to be predictable
        missed = F.binary_cross_entropy_with_logits(confidence, accepted.clamp(0, 1), reduction="none").sum(-1)
        return self.decayed(
            self.sizes.cross_entropy_weight * -(p * log_q).sum(-1)
            + self.sizes.variation_weight * difference
            + self.sizes.confidence_weight * missed
        )


class DSpark(DFlash):
    """Drafts up to `k` tokens in one pass and offers those of them that `scheduler` finds worth verifying (all of
    them by default).
    """

    label = "DSpark"

    def __init__(
        self, target: Transformer, model: DSparkModel, k: int | None = None, *, scheduler: Scheduler | None = None
    ):
        super().__init__(target, model, k)
        self.scheduler = scheduler

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        logits, hidden = self._block(context, min(k, self.k))  # (B, k, V), (B, k, d)
        before = [window(context.tokens, [known - 1 for known in context.known], 1)[:, 0]]  # each (B,)
        bias = self.model.tables().bias  # (V, V)
        chain = Chain(context.sampling, uniforms)
        for i in range(logits.shape[1]):
            before.append(chain.draw(logits[:, i] + bias[before[-1]]))
        proposal = chain.proposal()
        if self.scheduler is None:
            return proposal
        confidence = self.model.confidence(hidden, torch.stack(before[:-1], 1))[..., int(uniforms is None)]  # (B, k)
        counts = self._counts(confidence.sigmoid().cumprod(-1), context.active)
        width = max(counts)
        q = None if proposal.q is None else proposal.q[:, :width]
        return Proposal(proposal.tokens[:, :width], q, counts)

    def _counts(self, survival: Tensor, active: Sequence[int]) -> list[int]:
        """Drafts of each row to verify, from survival (B, k); none for sequences that have ended."""
        counts = [0] * len(survival)
        chosen = self.scheduler.lengths(survival[list(active)].tolist())
        for row, count in zip(active, chosen, strict=True):
            counts[row] = count
        return counts
