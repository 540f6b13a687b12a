"""The native drafter proposes what its modules, recomputed from scratch, would; every known fault shows in that."""

import copy

import pytest
import torch
from mtp_reference import SMALL, draft, greedy, prompts_for, small_model, trained_model

import mtp.drafters.native as native
from mtp import GREEDY, ModelConfig, NativeMTP, Sampling, Transformer, decode
from mtp.cache import KVCache


@pytest.fixture(scope="module")
def model():
    return small_model()


class Recorder:
    """Wraps a drafter and keeps every proposal with what was known then."""

    feature_layers = ()
    name = "recorder"

    def __init__(self, proposer):
        self.proposer, self.k = proposer, proposer.k
        self.seen = []
        self.start, self.update = proposer.start, proposer.update

    def propose(self, context, k, uniforms):
        known = [context.tokens[row, :n].tolist() for row, n in enumerate(context.known)]
        proposal = self.proposer.propose(context, k, uniforms)
        self.seen += list(zip(known, proposal.tokens.tolist(), strict=True))
        return proposal


def wrong_proposals(model, proposer, *, batch=1, prompts=None, new=24):
    """Rounds whose drafts differ from the reference's, and all rounds."""
    recorder = Recorder(proposer)
    prompts = prompts or prompts_for(model, 6, shortest=1)
    for i in range(0, len(prompts), batch):
        decode(model, prompts[i : i + batch], recorder, max_new_tokens=new)
    wrong = [(known, got) for known, got in recorder.seen if got != draft(model, known, len(got))]
    return len(wrong), len(recorder.seen)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_drafts_are_the_modules_own(model, k, batch):
    wrong, rounds = wrong_proposals(model, NativeMTP(model, k, recycle=True), batch=batch)
    assert rounds > 50
    assert wrong == 0


@pytest.mark.parametrize("k", [1, 3, 5])
def test_drafts_stay_right_after_partial_acceptance(k):
    model = trained_model()
    lengths = set()

    def note(record, context, cache):
        lengths.update(row.accepted for row in record.rows)

    recorder = Recorder(NativeMTP(model, k, recycle=True))
    prompts = prompts_for(model, 8, seed=1)
    decode(model, prompts, recorder, max_new_tokens=40, on_round=note)
    assert lengths == set(range(k + 1)), "the test wants rounds of every acceptance"
    assert [known for known, got in recorder.seen if got != draft(model, known, len(got))] == []


# Planted faults: (what to patch, which proposer) ------------------------------------------------------------------


def ids_not_shifted(monkeypatch, model):
    def window(values, starts, width, original=native.window):
        shift = 1 if values.dtype == torch.long else 0
        return original(values, [max(0, start - shift) for start in starts], width)

    monkeypatch.setattr(native, "window", window)
    return NativeMTP(model)


def halves_swapped(monkeypatch, model):
    other = copy.deepcopy(model)
    d = other.config.d_model
    for module in other.mtp:
        module.projection.copy_(torch.cat([module.projection[:, d:], module.projection[:, :d]], 1))
    return NativeMTP(other.fold())


def pre_norm_recycled(monkeypatch, model):
    other = copy.deepcopy(model)
    for module in other.mtp:  # the head still sees the normed state, the next module does not
        module.post_gain.fill_(1.0)
    other.fold()
    original = other.head
    gains = [m.post_gain for m in model.mtp]
    calls = iter(range(10**9))
    other.head = lambda hidden: original(hidden * gains[next(calls) % 3])
    return NativeMTP(other)


def position_off_by_one(monkeypatch, model):
    original = Transformer.rope_at

    def rope_at(self, slots, positions):
        one_row = positions is None and slots.index is None and slots.end - slots.start == 1
        if one_row and slots.mask is None and self is other:
            return self.rope[slots.start + 1 : slots.end + 1]
        return original(self, slots, positions)

    other = copy.deepcopy(model)
    monkeypatch.setattr(Transformer, "rope_at", rope_at)
    return NativeMTP(other, 6, recycle=True)


def module_kv_kept_from_drafts(monkeypatch, model):
    class Keeps(NativeMTP):
        def update(self, context, output, starts, kept):
            super().update(context, output, starts, kept)
            self.window = max(kept)  # only new rows; those that rested on refused drafts stay

    return Keeps(model)


def module_kv_not_prefilled(monkeypatch, model):
    class Empty(NativeMTP):
        def start(self, context, output):
            super().start(context, output)
            for cache in self.caches:
                cache.store.zero_()

    return Empty(model)


def hidden_of_a_neighbour(monkeypatch, model):
    def window(values, starts, width, original=native.window):
        return original(values, [starts[0]] * len(starts), width)

    monkeypatch.setattr(native, "window", window)
    return NativeMTP(model)


FAULTS = [
    ids_not_shifted, halves_swapped, pre_norm_recycled, position_off_by_one, module_kv_kept_from_drafts,
    module_kv_not_prefilled, hidden_of_a_neighbour,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_are_seen(monkeypatch, fault):
    model = trained_model()
    prompts = prompts_for(model, 6, seed=1)
    batch = 3 if fault is hidden_of_a_neighbour else 1
    wrong, rounds = wrong_proposals(model, fault(monkeypatch, model), batch=batch, prompts=prompts, new=30)
    assert wrong > 0, f"none of {rounds} proposals differs"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_bad_drafter_cannot_change_the_output(monkeypatch, fault):
    model = trained_model()
    prompt = prompts_for(model, 1, seed=5)[0]
    expected = greedy(model, prompt, 20)
    assert decode(model, prompt, fault(monkeypatch, model), max_new_tokens=20).tokens == [expected]


def test_target_kv_not_cropped_is_seen(monkeypatch):
    model = trained_model()
    prompts = prompts_for(model, 4, seed=2)
    expected = [greedy(model, prompt, 24) for prompt in prompts]

    class NeverCropped(KVCache):
        def rollback(self, lengths):
            if max(lengths) == 0 or len(self.layers) == 1:  # a module's cache, not the target's
                super().rollback(lengths)

    def new_cache(self, batch, capacity, n_layers=None):
        c = self.config
        return NeverCropped(n_layers or c.n_layers, batch, 4 * capacity, c.n_heads, c.d_head)

    assert [decode(model, p, NativeMTP(model), max_new_tokens=24).tokens[0] for p in prompts] == expected
    monkeypatch.setattr(Transformer, "new_cache", new_cache)
    assert [decode(model, p, NativeMTP(model), max_new_tokens=24).tokens[0] for p in prompts] != expected


def test_shuffled_module_input_changes_the_drafts(monkeypatch):
    model = trained_model()
    original = Transformer.module_forward
    order = torch.randperm(model.config.d_model, generator=torch.Generator().manual_seed(0))

    def shuffled(self, index, ids, hidden, cache):
        return original(self, index, ids, hidden[..., order], cache)

    monkeypatch.setattr(Transformer, "module_forward", shuffled)
    wrong, rounds = wrong_proposals(model, NativeMTP(model), prompts=prompts_for(model, 4, seed=1))
    assert wrong > 0, f"none of {rounds} proposals differs"


class TestWrongUse:
    def test_model_without_modules(self):
        config = ModelConfig(**{**SMALL.__dict__, "n_mtp": 0})
        with pytest.raises(ValueError, match="no MTP modules"):
            NativeMTP(small_model(config=config))

    @pytest.mark.parametrize("k", [0, -1, 2.0])
    def test_k_must_be_a_positive_number(self, model, k):
        with pytest.raises(ValueError, match="k must be"):
            NativeMTP(model, k)

    def test_more_drafts_than_modules_must_be_meant(self, model):
        with pytest.raises(ValueError, match="recycle=True"):
            NativeMTP(model, 4)
        assert NativeMTP(model, 4, recycle=True).k == 4

    def test_more_drafts_than_positions(self, model):
        with pytest.raises(ValueError, match="rotary table"):
            NativeMTP(model, 65, recycle=True)

    def test_k_at_decoding_is_bounded_by_the_proposers(self, model):
        with pytest.raises(ValueError, match="from 0 to 2"):
            decode(model, [1, 2], NativeMTP(model, 2), k=3, max_new_tokens=4)
        with pytest.raises(ValueError, match="need a proposer"):
            decode(model, [1, 2], k=3, max_new_tokens=4)


def test_fewer_modules_than_the_model_has(model):
    prompt = prompts_for(model, 1, seed=3)[0]
    wrong, rounds = wrong_proposals(model, NativeMTP(model, 2), prompts=[prompt])
    assert (wrong, rounds > 5) == (0, True)


def test_k_may_change_from_run_to_run(model):
    proposer = NativeMTP(model)
    prompt = prompts_for(model, 1, seed=4)[0]
    outputs = [decode(model, prompt, proposer, k=k, max_new_tokens=16).tokens for k in (3, 0, 1, 2, 3)]
    assert all(output == outputs[0] for output in outputs)


def test_sampled_runs_repeat_with_the_generator():
    model = trained_model()
    prompt = prompts_for(model, 1)[0]

    def sample(seed):
        generator = torch.Generator().manual_seed(seed)
        return decode(
            model, prompt, NativeMTP(model), max_new_tokens=30, sampling=Sampling(1.0), generator=generator
        ).tokens

    assert sample(3) == sample(3) != sample(4)
    assert decode(model, prompt, NativeMTP(model), max_new_tokens=30, sampling=GREEDY).tokens == [
        greedy(model, prompt, 30)
    ]
