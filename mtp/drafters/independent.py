"""An independent draft model: a much smaller transformer of the target's class (arXiv 2211.17192, 2302.01318).

It shares nothing with the target but the vocabulary, so it can be trained apart and put beside any target; in return
it has to read the text by itself, with its own layers and its own key/value cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model import LOOK_AHEAD, ModelConfig, TargetOutput, Transformer, run_block, unit
from ..proposer import Chain, Context, Proposal, check_length
from ..ragged import place, window


class DraftModel(nn.Module):
    """The small model. Wide and shallow: on a CPU a pass costs by the number of layers, hardly by their width."""

    feature_layers: tuple[int, ...] = ()

    def __init__(
        self, target: Transformer, *, d_model: int = 128, n_layers: int = 2, n_heads: int = 4, d_ff: int = 384
    ):
        super().__init__()
        self.config = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
        sizes = target.config
        self.model = Transformer(
            ModelConfig(vocab_size=sizes.vocab_size, n_mtp=0, max_length=sizes.max_length, **self.config)
        )

    def loss(self, ids: Tensor, output: TargetOutput, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy with the target's distributions instead of the text's bytes: the draft is accepted as far as
        it agrees with the target, and a distribution says more than a sample (DistillSpec, arXiv 2310.08461).
        """
        w, rope = self.model.weights(), self.model.rope[: ids.shape[1]]
        x = F.embedding(ids, w.embedding).flatten(0, 1)  # (B * T, d)
        for block in w.blocks:
            x = run_block(x, block, self.config["n_heads"], rope)
        own = (unit(x) * w.final_gain) @ w.head  # (B * T, V)
        return F.cross_entropy(own, logits.softmax(-1).flatten(0, 1))


class IndependentDraft:
    """Drafts up to `k` tokens, one pass of the small model each.

    Between rounds its cache holds known tokens only. The last draft is never fed, so where all drafts were accepted one
    more token is missing than elsewhere: each round first feeds the last `width` known tokens of every sequence, the
    most that any of them lacks; those that are in already are computed again to the same values.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, target: Transformer, draft: DraftModel, k: int = 3):
        check_length(k, LOOK_AHEAD, "positions that the rotary table holds beyond the last token")
        if draft.model.config.vocab_size != target.config.vocab_size:
            raise ValueError(
                f"draft model has {draft.model.config.vocab_size} tokens, the target {target.config.vocab_size}"
            )
        self.k = k
        self.name = f"independent draft, k={k}"
        self.model = draft.model.fold()

    def start(self, context: Context, output: TargetOutput) -> None:
        batch, length = output.hidden.shape[:2]
        self.cache = self.model.new_cache(batch, context.capacity)
        self.model.forward(context.tokens[:, :length], self.cache)
        self.cache.rollback([known - 1 for known in context.known])

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        lacking = [known - held for known, held in zip(context.known, self.cache.lengths, strict=True)]
        width = min(max(lacking), min(context.known))
        starts = [known - width for known in context.known]
        ids = window(context.tokens, starts, width)  # (B, W)
        self.cache.rollback(starts)
        chain = Chain(context.sampling, uniforms)
        for _ in range(min(k, self.k)):
            logits = self.model.head(self.model.forward(ids, self.cache).hidden[:, -1])  # (B, V)
            ids = chain.draw(logits)[:, None]  # (B, 1)
        proposal = chain.proposal()
        place(context.tokens, context.known, proposal.tokens)
        return proposal

    def update(self, context: Context, output: TargetOutput, starts: Sequence[int], kept: Sequence[int]) -> None:
        # Of the drafts that were fed only the accepted ones stay; the newest token is not among them.
        held = zip(self.cache.lengths, context.known, strict=True)
        self.cache.rollback([min(length, known - 1) for length, known in held])
