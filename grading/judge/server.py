"""The judge's own zygote: a trusted process that has imported torch, owns the sandbox and forks a judge a submission.

`python -m grading.judge.server SOURCE SANDBOX WORKERS REQUESTS REPLIES`: two inherited pipes with a JSON object a line.
A request is {"key", "plan", "seed"}; a reply {"key", "outcome"} or {"key", "lost": why}; the first line says
{"ready": true} or {"refused": why}. So many submissions as there are WORKERS are under way at once, the others wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from grading.box.isolate import die_with_parent
from grading.judge.limits import Limits
from grading.judge.sandbox import Sandbox, SandboxError
from grading.judge.worker import STRETCH, WorkerFault
from grading.plan import Plan
from grading.result import checks_of

BOXES = 2  # that a submission takes where nothing goes wrong: one for the public checks, one for the hidden ones
ATTEMPTS = 3  # for a submission whose sandbox was lost through no fault of its own
GRACE_SECONDS = 60.0


@dataclass
class Job:
    """A submission under way. generation: which zygote it was started with; core: the one it runs on."""

    request: dict
    pid: int
    pipe: int
    generation: int
    deadline: float
    attempts: int
    core: int
    received: bytearray


class Server:
    def __init__(self, source: Path, kind: str, workers: int):
        # the sandbox warms up while this process imports torch
        self.sandbox = Sandbox(kind)
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = "1"
        from grading import chapter
        from grading.judge.run import Bench, judge
        from grading.report import misconceptions

        self._judge, self._misconceptions, self._lost = judge, misconceptions, (WorkerFault, OSError)
        self.limits, self.workers = Limits(), workers
        self.bench = Bench(chapter.load(source))
        self.sandbox.wait()
        self.generation = 0
        self.jobs: dict[int, Job] = {}
        self.waiting: deque[tuple[dict, int]] = deque()  # requests and their attempts
        self._signatures, self._signatures_pipe = bytearray(), -1
        self._unrecognised: list[dict] | None = []  # replies that wait for the signatures; None: those are known

    def compute_signatures(self) -> int:
        """Forks a process for what recognising mistakes needs (a second): no submission waits. Returns its pipe."""
        self._signatures_pipe, theirs = os.pipe()
        self._signatures_process = os.fork()
        if self._signatures_process == 0:
            try:
                die_with_parent()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                with os.fdopen(theirs, "w") as file:
                    file.write(self._misconceptions.packed(self.bench.chapter))
            finally:
                os._exit(0)
        os.close(theirs)
        return self._signatures_pipe

    def signatures_known(self) -> list[dict]:
        """Takes over what that process has written; returns the replies that waited for it."""
        os.close(self._signatures_pipe)
        self._signatures_pipe = -1
        os.waitpid(self._signatures_process, 0)
        # should it have died, the first reply computes them here
        with contextlib.suppress(ValueError):
            self._misconceptions.unpack(self.bench.chapter, self._signatures.decode())
        waited, self._unrecognised = self._unrecognised, None
        return [self.recognised(reply) for reply in waited]

    def recognised(self, reply: dict) -> dict:
        """The reply with the known mistakes that its checks show."""
        if outcome := reply.get("outcome"):
            checks = checks_of(self.bench.chapter, outcome["verdicts"])
            outcome["misconceptions"] = self._misconceptions.recognise(self.bench.chapter, checks)
        return reply

    def start(self, request: dict, attempts: int = 1) -> Job:
        """Forks a judge for one submission."""
        ours, theirs = os.pipe()
        # Judge and worker talk in turns: on one core a turn is a switch, on two a sleeping core is woken each time.
        cores = sorted(os.sched_getaffinity(0))
        busy = [job.core for job in self.jobs.values()]
        core = min(cores, key=busy.count)
        self._make_boxes()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(ours)
                os.sched_setaffinity(0, {core})
                self._child(request, theirs)
            finally:
                os._exit(1)  # never back into the server's loop
        os.close(theirs)
        self.sandbox.give_away_spare()
        deadline = time.monotonic() + STRETCH * self.limits.total_seconds + GRACE_SECONDS
        job = Job(request, pid, ours, self.generation, deadline, attempts, core, bytearray())
        self.jobs[ours] = job
        return job

    def _child(self, request: dict, pipe: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # a judge that never ends is the judge's own fault, and none of its work takes long
        resource.setrlimit(resource.RLIMIT_CPU, (self.limits.cpu_seconds, self.limits.cpu_seconds))
        try:
            plan = Plan.from_json(request["plan"])
            outcome = self._judge(self.bench, plan, request["seed"], self.sandbox, self.limits)
            reply = {"outcome": asdict(outcome)}
        except self._lost as error:
            reply = {"lost": f"no box could be made: {error}"}
        except BaseException as error:
            reply = {"lost": f"the judge failed: {type(error).__name__}: {error}"}
        data = json.dumps(reply).encode()
        with os.fdopen(pipe, "wb") as file:
            file.write(data)

    def finish(self, job: Job) -> dict | None:
        """The reply of a job whose pipe was closed; None when it was started again instead."""
        del self.jobs[job.pipe]
        os.close(job.pipe)
        os.waitpid(job.pid, 0)
        try:
            reply = json.loads(job.received)
        except ValueError:
            reply = {"lost": "the judge ended without a verdict"}
        if not self.sandbox.alive():
            self.sandbox.restart()
            self.generation += 1
        if job.generation != self.generation:
            reply = {"lost": "the sandbox ended"}
        if "lost" in reply and job.attempts < ATTEMPTS:
            return None
        return {"key": job.request["key"]} | reply

    def serve(self, requests: int, replies: int) -> None:
        """Until the requests' pipe is closed."""
        selector = selectors.DefaultSelector()
        selector.register(requests, selectors.EVENT_READ)
        selector.register(self.compute_signatures(), selectors.EVENT_READ)
        pending = bytearray()
        while True:
            for key, _ in selector.select(timeout=1.0):
                data = os.read(key.fd, 1 << 20)
                if key.fd == requests:
                    if not data:
                        return  # the caller is gone: nobody waits for the rest
                    pending += data
                    *lines, rest = pending.split(b"\n")
                    pending = bytearray(rest)
                    self.waiting += [(json.loads(line), 1) for line in lines]
                elif data:
                    known = key.fd == self._signatures_pipe
                    (self._signatures if known else self.jobs[key.fd].received).extend(data)
                else:
                    selector.unregister(key.fd)
                    for reply in self._ended(key.fd):
                        write_line(replies, reply)
            while self.waiting and len(self.jobs) < self.workers:
                selector.register(self.start(*self.waiting.popleft()).pipe, selectors.EVENT_READ)
            if self.waiting:
                self._make_boxes()  # the next submission's, while others are judged
            for job in self.jobs.values():
                if time.monotonic() > job.deadline:
                    os.kill(job.pid, signal.SIGKILL)
                    job.deadline += GRACE_SECONDS

    def _ended(self, pipe: int) -> list[dict]:
        """What there is to say now that a forked process has closed its pipe."""
        if pipe == self._signatures_pipe:
            return self.signatures_known()
        job = self.jobs[pipe]
        reply = self.finish(job)
        if reply is None:
            self.waiting.appendleft((job.request, job.attempts + 1))
            return []
        if self._unrecognised is None:
            return [self.recognised(reply)]
        self._unrecognised.append(reply)
        return []

    def _make_boxes(self) -> None:
        with contextlib.suppress(OSError):  # the judge will find out that there are no boxes
            self.sandbox.make_spare(BOXES, self.limits)


def write_line(pipe: int, message: dict) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def main() -> None:
    source, kind, workers, requests, replies = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's; it then closes the pipe
    try:
        server = Server(Path(source), kind, int(workers))
    except (SandboxError, ValueError) as error:
        write_line(int(replies), {"refused": str(error)})
        return
    write_line(int(replies), {"ready": True})
    try:
        server.serve(int(requests), int(replies))
    except BrokenPipeError:
        pass
    finally:
        for job in server.jobs.values():
            os.kill(job.pid, signal.SIGKILL)
        server.sandbox.close()
        os._exit(0)  # nothing is left to do, and torch takes half a second to say so


if __name__ == "__main__":
    main()
