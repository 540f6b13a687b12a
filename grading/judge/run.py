"""Judges one submission: walks its plan, runs learner's cells in a worker and the instructor's test cells here."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import time
from dataclasses import dataclass, field

from grading.box.wire import Unsendable
from grading.chapter import Cell, Chapter
from grading.judge.limits import Limits
from grading.judge.proxy import Link, NoPlainForm, RemoteName
from grading.judge.sandbox import Sandbox
from grading.judge.worker import Worker, WorkerFault
from grading.plan import Plan, Step
from grading.seed import VARIABLE

FAULTS_A_MECHANISM = 2  # after the second its remaining cells fail unrun
MAX_MESSAGE = 4_000
NOTEWORTHY_SECONDS = 0.2  # a cell that takes longer is asked whether others had the cores


@dataclass
class Verdict:
    """How one test cell went. message: why it failed; call: the last call made; fault: '' or the kind of it."""

    grade_id: str
    passed: bool
    message: str = ""
    error: str = ""
    call: str = ""
    fault: str = ""
    seconds: float = 0.0


@dataclass
class Outcome:
    """What judging one submission yields, as plain data."""

    verdicts: list[Verdict] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    cell_errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Bench:
    """A chapter made ready for judging: compiled test cells, and the namespace that they start from."""

    def __init__(self, chapter: Chapter):
        self.chapter = chapter
        self.names, self.methods = defined_names(chapter), method_names(chapter)
        self.tests = {cell.grade_id: cell for cell in chapter.tests}
        self._code = {cell.grade_id: compile(cell.source, f"<{cell.grade_id}>", "exec") for cell in chapter.tests}
        self._start: dict[str, object] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            for cell in chapter.of("import", "fixture"):
                exec(compile(cell.source, f"<{cell.id}>", "exec"), self._start)

    def run(self, cell: Cell, worker: Worker) -> tuple[BaseException | None, str]:
        """Runs a test cell against a worker; returns (None, "") or what it raised and the last call it made."""
        link = Link(worker, self.methods)
        namespace = self._start | {name: RemoteName(link, name) for name in self.names}
        namespace["__name__"] = "__main__"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(self._code[cell.grade_id], namespace)
            link.settle()
            return None, ""
        except BaseException as error:
            return error, link.last_call


def defined_names(chapter: Chapter) -> list[str]:
    """The classes and functions that the solution cells define at top level: what a proxy stands for."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    trees = [ast.parse(cell.source) for cell in chapter.of("solution")]
    return [node.name for tree in trees for node in tree.body if isinstance(node, kinds)]


def method_names(chapter: Chapter) -> frozenset[str]:
    """The methods of the classes that the solution cells define."""
    trees = [ast.parse(cell.source) for cell in chapter.of("solution")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return frozenset(node.name for kind in classes for node in kind.body if isinstance(node, ast.FunctionDef))


class Clock:
    """A submission's total time, which its sessions share. What no worker could use is not counted."""

    def __init__(self, seconds: float):
        self._ends = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    @contextlib.contextmanager
    def allow(self, worker: Worker, seconds: float):
        """Gives a worker so many seconds of what is left. Raises WorkerFault."""
        worker.allow(min(seconds, self.left()))
        started = time.monotonic()
        try:
            yield
        finally:
            if time.monotonic() - started > NOTEWORTHY_SECONDS:
                self._ends += worker.held_up()


class Session:
    """A worker of one submission, made anew and brought up to date whenever it was lost or is behind.

    bad: names of learner's cells that killed a worker or never ended; shared, so that each is waited for once.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits, clock: Clock, bad: set[str]):
        self._sandbox, self._limits, self.clock, self._bad = sandbox, limits, clock, bad
        self._worker: Worker | None = None
        self._steps: list[Step] = []
        self._run_so_far = 0
        self.flags: set[str] = set()
        self.cell_errors: dict[str, str] = {}

    def add(self, step: Step) -> None:
        """A learner's cell, to be run before the next check."""
        self._steps.append(step)

    def worker(self) -> Worker:
        """A worker in which all learner's cells so far have run. Raises WorkerFault when the total time is up."""
        while self._worker is None or self._run_so_far < len(self._steps):
            if not self.clock.left():
                raise WorkerFault("total", "the submission's total time is up")
            if self._worker is None:
                self._worker, self._run_so_far = Worker(*self._sandbox.box(self._limits)), 0
                self._worker.post({"op": "move", "cores": sorted(os.sched_getaffinity(0))})
            while self._worker is not None and self._run_so_far < len(self._steps):
                self._run(self._steps[self._run_so_far])
                self._run_so_far += 1
        return self._worker

    def _run(self, step: Step) -> None:
        """Runs a learner's cell. One that kills its worker or never ends is noted, and left out from then on."""
        if step.name in self._bad:
            return
        try:
            with self.clock.allow(self._worker, self._limits.cell_seconds):
                reply = self._worker.request({"op": "run", "source": step.source})
        except WorkerFault as fault:
            self.drop()
            if fault.kind == "sandbox":
                raise
            self._bad.add(step.name)
            self.cell_errors[step.name] = plain(f"{fault.kind}: {fault}")
            self.flags.add(f"cell_{fault.kind}:{step.name}")
            return
        if reply.get("error") is not None:
            self.cell_errors[step.name] = plain(f"{reply['error']['name']}: {reply['error']['message']}")

    def drop(self) -> None:
        if self._worker is not None:
            self.flags |= self._worker.flags
            self._worker.kill()
            self._worker = None


def judge(bench: Bench, plan: Plan, seed: int, sandbox: Sandbox, limits: Limits) -> Outcome:
    """Judges one submission. Raises WorkerFault of kind "sandbox", or OSError, when no box can be made."""
    started, faults, bad = time.monotonic(), {}, set()
    # Two workers: the learner reads what public checks say, so no code that has seen a hidden input may say it.
    clock = Clock(limits.total_seconds)
    sessions = {hidden: Session(sandbox, limits, clock, bad) for hidden in (False, True)}
    outcome = Outcome()
    os.environ[VARIABLE] = str(seed)
    for step in plan.steps:
        if step.grade_id:
            cell = bench.tests[step.grade_id]
            outcome.verdicts.append(_check(bench, cell, sessions[cell.hidden], limits, faults))
        else:
            for session in sessions.values():
                session.add(step)
    for session in sessions.values():
        session.drop()
        outcome.flags = sorted({*outcome.flags, *session.flags})
    # of the cells in the hidden checks' worker only what the judge itself says: that one died, not its last words
    lost = {name: text for name, text in sessions[True].cell_errors.items() if name in bad}
    outcome.cell_errors = lost | sessions[False].cell_errors
    outcome.seconds = time.monotonic() - started
    return outcome


def _check(bench: Bench, cell: Cell, session: Session, limits: Limits, faults: dict[str, int]) -> Verdict:
    if faults.get(cell.mechanism, 0) >= FAULTS_A_MECHANISM:
        return Verdict(cell.grade_id, False, "not run after two faults in this mechanism", fault="unrun")
    started = time.monotonic()
    try:
        worker = session.worker()
        with session.clock.allow(worker, limits.check_seconds):
            worker.forget()
            error, call = bench.run(cell, worker)
        if worker.fault is not None:
            error = worker.fault  # whatever the test cell made of it: a pass needs evidence
    except WorkerFault as fault:
        error, call = fault, ""
    if isinstance(error, WorkerFault) and error.kind == "sandbox":
        raise error
    verdict = Verdict(cell.grade_id, error is None, call=plain(call), seconds=time.monotonic() - started)
    if isinstance(error, WorkerFault):
        faults[cell.mechanism] = faults.get(cell.mechanism, 0) + 1
        session.drop()
        verdict.fault, verdict.message = error.kind, str(error)
    elif error is not None:
        verdict.error, verdict.message = _described(error)
    return verdict


def _described(error: BaseException) -> tuple[str, str]:
    if isinstance(error, NoPlainForm):
        return "NoPlainForm", plain(f"the returned value cannot be compared: {error}")
    if isinstance(error, Unsendable):
        return "Unsendable", plain(f"the test cell passed what has no plain form: {error}")
    return type(error).__name__, plain(str(error))


def plain(text: str) -> str:
    """Text that a learner's code may have made, short, and such that every report can be written: no lone surrogate."""
    return text[:MAX_MESSAGE].encode("utf-8", "replace").decode("utf-8")
