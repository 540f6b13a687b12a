"""The judge's end of one worker: requests with a deadline, replies that are validated, a kill that always works."""

from __future__ import annotations

import json
import socket
import struct
import time

from grading.box.wire import Malformed, Stream, receive_frame, send_frame

FLAGS = {"platform_call", "input", "install_skipped", "cuda_as_cpu", "magic_skipped", "output_dropped"}
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
        self._stream = Stream(self._read)
        self._posted: list[dict] = []
        self._deadline = self._waits = 0.0
        self._nesting = 0
        self.fault: WorkerFault | None = None
        self.flags: set[str] = set()
        self.output = ""

    def _lost(self, kind: str, message: str) -> WorkerFault:
        self.fault = WorkerFault(kind, message)
        self.kill()
        return self.fault

    def _patience(self) -> None:
        """Has the kernel end a read or a write at the deadline: set when the deadline is, hardly ever again."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._lost("timeout", "time is up")
        self._waits = left
        interval = struct.pack("ll", int(left), int(left % 1 * 1e6) or 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._control.setsockopt(socket.SOL_SOCKET, option, interval)

    def _in_time(self) -> None:
        """The kernel's clock starts anew at every read and write: sets it again when it would run too long."""
        if self._deadline - time.monotonic() < 0.9 * self._waits:
            self._patience()

    def _read(self) -> bytes:
        self._in_time()
        try:
            part = self._control.recv(1 << 16)
        except BlockingIOError:
            raise self._lost("timeout", "time is up") from None
        except OSError:  # it hung up with a request unread
            part = b""
        if not part:
            raise self._ended()
        return part

    def _ended(self) -> WorkerFault:
        """The worker closed its socket: asks the warden how it ended."""
        said = self._wardens_word(0.5)
        if said is None:  # it hung up, but lives: the warden ends it when told that nobody waits any more
            self._life.shutdown(socket.SHUT_WR)
            said = self._wardens_word(5.0)
        outcome = json.loads(said or b"{}")
        if said == b"":  # no box can do that to its warden
            return self._lost("sandbox", "the sandbox ended")
        if outcome.get("failed"):
            return self._lost("sandbox", f"the box could not be made: {outcome['failed']}")
        if outcome.get("reason") in ("memory", "processes"):
            return self._lost(outcome["reason"], f"the worker used too much: {outcome['reason']}")
        return self._lost("death", f"the worker's process ended (exit status {outcome.get('ended', 'unknown')})")

    def _wardens_word(self, seconds: float) -> bytes | None:
        """What the warden says of the box's end: None when it says nothing in time, b"" when it is no more."""
        self._life.settimeout(seconds)
        try:
            return self._life.recv(4096)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def allow(self, seconds: float) -> None:
        """Sets the deadline of all requests from now on. Raises WorkerFault when there is no time at all."""
        self._deadline = time.monotonic() + seconds
        if self.fault is None:
            self._patience()

    def post(self, message: dict) -> None:
        """A request whose reply nobody waits for: it goes with the next one, which fails if this one does."""
        self._posted.append(message)

    def forget(self) -> None:
        """Begins a new check: what was posted is dropped, and the worker forgets the objects of the check before."""
        self._posted = [{"op": "forget"}]

    def settle(self) -> dict:
        """Has all that was posted done; the reply."""
        return self.request({"op": "nothing"}) if self._posted else {}

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
            if self._posted:
                message, self._posted = {"first": self._posted, **message}, []
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
        try:
            self._in_time()
            send_frame(self._control, message)
        except BlockingIOError:
            raise self._lost("timeout", "time is up") from None
        except OSError:
            raise self._ended() from None

    def _frame(self) -> dict:
        try:
            return receive_frame(self._stream)
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
