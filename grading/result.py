"""What grading one submission yields, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

GRADED, UNREADABLE, MISSING = "graded", "unreadable", "missing"


@dataclass(frozen=True)
class CheckResult:
    """One test cell, run against one submission.

    points, score: what the cell is worth and what was earned; message: why it failed ('' when it passed);
    seconds: wall time.
    """

    grade_id: str
    mechanism: str
    hidden: bool
    points: float
    score: float
    message: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.score == self.points


@dataclass(frozen=True)
class Result:
    """One learner's row.

    status: graded, unreadable or missing; reason: why it is unreadable, in words; flags: repairs and oddities, short
    and machine-readable; file: the notebook that counted, relative to the inbox; seconds: wall time in all.
    """

    student_id: str
    status: str
    checks: tuple[CheckResult, ...] = ()
    reason: str = ""
    flags: tuple[str, ...] = ()
    file: str = ""
    seconds: float = 0.0
    seed: int = 0
    max_score: float = field(default=0.0)

    @property
    def score(self) -> float | None:
        """Points in all; None when there is nothing to score."""
        return sum(check.score for check in self.checks) if self.status == GRADED else None

    def mechanism(self, name: str) -> float | None:
        """Points of one mechanism; None when there is nothing to score."""
        if self.status != GRADED:
            return None
        return sum(check.score for check in self.checks if check.mechanism == name)
