"""Judge an answer in this process: trusted code only, no sandbox, milliseconds per answer.

An answer is given by the bodies of its TODO regions; every test cell then runs as it stands in the source notebook.
"""

import builtins
import contextlib
import io
import os
import random
import signal
import warnings
from functools import cache, lru_cache

import torch

from grading import chapter

CHAPTER = chapter.load(chapter.ROOT / "source" / "35_multi_token_decoding" / "35_multi_token_decoding.ipynb")
CLASS_CELL = next(cell for cell in CHAPTER.of("solution") if chapter.BEGIN_SOLUTION in cell.source)
TODOS = {1: "propose", 2: "accept", 3: "verify"}
STUBS = chapter.stubs(CLASS_CELL.source)
REFERENCE = {
    number: "\n".join(line.removeprefix(region.indent) for line in region.lines)
    for number, region in enumerate(
        chapter.regions(CLASS_CELL.source, chapter.BEGIN_SOLUTION, chapter.END_SOLUTION), start=1
    )
}
SECONDS_PER_CELL = 5.0


class TooSlow(BaseException):
    """A cell ran past its limit. Not an Exception, so that an answer's `except Exception` cannot swallow it."""


@cache
def _compiled(cell: chapter.Cell, hidden: bool):
    return compile(cell.source if hidden else chapter.without_hidden(cell.source), cell.grade_id, "exec")


@contextlib.contextmanager
def _guarded(seconds: float):
    def stop(*_):
        raise TooSlow(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _failure(code, namespace: dict, seconds: float) -> str | None:
    """Runs code; None if it came to its end, otherwise what stopped it, in one line."""
    try:
        with _guarded(seconds):
            exec(code, namespace)
    except BaseException as error:  # SystemExit is a failure like any other
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


@lru_cache(maxsize=4096)
def _judge(
    bodies: tuple, hidden: bool, seed: int, seconds: float, before: str, mechanisms: tuple
) -> dict[str, str | None]:
    namespace = {"__name__": "__main__", "__builtins__": builtins}
    source = chapter.fill(CLASS_CELL.source, dict(bodies))
    for cell in CHAPTER.of("import", "solution", "fixture"):
        text = f"{before}\n{source}" if cell is CLASS_CELL else cell.source
        _failure(text, namespace, seconds)  # what is missing then shows in the test cells
    out, seed_before = {}, os.environ.get("GRADING_SEED")
    os.environ["GRADING_SEED"] = str(seed)
    try:
        for cell in (cell for cell in CHAPTER.tests if cell.mechanism in mechanisms):
            # An answer that draws at random gets the same draws in every run.
            random.seed(seed)
            torch.manual_seed(seed)
            out[cell.grade_id] = _failure(_compiled(cell, hidden), dict(namespace), seconds)
    finally:
        if seed_before is None:
            del os.environ["GRADING_SEED"]
        else:
            os.environ["GRADING_SEED"] = seed_before
    return out


def judge(
    bodies: dict[int, str],
    *,
    hidden: bool = True,
    seed: int = 0,
    seconds: float = SECONDS_PER_CELL,
    before: str = "",
    mechanisms: tuple[str, ...] = CHAPTER.mechanisms,
) -> dict[str, str | None]:
    """Outcome of every test cell by grade id: None if it passed, otherwise what stopped it.

    bodies: TODO number -> text of its region; a TODO that is not named keeps the reference.
    hidden: False runs the cells as learners see them.
    seconds: limit for each cell, wall clock.
    before: code of the learner's own that runs ahead of the class.
    mechanisms: whose test cells to run; all of them unless told.
    """
    return dict(_judge(tuple(sorted(bodies.items())), hidden, seed, seconds, before, mechanisms))


def points(outcome: dict[str, str | None]) -> dict[str, float]:
    """Points by mechanism, of the mechanisms that were run."""
    out: dict[str, float] = {}
    for cell in CHAPTER.tests:
        if cell.grade_id in outcome:
            passed = outcome[cell.grade_id] is None
            out[cell.mechanism] = out.get(cell.mechanism, 0.0) + (cell.points if passed else 0.0)
    return out


def standing(outcome: dict[str, str | None]) -> dict[str, str]:
    """Each mechanism's points in one word: full, lost (some of them) or zero."""
    return {
        mechanism: "full" if got == CHAPTER.points(mechanism) else "lost" if got else "zero"
        for mechanism, got in points(outcome).items()
    }
