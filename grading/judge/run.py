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


class Session:
    """The worker of one submission, made anew and brought up to date whenever it was lost."""

    def __init__(self, sandbox: Sandbox, limits: Limits):
        self._sandbox, self._limits = sandbox, limits
        self._ends = time.monotonic() + limits.total_seconds
        self._worker: Worker | None = None
        self._done: list[Step] = []  # learner's cells that a new worker must run again
        self.flags: set[str] = set()
        self.cell_errors: dict[str, str] = {}

    def left(self) -> float:
        return self._ends - time.monotonic()

    def add(self, step: Step) -> None:
        """Runs a learner's cell. One that kills its worker or never ends is noted, and left out from then on."""
        try:
            self.worker()
        except WorkerFault as fault:
            if fault.kind == "sandbox":
                raise
        if self._run(step):
            self._done.append(step)

    def worker(self) -> Worker:
        """A worker in which all learner's cells so far have run. Raises WorkerFault when the total time is up."""
        while self._worker is None:
            if self.left() <= 0:
                raise WorkerFault("total", "the submission's total time is up")
            self._renew()
        return self._worker

    def _renew(self) -> None:
        self._worker = Worker(*self._sandbox.box(self._limits))
        for step in list(self._done):
            if not self._run(step):
                self._done.remove(step)
                return  # the loop in `worker` starts over without it

    def _run(self, step: Step) -> bool:
        seconds = min(self._limits.cell_seconds, self.left())
        try:
            if seconds <= 0:
                raise WorkerFault("total", "the submission's total time is up")
            self._worker.allow(seconds)
            reply = self._worker.request({"op": "run", "source": step.source})
        except WorkerFault as fault:
            self.cell_errors[step.name] = plain(f"{fault.kind}: {fault}")
            self.flags.add(f"cell_{fault.kind}:{step.name}")
            self.drop()
            if fault.kind == "sandbox":
                raise
            return False
        if reply.get("error") is not None:
            self.cell_errors[step.name] = plain(f"{reply['error']['name']}: {reply['error']['message']}")
        return True

    def drop(self) -> None:
        if self._worker is not None:
            self.flags |= self._worker.flags
            self._worker.kill()
            self._worker = None


def judge(bench: Bench, plan: Plan, seed: int, sandbox: Sandbox, limits: Limits) -> Outcome:
    """Judges one submission. Raises WorkerFault of kind "sandbox", or OSError, when no box can be made."""
    started, faults = time.monotonic(), {}
    session, outcome = Session(sandbox, limits), Outcome()
    os.environ[VARIABLE] = str(seed)
    for step in plan.steps:
        if not step.grade_id:
            if session.left() > 0:
                session.add(step)
            continue
        cell = bench.tests[step.grade_id]
        verdict = _check(bench, cell, session, limits, faults)
        outcome.verdicts.append(verdict)
    session.drop()
    outcome.flags = sorted(session.flags)
    outcome.cell_errors = session.cell_errors
    outcome.seconds = time.monotonic() - started
    return outcome


def _check(bench: Bench, cell: Cell, session: Session, limits: Limits, faults: dict[str, int]) -> Verdict:
    if faults.get(cell.mechanism, 0) >= FAULTS_A_MECHANISM:
        return Verdict(cell.grade_id, False, "not run after two faults in this mechanism", fault="unrun")
    started = time.monotonic()
    try:
        worker = session.worker()
        worker.allow(min(limits.check_seconds, max(0.0, session.left())))
        worker.request({"op": "forget"})
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
