"""EAGLE-2: a tree of drafts whose shape follows the drafter's confidence (arXiv 2406.16858)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model import LOOK_AHEAD, Transformer
from ..proposer import Context, Proposal, check_length
from ..sampling import Sampling
from .eagle import EagleDrafter, EagleHead

__all__ = ["EagleHead", "EagleTree"]


class EagleTree(EagleDrafter):
    """Drafts a tree of at most `k` levels and `nodes` tokens.

    A node's value is the product of the drafter's probabilities on the way to it, an estimate of its chance to be
    accepted. Expansion: on each level the `width` most valuable nodes get `width` children each. Reranking: of all
    candidates of all levels the `nodes` most valuable are kept; a parent is worth at least as much as its child, so
    they form a tree.

    Which nodes there are is fixed by the known tokens alone, so the target's rule for deterministic drafts applies.
    Siblings come in the order of their probability: they are tried in that order.
    """

    def __init__(self, target: Transformer, head: EagleHead, k: int = 3, *, width: int = 3, nodes: int = 8):
        check_length(k, LOOK_AHEAD, "positions that the rotary table holds beyond the last token")
        if not 1 <= width <= target.config.vocab_size:
            raise ValueError(f"width must lie in 1 … {target.config.vocab_size}, the vocabulary's size; got {width!r}")
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes!r}")
        super().__init__(target, head, room=width * k)
        self.k, self.width, self.nodes = k, width, nodes
        self.name = f"EAGLE-2 tree, depth {k}, {nodes} nodes"

    def propose(self, context: Context, k: int, uniforms: Tensor | None) -> Proposal:
        if self.pending is not None:
            self._catch_up(context)
        tokens, values, parents = self._expand(context, min(k, self.k))
        best = values.sort(dim=-1, descending=True, stable=True).indices[:, : self.nodes]
        best = best.sort(dim=-1).values  # (B, nodes): parents before children again
        order = torch.arange(best.shape[1], device=best.device).expand_as(best)
        number = torch.full_like(parents, -1).scatter_(1, best, order)  # (B, M): a candidate's place in the tree
        above = parents.gather(1, best)  # (B, nodes) among all candidates
        above = torch.where(above < 0, above, number.gather(1, above.clamp(min=0)))
        return Proposal(tokens.gather(1, best), parents=above.tolist())

    def _expand(self, context: Context, levels: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, values and parents (-1: the last known token) of all candidates, (B, M) each, level by level."""
        # Greedy has no use for a one-hot: confidence is the distribution at temperature 1.
        shape = Sampling(1.0) if context.sampling.greedy else context.sampling
        batch, width = self.tip.shape[0], self.width
        root = torch.tensor(context.known, device=self.tip.device)[:, None] - 1  # (B, 1), position of the first row
        value, token = shape.probabilities(self.target.head(self.tip)).topk(width)  # (B, w)
        tokens, values, parents = [token], [value], [torch.full_like(token, -1)]
        index = torch.arange(width, device=token.device).expand(batch, width)  # (B, w), of the frontier
        # Rows of the frontier and of all expanded nodes above it. They are fed together on each level: the few rows
        # cost little, and the mask needs no older drafts in the cache.
        fed = token  # (B, n)
        features = self.tip[:, None].expand(batch, width, -1)  # (B, n, d)
        itself = torch.eye(width, dtype=torch.bool, device=token.device).expand(batch, width, width)
        mask = itself  # (B, n, n), row: query
        for level in range(1, levels):
            depth = torch.arange(level, device=token.device).repeat_interleave(width)  # (n,)
            self.cache.rollback([known - 1 for known in context.known])
            predicted = self._feed(fed, features, root + depth, mask)[:, -width:]  # (B, w, d)
            share, child = shape.probabilities(self.target.head(predicted)).topk(width)  # (B, w, w)
            offset = sum(t.shape[1] for t in tokens)
            tokens.append(child.flatten(1))
            values.append((value[..., None] * share).flatten(1))  # (B, w * w)
            parents.append(index.repeat_interleave(width, dim=1))
            if level == levels - 1:
                break
            value, chosen = values[-1].topk(width)  # (B, w): the next frontier
            index, above = chosen + offset, chosen // width  # above: place in the frontier before
            fed = torch.cat([fed, tokens[-1].gather(1, chosen)], 1)
            features = torch.cat([features, _rows(predicted, above)], 1)
            seen = _rows(mask[:, -width:], above)  # (B, w, n): what the parent sees, itself included
            mask = torch.cat([F.pad(mask, (0, width)), torch.cat([seen, itself], 2)], 1)
        return torch.cat(tokens, 1), torch.cat(values, 1), torch.cat(parents, 1)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """values (B, n, …) and index (B, m) to (B, m, …)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
