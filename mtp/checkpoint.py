"""Checkpoints: one safetensors file with the config, and how it was trained, in the metadata.

Weights are stored in fp16 (half the size; the trained values lie well inside its range) and computed with in fp32.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import nn

from .model import ModelConfig, Transformer

FORMAT = "mtp-transformer-1"
DEFAULT_CHECKPOINT = Path(__file__).parent / "checkpoints" / "native-mtp.safetensors"


class CheckpointError(ValueError):
    """A file that cannot be used as a checkpoint; the message names the file, the reason and the way out."""


def save(model: Transformer, path: str | Path, training: dict | None = None) -> None:
    """Write the weights in fp16 with the config; `training` (JSON values) says how they came about."""
    metadata = {"format": FORMAT, "config": json.dumps(asdict(model.config)), "training": json.dumps(training or {})}
    write_tensors(model, path, metadata)


def write_tensors(module: nn.Module, path: str | Path, metadata: dict[str, str]) -> None:
    """Write a module's parameters in fp16. Raises CheckpointError for values that fp16 cannot hold."""
    path = Path(path)
    tensors = {name: parameter.detach().half().cpu().contiguous() for name, parameter in module.named_parameters()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} has values that are not finite in fp16; not written")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(serialize(tensors, metadata))
    partial.replace(path)  # a reader never sees half a file


def read_metadata(path: str | Path = DEFAULT_CHECKPOINT) -> tuple[ModelConfig, dict]:
    """Config and training record of a checkpoint, without its tensors. Raises CheckpointError."""
    with open_checkpoint(path, _hint(path)) as file:
        return _metadata(file, Path(path))


def load(path: str | Path = DEFAULT_CHECKPOINT, device: str = "cpu", *, n_mtp: int | None = None) -> Transformer:
    """A model ready for decoding: fp32, eval mode, gains folded, no gradients.

    `n_mtp` keeps only the first modules (0 leaves the bare target). Raises CheckpointError for a file that is
    missing, truncated, of another format, or whose tensors do not fit its config.
    """
    path = Path(path)
    with open_checkpoint(path, _hint(path)) as file:
        config, _ = _metadata(file, path)
        with torch.device("meta"):
            expected = {name: p.shape for name, p in Transformer(config).named_parameters()}
        check_tensors(file, expected, path, f"config says n_layers={config.n_layers}, n_mtp={config.n_mtp}")
        tensors = {name: file.get_tensor(name).float() for name in expected}
    if n_mtp is not None:
        if not 0 <= n_mtp <= config.n_mtp:
            raise CheckpointError(f"{path}: has {config.n_mtp} MTP modules, n_mtp={n_mtp} was asked for")
        config = ModelConfig(**{**asdict(config), "n_mtp": n_mtp})
    model = Transformer(config)
    wanted = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])
    return model.to(device).eval().fold()


def _hint(path: str | Path) -> str:
    return f"train one with `python -m mtp train --out {path}`"


def open_checkpoint(path: str | Path, hint: str):
    """Open a safetensors file. Raises CheckpointError for none, then with `hint`, and for a damaged one."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; {hint}")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a complete safetensors file ({error}); it may be truncated: fetch or train it again"
        ) from error


def _metadata(file, path: Path) -> tuple[ModelConfig, dict]:
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format is {metadata.get('format')!r}, expected {FORMAT!r}; written by save()?")
    try:
        values = json.loads(metadata["config"])
        known = {field.name for field in fields(ModelConfig)}
        if unknown := set(values) - known:
            raise ValueError(f"config has unknown entries {sorted(unknown)}")
        if missing := known - set(values):
            raise ValueError(f"config lacks {sorted(missing)}")
        return ModelConfig(**values), json.loads(metadata.get("training", "{}"))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: unusable config in the metadata: {error}") from error


def check_tensors(file, expected: dict[str, torch.Size], path: str | Path, where: str) -> None:
    """Raise CheckpointError unless the file's tensors have exactly the expected names and shapes.

    `where` says what the expectation comes from, such as "config says n_layers=16".
    """
    present = set(file.keys())
    if missing := sorted(set(expected) - present):
        modules = sorted({name.split(".")[1] for name in missing if name.startswith("mtp.")})
        what = "the file was written for another config"
        if modules:
            what = f"MTP modules {', '.join(modules)} are incomplete"
        raise CheckpointError(f"{path}: {len(missing)} tensors missing, the first is {missing[0]}: {what}; {where}")
    if extra := sorted(present - set(expected)):
        raise CheckpointError(
            f"{path}: {len(extra)} tensors that the config has no place for, the first is {extra[0]}; {where}"
        )
    for name, shape in expected.items():
        found = torch.Size(file.get_slice(name).get_shape())
        if found != shape:
            raise CheckpointError(f"{path}: {name} has shape {tuple(found)}, {tuple(shape)} is needed; {where}")
