"""Native MTP: the checkpoint's own modules draft one token each (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..cache import KVCache
from ..model import LOOK_AHEAD, TargetOutput, Transformer
from ..proposer import Chain, Context, Proposal, check_length
from ..ragged import place, window


class NativeMTP:
    """Drafts up to `k` tokens with a model's MTP modules.

    Let N be the index of the last known token; the target's hidden states are known up to N - 1. Row i of module j
    (from 1) takes the hidden state that module j - 1 (or the target) has at i, and token i + j; so its last row,
    N - 1, needs the draft before. Its rows beyond N - j rest on drafts, and become wrong where a draft is rejected.
    Therefore each round every module first recomputes its last `window` rows from the target's hidden states: the
    accepted ones and those that rested on drafts. That is one forward pass a module, with a few rows instead of one.

    `recycle` allows more drafts than modules: the last one is then fed its own post-norm output and the next position,
    as vLLM does where `num_speculative_tokens` exceeds the number of layers.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, model: Transformer, k: int | None = None, *, recycle: bool = False):
        modules = model.config.n_mtp
        if modules == 0:
            raise ValueError("this model has no MTP modules (n_mtp = 0): decode it without a proposer (--k 0)")
        self.k = modules if k is None else k
        if recycle:
            check_length(self.k, LOOK_AHEAD, "positions that the rotary table holds beyond the last token")
        else:
            check_length(self.k, modules, "the model's MTP modules; recycle=True uses the last one repeatedly")
        self.model = model
        self.name = f"native MTP, k={self.k}"
        self.used = min(self.k, modules)
        self.caches: list[KVCache] = []

    def start(self, context: Context, output: TargetOutput) -> None:
        batch, length, d = output.hidden.shape
        self.hidden = output.hidden.new_zeros(batch, context.capacity, d)  # (B, S, d) of the target
        self.hidden[:, :length] = output.hidden
        self.caches = [self.model.new_cache(batch, context.capacity, n_layers=1) for _ in range(self.used)]
        self.ran = 0  # modules that the round's draft used
        self.window = self.used  # rows to recompute before drafting
        hidden = output.hidden
        for j, cache in enumerate(self.caches, start=1):
            # Rows whose token is not known yet are recomputed by the first window.
            hidden = self.model.module_forward(j - 1, context.tokens[:, j : length + j], hidden, cache)

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        last = [known - 1 for known in context.known]  # N of each sequence
        starts = [max(0, n - self.window) for n in last]
        width = min(self.window, max(last))
        ends = [n - start - 1 for n, start in zip(last, starts, strict=True)]  # the columns of row N - 1
        hidden = window(self.hidden, starts, width)  # (B, W, d)
        tip = hidden[:, 0]  # (B, d) of the last module at the last row, once there is one
        chain = Chain(context.sampling, uniforms)
        for j in range(1, min(k, self.k) + 1):
            cache = self.caches[min(j, self.used) - 1]
            if j <= self.used:
                cache.rollback(starts)
                ids = window(context.tokens, [start + j for start in starts], width)  # (B, W), shifted by j
            else:  # one row a sequence, at the next position
                cache.rollback([n + j - self.used - 1 for n in last])
                hidden, ids, ends = tip[:, None], chain.tokens[-1][:, None], [0] * len(last)
            hidden = self.model.module_forward(min(j, self.used) - 1, ids, hidden, cache)
            tip = window(hidden, ends, 1).squeeze(1)  # (B, d)
            draft = chain.draw(self.model.head(tip))  # (B,)
            place(context.tokens, [n + j for n in last], draft[:, None])  # the next module's last row reads it
        self.ran = min(len(chain.tokens), self.used)
        return chain.proposal()

    def update(self, context: Context, output: TargetOutput, starts: Sequence[int], kept: Sequence[int]) -> None:
        place(self.hidden, starts, output.hidden)
        # Modules that a shorter draft left out have missed all of the last window.
        missed = 0 if self.ran == self.used else self.window
        self.window = max(missed + max(kept), self.used)
        self.ran = 0
