"""What a results folder remembers of each learner, so that a second run grades only what changed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from grading.chapter import ROOT
from grading.intake.inbox import Handed
from grading.result import GRADED, MISSING, Result
from grading.unit import NOT_JUDGED, Course

FOLDER = ".results"
# what forms a verdict; a change elsewhere (reports, command line) changes no grade
CODE = (
    "box/*.py",
    "judge/*.py",
    "intake/*.py",
    "chapter.py",
    "plan.py",
    "unit.py",
    "result.py",
    "report/misconceptions.py",
    "misconceptions/*.json",
)


def fingerprint(course: Course, seed: int, sandbox: str, limits: str) -> str:
    """Everything but the submission that a result depends on: tests, seed, this grader, its environment."""
    digest = hashlib.sha256()
    for path in (course.source, *sorted(path for shape in CODE for path in (ROOT / "grading").glob(shape))):
        digest.update(path.read_bytes())
    versions = [sys.version, *(metadata.version(name) for name in ("torch", "ipython", "numpy"))]
    digest.update(json.dumps([course.release, seed, sandbox, limits, versions], sort_keys=True).encode())
    return digest.hexdigest()


def key(environment: str, handed: Handed) -> str:
    """Identifies a learner's submission as graded in an environment."""
    digest = hashlib.sha256(environment.encode())
    digest.update(json.dumps([handed.missing, handed.flags, handed.others]).encode())
    for file in handed.files:
        digest.update(json.dumps([file.path, file.problem, len(file.data)]).encode())
        digest.update(file.data)
    return digest.hexdigest()


class State:
    """The remembered results below a results folder: one file a learner, each replaced in one step."""

    def __init__(self, out: Path):
        self._folder = out / FOLDER

    def load(self, student_id: str) -> tuple[str, Result] | None:
        """(key, result) of a learner, None when there is none or it cannot be read."""
        try:
            data = json.loads(self._path(student_id).read_text("utf-8"))
            return data["key"], Result.from_json(data["result"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, key: str, result: Result) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(result.student_id)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"key": key, "result": result.to_json()}), "utf-8")
        os.replace(partial, path)

    def all(self) -> list[Result]:
        """All remembered results, by student id."""
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(Result.from_json(json.loads(path.read_text("utf-8"))["result"]))
            except (ValueError, KeyError, TypeError):
                continue
        return sorted(found, key=lambda result: result.student_id)

    def forget(self, student_id: str) -> None:
        self._path(student_id).unlink(missing_ok=True)

    def _path(self, student_id: str) -> Path:
        # a digest: student ids may differ by case only, or be longer than a file's name may be
        return self._folder / f"{hashlib.sha256(student_id.encode('utf-8', 'replace')).hexdigest()[:24]}.json"


class Ledger:
    """One run's account: what is known already, what is to do, what moved.

    roster: whether the inbox was read with one. That somebody on it handed in nothing this time takes nothing away
    from what was graded before: late work comes in an inbox of its own.
    """

    def __init__(self, state: State, environment: str, handed: list[Handed], *, force: bool, roster: bool):
        self._state, self._roster = state, roster
        self._keys: dict[str, str] = {}
        self._before: dict[str, Result] = {}
        self.results: dict[str, Result] = {}
        self.todo: list[Handed] = []
        for one in handed:
            known = state.load(one.student_id)
            if known is not None and one.missing and known[1].status != MISSING:
                continue
            self._keys[one.student_id] = key(environment, one)
            if known is not None:
                self._before[one.student_id] = known[1]
            if known is not None and known[0] == self._keys[one.student_id] and not force:
                self.results[one.student_id] = known[1]
            else:
                self.todo.append(one)

    def done(self, result: Result) -> None:
        """Remembers a result that has been recorded. One that the judge could not give is not kept as known."""
        settled = not result.reason.startswith(NOT_JUDGED)
        self._state.save(self._keys[result.student_id] if settled else "", result)
        self.results[result.student_id] = result

    def everybody(self, seed: int, max_score: float) -> list[Result]:
        """This run's results and those of learners who were graded before and are not in this inbox, by student id.

        Flags tell the latter, and those of them whose checks were others than this run's (another seed, other points).
        """
        kept = []
        for result in self._state.all():
            if result.student_id in self._keys or (result.status == MISSING and self._roster):
                continue
            flags = [*result.flags, "not_in_this_inbox"]
            if result.status == GRADED and (result.seed, result.max_score) != (seed, max_score):
                flags.append("other_checks")
            kept.append(replace(result, flags=tuple(flags)))
        return sorted([*self.results.values(), *kept], key=lambda result: result.student_id)

    def moved(self) -> list[str]:
        """The learners whose status or score is another than in the last run, in words."""
        lines = []
        for student_id, after in sorted(self.results.items()):
            before = self._before.get(student_id)
            if before is not None and (before.status, before.score) != (after.status, after.score):
                shown = [f"{r.score:g}" if r.score is not None else r.status for r in (before, after)]
                lines.append(f"{student_id}: {shown[0]} -> {shown[1]}")
        return lines
