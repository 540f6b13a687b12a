"""The caller's end of the judge server: plans in, outcomes out, as many at once as there are workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from grading.chapter import ROOT
from grading.judge.sandbox import HUGE_PAGES
from grading.plan import Plan

AHEAD = 24  # jobs that wait at the judge while the caller opens its gradebook (some seconds)


class JudgeError(RuntimeError):
    """The judge could not be started, or ended; the message says why and what to do."""


class Judges:
    """A judge server for one chapter. Starts at once; `run` waits for it. Use as a context manager."""

    def __init__(self, source: Path, sandbox: str = "bwrap", workers: int = 1):
        self.workers, self.sandbox = workers, sandbox
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        command = [sys.executable, "-m", "grading.judge.server", str(source), sandbox, str(workers)]
        command += [str(requests), str(replies)]
        path = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = os.environ | HUGE_PAGES | {"PYTHONPATH": os.pathsep.join(path)}
        self._process = subprocess.Popen(
            command, pass_fds=[requests, replies], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        os.close(requests)
        os.close(replies)
        self._lines = os.fdopen(self._replies, "rb")
        self._ready = False

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def _next(self) -> dict:
        line = self._lines.readline()
        if not line:
            status = self._process.wait()
            raise JudgeError(f"the judge ended unexpectedly (exit status {status}); run the command again")
        return json.loads(line)

    def wait(self) -> None:
        """Blocks until the sandbox works. Raises JudgeError with what to do where there is none."""
        if not self._ready:
            first = self._next()
            if "refused" in first:
                raise JudgeError(first["refused"])
            self._ready = True

    def run(self, jobs: Iterable[tuple[str, Plan, int]]) -> Iterator[tuple[str, dict]]:
        """Judges (key, plan, seed) jobs; yields (key, reply) as they are done, not in order.

        A reply has "outcome" (a grading.judge.run.Outcome as a dict) or "lost" (why there is none). The first jobs are
        sent when this returns, not when the first reply is asked for. Raises JudgeError.
        """
        self.wait()
        waiting = iter(jobs)
        return self._answers(waiting, self._top_up(waiting, 0))

    def _top_up(self, waiting: Iterator[tuple[str, Plan, int]], under_way: int) -> int:
        """Sends jobs until enough are under way; returns how many are."""
        while under_way < self.workers + AHEAD and (job := next(waiting, None)) is not None:
            key, plan, seed = job
            self._send({"key": key, "plan": plan.to_json(), "seed": seed})
            under_way += 1
        return under_way

    def _answers(self, waiting: Iterator[tuple[str, Plan, int]], under_way: int) -> Iterator[tuple[str, dict]]:
        while under_way:
            reply = self._next()
            # before the caller gets to record it: no worker waits for a gradebook
            under_way = self._top_up(waiting, under_way - 1)
            yield reply.pop("key"), reply

    def _send(self, message: dict) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            self._next()  # raises with the reason

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the judge, its sandbox and every box."""
        if self._requests >= 0:
            os.close(self._requests)
            self._requests = -1
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lines.close()
