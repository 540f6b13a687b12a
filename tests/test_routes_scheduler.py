"""DSpark's scheduler: what it chooses, and that stopping early without looking ahead leaves the output's distribution
alone: by exact enumeration through the decoding loop, with tables and with networks, for one row and for a batch.
"""

import itertools

import pytest
import routes_enumeration
import torch
from block_drafters import Recorder
from mtp_tabular import GRID, Config, Grid, P, Q, TableTarget, expected, joint, table_target

from mtp import Sampling, decode
from mtp.drafters.dspark import DSpark, DSparkModel, HeadTables
from mtp.drafters.scheduler import LinearCost, LookAheadScheduler, Scheduler

# The scheduler ----------------------------------------------------------------------------------------------------


def second_tile(n):
    """A staircase, as a processor's cost is: nothing extra up to one token a row of three, then a step."""
    return 1.0 if n <= 3 else 1.5 + 0.01 * n


COSTS = [None, LinearCost(3.0, 0.5), LinearCost(1.0, 1.0), second_tile]


def random_survival(rows, k, generator):
    return torch.rand(rows, k, generator=generator).cumprod(1).tolist()


def reads_ahead(scheduler, rows=3, k=4, trials=300):
    """Whether any draft's fate changes with what is known only after it is drawn."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(trials):
        survival = random_survival(rows, k, generator)
        row, position = (int(torch.randint(n, (1,), generator=generator)) for n in (rows, k))
        tail = [survival[row][position] * share for share in random_survival(1, k - 1 - position, generator)[0]]
        changed = [list(values) for values in survival]
        changed[row][position + 1 :] = tail
        before, after = scheduler.lengths(survival), scheduler.lengths(changed)
        if (before[row] > position) != (after[row] > position):
            return True
    return False


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("budget", [None, 7])
def test_scheduler_reads_nothing_ahead(budget, cost, padded):
    assert not reads_ahead(Scheduler(budget, cost, padded))


def test_looking_ahead_is_seen():
    assert reads_ahead(LookAheadScheduler(lambda n: second_tile(n + 2)))  # a row by itself


def brute_force(survival, budget, cost):
    """Expected tokens a second of the best lengths, over all of them."""
    best = 0.0
    for lengths in itertools.product(*(range(len(row) + 1) for row in survival)):
        fed = len(survival) + sum(lengths)
        if budget is None or fed <= budget:
            best = max(best, rate(survival, lengths, cost))
    return best


def rate(survival, lengths, cost):
    expected_tokens = len(survival) + sum(sum(row[:n]) for row, n in zip(survival, lengths, strict=True))
    return expected_tokens / (cost(len(survival) + sum(lengths)) if cost else 1.0)


@pytest.mark.parametrize("budget", [None, 3, 5, 8])
@pytest.mark.parametrize("cost", COSTS[:3])  # linear: the rate has one peak, and the first descent is past it
def test_scheduler_finds_the_best_lengths(budget, cost):
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        survival = random_survival(3, 3, generator)
        lengths = Scheduler(budget, cost).lengths(survival)
        assert budget is None or 3 + sum(lengths) <= max(budget, 3)
        assert rate(survival, lengths, cost) == pytest.approx(brute_force(survival, budget, cost))


def test_padded_scheduler_takes_columns():
    survival = [[0.9, 0.8, 0.7], [0.5, 0.1, 0.05], [0.4]]
    assert Scheduler(budget=9, padded=True).lengths(survival) == [2, 2, 1]
    assert Scheduler(budget=8, padded=True).lengths(survival) == [1, 1, 1]
    assert Scheduler(cost=LinearCost(0.0, 1.0), padded=True).lengths(survival) == [0, 0, 0]
    assert Scheduler(cost=LinearCost(1.0, 0.0), padded=True).lengths(survival) == [3, 3, 1]
    assert Scheduler(budget=6).lengths(survival) == [3, 0, 0]  # by drafts: the likeliest three are one row's
    assert Scheduler(budget=2).lengths(survival) == [0, 0, 0]
    assert Scheduler().lengths([]) == []


def test_cost_is_fitted_to_measurements():
    cost = LinearCost.fit({1: 2.1, 2: 2.4, 4: 3.0}, draft=0.5)
    assert [cost(n) for n in (1, 3, 10)] == pytest.approx([2.6, 3.2, 5.3])
    assert LinearCost.fit({1: 2.0, 2: 1.9})(5) == pytest.approx(2.1)  # a falling cost is noise: no slope


def test_bad_schedulers_are_refused():
    with pytest.raises(ValueError, match="two measurements"):
        LinearCost.fit({1: 1.0})
    with pytest.raises(ValueError, match="budget must be a whole number"):
        Scheduler(budget=0)
    with pytest.raises(ValueError, match="not both 0"):
        LinearCost(0, 0)


# Losslessness -----------------------------------------------------------------------------------------------------


class Tables(DSpark):
    """DSpark over tables: q(next | token before), and a draft's confidence given its position and the token before.

    Everything from the drafting loop to the scheduler's counts is DSpark's own.
    """

    name, feature_layers = "tables", ()

    def __init__(self, q, confidence, scheduler, scale=1.0):
        self.k, self.scheduler, self.vocab = confidence.shape[0], scheduler, len(q)
        self.model = self
        self.table = scale * q.log().clamp(min=-80).float()
        self.logits = confidence.logit().float()  # (k, V)

    def start(self, context, output):
        pass

    def update(self, context, output, starts, kept):
        pass

    def _block(self, context, k):
        return torch.zeros(len(context.known), k, self.vocab), None

    def tables(self):
        return HeadTables(self.table, None, None)

    def confidence(self, hidden, before):
        return self.logits[torch.arange(before.shape[1]), before][..., None].expand(-1, -1, 2)


class Groups:
    """A scheduler for each `size` rows of a batch: a batch of outcomes is a batch of batches."""

    def __init__(self, scheduler, size):
        self.scheduler, self.size = scheduler, size

    def lengths(self, survival):
        starts = range(0, len(survival), self.size)
        return [n for start in starts for n in self.scheduler.lengths(survival[start : start + self.size])]


CERTAIN, HOPELESS = 1 - 1e-6, 1e-6
# One draft never pays, two pay exactly if both are nearly certain: 1 / 1, 1.5 / 1.6, 1.5 … 2 / 1.7.
TWO_OR_NONE = {1: 1.0, 2: 1.6, 3: 1.7}.__getitem__


def first_token(scheduler, change=lambda proposer: proposer):
    """Distribution of the first token after the prefill where p = (.7, .3), q = (.5, .5), and the second draft is as
    good as certain after a first draft of 0, and hopeless after 1.
    """
    p = torch.tensor([0.7, 0.3])
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    confidence = torch.tensor([[0.5, 0.5], [CERTAIN, HOPELESS]], dtype=torch.float64)
    cells = Grid([[1], [2, 1, 5, 1, 10], [1, 1, 1], [1]])  # what comes after the first round is of no interest
    target = TableTarget(p.log().expand(7, 2, 2))
    target.config = type("Config", (Config,), {"vocab_size": 2})
    proposer = change(Tables(q, confidence, Groups(scheduler, 1)))
    run = decode(target, [[0]] * len(cells), proposer, max_new_tokens=4, sampling=Sampling(1.0), generator=cells)
    first = torch.tensor([tokens[1] for tokens in run.tokens])
    return [float((first == token).double().mean()) for token in (0, 1)]


def test_looking_ahead_outputs_85_15():
    """The paper's counter-example, through the decoding loop: a draft of 0 is verified, one of 1 thrown away unseen."""
    assert first_token(LookAheadScheduler(TWO_OR_NONE)) == pytest.approx([0.85, 0.15], abs=1e-6)


class DropsByToken:
    """Fault: a draft is verified only if it came out as token 0."""

    def __init__(self, proposer):
        self.inner, self.k, self.name, self.feature_layers = proposer, proposer.k, "fault", ()
        self.start, self.update = proposer.start, proposer.update

    def propose(self, context, k, uniforms):
        proposal = self.inner.propose(context, k, uniforms)
        proposal.counts = [1 if row[0] == 0 else 0 for row in proposal.tokens.tolist()]
        return proposal


def test_dropping_drafts_by_their_token_outputs_85_15():
    assert first_token(Scheduler(), DropsByToken) == pytest.approx([0.85, 0.15], abs=1e-6)


@pytest.mark.parametrize(
    "scheduler", [Scheduler(), Scheduler(cost=TWO_OR_NONE), Scheduler(cost=TWO_OR_NONE, padded=True)]
)
def test_early_stop_on_the_same_tables_outputs_70_30(scheduler):
    assert first_token(scheduler) == pytest.approx([0.7, 0.3], abs=1e-6)


# By position and token before. After token 1 the first draft is less promising, after a draft of 1 the second.
CONFIDENCE = torch.tensor([[0.9, 0.6, 0.8], [0.9, 0.1, 0.95]], dtype=torch.float64)


def joint_error(scheduler, scale=1.0):
    """Total variation distance of the loop's joint distribution of four tokens from the target's, one row a batch, and
    the numbers of drafts that were verified.
    """
    outcomes = Grid(GRID)
    run = decode(
        table_target(scale * P.log()), [[0]] * len(outcomes), Tables(Q, CONFIDENCE, Groups(scheduler, 1), scale),
        max_new_tokens=4, sampling=Sampling(scale), generator=outcomes,
    )  # fmt: skip
    error = float((joint(run.tokens, 4) - expected(P, 4)).abs().sum() / 2)
    return error, {row.proposed for row in run.rounds[0].rows}


@pytest.mark.parametrize(("temperature", "padded"), [(1.0, False), (2.0, True)])
def test_joint_distribution_is_exact(temperature, padded):
    # One draft must promise more than .63 tokens, a second one more than .73 after a first one of .9.
    error, lengths = joint_error(Scheduler(cost=LinearCost(0.6, 1.0), padded=padded), temperature)
    assert lengths == {0, 1, 2}  # the scheduler did decide
    assert error < 1e-6


def network_error(monkeypatch, scheduler, temperature):
    """Total variation distance of the loop's joint distribution of three tokens from the target's, all networks being
    real ones; and the numbers of drafts that were verified.
    """
    target = routes_enumeration.tiny_target()
    torch.manual_seed(5)
    sizes = {"block": 2, "n_layers": 1, "d_ff": 16, "feature_layers": (1, 2), "anchors": 1, "markov_rank": 3}
    model = DSparkModel(target, **sizes)
    with torch.no_grad():
        for parameter in (model.markov_out, model.confidence_sampled):
            parameter.normal_(std=0.7)
    recorder = Recorder(scheduler)
    proposer = DSpark(target, model, scheduler=recorder)
    sampling, prompt = Sampling(temperature), [1, 0, 2, 1]
    found = routes_enumeration.joint(monkeypatch, target, proposer, prompt, 3, sampling)
    expected_joint = routes_enumeration.expected_joint(target, prompt, 3, sampling)
    return routes_enumeration.distance(found, expected_joint), {lengths[0] for lengths in recorder.given}


@pytest.mark.parametrize(("scheduler", "temperature"), [(Scheduler(), 1.0), (Scheduler(cost=LinearCost(1, 1)), 0.7)])
def test_real_networks_are_exact(monkeypatch, scheduler, temperature):
    error, lengths = network_error(monkeypatch, scheduler, temperature)
    assert error < 1e-6
    assert scheduler.cost is None or len(lengths) > 1


def test_looking_ahead_is_seen_in_real_networks(monkeypatch):
    error, _ = network_error(monkeypatch, LookAheadScheduler({1: 1.0, 2: 2.0, 3: 2.5}.__getitem__), 1.0)
    assert error > 1e-3


# Two rows that share a budget: distributions of one token or two halves, so that two rows' outcomes can be enumerated.
PAIR_P = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
PAIR_Q = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)


class Pairs(Grid):
    """All pairs of a grid's outcomes: rows 2i and 2i + 1 of the batch are a batch of two. The prefill draws .25."""

    def __init__(self, rounds):
        super().__init__(rounds)
        self.points[:, 0] = 0.25
        n = len(self.points)
        first, second = torch.cartesian_prod(torch.arange(n), torch.arange(n)).unbind(1)
        self.points = torch.stack([self.points[first], self.points[second]], 1).flatten(0, 1)


def pair_error(scheduler):
    """Total variation distance between the joint distribution of two rows' (t1, t2) and two independent targets'."""
    outcomes = Pairs([[1], [2, 2, 1, 1, 2], [2, 1, 1, 1, 2], [1, 1, 1], [1]])  # t2 comes from the first two rounds
    run = decode(
        TableTarget(PAIR_P.log().clamp(min=-80).expand(7, 3, 3)), [[0], [1]] * (len(outcomes) // 2),
        Tables(PAIR_Q, CONFIDENCE, Groups(scheduler, 2)), max_new_tokens=5, sampling=Sampling(1.0), generator=outcomes,
    )  # fmt: skip
    table = torch.zeros(3, 3, 3, 3, dtype=torch.float64)
    for one, other in zip(run.tokens[::2], run.tokens[1::2], strict=True):
        table[one[1], one[2], other[1], other[2]] += 2 / len(outcomes)
    p = PAIR_P.double()
    rows = [p[run.tokens[row][0]][:, None] * p for row in (0, 1)]  # each (V, V)
    return float((table - rows[0][:, :, None, None] * rows[1]).abs().sum() / 2)


class WholeRow:
    """Fault: the budget of two drafts goes to the row whose drafts, all of them drawn, promise more in sum."""

    def lengths(self, survival):
        k = len(survival[0])
        return [k, 0] if sum(survival[0]) > sum(survival[1]) else [0, k]


@pytest.mark.parametrize("scheduler", [Scheduler(budget=4), Scheduler(5, LinearCost(1.0, 1.0))])
def test_rows_that_share_a_budget_stay_exact_and_independent(scheduler):
    assert pair_error(scheduler) < 1e-6


def test_a_budget_shared_by_looking_ahead_is_seen():
    assert pair_error(WholeRow()) > 0.01
