"""Prompt look-up: what followed when the last few tokens stood in the text before (n-gram drafting).

Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding); also "ngram" in vLLM and transformers. It costs next to
nothing and knows nothing: the yardstick for every route that has to be trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..model import LOOK_AHEAD, TargetOutput, Transformer
from ..proposer import Context, Proposal, check_length


class PromptLookup:
    """Drafts what followed the latest earlier occurrence of the longest suffix of n_max … n_min tokens.

    Deterministic, so q is a one-hot: sampling accepts a draft x with probability p(x). Sequences without a match draft
    nothing (counts of 0), and a round in which no sequence has one is plain decoding. A match that runs into the end of
    the text goes on in the draft itself, as in LZ77, which repeats a period for as long as wanted.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, target: Transformer | None = None, k: int = 6, *, n_max: int = 8, n_min: int = 3):
        check_length(k, LOOK_AHEAD, "as for every drafter")
        if not 1 <= n_min <= n_max:
            raise ValueError(f"n-gram lengths must satisfy 1 <= n_min <= n_max, got n_min={n_min}, n_max={n_max}")
        self.k, self.n_max, self.n_min = k, n_max, n_min
        self.name = f"prompt look-up, k={k}"

    def start(self, context: Context, output: TargetOutput) -> None:
        self.texts: list[list[int]] = [[] for _ in context.known]
        self.indices: list[dict[tuple[int, ...], int]] = [{} for _ in context.known]
        self._read(context)

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        rows = [self._continue(row, min(k, self.k)) for row in range(len(self.texts))]
        width = max(map(len, rows))
        padded = [row + [0] * (width - len(row)) for row in rows]
        tokens = torch.tensor(padded, dtype=torch.long, device=context.tokens.device).view(len(rows), width)
        return Proposal(tokens, counts=[len(row) for row in rows])

    def update(self, context: Context, output: TargetOutput, starts: Sequence[int], kept: Sequence[int]) -> None:
        self._read(context)

    def _read(self, context: Context) -> None:
        """Take in the tokens that are new, and index every n-gram that has a successor by now."""
        for row, (text, index) in enumerate(zip(self.texts, self.indices, strict=True)):
            for token in context.tokens[row, len(text) : context.known[row]].tolist():
                for n in range(self.n_min, min(self.n_max, len(text)) + 1):
                    index[tuple(text[-n:])] = len(text)  # where this n-gram's successor stands; the latest wins
                text.append(token)

    def _continue(self, row: int, k: int) -> list[int]:
        text, index = self.texts[row], self.indices[row]
        for n in range(min(self.n_max, len(text)), self.n_min - 1, -1):
            source = index.get(tuple(text[-n:]))
            if source is not None:
                copied = list(text[source : source + k])
                while len(copied) < k:
                    copied.append(copied[len(copied) - (len(text) - source)])
                return copied
        return []
