"""The routes to multi-token decoding by name, and how to get a drafter for a target.

    from mtp.routes import load_drafter
    run = decode(target, ids, load_drafter("eagle-tree", target))

Drafters are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from .model import Transformer
from .proposer import Proposer


class Entry(NamedTuple):
    """One route. `proposer` is called as proposer(target, k=…, **options), with the trained module as the second
    argument where there is one; `drafter` is its class (see `mtp.drafter_training.TrainableDrafter`).
    """

    home: str  # module in mtp.drafters
    proposer: str
    k: int  # drafts a round (levels of a tree) unless asked otherwise
    drafter: str | None = None
    checkpoint: str | None = None  # stem of the file in mtp/checkpoints
    options: Mapping = {}
    training: Mapping = {}  # arguments of train_drafter for the shipped checkpoint


ROUTES: dict[str, Entry] = {
    "native": Entry("native", "NativeMTP", 3),
    "lookup": Entry("lookup", "PromptLookup", 6),
    "independent": Entry("independent", "IndependentDraft", 3, "DraftModel", "independent", training={"steps": 800}),
    "eagle": Entry("eagle", "EagleChain", 4, "EagleHead", "eagle", training={"steps": 600}),
    "eagle-tree": Entry("eagle_tree", "EagleTree", 3, "EagleHead", "eagle"),
    "dflash": Entry("dflash", "DFlash", 4, "DFlashModel", "dflash", training={"steps": 1600, "batch": 4}),
    "dspark": Entry("dspark", "DSpark", 5, "DSparkModel", "dspark", training={"steps": 1600, "batch": 4}),
}

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def load_drafter(
    name: str, target: Transformer, *, k: int | None = None, path: str | Path | None = None, **options
) -> Proposer:
    """A drafter ready for `decode(target, …)`; `k` drafts a round, by default the route's own.

    `path` replaces the route's committed checkpoint, `options` go to the proposer. Raises ValueError for an unknown
    route, CheckpointError for a file that is missing, damaged, of another route, or trained against another target.
    """
    entry = _entry(name)
    module = import_module(f".drafters.{entry.home}", __package__)
    arguments = {"k": entry.k if k is None else k, **entry.options, **options}
    if entry.drafter is None:
        if path is not None:
            raise ValueError(f"route {name!r} has nothing trained beside the target: leave path out")
        return getattr(module, entry.proposer)(target, **arguments)
    from .drafter_checkpoint import load_module

    path = CHECKPOINTS / f"{entry.checkpoint}.safetensors" if path is None else Path(path)
    trained = load_module(getattr(module, entry.drafter), path, route=entry.checkpoint, target=target)
    return getattr(module, entry.proposer)(target, trained, **arguments)


def new_drafter(name: str, target: Transformer, *, seed: int = 0, **config) -> nn.Module:
    """An untrained drafter module for `train_drafter`; `config` changes its sizes. Raises ValueError for a route
    without one.
    """
    entry = _entry(name)
    if entry.drafter is None:
        raise ValueError(f"route {name!r} has nothing to train; these have: {', '.join(trainable())}")
    torch.manual_seed(seed)
    module = import_module(f".drafters.{entry.home}", __package__)
    return getattr(module, entry.drafter)(target, **config)


def trainable() -> list[str]:
    """Routes with a checkpoint of their own."""
    return [name for name, entry in ROUTES.items() if entry.checkpoint == name]


def _entry(name: str) -> Entry:
    if name not in ROUTES:
        raise ValueError(f"unknown route {name!r}; there are {', '.join(ROUTES)}")
    return ROUTES[name]
