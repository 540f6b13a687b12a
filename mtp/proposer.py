"""What a drafter must offer, and what the decoding loop gives it.

One round of the loop, for B sequences:

    proposal = proposer.propose(context, k, uniforms)     # up to k tokens after the last known one
    output   = target.forward(last known token + proposal)
    verdict  = verify(...)
    proposer.update(context, output, starts, kept)        # the target's hidden states of the tokens that stay

`context.known[b]` counts the tokens of sequence b that are fixed: prompt and output so far. The last of them has not
been fed to the target yet, so the target's cache holds known[b] - 1 tokens between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .model import TargetOutput
from .sampling import Sampling, pick


@dataclass
class Context:
    """The state that the loop shares with a drafter. Only the loop changes it."""

    tokens: Tensor  # (B, S) int64; known tokens, then room in which a drafter may write its drafts
    known: list[int]  # B; known tokens of each sequence
    sampling: Sampling  # what the target's probabilities go through; a drafter's must as well
    capacity: int  # S: the largest number of tokens of a sequence, drafts included
    active: list[int]  # sequences that have not ended


@dataclass
class Proposal:
    """Drafted tokens of B sequences; padded where sequences draft different numbers of them.

    A chain when `parents` is None. In a tree, parents[b][i] is the index of node i's parent among the drafts, -1 for
    the last known token; parents come before their children. A tree is verified as deterministic drafts (q = None).
    """

    tokens: Tensor  # (B, k) int64
    q: Tensor | None = None  # (B, k, V) distributions the tokens were drawn from; None: deterministic
    counts: Sequence[int] | None = None  # B; real drafts of each row, None: all k
    parents: Sequence[Sequence[int]] | None = None  # (B, k)

    def __post_init__(self):
        batch, k = self.tokens.shape
        if self.q is not None and self.q.shape[:2] != (batch, k):
            raise ValueError(f"proposal: q has shape {tuple(self.q.shape)}, tokens {(batch, k)}")
        if self.counts is not None and (len(self.counts) != batch or not all(0 <= c <= k for c in self.counts)):
            raise ValueError(f"proposal: counts {list(self.counts)} must be {batch} numbers from 0 to {k}")
        if self.parents is not None:
            if self.q is not None:
                raise ValueError("proposal: a tree is verified as deterministic drafts, leave q out")
            for row in self.parents:
                if len(row) != k or not all(-1 <= parent < i for i, parent in enumerate(row)):
                    raise ValueError(f"proposal: parents {list(row)} must be {k} numbers, each below its own index")


class Chain:
    """A chain in the making: each token drawn from its own distribution, or the likeliest where `uniforms` is None."""

    def __init__(self, sampling: Sampling, uniforms: Tensor | None):
        self.sampling, self.uniforms = sampling, uniforms
        self.tokens: list[Tensor] = []  # each (B,)
        self.distributions: list[Tensor] = []  # each (B, V); none when greedy

    def draw(self, logits: Tensor) -> Tensor:
        """The next token of each sequence, (B, V) to (B,)."""
        if self.uniforms is None:
            self.tokens.append(logits.argmax(-1))
        else:
            self.distributions.append(self.sampling.probabilities(logits))
            self.tokens.append(pick(self.distributions[-1], self.uniforms[:, len(self.tokens)]))
        return self.tokens[-1]

    def proposal(self) -> Proposal:
        """All that was drawn."""
        return Proposal(torch.stack(self.tokens, 1), torch.stack(self.distributions, 1) if self.distributions else None)


class Proposer(Protocol):
    """A drafter.

    `name` is for tables. `feature_layers` names the depths of the target whose residual stream it needs beside the
    final hidden state (0: the embedding, n_layers: the last block), which comes in `output.features`. A drafter
    of trees also has `nodes`, the most tokens that it has verified a round.
    """

    name: str
    k: int  # the most it drafts a round; levels of a tree
    feature_layers: tuple[int, ...]

    def start(self, context: Context, output: TargetOutput) -> None:
        """Begin a run; caches of an earlier one are dropped. `output` (B, T, d) covers the prompts, right-padded: row b
        is valid up to index known[b] - 2. The first new token is known already, at index known[b] - 1.
        """

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        """Draft at most k tokens (a tree: k levels). uniforms (B, k), one a draft; None when greedy. A drafter with
        nothing to offer returns tokens (B, 0), or counts of 0 for some rows.
        """

    def update(self, context: Context, output: TargetOutput, starts: Sequence[int], kept: Sequence[int]) -> None:
        """After each verification, `context` being up to date. Row r of `output` (B, m, d) belongs to the token at
        index starts[b] + r and is valid for r < kept[b], the accepted drafts and the token before them (0 for a
        sequence that has ended); a tree's rows come in the order of the accepted path. What the drafter keeps from
        drafted hidden states is to be rebuilt from these.
        """


def check_length(k: int, largest: int, what: str) -> None:
    """Raise ValueError unless 1 <= k <= largest."""
    if not isinstance(k, int) or not 1 <= k <= largest:
        raise ValueError(f"k must be a whole number from 1 to {largest} ({what}), got {k!r}")
