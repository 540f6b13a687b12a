"""Judge code as grading does: in boxes of one sandbox that all tests of a session share."""

import atexit
import contextlib
import os
import signal
import sys
import textwrap
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest
from answers import CHAPTER, CLASS_CELL

from grading import chapter
from grading.judge.limits import MIB, Limits
from grading.judge.proxy import Link
from grading.judge.run import Bench, judge
from grading.judge.sandbox import Sandbox, SandboxError
from grading.judge.worker import Worker, WorkerFault
from grading.plan import Plan, Step

# Small in all that a test may use up; generous in time, since the machine may be busy.
SMALL = Limits(memory_bytes=384 * MIB, disk_bytes=16 * MIB, file_bytes=12 * MIB, processes=16)
# For a test that has to wait until time is up.
SHORT = replace(SMALL, check_seconds=1.5, cell_seconds=1.5)
# The honest answer with all three TODOs wrong and no trick; the same as the one that graders are tried with.
WRONG = {
    1: "proposed = list(draft_tokens)[:2]",
    2: "accepted = target_prob > 2 * draft_prob",
    3: "accepted = i % 2 == 0",
}
CANARY = "PLANTED_SECRET"


@cache
def shared_sandbox() -> Sandbox:
    """The one sandbox of the session, started in an environment that holds secrets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CANARY, "4711")
        patch.setenv("GRADING_SEED", "815")
        shared = Sandbox("bwrap").wait()
    atexit.register(shared.close)
    return shared


def open_to_all(folder: Path) -> bool:
    """Whether every user of the machine may enter a folder: where Python lies in root's home, nobody else may."""
    return all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))


def user_sandbox() -> Sandbox:
    """A sandbox started with a user namespace: the only way for an ordinary user, the second best for root."""
    with pytest.MonkeyPatch.context() as patch:
        every = Sandbox._all_ways
        namespaced = lambda self: [way for way in every(self) if not way[1].keywords["as_root"]]  # noqa: E731
        patch.setattr(Sandbox, "_all_ways", namespaced)
        try:
            return Sandbox("bwrap").wait()
        except SandboxError as error:
            if os.geteuid() == 0 and not open_to_all(Path(sys.base_prefix)):
                pytest.skip(f"nobody may not enter {sys.base_prefix}, so only root's way could be tried: {error}")
            raise


@cache
def bench() -> Bench:
    return Bench(CHAPTER)


# --- one box ---------------------------------------------------------------------------------------------------------


class Box:
    """One box, seen from the judge."""

    def __init__(self, sandbox: Sandbox, limits: Limits = SMALL):
        self.worker = Worker(*sandbox.box(limits))
        self.limits = limits

    def run(self, source: str) -> dict | None:
        """Runs a cell; its error or None. Raises WorkerFault."""
        self.worker.allow(self.limits.cell_seconds)
        return self.worker.request({"op": "run", "source": textwrap.dedent(source)}).get("error")

    def call(self, name: str = "probe", *arguments):
        """Calls a function that a cell has defined. Raises what it raised, or WorkerFault."""
        self.worker.allow(self.limits.check_seconds)
        return self.link().call(["name", name], None, name, arguments, {})

    def link(self) -> Link:
        self.worker.forget()
        return Link(self.worker)

    def close(self) -> None:
        self.worker.kill()


@contextlib.contextmanager
def box(sandbox: Sandbox, limits: Limits = SMALL):
    opened = Box(sandbox, limits)
    try:
        yield opened
    finally:
        opened.close()


def inside(sandbox: Sandbox, source: str, limits: Limits = SMALL):
    """What `probe()`, defined by `source`, returns in a fresh box, as plain data."""
    with box(sandbox, limits) as opened:
        error = opened.run(source)
        assert error is None, error
        return opened.call()


def fault_of(sandbox: Sandbox, source: str, limits: Limits = SMALL) -> WorkerFault:
    """How running `source` in a fresh box ends; the test fails when it ends well."""
    with box(sandbox, limits) as opened, pytest.raises(WorkerFault) as caught:
        error = opened.run(source)
        pytest.fail(f"the cell came to its end: {error}")
    return caught.value


# --- processes -------------------------------------------------------------------------------------------------------


def zygote(sandbox: Sandbox) -> psutil.Process:
    """The zygote's process, as this machine sees it."""
    process = psutil.Process(sandbox._process.pid)
    while process.name() == "bwrap":
        (process,) = process.children()
    return process


def boxed(sandbox: Sandbox) -> list[psutil.Process]:
    """Every process of every box that lives, wardens included."""
    living = []
    for child in zygote(sandbox).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                living.append(child)
    return living


def settled(sandbox: Sandbox, seconds: float = 3.0) -> list[psutil.Process]:
    """Waits until no box lives any more; returns what is left when time is up."""
    deadline = time.monotonic() + seconds
    while (left := boxed(sandbox)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill_hard(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        os.kill(process.pid, signal.SIGKILL)


# --- submissions -----------------------------------------------------------------------------------------------------


def plan(
    bodies: dict[int, str] | None = None, *, before: str = "", after: str = "", cells: tuple[str, ...] = ()
) -> Plan:
    """A submission: the TODO bodies, code before and after the class in its cell, cells of the learner's own below."""
    steps = []
    for cell in CHAPTER.cells:
        if cell.role == "import":
            steps.append(Step("imports", cell.source))
        elif cell is CLASS_CELL:
            answer = chapter.fill(cell.source, bodies or {})
            steps.append(Step("answer", "\n".join(filter(None, [before, answer, textwrap.dedent(after)]))))
            steps += [Step(f"own{number}", textwrap.dedent(source)) for number, source in enumerate(cells, start=1)]
        elif cell.role == "test":
            steps.append(Step(cell.grade_id, grade_id=cell.grade_id))
    return Plan(tuple(steps))


def judged(sandbox: Sandbox, submission: Plan, limits: Limits = SMALL, seed: int = 0):
    """The Outcome of a submission. Raises what the judge raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADING_SEED", str(seed))  # the judge sets it; put back afterwards
        return judge(bench(), submission, seed, sandbox, limits)


def points(outcome) -> dict[str, float]:
    """Points by mechanism, of an Outcome or of one as plain data."""
    verdicts = outcome["verdicts"] if isinstance(outcome, dict) else [vars(verdict) for verdict in outcome.verdicts]
    got = dict.fromkeys(CHAPTER.mechanisms, 0.0)
    assert [verdict["grade_id"] for verdict in verdicts] == [cell.grade_id for cell in CHAPTER.tests]
    for cell, verdict in zip(CHAPTER.tests, verdicts, strict=True):
        got[cell.mechanism] += cell.points if verdict["passed"] else 0.0
    return got


FULL = {mechanism: CHAPTER.points(mechanism) for mechanism in CHAPTER.mechanisms}


def happened(outcome) -> set[str]:
    """What an Outcome says went wrong, apart from plain failed checks: flags, and faults by kind."""
    return set(outcome.flags) | {verdict.fault for verdict in outcome.verdicts} - {"", "unrun"}
