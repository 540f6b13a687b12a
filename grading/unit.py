"""The unit of work: a learner's files in, a Result out, all plain data. `prepare`, the judge, then `finish`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from grading import chapter
from grading.chapter import ROOT, Chapter
from grading.intake.choose import choose
from grading.intake.inbox import Handed
from grading.intake.reading import Unreadable
from grading.plan import Plan
from grading.result import GRADED, MISSING, UNREADABLE, Result, checks_of

NOT_JUDGED = "could not be judged, grade it again: "


@dataclass(frozen=True)
class Course:
    """What grading needs of a chapter: its source, and the release that learners were given."""

    chapter: Chapter
    release: dict
    source: Path

    @staticmethod
    def load(source: Path, root: Path = ROOT) -> Course:
        """Raises ChapterError, or ValueError where there is no release."""
        ch = chapter.load(source)
        path = root / "release" / ch.name / source.name
        if not path.exists():
            raise ValueError(f"{path} is missing; run: python -m grading release")
        release = json.loads(path.read_text("utf-8"))
        for cell in release["cells"]:
            cell["source"] = "".join(cell["source"])
        return Course(ch, release, source)


@dataclass(frozen=True)
class Prepared:
    """A submission ready for the judge."""

    student_id: str
    plan: Plan
    answer: str
    file: str
    flags: tuple[str, ...]


def prepare(course: Course, handed: Handed, seed: int) -> Prepared | Result:
    """Reads and rebuilds one learner's submission; a Result at once where there is nothing to judge."""
    common = {"seed": seed, "max_score": course.chapter.max_score}
    if handed.missing:
        return Result(handed.student_id, MISSING, flags=handed.flags, **common)
    try:
        chosen = choose(course.chapter, course.release, handed)
    except Unreadable as error:
        file = handed.files[0].path if handed.files else ""
        return Result(handed.student_id, UNREADABLE, reason=str(error), flags=handed.flags, file=file, **common)
    rebuilt = chosen.rebuilt
    flags = tuple(dict.fromkeys((*handed.flags, *chosen.flags, *rebuilt.plan.flags)))
    return Prepared(handed.student_id, rebuilt.plan, rebuilt.answer, chosen.file.path, flags)


def finish(course: Course, prepared: Prepared, reply: dict, seed: int, sandbox: str) -> Result:
    """A judge's reply as a Result. Where the judge had none, the row says so and gives no score."""
    common = {"file": prepared.file, "seed": seed, "max_score": course.chapter.max_score, "answer": prepared.answer}
    if "lost" in reply:
        reason = f"{NOT_JUDGED}{reply['lost']}"
        return Result(prepared.student_id, UNREADABLE, reason=reason, flags=prepared.flags, **common)
    outcome = reply["outcome"]
    checks = checks_of(course.chapter, outcome["verdicts"])
    faults = [f"{check.fault}:{check.grade_id}" for check in checks if check.fault not in ("", "unrun")]
    errors = outcome["cell_errors"]  # by step: "answer", or "answer" and a helper's name
    lost = {flag.partition(":")[2] for flag in outcome["flags"] if flag.startswith("cell_")}  # that they died is said
    broken = {name: text.partition(":")[0] for name, text in errors.items() if name.split()[0] == "answer"}
    # the kind is a class's name, which learners may choose
    shown = {name: kind if kind.isidentifier() and len(kind) <= 40 else "error" for name, kind in broken.items()}
    failed = [f"answer_failed:{kind}" for name, kind in shown.items() if name not in lost]
    unboxed = ["no_sandbox"] if sandbox == "none" else []
    return Result(
        prepared.student_id,
        GRADED,
        checks=checks,
        flags=tuple(dict.fromkeys((*prepared.flags, *failed, *outcome["flags"], *faults, *unboxed))),
        cell_errors=tuple(errors.items()),
        misconceptions=tuple(outcome.get("misconceptions", ())),
        seconds=outcome["seconds"],
        **common,
    )
