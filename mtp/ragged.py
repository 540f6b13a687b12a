"""Reading and writing consecutive entries of sequences that stand at different positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def window(values: Tensor, starts: Sequence[int], width: int) -> Tensor:
    """values (B, S, …) to (B, width, …): entries starts[b] … starts[b] + width - 1 of each row b."""
    if all(start == starts[0] for start in starts):  # a view, and what a single sequence always takes
        return values[:, starts[0] : starts[0] + width]
    return values[_index(values, starts, width)]


def place(values: Tensor, starts: Sequence[int], new: Tensor) -> None:
    """Write new (B, width, …) into values (B, S, …) from starts[b] on."""
    width = new.shape[1]
    if all(start == starts[0] for start in starts):
        values[:, starts[0] : starts[0] + width] = new
    else:
        values[_index(values, starts, width)] = new


def _index(values: Tensor, starts: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
    columns = torch.tensor(starts, device=values.device)[:, None] + torch.arange(width, device=values.device)
    return torch.arange(len(starts), device=values.device)[:, None], columns
