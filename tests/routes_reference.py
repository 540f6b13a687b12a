"""Drafting from scratch, without caches: what a drafter must propose, given only the known tokens.

`against_scratch` wraps a drafter and compares every proposal with such a reference, for each sequence of a batch: a
key left over from a rejected draft, a missed prefill or a neighbour's row shows at once, before acceptance falls.
"""

import torch

from mtp.model import enter_module, run_block, unit


class Mismatch(AssertionError):
    """The drafter proposed something else than it would from scratch."""


class Spied:
    """Hands every proposal to `compare(row, known tokens, proposal, context, k)`, but for sequences that have ended:
    nobody reads their drafts.
    """

    def __init__(self, inner, compare):
        self.inner, self.compare = inner, compare
        self.name, self.k, self.feature_layers = inner.name, inner.k, inner.feature_layers
        self.start, self.update = inner.start, inner.update
        self.nodes = getattr(inner, "nodes", inner.k)
        self.compared = 0

    def propose(self, context, k, uniforms):
        known = [context.tokens[row, :n].tolist() for row, n in enumerate(context.known)]
        proposal = self.inner.propose(context, k, uniforms)
        for row in context.active:
            self.compare(row, known[row], proposal, context, k)
            self.compared += 1
        return proposal


def against_scratch(inner, reference):
    """A drafter whose chains are compared with reference(tokens, drafts) -> logits (k, V)."""

    def compare(row, tokens, proposal, context, k):
        wanted = context.sampling.probabilities(reference(tokens, proposal.tokens[row].tolist()))
        worst = float((proposal.q[row] - wanted).abs().max())
        if worst > 1e-3:
            raise Mismatch(f"row {row}, {len(tokens)} known tokens: q differs by {worst:.4f}")

    return Spied(inner, compare)


@torch.inference_mode()
def features_of(target, tokens):
    """The target's features (T, d) of a whole text."""
    ids = torch.tensor([tokens])
    return target.forward(ids, target.new_cache(1, len(tokens))).hidden[0]


def independent_logits(draft):
    """reference for an independent draft model: (k, V) logits before each draft."""
    model = draft.model

    @torch.inference_mode()
    def reference(tokens, drafts):
        ids = torch.tensor([[*tokens, *drafts[:-1]]])
        hidden = model.forward(ids, model.new_cache(1, ids.shape[1])).hidden[0]
        return model.head(hidden)[-len(drafts) :]

    return reference


def eagle_logits(target, head):
    """reference for EAGLE: (k, V) logits before each draft of a path, every pass over the whole text."""
    w = head.module.weights(target.weights().embedding)

    @torch.inference_mode()
    def reference(tokens, drafts):
        features = features_of(target, tokens[:-1])  # (N, d); row i goes with token i + 1
        found = []
        for i in range(len(drafts)):
            ids = torch.tensor([*tokens[1:], *drafts[:i]])
            x = run_block(enter_module(w, ids, features), w.block, target.config.n_heads, target.rope[: len(ids)])
            tip = (unit(x) * w.post_gain)[-1:]
            found.append(target.head(tip)[0])
            features = torch.cat([features, tip])
        return torch.stack(found)

    return reference


def eagle_tree_paths(target, head, tokens, *, depth, width, nodes, probabilities):
    """EAGLE-2's tree by definition: paths (tuples of tokens) of the nodes, and each one's value."""
    reference = eagle_logits(target, head)

    def children(path, value):
        p = probabilities(reference(tokens, [*path, 0])[-1])
        best = p.topk(width)
        return [((*path, token), value * share) for share, token in zip(*(t.tolist() for t in best), strict=True)]

    level = children((), 1.0)
    everything = list(level)
    for _ in range(depth - 1):
        frontier = sorted(level, key=lambda node: -node[1])[:width]
        level = [child for path, value in frontier for child in children(path, value)]
        everything += level
    return dict(sorted(everything, key=lambda node: -node[1])[:nodes])
