"""The reference class of chapter 35 against its contract: names, keys, types and errors."""

import inspect

import numpy as np
import pytest
import torch

from grading import chapter


@pytest.fixture(scope="module")
def sim_class():
    ch = chapter.load(chapter.find()[0])
    namespace = {}
    for cell in ch.of("import", "solution"):
        exec(cell.source, namespace)
    return namespace["MultiTokenDecoderSim"]


def uniform(rows=4, vocab=40):
    return torch.full((rows, vocab), 0.5)


def test_signatures_are_the_contract_s(sim_class):
    names = {name: list(inspect.signature(getattr(sim_class, name)).parameters)[1:] for name in ("__init__", "propose")}
    assert names == {"__init__": ["max_proposal_len", "min_accept_ratio"], "propose": ["draft_tokens"]}
    assert list(inspect.signature(sim_class._accept_token).parameters)[1:] == ["draft_prob", "target_prob"]
    for name in ("verify", "decode"):
        parameters = list(inspect.signature(getattr(sim_class, name)).parameters)
        assert parameters[1:] == ["draft_probs", "target_probs", "draft_tokens"]
    assert vars(sim_class()) == {"max_proposal_len": 4, "min_accept_ratio": 0.5, "history": []}


@pytest.mark.parametrize("length", [0, -1, True, 2.0, "4", None])
def test_a_proposal_length_that_is_no_positive_int_is_refused(sim_class, length):
    with pytest.raises(ValueError, match="max_proposal_len"):
        sim_class(max_proposal_len=length)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.0001, float("nan"), float("inf")])
def test_a_ratio_outside_0_to_1_is_refused(sim_class, ratio):
    with pytest.raises(ValueError, match="min_accept_ratio"):
        sim_class(min_accept_ratio=ratio)


def test_the_worked_fixture(sim_class):
    p = torch.zeros(4, 40)
    for row, (token, prob) in enumerate(zip((10, 20, 30, 31), (0.8, 0.8, 0.2, 0.2), strict=True)):
        p[row, token] = prob
    sim = sim_class(max_proposal_len=3, min_accept_ratio=0.6)
    expected = {
        "proposed_tokens": [10, 20, 30],
        "accepted_tokens": [10, 20],
        "accepted_len": 2,
        "progress_per_round": 2 / 3,
        "rejected_at": 2,
        "rejected_suffix": [30],
    }
    assert sim.decode(uniform(), p, [10, 20, 30, 31]) == expected
    assert sim.decode(uniform(), p, []) | {"progress_per_round": 0.0, "rejected_at": None} == sim.history[1]
    assert sim.history[0] == expected and len(sim.history) == 2


def test_matrices_may_be_tensors_arrays_or_nested_lists(sim_class):
    q, p = [[0.5, 0.5]], [[0.25, 0.75]]
    for convert in (list, torch.tensor, np.array):
        assert sim_class(1, 0.5).verify(convert(q), convert(p), [0]) == ([0], None)


@pytest.mark.parametrize(
    ("draft_probs", "target_probs", "tokens", "says"),
    [
        (uniform()[0], uniform()[0], [], "二维"),
        (uniform(), uniform()[None], [1], "二维"),
        (uniform(4, 40), uniform(4, 41), [1], "形状"),
        (uniform(1), uniform(1), [1, 2], "1 行"),
        (uniform(), uniform(), [40], "40"),
        (uniform(), uniform(), [-1], "-1"),
        (uniform(), uniform(), ["a"], "'a'"),
    ],
)
def test_verify_says_which_input_is_wrong(sim_class, draft_probs, target_probs, tokens, says):
    with pytest.raises(ValueError, match=says):
        sim_class().verify(draft_probs, target_probs, tokens)


def test_tokens_beyond_the_budget_are_not_looked_at(sim_class):
    assert sim_class(max_proposal_len=1).verify(uniform(), uniform(), [3, 10**9]) == ([3], None)
