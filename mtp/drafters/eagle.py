"""EAGLE: one block that continues the target's feature sequence (arXiv 2401.15077), drafting a chain.

The feature is the target's final hidden state, after the last norm: what the head takes. A predicted feature thus
becomes a distribution through the target's own frozen head, and nothing but the block is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model import (
    LOOK_AHEAD,
    ModelConfig,
    MTPModule,
    TargetOutput,
    Transformer,
    contiguous,
    enter_module,
    run_block,
    unit,
)
from ..proposer import Chain, Context, Proposal, check_length
from ..ragged import window


class EagleHead(nn.Module):
    """Row i takes the feature of token i and the embedding of token i + 1, and predicts the feature of token i + 1,
    from which the head predicts token i + 2. Norms, projection, block and last norm are those of an MTP module.

    Training runs `unroll` steps: the first from the target's features, the next ones from the step before, as drafting
    will (EAGLE-3's "training-time test", arXiv 2503.01840). EAGLE-1 has one step, with noise on the features instead.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, target: Transformer, *, d_ff: int = 512, unroll: int = 3, regression: float = 0.1):
        super().__init__()
        if unroll < 1:
            raise ValueError(f"unroll must be at least 1, got {unroll}")
        self.config = {"d_ff": d_ff, "unroll": unroll, "regression": regression}
        sizes = ModelConfig(**{**asdict(target.config), "d_ff": d_ff, "n_layers": 1, "n_mtp": 0})
        self.n_heads = sizes.n_heads
        self.module = MTPModule(sizes)
        with torch.no_grad():
            self.module.post_gain.copy_(target.final_gain)  # predictions start on the sphere that features lie on
        frozen = target.weights()
        for name, value in (("embedding", frozen.embedding), ("head", frozen.head), ("rope", target.rope)):
            self.register_buffer(name, value.detach(), persistent=False)

    def loss(self, ids: Tensor, output: TargetOutput, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy with the target's next distributions + `regression` * smooth L1 to its next features, averaged
        over the unrolled steps. (EAGLE weighs the cross-entropy by 0.1 instead; it is the part that is accepted.)
        """
        rows, unroll = ids.shape[1] - 1, self.config["unroll"]
        if rows < unroll:
            raise ValueError(f"{rows + 1} tokens have no room for {unroll} unrolled steps: take {unroll + 1} or more")
        w, rope, attention = self.module.weights(self.embedding), self.rope[:rows], _Unrolled()
        features, wanted = output.hidden[:, :-1], output.hidden[:, 1:]  # (B, rows, d)
        expected = logits[:, 1:].softmax(-1)  # (B, rows, V)
        total = torch.zeros((), device=ids.device)
        given = features
        for step in range(unroll):
            x = enter_module(w, ids[:, 1:], given.flatten(0, 1))  # (B * rows, d)
            x = run_block(x, w.block, self.n_heads, rope, attention)
            predicted = (unit(x) * w.post_gain).view(features.shape)
            # The first rows of a later step have no prediction to start from.
            own, target_features, q = predicted[:, step:], wanted[:, step:], expected[:, step:]
            total = total + F.cross_entropy((own @ self.head).flatten(0, 1), q.flatten(0, 1))
            total = total + self.config["regression"] * F.smooth_l1_loss(own, target_features)
            # Row i continues from what row i - 1 has just predicted.
            given = torch.cat([features[:, :1], predicted[:, :-1]], 1)
        return total / unroll


class _Unrolled:
    """Attention of training step j (from 0), in place of a cache: a row sees what it will see when drafting, namely the
    first step's keys up to j rows back (made from the target's features), then one key of each later step (drafts).
    """

    def __init__(self):
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: None, qkv: Tensor) -> Tensor:
        """qkv (3, B * H, T, dh), q scaled, to (B * H, T, dh)."""
        q, k, v = qkv
        self.keys.append(k)
        self.values.append(v)
        step, length = len(self.keys) - 1, q.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(-step)
        scores = [(q @ self.keys[0].mT).masked_fill(~seen, float("-inf"))]  # (B * H, T, T)
        for back in range(step - 1, -1, -1):  # steps 1 … j, each one row later than the one before
            key = _later(self.keys[step - back], back)
            absent = torch.arange(length, device=q.device) < back
            scores.append((q * key).sum(-1).masked_fill(absent, float("-inf"))[..., None])  # (B * H, T, 1)
        share = torch.cat(scores, -1).softmax(-1)
        attended = share[..., :length] @ self.values[0]
        for column, back in enumerate(range(step - 1, -1, -1), start=length):
            attended = attended + share[..., column, None] * _later(self.values[step - back], back)
        return attended


def _later(rows: Tensor, by: int) -> Tensor:
    """Row i of the result is row i - by of (N, T, dh); zeros before."""
    return F.pad(rows, (0, 0, by, 0))[:, : rows.shape[1]]


class EagleDrafter:
    """What chain and tree share: the block's key/value cache, always rebuilt from the target's features.

    Let N be the index of the last known token. Between rounds the cache holds rows 0 … N - 1, every one made from a
    feature of the target; `tip` (B, d) is the last row's output, the predicted feature of token N. Drafting adds rows
    made from predicted features; the next `update` drops them all and writes those of the accepted tokens anew.
    """

    feature_layers: tuple[int, ...] = ()
    name: str
    k: int

    def __init__(self, target: Transformer, head: EagleHead, room: int):
        self.target = target
        self.room = room  # rows that drafting may write beyond the tokens' own
        self.weights = contiguous(head.module.weights(target.weights().embedding))

    def start(self, context: Context, output: TargetOutput) -> None:
        batch = len(context.known)
        self.cache = self.target.new_cache(batch, context.capacity + self.room, n_layers=1)
        self.pending = output.hidden, [0] * batch, [known - 1 for known in context.known]

    def update(self, context: Context, output: TargetOutput, starts: Sequence[int], kept: Sequence[int]) -> None:
        if self.pending is not None:  # nothing was drafted since
            self._catch_up(context)
        self.pending = output.hidden, list(starts), list(kept)

    def _catch_up(self, context: Context) -> None:
        """Feed the rows that have become known. Left to the next draft, so that the last round's are never computed."""
        hidden, starts, kept = self.pending
        self.pending = None
        width = max(kept)
        self.cache.rollback(starts)
        ids = window(context.tokens, [start + 1 for start in starts], width)  # (B, W), shifted by one
        predicted = self._feed(ids, hidden[:, :width])
        self.cache.rollback([start + rows for start, rows in zip(starts, kept, strict=True)])
        self.tip = window(predicted, [max(rows - 1, 0) for rows in kept], 1).squeeze(1)  # (B, d)

    def _feed(
        self, ids: Tensor, features: Tensor, positions: Tensor | None = None, block_mask: Tensor | None = None
    ) -> Tensor:
        """The block over m rows, ids (B, m) and features (B, m, d), to predicted features (B, m, d)."""
        w, slots = self.weights, self.cache.reserve(ids.shape[1], block_mask)
        x = enter_module(w, ids, features.flatten(0, 1))  # (B * m, d)
        rope = self.target.rope_at(slots, positions)
        x = run_block(x, w.block, self.target.config.n_heads, rope, slots, self.cache.layers[0])
        self.cache.advance(ids.shape[1])
        return (unit(x) * w.post_gain).view(features.shape)


class EagleChain(EagleDrafter):
    """Drafts up to `k` tokens one after another; each is drawn from its own distribution q."""

    def __init__(self, target: Transformer, head: EagleHead, k: int = 4):
        check_length(k, LOOK_AHEAD, "positions that the rotary table holds beyond the last token")
        super().__init__(target, head, room=k)
        self.k = k
        self.name = f"EAGLE, k={k}"

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        if self.pending is not None:
            self._catch_up(context)
        feature = self.tip  # (B, d)
        chain = Chain(context.sampling, uniforms)
        for _ in range(min(k, self.k)):
            if chain.tokens:
                feature = self._feed(chain.tokens[-1][:, None], feature[:, None]).squeeze(1)
            chain.draw(self.target.head(feature))
        return chain.proposal()
