"""DFlash: a whole block of drafts in one pass (arXiv 2602.06036).

The block is the last known token (the anchor) followed by masks. Inside it attention is not causal, and each draft
layer also attends to the context: the target's residual streams at several depths, fused into one vector a token and
injected as keys and values. The drafter therefore never runs over the context itself, and its cost does not grow with
the number of drafts as a sequential drafter's does. The price: a row does not know which tokens its neighbours drew.

A row predicts the token after its own, the anchor's row the first draft, so k drafts take k rows (the layout of
DeepSpec, the published code of DSpark; the paper spends a row more and lets each mask predict the token in its place).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..cache import KVCache
from ..model import LOOK_AHEAD, Block, BlockWeights, TargetOutput, Transformer, contiguous, run_block, unit
from ..proposer import Context, Proposal, check_length
from ..ragged import place, window
from ..sampling import pick


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes of a drafter; width and heads are the target's."""

    block: int = 6  # drafts that a block was trained to give
    n_layers: int = 3
    d_ff: int = 256
    feature_layers: tuple[int, ...] = ()  # depths of the target's residual stream; empty: four, evenly spaced
    anchors: int = 40  # blocks a training sequence
    loss_decay: float = 3.0  # gamma: the loss at position i (from 0) weighs exp(-i / gamma)

    def __post_init__(self):
        for name in ("block", "n_layers", "d_ff", "anchors"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"drafter: {name} must be a positive integer, got {getattr(self, name)!r}")
        check_length(self.block, LOOK_AHEAD, "positions that the rotary table holds beyond the last token")
        if not self.loss_decay > 0:
            raise ValueError(f"drafter: loss_decay must be positive, got {self.loss_decay!r}")
        object.__setattr__(self, "feature_layers", tuple(self.feature_layers))  # JSON has lists only

    def for_target(self, depth: int) -> DFlashConfig:
        """The same with feature_layers filled in for a target of `depth` layers, or checked against it."""
        layers = self.feature_layers or tuple(sorted({max(1, depth * quarter // 4) for quarter in (1, 2, 3, 4)}))
        if outside := [layer for layer in layers if not 0 <= layer <= depth]:
            raise ValueError(f"feature_layers: the target has depths 0 to {depth}, got {outside[0]}")
        return replace(self, feature_layers=layers)


class DFlashWeights(NamedTuple):
    """Matrices ready for `x @ w`, norms' gains folded in; L layers, F features."""

    fuse: Tensor  # (F * d, d)
    context: Tensor  # (d, L * 2d): keys and values of every layer from a fused feature
    blocks: list[BlockWeights]
    mask: Tensor  # (d,)
    final_gain: Tensor  # (d,)


class DFlashModel(nn.Module):
    """Parameters of the drafter and its training loss. Embedding and head are the frozen target's.

    Made as DFlashModel(target, **fields of DFlashConfig). Raises ValueError for sizes that cannot be.
    """

    config_class = DFlashConfig

    def __init__(self, target: Transformer, **config):
        super().__init__()
        self.sizes = self.config_class(**config).for_target(target.config.n_layers)
        self.config = asdict(self.sizes)
        self.feature_layers = self.sizes.feature_layers
        block = replace(target.config, n_layers=self.sizes.n_layers, d_ff=self.sizes.d_ff)
        d, inputs = block.d_model, len(self.feature_layers) * block.d_model
        self.n_heads = block.n_heads
        self.fuse = nn.Parameter(torch.empty(d, inputs))
        self.context_gain = nn.Parameter(torch.ones(d))
        self.blocks = nn.ModuleList([Block(block) for _ in range(block.n_layers)])
        self.mask = nn.Parameter(torch.empty(d))
        self.final_gain = nn.Parameter(torch.ones(d))
        nn.init.normal_(self.fuse, std=inputs**-0.5)
        nn.init.normal_(self.mask, std=d**-0.5)
        # Views of the target's tensors: neither trained nor saved.
        self.register_buffer("embedding", target.embedding.detach(), persistent=False)  # (V, d)
        self.register_buffer("rope", target.rope, persistent=False)  # (positions, 3, 1, dh/2)
        self._folded: DFlashWeights | None = None

    def weights(self) -> DFlashWeights:
        if self._folded is not None:
            return self._folded
        root = math.sqrt(len(self.mask))
        # A layer projects context features by the same matrices as the block's rows, under the features' own gain.
        context = torch.cat([(block.qkv[1:] * (self.context_gain * root)).flatten(0, 1) for block in self.blocks])
        blocks = [block.weights() for block in self.blocks]
        return DFlashWeights(self.fuse.T, context.T, blocks, self.mask, self.final_gain * root)

    def fold(self) -> DFlashModel:
        """Freeze the parameters and fold the weights once, for decoding. Returns self."""
        self.requires_grad_(False)
        self._folded = None
        self._folded = contiguous(self.weights())
        return self

    def context_kv(self, features: Sequence[Tensor], rope: Tensor) -> Tensor:
        """Keys and values of all L layers from F features, each (B, m, d): (L, 2, B * H, m, dh).

        rope (m, 3, 1, dh/2) or (B, m, 3, 1, dh/2). Each feature is normalised by itself: the residual stream grows with
        depth, and the deepest would drown the others.
        """
        w = self.weights()
        batch, m, _ = features[0].shape
        fused = unit(torch.stack(tuple(features), dim=2)).flatten(2) @ w.fuse  # (B, m, d)
        pairs = (unit(fused) @ w.context).view(batch, m, len(w.blocks), 2, self.n_heads, -1, 2)
        turn = rope[..., 1:, :, :].unsqueeze(-4)  # (…, m, 1, 2, 1, dh/2): k turns, v stays
        kv = torch.view_as_real(torch.view_as_complex(pairs) * turn).flatten(-2)  # (B, m, L, 2, H, dh)
        return kv.permute(2, 3, 0, 4, 1, 5).flatten(2, 3)

    def run(self, x: Tensor, rope: Tensor, slots, layers: Sequence[Tensor]) -> Tensor:
        """The draft layers and the final norm over the rows of blocks, x (N, d); returns (N, d)."""
        w = self.weights()
        for block, layer in zip(w.blocks, layers, strict=True):
            x = run_block(x, block, self.n_heads, rope, slots, layer)
        return unit(x) * w.final_gain

    def head(self, hidden: Tensor) -> Tensor:
        """The target's output head, for training: (…, d) to (…, V)."""
        return hidden @ self.embedding.T

    def enter(self, anchors: Tensor, rows: int) -> Tensor:
        """Input rows of blocks: anchors (…) ids, to (…, rows, d)."""
        masks = self.weights().mask.expand(*anchors.shape, rows - 1, -1)
        return torch.cat([F.embedding(anchors, self.embedding)[..., None, :], masks], dim=-2)

    # Training --------------------------------------------------------------------------------------------------------

    def loss(self, ids: Tensor, output: TargetOutput, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of one step over random anchors: ids (B, T), the target's output (B, T, d) and logits (B, T, V).

        Cross-entropy with the target's own distribution rather than with the text's next byte: the paper's text is
        the target's, so there a byte is a draw from that distribution; ours was written by people.
        """
        anchors = self.sample_anchors(ids, generator)
        hidden = self.train_blocks(ids, output.features, anchors)  # (B, A, K, d)
        p, _ = self.aligned(ids, logits, anchors)
        return self.decayed(-(p * F.log_softmax(self.head(hidden), -1)).sum(-1))

    def sample_anchors(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Random anchors (B, A), each with at least one token before it and a whole block of targets after it."""
        batch, length = ids.shape
        if length < self.sizes.block + 2:
            raise ValueError(f"{length} tokens have no room for a token, an anchor and a block of {self.sizes.block}")
        shape = (batch, self.sizes.anchors)
        return torch.randint(1, length - self.sizes.block, shape, generator=generator).to(ids.device)

    def train_blocks(self, ids: Tensor, features: Sequence[Tensor], anchors: Tensor) -> Tensor:
        """Hidden rows (B, A, K, d) of the blocks at `anchors` (B, A), all in one pass.

        A block sees the features before its anchor and its own rows, never another block.
        """
        batch, length = ids.shape
        rows = self.sizes.block
        slots = _TrainingSlots(anchors, rows, length)
        layers = self.context_kv(features, self.rope[:length])  # (L, 2, B * H, T, dh)
        x = self.enter(ids.gather(1, anchors), rows)  # (B, A, K, d)
        positions = (anchors[..., None] + torch.arange(rows, device=ids.device)).flatten(1)  # (B, A * K)
        hidden = self.run(x.flatten(0, 2), self.rope[positions], slots, layers.unbind(0))
        return hidden.view(x.shape)

    def aligned(self, ids: Tensor, logits: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """For each block row: the target's distribution of the token it predicts, (B, A, K, V), and the token of the
        text before that one, (B, A, K).
        """
        index = anchors[..., None] + torch.arange(self.sizes.block, device=ids.device)  # (B, A, K)
        rows = torch.arange(len(ids), device=ids.device)[:, None, None]
        return logits[rows, index].softmax(-1), ids[rows, index]

    def decayed(self, losses: Tensor) -> Tensor:
        """Mean of (B, A, K), weighted to the front of the block: a later draft counts only if the earlier ones pass."""
        weights = torch.exp(-torch.arange(self.sizes.block, device=losses.device) / self.sizes.loss_decay)
        return (losses.mean((0, 1)) * weights).sum() / weights.sum()


class _TrainingSlots:
    """Attention of many blocks at once; stands where decoding has the cache's `Slots`."""

    def __init__(self, anchors: Tensor, rows: int, length: int):
        batch, count = anchors.shape
        self.batch = batch
        before = torch.arange(length, device=anchors.device) < anchors[..., None]  # (B, A, T)
        own = torch.eye(count, dtype=torch.bool, device=anchors.device).repeat_interleave(rows, dim=1)  # (A, A * K)
        visible = torch.cat([before, own.expand(batch, -1, -1)], dim=2)
        self.visible = visible.repeat_interleave(rows, dim=1)[:, None]  # (B, 1, A * K, T + A * K)

    def attend(self, layer: Tensor, qkv: Tensor) -> Tensor:
        """layer (2, B * H, T, dh) of the context, qkv (3, B * H, A * K, dh); returns (B * H, A * K, dh)."""
        keys, values = torch.cat([layer, qkv[1:]], dim=2).unflatten(1, (self.batch, -1)).unbind(0)
        q = qkv[0].unflatten(0, (self.batch, -1))  # (B, H, A * K, dh)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.visible, scale=1.0).flatten(0, 1)


class DFlash:
    """Drafts up to `k` tokens in one pass.

    Slot j of the cache holds keys and values made from the target's features of token j. They exist up to N - 1, N
    being the index of the last known token: the block's own keys and values go into the slots from N on, and after
    each verification `update` overwrites them with those of the accepted tokens' features.
    """

    label = "DFlash"

    def __init__(self, target: Transformer, model: DFlashModel, k: int | None = None):
        self.k = model.sizes.block if k is None else k
        check_length(self.k, model.sizes.block, "drafts that a block was trained for")
        self.target, self.model = target, model.fold()
        self.name = f"{self.label}, k={self.k}"
        self.feature_layers = model.feature_layers

    def start(self, context: Context, output: TargetOutput) -> None:
        batch = output.hidden.shape[0]
        capacity = context.capacity + self.model.sizes.block
        self.cache: KVCache = self.target.new_cache(batch, capacity, n_layers=self.model.sizes.n_layers)
        self._append(output.features, [0] * batch)
        self.cache.rollback([known - 1 for known in context.known])

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        logits, _ = self._block(context, min(k, self.k))  # (B, k, V)
        if uniforms is None:
            return Proposal(logits.argmax(-1))
        q = context.sampling.probabilities(logits)
        return Proposal(pick(q, uniforms[:, : q.shape[1]]), q)

    def update(self, context: Context, output: TargetOutput, starts: Sequence[int], kept: Sequence[int]) -> None:
        rows = max(kept)
        self._append([feature[:, :rows] for feature in output.features], starts)
        self.cache.rollback([known - 1 for known in context.known])

    def _append(self, features: Sequence[Tensor], starts: Sequence[int]) -> None:
        """Write keys and values of features (B, m, d) into the slots from starts[b] on."""
        m = features[0].shape[1]
        kv = self.model.context_kv(features, self._rope(starts, m))  # (L, 2, B * H, m, dh)
        per_head = [start for start in starts for _ in range(self.model.n_heads)]
        place(self.cache.store.permute(2, 3, 0, 1, 4), per_head, kv.permute(2, 3, 0, 1, 4))

    def _rope(self, starts: Sequence[int], m: int) -> Tensor:
        """Rotary factors of positions starts[b] … starts[b] + m - 1, (m, 3, 1, dh/2) or (B, m, 3, 1, dh/2)."""
        rope = self.model.rope
        if all(start == starts[0] for start in starts):
            return rope[starts[0] : starts[0] + m]
        return rope[torch.tensor(starts, device=rope.device)[:, None] + torch.arange(m, device=rope.device)]

    def _block(self, context: Context, k: int) -> tuple[Tensor, Tensor]:
        """Logits (B, k, V) and hidden rows (B, k, d) of the block after the last known token.

        The block has all the rows it was trained with, however few drafts are wanted: rows see each other both ways,
        and a shorter block is accepted less often.
        """
        last = [known - 1 for known in context.known]  # N
        slots = self.cache.reserve(self.model.sizes.block, causal=False)
        x = self.model.enter(window(context.tokens, last, 1)[:, 0], self.model.sizes.block)  # (B, K, d)
        rope = self.target.rope_at(slots, None)
        hidden = self.model.run(x.flatten(0, 1), rope, slots, self.cache.layers).view(x.shape)[:, :k]
        return self.target.head(hidden), hidden
