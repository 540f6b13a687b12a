"""The independent draft model: drafts as from scratch, keeps the distribution, cache in step with the text."""

import pytest
import torch
from routes_enumeration import distance, expected_joint, joint, tiny_target
from routes_reference import Mismatch, against_scratch, independent_logits
from routes_shipped import defects, greedy, target

from mtp import Sampling, decode
from mtp.drafter_training import evaluate_drafter, train_drafter
from mtp.drafters.independent import DraftModel, IndependentDraft
from mtp.routes import load_drafter, new_drafter

SIZES = {"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 0, 1, 2, 3, 4, 5], [3, 3]]


def tiny_draft(target, like_target=False):
    """A random draft model; `like_target` makes it agree with the target now and then, so that drafts are accepted."""
    torch.manual_seed(5)
    draft = DraftModel(target, **SIZES)
    if like_target:
        draft = DraftModel(target, d_model=16, n_layers=2, n_heads=2, d_ff=16)
        with torch.no_grad():
            for own, other in zip(draft.model.parameters(), target.parameters(), strict=True):
                own.copy_(other + 0.02 * torch.randn(other.shape))
    return draft.eval().requires_grad_(False)


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.7), Sampling(1.4, top_k=2), Sampling(1.0, top_p=0.8)],
    ids=["T=1", "T=0.7", "T=1.4 top-k 2", "top-p 0.8"],
)  # fmt: skip
def test_keeps_the_joint_distribution(monkeypatch, sampling):
    target, prompt = tiny_target(), [0, 1, 2]
    proposer = IndependentDraft(target, tiny_draft(target), k=2)
    table = joint(monkeypatch, target, proposer, prompt, 3, sampling)
    assert distance(table, expected_joint(target, prompt, 3, sampling)) < 1e-5


def test_temperature_in_q_alone_is_seen(monkeypatch):
    class Unscaled(IndependentDraft):
        def propose(self, context, k, uniforms):
            proposal = super().propose(context, k, uniforms)
            proposal.q = proposal.q.log().mul(context.sampling.temperature).softmax(-1)
            return proposal

    target, prompt, sampling = tiny_target(), [0, 1, 2], Sampling(0.5)
    table = joint(monkeypatch, target, Unscaled(target, tiny_draft(target), k=2), prompt, 2, sampling)
    assert distance(table, expected_joint(target, prompt, 2, sampling)) > 0.01


def compare_with_scratch(proposer_class):
    """A ragged batch, sampled, with every proposal checked; returns the accepted counts seen."""
    target = tiny_target(vocab=8)
    draft = tiny_draft(target, like_target=True)
    proposer = against_scratch(proposer_class(target, draft, k=3), independent_logits(draft))
    run = decode(target, PROMPTS, proposer, max_new_tokens=30, sampling=Sampling(1.0))
    assert proposer.compared > 20
    return {row.accepted for record in run.rounds for row in record.rows}


def test_drafts_as_from_scratch():
    accepted = compare_with_scratch(IndependentDraft)
    assert accepted == {0, 1, 2, 3}  # rejections anywhere, and whole drafts after which one token more is missing


def test_cache_that_is_not_rolled_back_is_seen():
    class NotRolledBack(IndependentDraft):
        def propose(self, context, k, uniforms):
            self.cache.rollback = lambda lengths: None
            try:
                return super().propose(context, k, uniforms)
            finally:
                del self.cache.rollback

    with pytest.raises(Mismatch):
        compare_with_scratch(NotRolledBack)


def test_prompt_that_is_not_read_is_seen():
    class Unread(IndependentDraft):
        def start(self, context, output):
            super().start(context, output)
            self.cache.store.zero_()

    with pytest.raises(Mismatch):
        compare_with_scratch(Unread)


def test_last_draft_left_out_is_seen():
    class OneToken(IndependentDraft):
        def update(self, context, output, starts, kept):
            self.cache.rollback([known - 1 for known in context.known])  # also where the last draft was never fed

    with pytest.raises(Mismatch):
        compare_with_scratch(OneToken)


def test_greedy_is_the_baseline_on_held_out_prompts():
    outputs, length = greedy(load_drafter("independent", target()))
    assert defects(outputs) == []
    assert length > 1.8


def test_learns_the_target_even_on_noise():
    target = tiny_target(vocab=8)
    text = torch.randint(8, (4000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    draft = DraftModel(target, **SIZES)
    before = evaluate_drafter(draft, target, text, batches=2, length=32)
    train_drafter(draft, target, text, steps=40, batch=8, length=32)
    assert evaluate_drafter(draft, target, text, batches=2, length=32) < before - 0.1


def test_wrong_use_is_named():
    target = tiny_target(vocab=8)
    with pytest.raises(ValueError, match="k must be"):
        IndependentDraft(target, tiny_draft(target), k=0)
    with pytest.raises(ValueError, match="draft model has 3 tokens, the target 8"):
        IndependentDraft(target, tiny_draft(tiny_target(vocab=3)))
    with pytest.raises(ValueError, match="d_model / n_heads"):
        new_drafter("independent", target, d_model=9)
