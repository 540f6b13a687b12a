"""`python -m grading report`: grades.csv and the class report, with the scores that now stand in the gradebook."""

from __future__ import annotations

import argparse

from grading.command import only_chapter, summarise
from grading.record.gradebook import Record, url_of
from grading.result import Result
from grading.state import State
from grading.unit import Course


def sandbox_of(results: list[Result]) -> str:
    """The sandbox that results were graded in, as far as they tell."""
    return "none" if any("no_sandbox" in result.flags for result in results) else "bwrap"


def run(arguments: argparse.Namespace) -> int:
    out = arguments.out.resolve()
    results = State(out).all()
    if not results:
        raise ValueError(
            f"{out} holds no results; grade an inbox into it first: python -m grading grade INBOX --out DIR"
        )
    course = Course.load(only_chapter(arguments.chapter))
    with Record(course, arguments.db or url_of(out)) as record:
        results = record.with_manual_scores(results)
    summarise(results, course, out, sandbox_of(results), results[0].seed)
    print(f"\nreport: {out / 'report.html'}")
    return 0
