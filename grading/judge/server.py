"""The judge's own zygote: a trusted process that has imported torch, owns the sandbox and forks a judge a submission.

`python -m grading.judge.server SOURCE SANDBOX REQUESTS REPLIES`: two inherited pipes with a JSON object a line. A
request is {"key", "plan", "seed"}; a reply {"key", "outcome"} or {"key", "lost": why}; the first line says
{"ready": true} or {"refused": why}. The caller decides how many requests are under way at once.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from grading.judge.limits import Limits
from grading.judge.sandbox import Sandbox, SandboxError
from grading.plan import Plan
from grading.result import checks_of

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
    def __init__(self, source: Path, kind: str):
        # the sandbox warms up while this process imports torch
        self.sandbox = Sandbox(kind)
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = "1"
        from grading import chapter
        from grading.judge.run import Bench, judge
        from grading.judge.worker import WorkerFault
        from grading.report import misconceptions

        self._judge, self._recognise, self._lost = judge, misconceptions.recognise, (WorkerFault, OSError)
        self.limits = Limits()
        self.bench = Bench(chapter.load(source))
        misconceptions.prepare(self.bench.chapter)
        self.sandbox.wait()
        self.generation = 0
        self.jobs: dict[int, Job] = {}

    def start(self, request: dict, attempts: int = 1) -> Job:
        """Forks a judge for one submission."""
        ours, theirs = os.pipe()
        # Judge and worker talk in turns: on one core a turn is a switch, on two a sleeping core is woken each time.
        cores = sorted(os.sched_getaffinity(0))
        busy = [job.core for job in self.jobs.values()]
        core = min(cores, key=busy.count)
        pid = os.fork()
        if pid == 0:
            try:
                os.close(ours)
                os.sched_setaffinity(0, {core})
                self._child(request, theirs)
            finally:
                os._exit(1)  # never back into the server's loop
        os.close(theirs)
        deadline = time.monotonic() + self.limits.total_seconds + GRACE_SECONDS
        job = Job(request, pid, ours, self.generation, deadline, attempts, core, bytearray())
        self.jobs[ours] = job
        return job

    def _child(self, request: dict, pipe: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            plan = Plan.from_json(request["plan"])
            outcome = self._judge(self.bench, plan, request["seed"], self.sandbox, self.limits)
            reply = {"outcome": asdict(outcome)}
            checks = checks_of(self.bench.chapter, reply["outcome"]["verdicts"])
            reply["outcome"]["misconceptions"] = self._recognise(self.bench.chapter, checks)
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
        """Until the requests' pipe is closed and all jobs are done."""
        selector = selectors.DefaultSelector()
        selector.register(requests, selectors.EVENT_READ)
        pending, opened = bytearray(), True

        def begin(request: dict, attempts: int = 1) -> None:
            selector.register(self.start(request, attempts).pipe, selectors.EVENT_READ)

        while opened or self.jobs:
            for key, _ in selector.select(timeout=1.0):
                data = os.read(key.fd, 1 << 20)
                if key.fd == requests:
                    if not data:
                        return  # the caller is gone: nobody waits for the rest
                    pending += data
                    *lines, rest = pending.split(b"\n")
                    pending = bytearray(rest)
                    for line in lines:
                        begin(json.loads(line))
                elif data:
                    self.jobs[key.fd].received += data
                else:
                    selector.unregister(key.fd)
                    job = self.jobs[key.fd]
                    reply = self.finish(job)
                    if reply is None:
                        begin(job.request, job.attempts + 1)
                    else:
                        write_line(replies, reply)
            for job in self.jobs.values():
                if time.monotonic() > job.deadline:
                    os.kill(job.pid, signal.SIGKILL)
                    job.deadline += GRACE_SECONDS


def write_line(pipe: int, message: dict) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def main() -> None:
    source, kind, requests, replies = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's; it then closes the pipe
    try:
        server = Server(Path(source), kind)
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


if __name__ == "__main__":
    main()
