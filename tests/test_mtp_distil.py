"""Distillation: the modules learn the main model's distributions, and nothing else changes."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from mtp_reference import SMALL, full_hidden, small_model, trained_model

from mtp import DistillSettings, NativeMTP, Transformer, decode, distil, encode
from mtp.data import sample_batch
from mtp.distillation import ModuleStudents, acceptance_rates

TEXT = torch.tensor(
    encode("for line in file:\n    if line.strip():\n        yield line.split()\n" * 20), dtype=torch.uint8
)
SETTINGS = DistillSettings(steps=80, batch=4, length=32, seed=3)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def model():
    return deepcopy(trained_model()).fold()


@torch.no_grad()
def test_acceptance_is_the_overlap_of_each_draft_s_distribution_with_the_target_s(model):
    """Recomputed position by position: p from the whole prefix, q through the modules' own forward pass."""
    ids = sample_batch(TEXT, 1, 20, torch.Generator().manual_seed(0))
    hidden = full_hidden(model, ids[0].tolist())
    students = ModuleStudents(model)
    output = model.forward(ids, model.new_cache(1, 20))
    rates = students.acceptance(ids, output, model.head(output.hidden))
    assert [len(rate) for rate in rates] == [20 - len(model.mtp)] * len(model.mtp)
    p = model.head(hidden[0]).softmax(-1)  # row i: what follows token i
    below = hidden[:, : 20 - len(model.mtp)]
    for k, rate in enumerate(rates, start=1):
        rows = below.shape[1]
        below = model.module_forward(k - 1, ids[:, k : rows + k], below, model.new_cache(1, rows, 1))
        q = model.head(below[0]).softmax(-1)
        for i in range(rows):
            assert rate[i].item() == pytest.approx(1 - (p[i + k] - q[i]).abs().sum().item() / 2, abs=1e-4)


def test_all_modules_are_accepted_more_often_and_the_main_model_stays(model):
    before, rates = weights(model), acceptance_rates(model, TEXT, windows=8, length=32)
    better = distil(deepcopy(model), TEXT, SETTINGS)
    after = weights(better)
    assert {name for name in before if not torch.equal(before[name], after[name])} <= {n for n in before if "mtp." in n}
    new_rates = acceptance_rates(better, TEXT, windows=8, length=32)
    assert all(new > old + 0.1 * (1 - old) for old, new in zip(rates, new_rates, strict=True)), (rates, new_rates)
    prompt = encode("for line in ")
    drafted = decode(better, prompt, NativeMTP(better), max_new_tokens=40)
    assert drafted.tokens == decode(model, prompt, max_new_tokens=40).tokens
    # what decodes is what was trained: folded anew
    folded = deepcopy(better).fold().weights().modules[0]
    assert torch.equal(better.weights().modules[0].from_hidden, folded.from_hidden)
    assert not torch.equal(model.weights().modules[0].from_hidden, folded.from_hidden)
    assert not any(parameter.requires_grad for parameter in better.parameters())


def test_same_seed_same_modules(model):
    few = replace(SETTINGS, steps=5)
    one, again, other = (weights(distil(deepcopy(model), TEXT, s)) for s in (few, few, replace(few, seed=4)))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["mtp.0.projection"], other["mtp.0.projection"])


def test_wrong_use(model):
    bare = Transformer(replace(SMALL, n_mtp=0)).eval().fold()
    with pytest.raises(ValueError, match="no MTP modules"):
        distil(bare, TEXT, SETTINGS)
    with pytest.raises(ValueError, match="a window needs"):
        distil(deepcopy(model), TEXT[:20], SETTINGS)
    damaged = small_model()
    with torch.no_grad():
        damaged.mtp[0].projection.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="lower lr"):
        distil(damaged, TEXT % SMALL.vocab_size, SETTINGS)
