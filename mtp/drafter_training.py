"""Training of a drafter against a frozen target: one loop for all routes.

Each step the target runs once, without gradients, over a batch of the text; the drafter makes its loss from what the
target saw, computed and predicted. Optimizers and schedule are those of `training.py`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .data import sample_batch
from .model import TargetOutput, Transformer
from .training import TrainSettings, descend, make_optimizers


class TrainableDrafter(Protocol):
    """An nn.Module, made as `Drafter(target, **config)`, that `train_drafter` can train.

    It must not register the target's parameters as its own (buffers with persistent=False are the way to keep the
    target's embedding or head). Parameters whose name ends in "embedding" are tables: AdamW trains them, like vectors.
    """

    config: dict  # JSON values: with them and a target the same module is made again
    feature_layers: tuple[int, ...]  # depths of the target whose residual stream `loss` needs

    def loss(self, ids: Tensor, output: TargetOutput, logits: Tensor, generator: torch.Generator) -> Tensor:
        """The scalar to minimise. ids (B, T); output.hidden (B, T, d) and logits (B, T, V) are the target's at the same
        positions, so logits[:, i] predict ids[:, i + 1]. Random choices come from `generator`, which lives on the CPU.
        """


class DrafterStep(NamedTuple):
    """What `on_step` receives after each step."""

    step: int  # from 1
    steps: int
    loss: float
    seconds: float  # since training began


def train_drafter(
    drafter: nn.Module,
    target: Transformer,
    text: Tensor,
    *,
    steps: int,
    batch: int = 8,
    length: int = 256,
    lr: float = 0.02,
    seed: int = 0,
    on_step: Callable[[DrafterStep], None] | None = None,
) -> nn.Module:
    """Train a drafter in place on windows of `text`, uint8 (bytes,), and return it, on the target's device.

    `lr` is Muon's peak rate, AdamW's is a tenth of it. Reproducible from `seed`, given the drafter's initial weights.
    Raises ValueError for steps below 1 or a window longer than the text or than the target's max_length,
    FloatingPointError once a loss is not finite.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    _check_window(text, length, target)
    settings = TrainSettings(steps=steps, batch=batch, length=length, seed=seed, muon_lr=lr, adam_lr=lr / 10)
    drafter.to(target.device).train()
    named = list(drafter.named_parameters())
    matrices = [p for name, p in named if p.ndim >= 2 and not name.endswith("embedding")]
    rest = [p for name, p in named if p.ndim < 2 or name.endswith("embedding")]
    optimizers = make_optimizers(matrices, rest, settings)
    frozen = FrozenTarget(target, batch, length, drafter.feature_layers)
    generator = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    for step in range(steps):
        ids = sample_batch(text, batch, length, generator).to(target.device)
        loss = drafter.loss(ids, *frozen(ids), generator)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"step {step + 1}: loss is {value}; lower lr")
        descend(loss, optimizers, settings, step)
        if on_step:
            on_step(DrafterStep(step + 1, steps, value, time.perf_counter() - began))
    return drafter.eval()


@torch.no_grad()
def evaluate_drafter(
    drafter: nn.Module, target: Transformer, text: Tensor, *, batches: int = 8, batch: int = 8, length: int = 256
) -> float:
    """Mean loss on random windows of a text (bytes,), the same ones in every call. Raises ValueError as above."""
    _check_window(text, length, target)
    frozen = FrozenTarget(target, batch, length, drafter.feature_layers)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(batches):
        ids = sample_batch(text, batch, length, generator).to(target.device)
        losses.append(drafter.loss(ids, *frozen(ids), generator))
    return torch.stack(losses).mean().item()


@torch.no_grad()
def target_digest(target: Transformer) -> str:
    """What identifies a target: SHA-256 over names, shapes and fp16 values of its parameters, MTP modules left out.

    It is the same before a checkpoint is written and after it is read, and whatever `n_mtp` it is loaded with.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(target.named_parameters()):
        if not name.startswith("mtp."):
            digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
            digest.update(parameter.detach().half().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _check_window(text: Tensor, length: int, target: Transformer) -> None:
    if len(text) < length:
        raise ValueError(f"the text has {len(text)} bytes; a window needs {length}")
    if length > target.config.max_length:
        raise ValueError(f"length={length} exceeds the target's max_length={target.config.max_length}")


class FrozenTarget:
    """The target as a function of ids (batch, length), with one cache for all calls."""

    def __init__(self, target: Transformer, batch: int, length: int, feature_layers: tuple[int, ...]):
        self.target, self.feature_layers = target, feature_layers
        self.cache = target.new_cache(batch, length)

    @torch.no_grad()  # not inference mode: autograd must be able to save these tensors for the drafter's gradients
    def __call__(self, ids: Tensor) -> tuple[TargetOutput, Tensor]:
        self.cache.rollback([0] * len(ids))
        output = self.target.forward(ids, self.cache, feature_layers=self.feature_layers)
        return output, self.target.head(output.hidden)
