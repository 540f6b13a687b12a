"""Training: next-byte loss plus the MTP modules' losses, reproducible from a seed, resumable.

Matrices are trained by Muon, embeddings and gains by AdamW. The learning rate warms up, stays, and falls linearly to
zero over the last part, so a run is as good as its last step; the schedule counts steps, never minutes.
"""

from __future__ import annotations

import io
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from .data import load_split, sample_batch
from .model import ModelConfig, Transformer
from .muon import Muon


@dataclass(frozen=True)
class TrainSettings:
    """How to train; the defaults are the shipped checkpoint's. Tokens per step are batch * length."""

    steps: int = 2000
    batch: int = 8
    length: int = 256
    seed: int = 0
    mtp_weight: float = 0.3  # lambda of DeepSeek-V3, shared equally by the modules
    muon_lr: float = 0.02
    adam_lr: float = 2e-3
    warmup: int = 20
    decay: float = 0.4  # share of the steps, at the end, over which the rate falls to zero

    def rate(self, step: int) -> float:
        """Share of the peak learning rate at a step (0 … steps - 1)."""
        warm = min(1.0, (step + 1) / self.warmup)
        return warm * min(1.0, (1 - step / self.steps) / self.decay)


@dataclass(frozen=True)
class StepReport:
    """What `on_step` receives after each step."""

    step: int  # from 1
    steps: int
    bits: tuple[float, ...]  # bits per byte of the main head and of each module on this step's batch
    seconds: float  # since this call of train() began


def train(
    config: ModelConfig | None = None,
    settings: TrainSettings | None = None,
    *,
    steps: int | None = None,
    text: Tensor | None = None,
    device: str = "cpu",
    state: str | Path | None = None,
    save_every: int = 100,
    on_step: Callable[[StepReport], None] | None = None,
) -> Transformer:
    """Train a model and return it (not folded: call `.eval().fold()` before decoding).

    `text` is uint8 (bytes,), by default the standard library's training part. `state` names a file that holds all that
    is needed to go on after an interruption: it is written every `save_every` steps and read when it exists.
    `steps` overrides the settings'. Raises ValueError when `state` is something else or belongs to other
    settings, and FloatingPointError as soon as a loss is not finite.
    """
    config = config or ModelConfig()
    settings = settings or TrainSettings()
    if steps is not None:
        settings = TrainSettings(**{**asdict(settings), "steps": steps})
    if settings.steps < 1 or not 0 < settings.decay <= 1:
        raise ValueError(f"steps must be at least 1 and decay in (0, 1], got {settings.steps} and {settings.decay}")
    text = load_split()[0] if text is None else text
    window = settings.length + config.n_mtp + 1
    if len(text) < window:
        raise ValueError(f"the text has {len(text)} bytes; a window needs {window}")

    torch.manual_seed(settings.seed)  # for the initial weights
    model = Transformer(config).to(device)
    matrices = [p for p in model.parameters() if p.ndim >= 2 and p is not model.embedding]
    rest = [p for p in model.parameters() if p.ndim < 2 or p is model.embedding]
    optimizers = make_optimizers(matrices, rest, settings)
    generator = torch.Generator().manual_seed(settings.seed)  # for the batches; on the CPU wherever the model is
    first = _resume(state, config, settings, model, optimizers, generator) if state else 0
    share = settings.mtp_weight / max(1, config.n_mtp)

    began = time.perf_counter()
    for step in range(first, settings.steps):
        losses = model.losses(sample_batch(text, settings.batch, window, generator).to(device))
        bits = _bits(losses)
        if not all(math.isfinite(value) for value in bits):
            raise FloatingPointError(f"step {step + 1}: loss is {bits}; lower the learning rates")
        descend(losses[0] + share * sum(losses[1:]), optimizers, settings, step)
        if state and ((step + 1) % save_every == 0 or step + 1 == settings.steps):
            _save_state(state, step + 1, config, settings, model, optimizers, generator)
        if on_step:
            on_step(StepReport(step + 1, settings.steps, bits, time.perf_counter() - began))
    return model


def descend(loss: Tensor, optimizers: Sequence[torch.optim.Optimizer], settings: TrainSettings, step: int) -> None:
    """One step down a loss, at the rates that the schedule has for this step; `optimizers` as `make_optimizers` has."""
    loss.backward()
    for optimizer, peak in zip(optimizers, (settings.muon_lr, settings.adam_lr), strict=True):
        optimizer.param_groups[0]["lr"] = peak * settings.rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def evaluate(
    model: Transformer, text: Tensor, *, windows: int = 64, length: int = 256, seed: int = 0
) -> tuple[float, ...]:
    """Bits per byte of the main head and of each module on random windows of a text (bytes,)."""
    generator = torch.Generator().manual_seed(seed)
    totals = torch.zeros(model.config.n_mtp + 1)
    for _ in range(windows // 8):
        batch = sample_batch(text, 8, length + model.config.n_mtp + 1, generator)
        totals += torch.tensor(_bits(model.losses(batch.to(model.embedding.device))))
    return tuple((totals / (windows // 8)).tolist())


def training_record(settings: TrainSettings, bits: tuple[float, ...]) -> dict:
    """What a checkpoint says of its training; `bits` are the held-out bits per byte (`evaluate`)."""
    return {
        "settings": asdict(settings),
        "text": f"standard library of Python {platform.python_version()}",
        "held_out_bits_per_byte": [round(value, 4) for value in bits],
        "torch": torch.__version__,
    }


def _bits(losses: list[Tensor]) -> tuple[float, ...]:
    return tuple((torch.stack([loss.detach() for loss in losses]) / math.log(2)).tolist())


def make_optimizers(
    matrices: list[Tensor], rest: list[Tensor], settings: TrainSettings
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for matrices that act on activations, AdamW for embeddings, gains and whatever else."""
    return (
        Muon(matrices, lr=settings.muon_lr),
        torch.optim.AdamW(rest, lr=settings.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _save_state(path, step, config, settings, model, optimizers, generator) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(
        {
            "step": step,
            "config": asdict(config),
            "settings": asdict(settings),
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "generator": generator.get_state(),
        },
        partial,
    )
    partial.replace(path)


def _resume(path, config, settings, model, optimizers, generator) -> int:
    """Take up a saved state in place; returns the step to go on from, 0 when there is no file yet."""
    path = Path(path)
    if not path.is_file():
        return 0
    saved = _read_state(path)
    for what, now in (("config", asdict(config)), ("settings", asdict(settings))):
        if saved[what] != now:
            changed = sorted(key for key in now if saved[what].get(key) != now[key])
            raise ValueError(f"{path}: was saved with another {what} ({', '.join(changed)}); use another --state file")
    model.load_state_dict(saved["model"])
    for optimizer, values in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(values)
    generator.set_state(saved["generator"])
    return saved["step"]


def _read_state(path: Path) -> dict:
    content = path.read_bytes()  # apart, since errors of the system speak for themselves
    try:
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if {"step", "config", "settings", "model", "optimizers", "generator"} <= set(saved):
            return saved
    except Exception:  # bytes of another kind make the unpickler fail in any way
        pass
    raise ValueError(f"{path}: holds no training state, or a damaged one; use another --state file")
