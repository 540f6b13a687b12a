"""Checkpoints of drafters: as `checkpoint.py`, plus the route and the digest of the target trained against."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from .checkpoint import CheckpointError, check_tensors, open_checkpoint, write_tensors
from .drafter_training import target_digest
from .model import Transformer

FORMAT = "mtp-drafter-1"


def save_module(
    drafter: nn.Module, path: str | Path, *, route: str, target: Transformer, training: dict | None = None
) -> None:
    """Write a drafter's weights in fp16; `training` (JSON values) says how they came about."""
    write_tensors(
        drafter,
        Path(path),
        {
            "format": FORMAT,
            "route": route,
            "target": target_digest(target),
            "config": json.dumps(drafter.config),
            "training": json.dumps(training or {}),
        },
    )


def read_drafter_metadata(path: str | Path) -> dict:
    """route, target (digest), config and training of a checkpoint, without its tensors. Raises CheckpointError."""
    path = Path(path)
    with _open(path, path.stem) as file:
        return _metadata(file, path)


def load_module(kind: type[nn.Module], path: str | Path, *, route: str, target: Transformer) -> nn.Module:
    """A drafter module as it was saved: fp32, eval mode, without gradients, on the target's device.

    Raises CheckpointError for a file that is missing, truncated, of another route, trained against another target, or
    whose tensors do not fit its config.
    """
    path = Path(path)
    with _open(path, route) as file:
        metadata = _metadata(file, path)
        if metadata["route"] != route:
            raise CheckpointError(f"{path}: holds a drafter for route {metadata['route']!r}, not {route!r}")
        if (digest := target_digest(target)) != metadata["target"]:
            raise CheckpointError(
                f"{path}: was trained against target {metadata['target'][:12]}…, this one is {digest[:12]}…: load that "
                f"target, or train the drafter anew with `python -m mtp train-drafter --route {route} --out FILE`"
            )
        try:
            drafter = kind(target, **metadata["config"])
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: unusable config in the metadata: {error}") from error
        parameters = dict(drafter.named_parameters())
        check_tensors(file, {name: p.shape for name, p in parameters.items()}, path, f"config says {drafter.config}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(file.get_tensor(name).float())
    return drafter.to(target.device).eval().requires_grad_(False)


def _open(path: Path, route: str):
    return open_checkpoint(path, f"train one with `python -m mtp train-drafter --route {route} --out {path}`")


def _metadata(file, path: Path) -> dict:
    found = file.metadata() or {}
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format is {found.get('format')!r}, expected {FORMAT!r}; a drafter's file?")
    try:
        decoded = {"config": json.loads(found["config"]), "training": json.loads(found["training"])}
        return {"route": found["route"], "target": found["target"], **decoded}
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: unusable metadata: {error!r}") from error
