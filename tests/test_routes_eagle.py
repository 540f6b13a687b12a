"""EAGLE's chain: lossless by enumeration, drafts as from scratch, cache always from the target's features."""

import pytest
import torch
from routes_eagle import PROMPT, PROMPTS, DraftedRowsKept, learned, tiny_head
from routes_enumeration import distance, expected_joint, joint, tiny_target
from routes_reference import Mismatch, against_scratch, eagle_logits
from routes_shipped import defects, greedy, prompts, target

from mtp import Sampling, decode
from mtp.drafters.eagle import EagleChain, EagleHead, _Unrolled
from mtp.model import enter_module, run_block, unit
from mtp.routes import load_drafter


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.7), Sampling(1.4, top_k=2)], ids=["T=1", "T=0.7", "T=1.4 top-k 2"]
)
def test_chain_keeps_the_joint_distribution(monkeypatch, sampling):
    target = tiny_target()
    proposer = EagleChain(target, tiny_head(target), k=2)
    table = joint(monkeypatch, target, proposer, PROMPT, 3, sampling)
    assert distance(table, expected_joint(target, PROMPT, 3, sampling)) < 1e-5


def compare_with_scratch(kind):
    target, head = learned()
    proposer = against_scratch(kind(target, head, k=3), eagle_logits(target, head))
    run = decode(target, PROMPTS, proposer, max_new_tokens=30, sampling=Sampling(1.0))
    assert proposer.compared > 20
    return {row.accepted for record in run.rounds for row in record.rows}


def test_chain_drafts_as_from_scratch():
    assert compare_with_scratch(EagleChain) == {0, 1, 2, 3}


class PromptUnread(EagleChain):
    def start(self, context, output):
        super().start(context, output)
        self._catch_up(context)
        self.cache.store.zero_()


class NeighboursRow(EagleChain):
    """Takes the tip of every sequence from the first one."""

    def _catch_up(self, context):
        super()._catch_up(context)
        self.tip = self.tip[:1].expand_as(self.tip)


class IdsNotShifted(EagleChain):
    def _feed(self, ids, features, *rest):
        return super()._feed(ids.roll(1, 1) if ids.shape[1] > 1 else ids, features, *rest)


class OnePositionLate(EagleChain):
    def _feed(self, ids, features, *rest):
        lengths = torch.tensor(self.cache.lengths)[:, None]
        late = (ids.shape[1] == 1) + lengths + torch.arange(ids.shape[1])
        return super()._feed(ids, features, late)


@pytest.mark.parametrize("kind", [DraftedRowsKept, PromptUnread, NeighboursRow, IdsNotShifted, OnePositionLate])
def test_faults_of_the_chain_are_seen(kind):
    with pytest.raises(Mismatch):
        compare_with_scratch(kind)


def test_greedy_is_the_baseline_on_held_out_prompts():
    outputs, length = greedy(load_drafter("eagle", target()))
    assert defects(outputs) == []
    assert length > 1.8


def test_shuffled_features_make_acceptance_collapse():
    class Shuffled(EagleChain):
        def start(self, context, output):
            super().start(context, output._replace(hidden=output.hidden.flip(-1)))

        def update(self, context, output, starts, kept):
            super().update(context, output._replace(hidden=output.hidden.flip(-1)), starts, kept)

    proposer = load_drafter("eagle", target())
    group = prompts()[:8]

    def length():
        return decode(target(), group, proposer, max_new_tokens=24, sampling=Sampling(1.0)).mean_acceptance_length

    right = length()
    proposer.__class__ = Shuffled
    assert length() - 1 < 0.6 * (right - 1)


def test_unrolled_training_sees_what_drafting_sees():
    """Step j's attention over a whole window is that of drafting j tokens from each row."""
    target, head = learned()
    text = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5]
    w = head.module.weights(target.weights().embedding)
    ids = torch.tensor([text])
    hidden = target.forward(ids, target.new_cache(1, len(text))).hidden[:, :-1]
    rope, attention, given = target.rope[: len(text) - 1], _Unrolled(), hidden
    reference = eagle_logits(target, head)
    for step in range(3):
        x = run_block(enter_module(w, ids[:, 1:], given.flatten(0, 1)), w.block, 2, rope, attention)
        predicted = (unit(x) * w.post_gain).view(hidden.shape)
        logits = target.head(predicted)[0]
        for row in range(step, len(text) - 1):
            known = text[: row + 2 - step]  # drafting starts `step` rows earlier, with the text as its drafts
            drafts = [*text[row + 2 - step : row + 2], 0]
            assert torch.allclose(logits[row], reference(known, drafts)[step], atol=1e-4)
        given = torch.cat([hidden[:, :1], predicted[:, :-1]], 1)


def test_wrong_sizes_are_named():
    target, head = learned()
    with pytest.raises(ValueError, match="k must be"):
        EagleChain(target, head, k=0)
    with pytest.raises(ValueError, match="unroll must be at least 1"):
        EagleHead(target, unroll=0)
