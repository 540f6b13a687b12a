"""What the judge is given for one submission: the learner's code in the instructor's order, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Step:
    """One step: a cell of code for the worker (`source`), or one of the chapter's test cells (`grade_id`).

    name: how the step is called in flags and feedback.
    """

    name: str
    source: str = ""
    grade_id: str = ""


@dataclass(frozen=True)
class Plan:
    """All steps of a submission, in order, and the repairs that were made to get there."""

    steps: tuple[Step, ...]
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(data: dict) -> Plan:
        return Plan(tuple(Step(**step) for step in data["steps"]), tuple(data["flags"]))
