"""A target and a drafter that are tables, and a source of uniform numbers that enumerates all outcomes.

Tables hold multiples of 1/4 with drafts from (1/4, 1/4, 1/2), so every decision of the decoding loop is constant on
cells of a small grid: going through the cells' midpoints, each with its weight, is exact integration.
"""

import itertools

import torch

from mtp import Proposal, Uniforms, decode, verify_exact
from mtp.model import TargetOutput
from mtp.sampling import pick

VOCAB = 3


class Config:
    vocab_size = VOCAB
    max_length = 64


class TokenCache:
    """A cache that holds the tokens themselves; rolled back by length, like the real one."""

    nbytes_used = 0

    def __init__(self, batch, capacity):
        self.ids = torch.zeros(batch, capacity, dtype=torch.long)
        self.lengths = [0] * batch

    def rollback(self, lengths):
        self.lengths = list(lengths)


class TableTarget:
    """p(next | last token, its position) from a table of logits (positions, V, V); hidden states are the logits."""

    device = torch.device("cpu")

    def __init__(self, logits):
        self.logits = logits
        self.config = Config()

    def new_cache(self, batch, capacity):
        return TokenCache(batch, capacity)

    def forward(self, ids, cache, *, feature_layers=()):
        width = ids.shape[1]
        positions = torch.tensor(cache.lengths)[:, None] + torch.arange(width)
        cache.ids.scatter_(1, positions, ids)
        cache.lengths = [length + width for length in cache.lengths]
        return TargetOutput(self.logits[positions.clamp(max=len(self.logits) - 1), ids])

    def head(self, hidden):
        return hidden


class TableProposer:
    """q(next | last token) from a table of logits (V, V). `draw` and `report` may differ, to plant faults."""

    name = "table"
    feature_layers = ()

    def __init__(self, logits, k, report=None):
        self.logits, self.k = logits, k
        self.report = report or (lambda context, logits: context.sampling.probabilities(logits))

    def start(self, context, output):
        pass

    def propose(self, context, k, uniforms):
        token = context.tokens.gather(1, torch.tensor(context.known)[:, None] - 1)[:, 0]
        tokens, q = [], []
        for i in range(k):
            logits = self.logits[token]
            token = pick(context.sampling.probabilities(logits), uniforms[:, i])
            tokens.append(token)
            q.append(self.report(context, logits))
        return Proposal(torch.stack(tokens, 1), torch.stack(q, 1))

    def update(self, context, output, starts, kept):
        pass


class Grid(Uniforms):
    """Hands out columns of the product of all cells: row b of the batch is one outcome, `weights[b]` its probability.

    `rounds` lists, for each call of draw, the number of equal cells of each number.
    """

    def __init__(self, rounds):
        super().__init__()
        self.rounds = [list(cells) for cells in rounds]
        sizes = [size for cells in self.rounds for size in cells]
        points = [[(i + 0.5) / size for i in range(size)] for size in sizes]
        self.points = torch.tensor(list(itertools.product(*points)))  # (outcomes, all numbers)
        self.call, self.column = 0, 0

    def __len__(self):
        return len(self.points)

    def draw(self, batch, count):
        expected = len(self.rounds[self.call])
        assert (batch, count) == (len(self.points), expected), "the loop draws otherwise than the test enumerates"
        self.call += 1
        self.column += count
        return self.points[:, self.column - count : self.column]


def joint(outputs, length):
    """Probability of each sequence of `length` tokens, from equally likely outcomes."""
    table = torch.zeros((VOCAB,) * length, dtype=torch.float64)
    for tokens in outputs:
        table[tuple(tokens[:length])] += 1 / len(outputs)
    return table


LENGTH = 4  # the prefill's token and three more: rounds with k = 2, 1 and 0 all take part

# p[position class][last token], multiples of 1/4, and q[last token], two halves: accepting hangs on one of two cells,
# and a residual has one part or two equal ones. Class 2 is the prefill's.
P = torch.tensor(
    [
        [[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.75, 0.25]],
        [[0.0, 0.75, 0.25], [0.25, 0.0, 0.75], [0.25, 0.25, 0.5]],
        [[0.5, 0.5, 0.0]] * 3,
    ],
    dtype=torch.float64,
)
Q = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]], dtype=torch.float64)
POSITIONS = torch.tensor([2, 1, 0, 1, 0, 1, 0])


# One draft a round on a finer grid, where also a rejection on half of the cells leaves two equal parts.
FINE_P = torch.tensor(
    [
        [[0.25, 0.375, 0.375], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]],
        [[0.25, 0.375, 0.375], [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]],
        [[0.5, 0.5, 0.0]] * 3,
    ],
    dtype=torch.float64,
)
FINE_Q = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]], dtype=torch.float64)

GRID = [[2], [2, 2, 2, 2, 4], [2, 2, 4], [4]]  # prefill, then rounds with k = 2, 1, 0
FINE_GRID = [[2], [4, 2, 8], [8]]  # prefill, then rounds with k = 1, 0


def expected(p, length):
    """The target's own joint distribution after a prompt of one token, 0."""
    by_position = p[POSITIONS]  # (positions, V, V)
    table = torch.zeros((VOCAB,) * length, dtype=torch.float64)
    for index in torch.cartesian_prod(*[torch.arange(VOCAB)] * length).tolist():
        probability, last = 1.0, 0
        for position, token in enumerate(index):
            probability *= float(by_position[position, last, token])
            last = token
        table[tuple(index)] = probability
    return table


def table_target(logits):
    return TableTarget(logits[POSITIONS].clamp(min=-80).float())  # -inf would rightly be refused


def error(p, target_logits, draft_logits, sampling, *, grid=GRID, rule=verify_exact, report=None):
    """Total variation distance between the loop's joint distribution and that of autoregression on p."""
    outcomes = Grid(grid)
    length = len(outcomes.rounds)  # each round emits at least one token
    proposer = TableProposer(draft_logits.clamp(min=-80).float(), length - 2, report)
    result = decode(
        table_target(target_logits), [[0]] * len(outcomes), proposer, max_new_tokens=length, sampling=sampling,
        generator=outcomes, rule=rule,
    )  # fmt: skip
    assert {len(tokens) for tokens in result.tokens} == {length}
    return float((joint(result.tokens, length) - expected(p, length)).abs().sum() / 2)
