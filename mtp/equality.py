"""Is a greedy run the same as the autoregressive one, and where it is not, was it rounding?

A pass over k + 1 tokens may round otherwise than k + 1 passes over one token, so two equally right decoders may differ
where the two best logits nearly tie. A difference at a larger margin is a defect.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .model import Transformer

ROUNDING_MARGIN = 2e-4
"""Largest fp64 gap between the two best logits that fp32 rounding may turn round. Logits are about 10 in size, and
1-token and 4-token passes of the shipped model differ by a few 1e-5 in each."""


@dataclass(frozen=True)
class Difference:
    """The first place where two outputs for one prompt differ."""

    prompt: int
    position: int  # index in the output
    margin: float  # fp64 gap between the target's two best logits there

    @property
    def is_rounding(self) -> bool:
        return self.margin < ROUNDING_MARGIN


def differences(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    actual: Sequence[Sequence[int]],
) -> list[Difference]:
    """First difference of each prompt whose outputs are not the same. An output that merely ends earlier counts too."""
    found = []
    precise = None
    for number, (prompt, one, other) in enumerate(zip(prompts, expected, actual, strict=True)):
        if list(one) == list(other):
            continue
        shorter = min(len(one), len(other))
        position = next((i for i in range(shorter) if one[i] != other[i]), shorter)
        if precise is None:
            precise = in_double(model)
        found.append(Difference(number, position, top2_margin(precise, [*prompt, *one[:position]])))
    return found


def in_double(model: Transformer) -> Transformer:
    """A copy that computes in fp64."""
    precise = copy.deepcopy(model).double()
    precise.rope = precise.rope.to(torch.complex128)  # .double() leaves complex buffers alone
    return precise.fold()


@torch.inference_mode()
def top2_margin(model: Transformer, ids: Sequence[int]) -> float:
    """Gap between the two largest logits after `ids`."""
    hidden = model.forward(torch.tensor([list(ids)], device=model.device), model.new_cache(1, len(ids))).hidden[:, -1]
    best, second = model.head(hidden)[0].topk(2).values.tolist()
    return best - second
