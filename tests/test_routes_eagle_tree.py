"""EAGLE-2's tree: lossless by enumeration, the tree of the definition, every fault of a tree pass seen."""

import pytest
import torch
from routes_eagle import PROMPT, PROMPTS, DraftedRowsKept, learned, tiny_head
from routes_enumeration import distance, expected_joint, joint, tiny_target
from routes_reference import Mismatch, Spied, eagle_tree_paths
from routes_shipped import defects, greedy, target

import mtp.decoding
from mtp import GREEDY, Sampling, decode
from mtp.cache import KVCache
from mtp.drafters.eagle_tree import EagleTree
from mtp.routes import load_drafter


def tree_distance(monkeypatch, sampling, **rules):
    target = tiny_target()
    tree = EagleTree(target, tiny_head(target), k=2, width=2, nodes=6)
    table = joint(monkeypatch, target, tree, PROMPT, 3, sampling, **rules)
    return distance(table, expected_joint(target, PROMPT, 3, sampling))


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.7), Sampling(1.4, top_k=2), Sampling(1.0, top_p=0.8)],
    ids=["T=1", "T=0.7", "T=1.4 top-k 2", "top-p 0.8"],
)  # fmt: skip
def test_tree_keeps_the_joint_distribution(monkeypatch, sampling):
    assert tree_distance(monkeypatch, sampling) < 1e-5


def walk(parents, tokens, p, uniforms, *, share, after):
    """A tree rule with its two steps open: a child's chance, and what a refusal leaves of the weights."""
    path, at = [], -1
    while True:
        weights = p[at + 1].clone()
        for node, parent in enumerate(parents):
            if parent != at:
                continue
            if uniforms[node] < share(weights, tokens[node], p[at + 1]):
                path.append(node)
                at = node
                break
            weights = after(weights, tokens[node])
        else:
            return path, weights


def struck_out(weights, token):
    weights[token] = 0
    return weights


def normalised(weights, token, p):
    return weights[token] / weights.sum()


WRONG_RULES = {
    "refused weight struck out, never renormalised": (lambda weights, token, p: weights[token], struck_out),
    "sibling tried against the unmodified p": (lambda weights, token, p: p[token], lambda weights, token: weights),
    "next token from p after refusals": (normalised, lambda weights, token: weights),
}


def test_the_open_rule_is_right_when_its_steps_are(monkeypatch):
    def right(*arguments):
        return walk(*arguments, share=normalised, after=struck_out)

    assert tree_distance(monkeypatch, Sampling(1.0), path_rule=right) < 1e-5


@pytest.mark.parametrize("name", WRONG_RULES)
def test_wrong_tree_rules_are_seen(monkeypatch, name):
    share, after = WRONG_RULES[name]

    def wrong(*arguments):
        return walk(*arguments, share=share, after=after)

    assert tree_distance(monkeypatch, Sampling(1.0), path_rule=wrong) > 0.01


def no_compaction(monkeypatch):
    def roll_back_only(self, lengths, paths):
        self.rollback([length + len(path) for length, path in zip(lengths, paths, strict=True)])

    monkeypatch.setattr(KVCache, "keep", roll_back_only)


def slot_for_depth(monkeypatch):
    monkeypatch.setattr(mtp.decoding, "depths", lambda parents: list(range(1, len(parents) + 1)))


def siblings_see_each_other(monkeypatch):
    def causal(parents):
        return torch.ones(len(parents) + 1, len(parents) + 1, dtype=torch.bool).tril()

    monkeypatch.setattr(mtp.decoding, "ancestor_mask", causal)


TARGET_FAULTS = [no_compaction, slot_for_depth, siblings_see_each_other]


@pytest.mark.parametrize("plant", TARGET_FAULTS)
def test_faults_of_the_tree_pass_are_seen(monkeypatch, plant):
    plant(monkeypatch)
    assert tree_distance(monkeypatch, Sampling(1.0)) > 3e-4  # the right pass errs by less than 1e-5


@pytest.mark.parametrize("plant", TARGET_FAULTS)
def test_faults_of_the_tree_pass_change_greedy_output(monkeypatch, plant):
    target, head = learned()
    expected = [decode(target, prompt, max_new_tokens=40).tokens[0] for prompt in PROMPTS]
    tree = EagleTree(target, head, k=3, width=3, nodes=7)
    assert decode(target, PROMPTS, tree, max_new_tokens=40).tokens == expected
    plant(monkeypatch)
    assert decode(target, PROMPTS, tree, max_new_tokens=40).tokens != expected


def compare_trees(kind, sampling):
    """Every tree against EAGLE-2's definition, drafted from scratch."""
    target, head = learned()
    shape = Sampling(1.0) if sampling.greedy else sampling

    def compare(row, text, proposal, context, k):
        paths = []
        for parent, token in zip(proposal.parents[row], proposal.tokens[row].tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        assert len(set(paths)) == len(paths)
        wanted = eagle_tree_paths(
            target, head, text, depth=k, width=3, nodes=len(paths), probabilities=shape.probabilities
        )
        if set(wanted) != set(paths):
            raise Mismatch(f"row {row}: {sorted(paths)} instead of {sorted(wanted)}")
        siblings = {}
        for path in paths:
            siblings.setdefault(path[:-1], []).append(wanted[path])
        assert all(values == sorted(values, reverse=True) for values in siblings.values())

    proposer = Spied(kind(target, head, k=3, width=3, nodes=7), compare)
    decode(target, PROMPTS, proposer, max_new_tokens=16, sampling=sampling)
    assert proposer.compared > 20


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7)], ids=["greedy", "T=0.7"])
def test_trees_are_those_of_the_definition(sampling):
    compare_trees(EagleTree, sampling)


class TreeRowsKept(EagleTree):
    update = DraftedRowsKept.update


class DraftSlotForDepth(EagleTree):
    def _feed(self, ids, features, positions=None, block_mask=None):
        return super()._feed(ids, features, None, block_mask)


class DraftSiblingsSeen(EagleTree):
    def _feed(self, ids, features, positions=None, block_mask=None):
        return super()._feed(ids, features, positions, None)


@pytest.mark.parametrize("kind", [TreeRowsKept, DraftSlotForDepth, DraftSiblingsSeen])
def test_faults_of_the_drafted_tree_are_seen(kind):
    with pytest.raises(Mismatch):
        compare_trees(kind, Sampling(0.7))


def test_a_tree_has_its_size_and_fits_to_the_end():
    target, head = learned()
    sizes = []

    class Recorded(EagleTree):
        def propose(self, context, k, uniforms):
            proposal = super().propose(context, k, uniforms)
            sizes.append(proposal.tokens.shape[1])
            return proposal

    tree = Recorded(target, head, k=3, width=3, nodes=12)
    run = decode(target, PROMPTS, tree, max_new_tokens=50)
    assert [len(tokens) for tokens in run.tokens] == [50] * len(PROMPTS)
    assert max(sizes) == 12


def test_greedy_is_the_baseline_on_held_out_prompts():
    outputs, length = greedy(load_drafter("eagle-tree", target()))
    assert defects(outputs) == []
    assert length > 1.8


def test_wrong_sizes_are_named():
    target, head = learned()
    for wrong, message in (({"width": 9}, "width must lie in 1 … 8"), ({"nodes": 0}, "nodes must be at least 1")):
        with pytest.raises(ValueError, match=message):
            EagleTree(target, head, **wrong)
