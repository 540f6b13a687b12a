"""`python -m grading grade`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from grading import chapter
from grading.plain import autograde
from grading.report.grades import table, write_csv
from grading.result import GRADED, UNREADABLE, CheckResult, Result
from grading.seed import course_seed


def find(inbox: Path) -> dict[str, Path | None]:
    """{student: notebook} of an inbox of `<student>/…/*.ipynb`; None for a folder without one."""
    found = {}
    for folder in sorted(p for p in inbox.iterdir() if p.is_dir()):
        found[folder.name] = next(iter(sorted(folder.rglob("*.ipynb"))), None)
    return found


def unreadable(path: Path | None) -> str:
    """Why a file is no notebook, in words; '' when it is one."""
    if path is None:
        return "no notebook in the folder"
    try:
        notebook = json.loads(path.read_bytes())
    except ValueError as error:
        return f"not a notebook: {error}"
    return "" if isinstance(notebook, dict) and "cells" in notebook else "not a notebook: no cells"


def run(arguments: argparse.Namespace) -> int:
    inbox, out = arguments.inbox, arguments.out.resolve()
    if not inbox.is_dir():
        raise ValueError(f"{inbox} is not a folder; give a folder with a folder for each learner")
    out.mkdir(parents=True, exist_ok=True)
    seed = course_seed(out) if arguments.seed is None else arguments.seed
    ch = chapter.load(chapter.find()[0])
    files, started = find(inbox), time.monotonic()
    reasons = {student: unreadable(path) for student, path in files.items()}
    graded = autograde(ch, {s: p for s, p in files.items() if not reasons[s]}, out, seed)
    each = (time.monotonic() - started) / max(1, len(graded))
    results = []
    for student, path in files.items():
        scores = graded.get(student, reasons[student])
        common = dict(file=str(path.relative_to(inbox)) if path else "", seed=seed, max_score=ch.max_score)
        if isinstance(scores, str):
            results.append(Result(student, UNREADABLE, reason=scores, **common))
            continue
        checks = tuple(
            CheckResult(c.grade_id, c.mechanism, c.hidden, c.points, scores.get(c.grade_id, 0.0)) for c in ch.tests
        )
        results.append(Result(student, GRADED, checks, seconds=each, **common))
    write_csv(out / "grades.csv", results, ch.mechanisms)
    print(table(results, ch.mechanisms))
    print(f"\n{len(results)} learners; grades: {out / 'grades.csv'}")
    return 0
