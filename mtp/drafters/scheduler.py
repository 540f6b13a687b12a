"""Which drafts are worth verifying: the scheduler of DSpark (arXiv 2607.05147, section 3.2).

A step of the target over a batch verifies the first length[r] drafts of each row r. The scheduler looks for the
lengths with the most expected tokens a second,

    (rows + sum of survival[r][j] over j < length[r]) / cost(tokens fed),

where survival[r][j] is the chance that drafts 0 … j of row r are all accepted, and each row's last known token is fed
and yields one token in any case.

**It must not look ahead.** Whether draft j is verified may depend on what was known before draft j was drawn, never on
the draft itself. survival[r][j] comes from the tokens before j, so it may be used for j; survival[r][j + 1] already
knows draft j. Candidates are therefore taken one after another, the likeliest first, and the first that does not pay
ends the search, even if a later one would make up for it. The best lengths over the whole block would be better on
paper, and wrong: a draft with a promising continuation would be verified and another one thrown away unseen, so that
lucky tokens come out more often than the target says (`LookAheadScheduler` is there to show it).
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Cost = Callable[[int], float]
"""Seconds (or any other unit) of a whole step in which the target is fed so many tokens over the batch."""


@dataclass(frozen=True)
class LinearCost:
    """cost(n) = fixed + each * n: `fixed` covers the draft, the launch and whatever does not grow with the tokens."""

    fixed: float
    each: float

    def __post_init__(self):
        if not (self.fixed >= 0 and self.each >= 0 and self.fixed + self.each > 0):
            raise ValueError(f"cost: fixed and each must be 0 or more, and not both 0, got {self.fixed}, {self.each}")

    def __call__(self, tokens: int) -> float:
        return self.fixed + self.each * tokens

    @classmethod
    def fit(cls, seconds: Mapping[int, float], draft: float = 0.0) -> LinearCost:
        """Least squares through measured target passes, seconds by tokens fed over the batch (see
        `measure.measured_scheduler`); `draft` seconds come on top of each step. Raises ValueError for fewer than two.
        """
        if len(seconds) < 2:
            raise ValueError(f"a line needs two measurements or more, got {len(seconds)}")
        slope, intercept = statistics.linear_regression(list(seconds), list(seconds.values()))
        return cls(max(0.0, intercept) + draft, max(0.0, slope))


@dataclass(frozen=True)
class Scheduler:
    """Chooses how many drafts of each row to verify.

    `budget` bounds the tokens that the target is fed a step over the whole batch, the rows' last known tokens among
    them. `cost` says what a step costs; without it every token within the budget is verified. `padded`: the target is
    fed a rectangle, as `decode` does, so a column of drafts is taken or left for all rows at once, and counts in full.
    """

    budget: int | None = None
    cost: Cost | None = None
    padded: bool = False

    def __post_init__(self):
        if self.budget is not None and not (isinstance(self.budget, int) and self.budget >= 1):
            raise ValueError(f"budget must be a whole number of tokens of at least 1, or None, got {self.budget!r}")

    def lengths(self, survival: Sequence[Sequence[float]]) -> list[int]:
        """Drafts to verify of each row. survival: per row, non-increasing; an empty row is fed nothing but its last
        known token.
        """
        return self._columns(survival) if self.padded else self._drafts(survival)

    def _drafts(self, survival: Sequence[Sequence[float]]) -> list[int]:
        chosen = [0] * len(survival)
        search = _Search(self, len(survival))
        # A row's next draft enters the heap when the one before it is taken: no value is read any earlier. Ties go to
        # the lower position and row, which says nothing about the tokens.
        heap = [(-row[0], 0, number) for number, row in enumerate(survival) if len(row)]
        heapq.heapify(heap)
        while heap:
            value, position, number = heapq.heappop(heap)
            if not search.takes(-value, 1):
                break
            chosen[number] = position = position + 1
            if position < len(survival[number]):
                heapq.heappush(heap, (-survival[number][position], position, number))
        return chosen

    def _columns(self, survival: Sequence[Sequence[float]]) -> list[int]:
        search = _Search(self, len(survival))
        width = 0
        while column := [row[width] for row in survival if width < len(row)]:
            if not search.takes(sum(column), len(survival)):
                break
            width += 1
        return [min(width, len(row)) for row in survival]


class _Search:
    """The batch so far: tokens fed, tokens expected."""

    def __init__(self, scheduler: Scheduler, rows: int):
        self.scheduler = scheduler
        self.fed, self.expected = rows, float(rows)

    def takes(self, gain: float, tokens: int) -> bool:
        """Add `tokens` more that promise `gain` accepted ones, if that fits and pays; says whether it did."""
        fed, expected = self.fed + tokens, self.expected + gain
        budget, cost = self.scheduler.budget, self.scheduler.cost
        if budget is not None and fed > budget:
            return False
        if cost is not None and not expected * cost(self.fed) > self.expected * cost(fed):
            return False
        self.fed, self.expected = fed, expected
        return True


@dataclass(frozen=True)
class LookAheadScheduler:
    """BIASED, for teaching: for each row by itself, the length with the most expected tokens a second over the block.

    Two drafts, the first from q = (.5, .5) where the target has p = (.7, .3); the second is all but certain to be
    accepted after a first draft of 0, and to be rejected after 1. Where one draft alone does not pay but two do, both
    are verified after 0 and neither after 1, and the next token is distributed as (.85, .15).
    """

    cost: Cost

    def lengths(self, survival: Sequence[Sequence[float]]) -> list[int]:
        return [self._best(row) for row in survival]

    def _best(self, survival: Sequence[float]) -> int:
        rates = [(1 + sum(survival[:length])) / self.cost(1 + length) for length in range(len(survival) + 1)]
        return rates.index(max(rates))
