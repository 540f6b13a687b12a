"""A decoder-only transformer with sequential MTP modules, for training and for cached decoding.

Blocks are pre-norm: RMSNorm, rotary attention, RMSNorm, SwiGLU. The modules follow DeepSeek-V3 (arXiv 2412.19437,
section 2.2): module k turns the hidden state of position i, and the embedding of token i + k, into a prediction of
token i + k + 1; embedding and head are the main model's. The two halves are concatenated as
[norm(embedding); norm(hidden)], the order that most published checkpoints use.

RMSNorm is x / |x| with sqrt(d) and the gain folded into the matrix that follows. On a CPU a small model's time goes
into the number of operations rather than into arithmetic, and `F.rms_norm` is about ten of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache import KVCache, Slots
from .rope import rope_table

LOOK_AHEAD = 64
"""Positions beyond `max_length` that a draft may reach: the largest k."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model. `max_length` bounds prompt and output together (the cache is allocated for it)."""

    vocab_size: int = 128
    d_model: int = 96
    n_layers: int = 16
    n_heads: int = 3
    d_ff: int = 256
    n_mtp: int = 3
    max_length: int = 1024
    rope_theta: float = 10000.0

    def __post_init__(self):
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "max_length"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"config: {name} must be a positive integer, got {getattr(self, name)!r}")
        if not isinstance(self.n_mtp, int) or self.n_mtp < 0:
            raise ValueError(f"config: n_mtp must be 0 or more, got {self.n_mtp!r}")
        if self.d_model % self.n_heads or self.d_head % 2:
            raise ValueError(
                "config: d_model / n_heads must be a whole even number (rotary pairs), "
                f"got {self.d_model} / {self.n_heads}"
            )

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


class BlockWeights(NamedTuple):
    """A block's matrices, ready for `x @ w`: gains and the attention's 1 / sqrt(dh) are folded in."""

    qkv: Tensor  # (d, 3d)
    out: Tensor  # (d, d)
    gate_up: Tensor  # (d, 2f)
    down: Tensor  # (f, d)


class ModuleWeights(NamedTuple):
    """An MTP module's matrices. The embedding's half of the projection depends on the token alone: it is a table."""

    entry: Tensor  # (V, d): norm and projection of each token's embedding
    from_hidden: Tensor  # (d, d)
    block: BlockWeights
    post_gain: Tensor  # (d,)


class Weights(NamedTuple):
    """All that the arithmetic needs, folded."""

    embedding: Tensor  # (V, d)
    blocks: list[BlockWeights]
    final_gain: Tensor  # (d,)
    head: Tensor  # (d, V)
    modules: list[ModuleWeights]


class TargetOutput(NamedTuple):
    """What a forward pass of the target gives for m new tokens of each of B sequences."""

    hidden: Tensor  # (B, m, d) after the final norm: what the head and an MTP module take
    features: tuple[Tensor, ...] = ()  # each (B, m, d): residual stream after the layers asked for


def unit(x: Tensor) -> Tensor:
    """x / |x| over the last dimension: RMSNorm but for its gain and for sqrt(d)."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def run_block(
    x: Tensor, w: BlockWeights, n_heads: int, rope: Tensor, slots: Slots | None = None, layer: Tensor | None = None
) -> Tensor:
    """One transformer block over N = B * m tokens, x (N, d), sequence by sequence.

    rope (m, 3, 1, dh/2) or (B, m, 3, 1, dh/2), complex, see `rope_table`. With `slots`, keys and values go into the
    cache's `layer` and attention covers all of it; without, it is causal over x alone. Returns (N, d).
    """
    m = rope.shape[-4]
    pairs = (unit(x) @ w.qkv).view(-1, m, 3, n_heads, rope.shape[-1], 2)  # (B, m, 3, H, dh/2, 2)
    # Rotary pairs lie side by side, so that the rotation is one complex product; v takes part with factor 1.
    qkv = torch.view_as_real(torch.view_as_complex(pairs) * rope)  # (B, m, 3, H, dh/2, 2)
    qkv = qkv.flatten(-2).permute(2, 0, 3, 1, 4)  # (3, B, H, m, dh)
    if slots is None:
        attended = F.scaled_dot_product_attention(*qkv, is_causal=True, scale=1.0)  # (B, H, m, dh)
    else:
        attended = slots.attend(layer, qkv.flatten(1, 2)).view(qkv.shape[1:])
    x = torch.addmm(x, attended.transpose(1, 2).reshape(x.shape), w.out)
    gate, up = (unit(x) @ w.gate_up).chunk(2, dim=-1)  # (N, f) each
    return torch.addmm(x, F.silu(gate) * up, w.down)


def enter_module(w: ModuleWeights, ids: Tensor, hidden: Tensor) -> Tensor:
    """A module's projection of [norm(embedding); norm(hidden)]: ids of N tokens and hidden (N, d), to (N, d)."""
    return torch.addmm(F.embedding(ids.reshape(-1), w.entry), unit(hidden), w.from_hidden)


class Block(nn.Module):
    """Parameters of one transformer block."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, f = config.d_model, config.d_ff
        self.d_head = config.d_head
        self.attention_gain = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.empty(3, d, d))
        self.out = nn.Parameter(torch.empty(d, d))
        self.mlp_gain = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Parameter(torch.empty(2, f, d))
        self.down = nn.Parameter(torch.empty(d, f))
        depth_scale = (2 * config.n_layers) ** -0.5  # keeps the residual stream's size independent of depth
        for weight, scale in ((self.qkv, 1.0), (self.gate_up, 1.0), (self.out, depth_scale), (self.down, depth_scale)):
            nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)

    def weights(self) -> BlockWeights:
        root = math.sqrt(self.attention_gain.shape[0])
        q, k, v = self.qkv * (self.attention_gain * root)
        qkv = torch.cat([q * self.d_head**-0.5, k, v])
        gate_up = (self.gate_up * (self.mlp_gain * root)).flatten(0, 1)
        return BlockWeights(qkv.T, self.out.T, gate_up.T, self.down.T)


class MTPModule(nn.Module):
    """Parameters of one MTP module: two norms, a projection of 2d to d, a block, a norm before the shared head."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d = config.d_model
        self.embedding_gain = nn.Parameter(torch.ones(d))
        self.hidden_gain = nn.Parameter(torch.ones(d))
        self.projection = nn.Parameter(torch.empty(d, 2 * d))  # over [embedding; hidden]
        self.block = Block(config)
        self.post_gain = nn.Parameter(torch.ones(d))
        nn.init.normal_(self.projection, std=(2 * d) ** -0.5)

    def weights(self, embedding: Tensor) -> ModuleWeights:
        d = self.post_gain.shape[0]
        root = math.sqrt(d)
        return ModuleWeights(
            F.linear(unit(embedding), self.projection[:, :d] * (self.embedding_gain * root)),
            (self.projection[:, d:] * (self.hidden_gain * root)).T,
            self.block.weights(),
            self.post_gain * root,
        )


class Transformer(nn.Module):
    """The target model and its MTP modules.

    `losses` trains; decoding goes through `forward`, which needs a cache. `fold` prepares a model for decoding: without
    it, gains are folded anew in every call, which is what training needs.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        nn.init.normal_(self.embedding, std=config.d_model**-0.5)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layers)])
        self.final_gain = nn.Parameter(torch.ones(config.d_model))
        self.mtp = nn.ModuleList([MTPModule(config) for _ in range(config.n_mtp)])
        # Recycled modules look a few positions beyond the last token, hence the slack.
        rope = rope_table(config.max_length + LOOK_AHEAD, config.d_head, config.rope_theta)
        self.register_buffer("rope", rope, persistent=False)  # (max_length + LOOK_AHEAD, 3, 1, dh/2)
        self._folded: Weights | None = None

    def weights(self) -> Weights:
        if self._folded is not None:
            return self._folded
        gain = self.final_gain * math.sqrt(self.config.d_model)
        blocks = [block.weights() for block in self.blocks]
        return Weights(self.embedding, blocks, gain, self.embedding.T, [m.weights(self.embedding) for m in self.mtp])

    def fold(self) -> Transformer:
        """Freeze the parameters and fold the weights once: decoding no longer pays for it. Returns self."""
        self.requires_grad_(False)
        self._folded = None
        self._folded = contiguous(self.weights())
        return self

    def head(self, hidden: Tensor) -> Tensor:
        """Shared output head: (…, d) to logits (…, V)."""
        return hidden @ self.weights().head

    def losses(self, ids: Tensor) -> list[Tensor]:
        """Mean cross-entropy in nats of the main head and of each module, for ids (B, T + n_mtp + 1).

        Every head is trained on T positions: module k sees tokens k … T + k - 1 and predicts tokens k + 1 … T + k.
        """
        w = self.weights()
        length = ids.shape[1] - len(w.modules) - 1
        rope = self.rope[:length]
        x = F.embedding(ids[:, :length], w.embedding).flatten(0, 1)  # (B * T, d)
        for block in w.blocks:
            x = run_block(x, block, self.config.n_heads, rope)
        hidden = unit(x) * w.final_gain
        losses = [F.cross_entropy(hidden @ w.head, ids[:, 1 : length + 1].flatten())]
        for k, module in enumerate(w.modules, start=1):
            x = enter_module(module, ids[:, k : length + k], hidden)
            hidden = unit(run_block(x, module.block, self.config.n_heads, rope)) * module.post_gain
            losses.append(F.cross_entropy(hidden @ w.head, ids[:, k + 1 : length + k + 1].flatten()))
        return losses

    def new_cache(self, batch: int, capacity: int, n_layers: int | None = None) -> KVCache:
        """An empty cache for the target's layers, or for a stack of n_layers such layers (1 for an MTP module)."""
        c, e = self.config, self.embedding
        layers = c.n_layers if n_layers is None else n_layers
        return KVCache(layers, batch, capacity, c.n_heads, c.d_head, e.device, e.dtype)

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        *,
        positions: Tensor | None = None,
        block_mask: Tensor | None = None,
        feature_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Feed m more tokens of each sequence, ids (B, m), and advance the cache by m.

        `positions` (B, m) and `block_mask` (bool, (m, m) or (B, m, m), row: query) are for trees: by default token i of
        the call stands at position length + i and sees the call's tokens up to itself. `feature_layers` (0 is the
        embedding, n_layers the last block) asks for the residual stream at these depths.
        """
        w = self.weights()
        slots = cache.reserve(ids.shape[1], block_mask)
        rope = self.rope_at(slots, positions)
        x = F.embedding(ids, w.embedding).flatten(0, 1)  # (B * m, d)
        features = {0: x} if feature_layers else {}
        for depth, (block, layer) in enumerate(zip(w.blocks, cache.layers, strict=True), start=1):
            x = run_block(x, block, self.config.n_heads, rope, slots, layer)
            if depth in feature_layers:
                features[depth] = x
        cache.advance(ids.shape[1])
        hidden = unit(x) * w.final_gain
        return TargetOutput(
            hidden.view(*ids.shape, -1), tuple(features[depth].view(*ids.shape, -1) for depth in feature_layers)
        )

    def module_forward(self, index: int, ids: Tensor, hidden: Tensor, cache: KVCache) -> Tensor:
        """MTP module `index` (from 0) over m rows: row i takes hidden (B, m, d) of a position and ids (B, m), the
        token index + 1 places further on. Returns the post-norm hidden (B, m, d); `head` turns it into logits.
        """
        w = self.weights()
        module = w.modules[index]
        slots = cache.reserve(ids.shape[1])
        x = enter_module(module, ids, hidden.flatten(0, 1))  # (B * m, d)
        x = run_block(x, module.block, self.config.n_heads, self.rope_at(slots, None), slots, cache.layers[0])
        cache.advance(ids.shape[1])
        return (unit(x) * module.post_gain).view(hidden.shape)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def rope_at(self, slots: Slots, positions: Tensor | None) -> Tensor:
        """Rotary factors for a pass: a token's position is its slot unless `positions` (B, m) says otherwise."""
        if positions is None:
            if slots.index is None:
                return self.rope[slots.start : slots.end]  # (m, 3, 1, dh/2)
            positions = slots.positions
        return self.rope[positions]  # (B, m, 3, 1, dh/2)


def contiguous(weights):
    """The same nested tuples and lists, every tensor laid out for its product: a transposed view costs each time."""
    if isinstance(weights, Tensor):
        return weights.contiguous()
    if isinstance(weights, list):
        return [contiguous(part) for part in weights]
    return type(weights)(*(contiguous(part) for part in weights))
