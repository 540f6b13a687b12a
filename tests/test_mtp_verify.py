"""The acceptance rules by exact enumeration over a vocabulary of three, two drafts, p and q depending on context.

Every rule is a piecewise constant function of its uniform numbers. Cutting [0, 1) at all values where a decision can
change, and going through the cells' midpoints, drives the real code through every outcome with its exact weight.
"""

import functools
import itertools

import pytest
import torch

from mtp.sampling import GREEDY, Sampling, pick
from mtp.verify import (
    Verdict,
    acceptance_probability,
    verify_exact,
    verify_greedy,
    verify_threshold,
)

V = 3


class Tables:
    """p and q after no token, after one and (p only) after two: fp64, random but fixed."""

    def __init__(self, seed, shape=lambda logits: logits.softmax(-1)):
        generator = torch.Generator().manual_seed(seed)

        def table(*dims):
            return shape(2 * torch.randn(*dims, V, generator=generator, dtype=torch.float64))

        self.p = [table(), table(V), table(V, V)]
        self.q = [table(), table(V)]


def cells(*breaks):
    """Midpoints and widths of the cells that [0, 1) falls into."""
    inner = torch.cat([b.flatten() for b in breaks])
    edges = torch.cat([torch.tensor([0.0, 1.0], dtype=inner.dtype), inner[(inner > 0) & (inner < 1)]]).unique()
    edges = edges[torch.cat([torch.tensor([True]), edges.diff() > 1e-12])]
    return (edges[1:] + edges[:-1]) / 2, edges.diff()


def cumulative(weights):
    return weights.cumsum(-1) / weights.sum(-1, keepdim=True)


def outcomes(tables, draft=pick):
    """All (drafts, q, p, u_accept, u_next) with their weights, as one batch."""
    (p0, p1, p2), (q0, q1) = tables.p, tables.q
    residuals = [w for p, q in ((p0, q0), (p1, q1)) for w in ((p - q).clamp(min=0), (p - q).clamp(min=0).softmax(-1))]
    residuals += [p[..., None, :] * (1 - torch.eye(V)) for p in (p0, p1)]  # of a one-hot q
    decisions = [p0 / q0, p1 / q1, p0, p1]
    weights = [p0[None], p1, p2.flatten(0, 1), *(residual.view(-1, V) for residual in residuals)]
    nexts = [cumulative(w[w.sum(-1) > 0]) for w in weights]
    axes = [cells(cumulative(q0)), cells(cumulative(q1)), cells(decisions[0], decisions[2]),
            cells(decisions[1], decisions[3]), cells(*nexts)]  # fmt: skip
    grid = torch.cartesian_prod(*[points for points, _ in axes])
    weight = torch.cartesian_prod(*[widths for _, widths in axes]).prod(-1)
    first = draft(q0.expand(len(grid), V), grid[:, 0])
    second = draft(q1[first], grid[:, 1])
    p = torch.stack([p0.expand(len(grid), V), p1[first], p2[first, second]], 1)
    q = torch.stack([q0.expand(len(grid), V), q1[first]], 1)
    return (torch.stack([first, second], 1), q, p, grid[:, 2:4], grid[:, 4]), weight


def joint(tables, rule, *, one_hot=False, **options):
    """Joint distribution (V, V) of the next two tokens; where a round gave one, the second comes from p."""
    (drafts, q, p, u_accept, u_next), weight = outcomes(tables, **options)
    accepted, following = rule(drafts, None if one_hot else q, p, u_accept, u_next, None)
    first = torch.where(accepted >= 1, drafts[:, 0], following)
    second = torch.where(accepted >= 2, drafts[:, 1], following)
    table = torch.zeros(V, V, dtype=torch.float64)
    two = accepted >= 1
    table.index_put_((first[two], second[two]), weight[two], accumulate=True)
    alone = torch.zeros(V, dtype=torch.float64).index_put_((first[~two],), weight[~two], accumulate=True)
    return table + alone[:, None] * tables.p[1]


def distance(tables, table):
    return float((table - tables.p[0][:, None] * tables.p[1]).abs().sum() / 2)


def argmax_draft(q, u):
    return q.argmax(-1)


SHAPES = {
    "T=1": Sampling(1.0).probabilities,
    "T=0.6": Sampling(0.6).probabilities,
    "top-k": Sampling(1.3, top_k=2).probabilities,
    "top-p": Sampling(1.0, top_p=0.8).probabilities,
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_exact_rule_errs_by_rounding_only(seed, shape):
    tables = Tables(seed, shape)
    assert distance(tables, joint(tables, verify_exact)) < 1e-9
    # A deterministic draft, told as such, is lossless as well.
    assert distance(tables, joint(tables, verify_exact, one_hot=True, draft=argmax_draft)) < 1e-9


def resample_from_p(drafts, q, p, u_accept, u_next, counts=None):
    accepted = verify_exact(drafts, q, p, u_accept, u_next).accepted
    return Verdict(accepted, pick(p[torch.arange(len(p)), accepted], u_next))


def threshold_then_p(drafts, q, p, u_accept, u_next, counts=None):
    accepted = verify_threshold(drafts, q, p, u_accept, u_next, ratio=0.5).accepted
    return Verdict(accepted, pick(p[torch.arange(len(p)), accepted], u_next))


def softmax_residual(drafts, q, p, u_accept, u_next, counts=None):
    accepted, bonus = verify_exact(drafts, q, p, u_accept, u_next)
    at = accepted.clamp(max=drafts.shape[1] - 1)
    rows = torch.arange(len(p))
    wrong = pick((p[rows, at] - q[rows, at]).clamp(min=0).softmax(-1), u_next)
    return Verdict(accepted, torch.where(accepted < drafts.shape[1], wrong, bonus))


def sum_of_matches(drafts, q, p, u_accept, u_next, counts=None):
    """Counts all accepted drafts instead of the accepted prefix."""
    each = [
        verify_exact(drafts[:, [i]], q[:, [i]], p[:, i : i + 2], u_accept[:, [i]], u_next).accepted
        for i in range(drafts.shape[1])
    ]
    return Verdict(torch.stack(each).sum(0), verify_exact(drafts, q, p, u_accept, u_next).next_token)


WRONG = {
    "resample from p": (resample_from_p, pick),
    "residual by softmax": (softmax_residual, pick),
    "threshold": (functools.partial(verify_threshold, ratio=0.5), pick),
    "sum of matches": (sum_of_matches, pick),
    "argmax draft with its softmax q": (verify_exact, argmax_draft),
}


@pytest.mark.parametrize("rule, draft", WRONG.values(), ids=WRONG)
def test_wrong_rules_are_seen(rule, draft):
    tables = Tables(0)
    assert distance(tables, joint(tables, rule, draft=draft)) > 0.005


P, Q = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]], dtype=torch.float64)


def one_step(rule, draft=pick):
    """Distribution of the next token with one draft, p = (.6, .3, .1), q = (.2, .3, .5)."""
    residual = (P - Q).clamp(min=0)
    axes = [cells(cumulative(Q)), cells(P / Q), cells(cumulative(P), cumulative(residual))]
    grid = torch.cartesian_prod(*[points for points, _ in axes])
    weight = torch.cartesian_prod(*[widths for _, widths in axes]).prod(-1)
    drafts = draft(Q.expand(len(grid), V), grid[:, 0])[:, None]
    p, q = P.expand(len(grid), 2, V), Q.expand(len(grid), 1, V)
    accepted, following = rule(drafts, q, p, grid[:, 1:2], grid[:, 2], None)
    token = torch.where(accepted > 0, drafts[:, 0], following)
    return torch.zeros(V, dtype=torch.float64).index_put_((token,), weight, accumulate=True)


@pytest.mark.parametrize(
    "rule, draft, expected",
    [
        (verify_exact, pick, (0.6, 0.3, 0.1)),
        (resample_from_p, pick, (0.44, 0.42, 0.14)),
        (functools.partial(verify_threshold, ratio=0.5), pick, (0.7, 0.3, 0.0)),
        (threshold_then_p, pick, (0.5, 0.45, 0.05)),
        (functools.partial(verify_threshold, ratio=0.1), pick, (0.2, 0.3, 0.5)),
        (verify_exact, argmax_draft, (0.8, 0.0, 0.2)),
    ],
    ids=["exact", "resample", "threshold .5", "threshold .5 then p", "threshold .1", "argmax draft, softmax q"],
)
def test_worked_example(rule, draft, expected):
    torch.testing.assert_close(one_step(rule, draft), torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_acceptance_probability_is_one_minus_tv():
    assert float(acceptance_probability(Q, P)) == pytest.approx(1 - 0.4)


@pytest.mark.parametrize("rows", list(itertools.product([0, 1, 2], repeat=3)))
def test_greedy_accepts_the_prefix_of_matches(rows):
    best = torch.tensor([[4, 5, 6]]).repeat(3, 1)
    drafts = best[:, :2].clone()
    for row, good in enumerate(rows):  # row has `good` right drafts, then a wrong one, then whatever matches
        if good < 2:
            drafts[row, good] = 9
    verdict = verify_greedy(drafts, best)
    assert verdict.accepted.tolist() == list(rows)
    assert verdict.next_token.tolist() == [4 + good for good in rows]


def test_counts_hide_the_padding():
    # Row 0 has one real draft, all certain: the next token comes from p after it, not from a residual.
    drafts = torch.tensor([[1, 2], [1, 2]])
    p = torch.eye(3)[torch.tensor([[1, 0, 2], [1, 2, 0]])]
    q = torch.eye(3)[drafts]
    u = torch.full((2, 2), 0.5)
    verdict = verify_exact(drafts, q, p, u, u[:, 0], torch.tensor([1, 2]))
    assert verdict.accepted.tolist() == [1, 2]
    assert verdict.next_token.tolist() == [0, 0]
    greedy = verify_greedy(drafts, torch.tensor([[1, 2, 0], [1, 2, 0]]), torch.tensor([1, 0]))
    assert greedy.accepted.tolist() == [1, 0]
    assert greedy.next_token.tolist() == [2, 1]


def test_rows_do_not_mix():
    tables = Tables(1)
    arguments, _ = outcomes(tables)
    whole = verify_exact(*arguments)
    for row in range(0, len(arguments[0]), 997):
        alone = verify_exact(*(a[row : row + 1] for a in arguments))
        assert (int(alone.accepted), int(alone.next_token)) == (int(whole.accepted[row]), int(whole.next_token[row]))


def test_threshold_refuses_a_ratio_out_of_range():
    with pytest.raises(ValueError, match="ratio"):
        verify_threshold(None, None, None, None, None, ratio=0.0)


class TestSampling:
    LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])

    def test_temperature(self):
        expected = torch.softmax(self.LOGITS / 0.5, -1)
        torch.testing.assert_close(Sampling(0.5).probabilities(self.LOGITS), expected)

    def test_greedy_is_a_one_hot(self):
        assert GREEDY.probabilities(self.LOGITS).tolist() == [[1.0, 0.0, 0.0, 0.0]]

    def test_top_k_keeps_k_and_renormalises(self):
        p = Sampling(1.0, top_k=2).probabilities(self.LOGITS)[0]
        full = torch.softmax(self.LOGITS, -1)[0, :2]
        torch.testing.assert_close(p, torch.cat([full / full.sum(), torch.zeros(2)]))

    def test_top_p_keeps_the_fewest_that_reach_p(self):
        full = torch.softmax(self.LOGITS, -1)[0]  # .644, .237, .087, .032
        p = Sampling(1.0, top_p=0.7).probabilities(self.LOGITS)[0]
        torch.testing.assert_close(p, torch.cat([full[:2] / full[:2].sum(), torch.zeros(2)]))
        assert Sampling(1.0, top_p=1e-6).probabilities(self.LOGITS)[0].tolist() == [1.0, 0.0, 0.0, 0.0]

    def test_pick_inverts_the_cumulative_sum(self):
        p = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0])
        u = torch.tensor([0.0, 0.2, 0.25, 0.9, 1 - 2**-24])
        assert pick(p.expand(5, 5), u).tolist() == [1, 1, 3, 3, 3]

    @pytest.mark.parametrize(
        "arguments, name",
        [
            ({"temperature": -1.0}, "temperature"),
            ({"temperature": float("nan")}, "temperature"),
            ({"temperature": "1"}, "temperature"),
            ({"top_k": 0}, "top_k"),
            ({"top_p": 0.0}, "top_p"),
            ({"top_p": 1.5}, "top_p"),
        ],
    )
    def test_bad_values_are_named(self, arguments, name):
        with pytest.raises(ValueError, match=name):
            Sampling(**arguments)
