"""A tiny target with an EAGLE head for it, random or trained a little, for the tests of chain and tree."""

import functools

import torch
from routes_enumeration import tiny_target

from mtp import Sampling, decode
from mtp.drafter_training import train_drafter
from mtp.drafters.eagle import EagleChain, EagleHead

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 0, 1, 2, 3, 4, 5], [3, 3]]
PROMPT = [0, 1, 2]


def tiny_head(target):
    torch.manual_seed(9)
    head = EagleHead(target, d_ff=16)
    with torch.no_grad():
        head.module.block.out.mul_(4)
    return head.eval().requires_grad_(False)


@functools.cache
def learned():
    """A tiny target and a head trained for it a little, so that drafts are accepted and rejected in turn."""
    target = tiny_target(vocab=8)
    starts = [[i % 8, i // 8] for i in range(64)]
    text = torch.tensor(decode(target, starts, max_new_tokens=62, sampling=Sampling(1.0)).tokens).flatten()
    torch.manual_seed(0)
    head = train_drafter(EagleHead(target, d_ff=16), target, text.to(torch.uint8), steps=60, batch=16, length=32)
    return target, head.requires_grad_(False)


class DraftedRowsKept(EagleChain):
    """Keeps the rows of accepted drafts, made from predicted features, and feeds only the newest one anew."""

    def update(self, context, output, starts, kept):
        last = [max(rows - 1, 0) for rows in kept]
        hidden = torch.stack([output.hidden[row, i] for row, i in enumerate(last)])[:, None]
        starts = [start + i for start, i in zip(starts, last, strict=True)]
        self.pending = hidden, starts, [min(rows, 1) for rows in kept]
