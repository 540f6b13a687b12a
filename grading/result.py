"""What grading one submission yields, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from grading.chapter import Chapter

GRADED, UNREADABLE, MISSING = "graded", "unreadable", "missing"


@dataclass(frozen=True)
class CheckResult:
    """One test cell, run against one submission.

    points, score: what the cell is worth and what was earned. Where it failed: `error` is the exception's type (an
    AssertionError's message is the test cell's own explanation), `call` the last call made of the learner's code,
    `fault` how the worker was lost (timeout, death, memory, processes, protocol, unrun, total) or ''. A hidden check's
    message and call are the instructor's to see, never the learner's. seconds: wall time.
    """

    grade_id: str
    mechanism: str
    hidden: bool
    points: float
    score: float
    message: str = ""
    error: str = ""
    call: str = ""
    fault: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.score == self.points


@dataclass(frozen=True)
class Result:
    """One learner's row.

    status: graded, unreadable or missing; reason: why it is unreadable, in words; flags: repairs and oddities, short
    (`kind` or `kind:detail`); file: the notebook that counted, relative to the inbox; answer: the source of the
    solution cell that was graded; cell_errors: {cell: error} of the learner's own cells; misconceptions: keys of the
    known mistakes that the failed checks show; seconds: wall time in all.
    """

    student_id: str
    status: str
    checks: tuple[CheckResult, ...] = ()
    reason: str = ""
    flags: tuple[str, ...] = ()
    file: str = ""
    answer: str = ""
    cell_errors: tuple[tuple[str, str], ...] = ()
    misconceptions: tuple[str, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    max_score: float = 0.0

    @property
    def score(self) -> float | None:
        """Points in all; None when there is nothing to score."""
        return sum(check.score for check in self.checks) if self.status == GRADED else None

    def mechanism(self, name: str) -> float | None:
        """Points of one mechanism; None when there is nothing to score."""
        if self.status != GRADED:
            return None
        return sum(check.score for check in self.checks if check.mechanism == name)

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(data: dict) -> Result:
        checks = tuple(CheckResult(**check) for check in data["checks"])
        errors = tuple((name, text) for name, text in data["cell_errors"])
        plain = {name: tuple(data[name]) for name in ("flags", "misconceptions")}
        return Result(**data | plain | {"checks": checks, "cell_errors": errors})


def checks_of(ch: Chapter, verdicts: list[dict]) -> tuple[CheckResult, ...]:
    """The judge's verdicts (grading.judge.run.Verdict as dicts) with what each cell is worth."""
    cells, checks = {cell.grade_id: cell for cell in ch.tests}, []
    for verdict in verdicts:
        cell = cells[verdict["grade_id"]]
        kept = {name: value for name, value in verdict.items() if name != "passed"}
        score = cell.points if verdict["passed"] else 0.0
        checks.append(
            CheckResult(mechanism=cell.mechanism, hidden=cell.hidden, points=cell.points, score=score, **kept)
        )
    return tuple(checks)
