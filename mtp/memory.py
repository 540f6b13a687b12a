"""What a route adds to the target's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .cache import KVCache
from .model import Transformer
from .proposer import Proposer
from .routes import CHECKPOINTS, ROUTES


class DrafterMemory(NamedTuple):
    """parameters: beside the target's own; kv_bytes_per_token: of the drafter's caches, a token of one sequence."""

    parameters: int
    kv_bytes_per_token: int


def drafter_memory(name: str, proposer: Proposer, target: Transformer) -> DrafterMemory:
    """Figures of a route (a name of `mtp.routes`) whose proposer has decoded at least once: caches are made by a run.

    Raises ValueError for an unknown route.
    """
    if name not in ROUTES:
        raise ValueError(f"unknown route {name!r}; there are {', '.join(ROUTES)}")
    caches = {id(cache): cache for cache in _caches(proposer)}.values()
    return DrafterMemory(_parameters(name, target), sum(cache.bytes_per_token for cache in caches))


def _parameters(name: str, target: Transformer) -> int:
    if name == "native":
        return sum(parameter.numel() for parameter in target.mtp.parameters())
    stem = ROUTES[name].checkpoint
    if stem is None:
        return 0
    from safetensors import safe_open

    with safe_open(CHECKPOINTS / f"{stem}.safetensors", framework="pt") as file:
        return sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118  (not a dict)


def _caches(holder: object) -> Iterator[KVCache]:
    """The caches that a drafter, or a part of it, holds."""
    for value in getattr(holder, "__dict__", {}).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, KVCache):
                yield item
            elif type(item).__module__.startswith(f"{__package__}.drafters"):
                yield from _caches(item)
