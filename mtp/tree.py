"""Tree proposals: what the target needs to verify a tree in one pass, and which path is accepted.

As in EAGLE (arXiv 2401.15077, 2406.16858): the nodes are fed at once under an ancestor mask, a node's position is that
of the last known token plus its depth, and the accepted path's keys and values are compacted afterwards
(`KVCache.keep`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node, 1 for a child of the root (parent -1)."""
    result: list[int] = []
    for parent in parents:
        result.append(1 if parent < 0 else result[parent] + 1)
    return result


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """bool (k + 1, k + 1) over root and nodes, row: query. A node sees the root, its ancestors and itself."""
    size = len(parents) + 1
    mask = torch.eye(size, dtype=torch.bool)
    for node, parent in enumerate(parents, start=1):
        mask[node] |= mask[parent + 1]
    mask[:, 0] = True
    return mask


def accept_path(
    parents: Sequence[int], tokens: Sequence[int], p: Tensor, uniforms: Sequence[float] | None
) -> tuple[list[int], Tensor]:
    """Walk down from the root as far as the target agrees.

    p (k + 1, V) are the target's distributions after root and nodes. A child with token x is accepted with probability
    p(x); a refused one is struck out of p, the rest renormalised, and its next sibling tried (SpecInfer's rule for
    deterministic drafts, arXiv 2305.09781): lossless. With one-hot p and `uniforms` None it follows the argmax.
    uniforms: one a node. Returns the accepted nodes and the weights (V,) that the next token is drawn from.
    """
    path: list[int] = []
    at = -1
    while True:
        weights = p[at + 1].clone()
        for node, parent in enumerate(parents):
            if parent != at:
                continue
            share = float(weights[tokens[node]]) / float(weights.sum())
            if (0.5 if uniforms is None else uniforms[node]) < share:
                path.append(node)
                at = node
                break
            weights[tokens[node]] = 0.0
            if not float(weights.sum()) > 0:  # all mass was on refused nodes: rounding only
                weights = p[at + 1].clone()
        else:
            return path, weights
