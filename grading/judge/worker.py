"""The judge's end of one worker: requests with a deadline, replies that are validated, a kill that always works."""

from __future__ import annotations

import json
import socket
import time

from grading.box.wire import Malformed, receive_frame, send_frame

FLAGS = {"platform_call", "input", "install_skipped", "cuda_as_cpu", "output_dropped"}
MAX_CALLBACKS = 20_000  # in one request
MAX_NESTING = 16


class WorkerFault(BaseException):
    """The worker is lost. kind: timeout, death, memory, processes or protocol.

    A BaseException, so that no `except Exception` of a test cell takes it for a learner's error.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Worker:
    """One box, from its two sockets on."""

    def __init__(self, control: socket.socket, life: socket.socket):
        self._control = control
        self._life = life
        self._deadline = 0.0
        self._nesting = 0
        self.fault: WorkerFault | None = None
        self.flags: set[str] = set()
        self.output = ""

    def _lost(self, kind: str, message: str) -> WorkerFault:
        self.fault = WorkerFault(kind, message)
        self.kill()
        return self.fault

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._lost("timeout", "time is up")
            self._control.settimeout(left)
            try:
                part = self._control.recv(min(1 << 20, size - len(data)))
            except TimeoutError:
                raise self._lost("timeout", "time is up") from None
            except OSError as error:
                raise self._lost("death", f"the worker died ({error})") from None
            if not part:
                raise self._ended()
            data += part
        return bytes(data)

    def _ended(self) -> WorkerFault:
        """The worker closed its socket: asks the warden how it ended."""
        self._life.settimeout(5)
        try:
            outcome = json.loads(self._life.recv(4096) or b"{}")
        except (OSError, ValueError):
            outcome = {}
        if outcome.get("failed"):
            return self._lost("sandbox", f"the box could not be made: {outcome['failed']}")
        if outcome.get("reason") in ("memory", "processes"):
            return self._lost(outcome["reason"], f"the worker used too much: {outcome['reason']}")
        return self._lost("death", f"the worker's process ended (exit status {outcome.get('ended', 'unknown')})")

    def allow(self, seconds: float) -> None:
        """Sets the deadline of all requests from now on."""
        self._deadline = time.monotonic() + seconds

    def request(self, message: dict, answer=None) -> dict:
        """Sends one request and returns the validated reply; callbacks meanwhile go to `answer(frame) -> dict`.

        Raises WorkerFault.
        """
        if self.fault is not None:
            raise self.fault
        if self._nesting >= MAX_NESTING:
            raise self._lost("protocol", "callbacks nested too deep")
        self._nesting += 1
        try:
            self._send(message)
            for _ in range(MAX_CALLBACKS):
                frame = self._frame()
                if "callback" not in frame:
                    return self._reply(frame)
                if answer is None:
                    raise self._lost("protocol", "a callback when none was valid")
                self._send(answer(frame))
            raise self._lost("protocol", f"more than {MAX_CALLBACKS} callbacks in one call")
        finally:
            self._nesting -= 1

    def _send(self, message: dict) -> None:
        self._control.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            send_frame(self._control, message)
        except TimeoutError:
            raise self._lost("timeout", "time is up") from None
        except OSError:
            raise self._ended() from None

    def _frame(self) -> dict:
        try:
            return receive_frame(self._receive)
        except Malformed as reason:
            raise self._lost("protocol", f"the worker sent a malformed message ({reason})") from None

    def malformed(self, reason: object) -> WorkerFault:
        return self._lost("protocol", f"the worker sent a malformed message ({reason})")

    def _reply(self, frame: dict) -> dict:
        flags, output, error = frame.get("flags"), frame.get("output", ""), frame.get("error")
        if type(flags) is list:
            self.flags |= {flag for flag in flags if type(flag) is str} & FLAGS
        if type(output) is str:
            self.output = (self.output + output)[-4000:]
        if error is not None and not (
            type(error) is dict and all(type(error.get(key)) is str for key in ("type", "name", "message"))
        ):
            raise self.malformed("error")
        if type(frame.get("changed", [])) is not list:
            raise self.malformed("changed")
        return frame

    def kill(self) -> None:
        """Ends the box: the warden sees the hang-up and kills everything in it."""
        for sock in (self._control, self._life):
            sock.close()
