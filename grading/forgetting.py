"""`python -m grading forget`: takes learners' rows out of a results folder, such as those of a misread class list."""

from __future__ import annotations

import argparse
import contextlib
import shutil

from grading.command import only_chapter, summarise
from grading.record.gradebook import Record, url_of
from grading.report.command import sandbox_of
from grading.report.feedback import file_name
from grading.state import State
from grading.unit import Course


def run(arguments: argparse.Namespace) -> int:
    """Forgets all the learners named, or none: raises ValueError for one who has no row."""
    out = arguments.out.resolve()
    state = State(out)
    results = {result.student_id: result for result in state.all()}
    unknown = [one for one in arguments.student_ids if one not in results]
    if unknown:
        raise ValueError(f"{out} has no row of {', '.join(unknown)}; nothing was forgotten")
    course = Course.load(only_chapter(arguments.chapter))
    with Record(course, arguments.db or url_of(out)) as record:
        for one in arguments.student_ids:
            record.forget(one)
            for step in ("submitted", "autograded"):
                shutil.rmtree(out / step / one / course.chapter.name, ignore_errors=True)
                with contextlib.suppress(OSError):  # it holds another chapter, or was never there
                    (out / step / one).rmdir()
            (out / "feedback" / file_name(one)).unlink(missing_ok=True)
            state.forget(one)
            results.pop(one, None)
        left = record.with_manual_scores(list(results.values()))
    if left:
        summarise(left, course, out, sandbox_of(left), left[0].seed)
    else:
        for name in ("grades.csv", "report.html"):
            (out / name).unlink(missing_ok=True)
    print(f"forgotten: {', '.join(arguments.student_ids)}; hand it in again and it is graded as new")
    return 0
