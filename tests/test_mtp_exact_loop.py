"""The real decoding loop, by exact enumeration: the joint distribution of four tokens is the target's.

One batch holds every outcome of every random number, so acceptance is as ragged as can be.
"""

import functools

import pytest
import torch
from mtp_tabular import (
    FINE_GRID,
    FINE_P,
    FINE_Q,
    LENGTH,
    Grid,
    P,
    Q,
    TableProposer,
    error,
    expected,
    joint,
    table_target,
)

from mtp import Sampling, Uniforms, decode, verify_exact, verify_threshold
from mtp.verify import Verdict


def test_exact_rule_keeps_the_joint_distribution():
    assert error(P, P.log(), Q.log(), Sampling(1.0)) < 1e-6
    assert error(FINE_P, FINE_P.log(), FINE_Q.log(), Sampling(1.0), grid=FINE_GRID) < 1e-6


def test_temperature_acts_on_both_sides():
    assert error(FINE_P, 2 * FINE_P.log(), 2 * FINE_Q.log(), Sampling(2.0), grid=FINE_GRID) < 1e-6


# With two tokens kept of three: p and q over the kept ones, and which token is cut, for each last token.
CUT_P = torch.tensor([[0.75, 0.25, 0.0], [0.25, 0.0, 0.75], [0.0, 0.5, 0.5]], dtype=torch.float64).repeat(3, 1, 1)
CUT_P[2] = P[2]
CUT_Q = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)


def with_small_tail(kept):
    """Logits whose third token has mass .04: it falls to top_k = 2 and to top_p = .9."""
    return torch.where(kept > 0, 0.96 * kept, 0.04).log()


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.9)], ids=["top-k", "top-p"])
def test_filters_act_on_both_sides(sampling):
    assert error(CUT_P, with_small_tail(CUT_P), with_small_tail(CUT_Q), sampling) < 1e-6


def test_plain_autoregression_is_the_same_loop():
    grid = Grid([[2], *[[4]] * (LENGTH - 1)])
    target = table_target(P.log())
    result = decode(target, [[0]] * len(grid), max_new_tokens=LENGTH, sampling=Sampling(1.0), generator=grid)
    assert float((joint(result.tokens, LENGTH) - expected(P, LENGTH)).abs().sum()) < 1e-6


def one_uniform_for_both(drafts, q, p, u_accept, u_next, counts=None):
    accepted = verify_exact(drafts, q, p, u_accept, u_next, counts).accepted
    reused = torch.cat([u_accept, u_next[:, None]], 1).gather(1, accepted[:, None])[:, 0]
    return verify_exact(drafts, q, p, u_accept, reused, counts)


def bonus_after_a_rejection(drafts, q, p, u_accept, u_next, counts=None):
    accepted = verify_exact(drafts, q, p, u_accept, u_next, counts).accepted
    bonus = verify_exact(drafts, q, p, torch.zeros_like(u_accept), u_next, counts).next_token
    return Verdict(accepted, bonus)


@pytest.mark.parametrize(
    "rule",
    [
        one_uniform_for_both,
        bonus_after_a_rejection,
        functools.partial(verify_threshold, ratio=0.5),
    ],
    ids=["one uniform for both", "bonus after a rejection", "threshold"],
)
def test_wrong_rules_are_seen(rule):
    assert error(FINE_P, FINE_P.log(), FINE_Q.log(), Sampling(1.0), grid=FINE_GRID, rule=rule) > 0.01


def test_temperature_on_one_side_only_is_seen():
    def unscaled(context, logits):  # drawn at the temperature, reported without it
        return torch.softmax(logits, -1)

    logits = 2 * FINE_P.log(), 2 * FINE_Q.log()
    assert error(FINE_P, *logits, Sampling(2.0), grid=FINE_GRID, report=unscaled) > 0.01


def test_numbers_come_from_the_generator_alone():
    target = table_target(P.log())
    proposer = TableProposer(Q.log().float(), 2)

    def sample(seed):
        generator = torch.Generator().manual_seed(seed)
        return decode(
            target, [[0]] * 50, proposer, max_new_tokens=LENGTH, sampling=Sampling(1.0), generator=generator
        ).tokens

    torch.manual_seed(1)
    first = sample(7)
    torch.manual_seed(2)
    assert sample(7) == first
    assert sample(8) != first
    assert Uniforms(torch.Generator().manual_seed(7)).draw(2, 3).shape == (2, 3)
