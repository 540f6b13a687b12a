"""`python -m grading grade`: from an inbox to grades.csv, feedback, the record and the report."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from grading import chapter
from grading.intake.inbox import Handed, collect
from grading.judge.limits import Limits
from grading.judge.pool import Judges
from grading.progress import Progress
from grading.record.gradebook import Record, folder_of, url_of
from grading.report import class_report
from grading.result import GRADED, UNREADABLE, Result
from grading.seed import course_seed
from grading.state import Ledger, State, fingerprint
from grading.unit import Course, Prepared, finish, prepare


def only_chapter(name: str | None) -> Path:
    """The source of the chapter to grade. Raises ValueError where it must be named."""
    found = {path.stem: path for path in chapter.find()}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        raise ValueError(f"say which chapter with --chapter: {', '.join(found) or 'source/ holds none'}")
    return found[name]


def judged_here(
    judges: Judges, course: Course, handed: Iterable[Handed], seed: int
) -> Iterator[tuple[Handed, Prepared | None, Result]]:
    """Grades submissions; yields each as it is done, with what was judged, None where there was nothing to judge.

    The judge is at work when this returns.
    """
    under_way: dict[str, tuple[Handed, Prepared]] = {}
    at_once: list[tuple[Handed, None, Result]] = []

    def jobs():
        for one in handed:
            prepared = prepare(course, one, seed)
            if isinstance(prepared, Result):
                at_once.append((one, None, prepared))
                continue
            under_way[one.student_id] = (one, prepared)
            yield one.student_id, prepared.plan, seed

    def results(replies):
        for student_id, reply in replies:
            yield from at_once
            at_once.clear()
            one, prepared = under_way.pop(student_id)
            yield one, prepared, finish(course, prepared, reply, seed, judges.sandbox)
        yield from at_once

    return results(judges.run(jobs()))


def run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    out, sandbox = arguments.out.resolve(), arguments.sandbox
    source = only_chapter(arguments.chapter)
    course = Course.load(source)
    handed = collect(arguments.inbox, arguments.roster)
    if out.is_relative_to(arguments.inbox.resolve()):
        raise ValueError(f"--out {out} lies in the inbox, and the next run would grade it; name a folder beside it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write results to {out}: {error.strerror}; name another folder with --out") from None
    db_url = arguments.db or url_of(out)
    seed = course_seed(folder_of(db_url, out)) if arguments.seed is None else arguments.seed
    environment = fingerprint(course, seed, sandbox, repr(Limits()))
    ledger = Ledger(State(out), environment, handed, force=arguments.force, roster=arguments.roster is not None)
    with contextlib.ExitStack() as stack:
        if not ledger.todo:
            work = iter(())
        elif arguments.scheduler is None:
            judges = stack.enter_context(Judges(source, sandbox, min(arguments.workers, len(ledger.todo))))
            work = judged_here(judges, course, ledger.todo, seed)
        else:
            from grading.cluster import judged_on_cluster

            work = judged_on_cluster(arguments.scheduler, course, ledger.todo, seed, sandbox)
        # imports nbgrader: two seconds that the judge, now at the first submissions, does not have to wait for
        record = stack.enter_context(Record(course, db_url))
        log = stack.enter_context((out / "log.jsonl").open("a", encoding="utf-8"))
        writer, progress = Writer(out, course, record), Progress(len(ledger.todo))
        stack.callback(progress.close)
        stack.push(_say_when_interrupted)
        for result in ledger.results.values():
            writer.restore(result)
        if ledger.todo:
            class_report.import_pictures()  # while the judge is at the first submissions
        for _, prepared, result in work:
            writer.write(prepared, result)
            writer.feedback(result)
            class_report.functions(result.answer)
            ledger.done(result)
            log.write(json.dumps({"time": time.time()} | result.to_json()) + "\n")
            log.flush()
            progress.step(failed=result.status == UNREADABLE)
        ordered = record.with_manual_scores(ledger.everybody(seed, course.chapter.max_score))
        for result in ordered:
            if not writer.has_feedback(result):
                writer.feedback(result)
    summarise(ordered, course, out, sandbox, seed)
    here, graded = len(ledger.results), len(ledger.todo)
    print(f"\n{here} learners, {graded} graded now, {here - graded} unchanged", end="; ")
    print(f"{time.monotonic() - started:.1f} s")
    if arguments.roster is not None:
        on_it = [one for one in handed if "not_on_roster" not in one.flags]
        came, others = sum(not one.missing for one in on_it), len(handed) - len(on_it)
        print(f"roster: {len(on_it)} learners, {came} of them in this inbox; {others} submissions from others")
    if absent := len(ordered) - here:
        print(f"{absent} graded before are not in this inbox: their rows stay, flagged not_in_this_inbox")
    if others := sum("other_checks" in result.flags for result in ordered):
        print(
            f"{others} of these were graded with another seed or other points: not comparable, grade all in one inbox"
        )
    for line in ledger.moved():
        print(f"moved: {line}")
    if sandbox == "none":
        print("WARNING: graded without a sandbox; learners' code ran as you")
    for name in ("grades.csv", "report.html", "feedback"):
        print(f"{name + ':':13}{out / name}")
    return 0


def _say_when_interrupted(kind: type | None, *_) -> None:
    """An exit callback: ending the judge takes a moment, and silence invites another Ctrl-C."""
    if kind is KeyboardInterrupt:
        print("\ninterrupted: what is graded is kept; ending the rest …", file=sys.stderr, flush=True)


class Writer:
    """Writes what belongs to one learner: gradebook, notebooks, feedback page."""

    def __init__(self, out: Path, course: Course, record):
        self.out, self.course, self.record = out, course, record
        self._fed_back: dict[str, Result] = {}

    def _path(self, step: str, student_id: str) -> Path:
        name = self.course.chapter.name
        return self.out / step / student_id / name / f"{name}.ipynb"

    def write(self, prepared: Prepared | None, result: Result) -> None:
        """Records a result and the notebooks that belong to it."""
        from grading.record import notebooks

        if prepared is not None and result.status == GRADED:
            notebook = notebooks.submitted(self.course, prepared.plan)
            notebooks.write(self._path("submitted", result.student_id), notebook)
            graded = notebooks.autograded(self.course, notebook, result)
            notebooks.write(self._path("autograded", result.student_id), graded)
        else:
            for step in ("submitted", "autograded"):
                self._path(step, result.student_id).unlink(missing_ok=True)
        self.record.write(result)

    def restore(self, result: Result) -> None:
        """Makes sure that a result from an earlier run is in the gradebook."""
        if not self.record.holds(result):
            self.record.write(result)

    def feedback(self, result: Result) -> None:
        from grading.report.feedback import write_feedback

        write_feedback(self.out / "feedback", result, self.course.chapter)
        self._fed_back[result.student_id] = result

    def has_feedback(self, result: Result) -> bool:
        """Whether this run has written a learner's page from this very result."""
        return self._fed_back.get(result.student_id) == result


def summarise(results: list[Result], course: Course, out: Path, sandbox: str, seed: int) -> None:
    """Writes grades.csv and report.html, prints the table."""
    from grading.report.grades import table, write_csv

    mechanisms = course.chapter.mechanisms
    write_csv(out / "grades.csv", results, mechanisms)
    page = class_report.class_report(results, course.chapter, sandbox=sandbox, seed=seed)
    (out / "report.html").write_text(page, "utf-8")
    print(table([replace(result, file="") for result in results], mechanisms))
