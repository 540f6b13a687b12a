"""Rotary position embedding as a table of complex factors."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_table(length: int, d_head: int, theta: float) -> Tensor:
    """Rotary factors (length, 3, 1, d_head/2), complex: for q and k the rotation by position, for v ones.

    Pair j of a head turns by position * theta^(-2j / d_head) (RoFormer, arXiv 2104.09864).
    """
    half = d_head // 2
    frequencies = theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    turn = torch.polar(torch.ones_like(angles), angles)
    return torch.stack([turn, turn, torch.ones_like(turn)], dim=1)[:, :, None].to(torch.complex64)
