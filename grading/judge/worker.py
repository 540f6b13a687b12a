"""The judge's end of one worker: requests with a deadline, replies that are validated, a kill that always works."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time

from grading.box.usage import seconds_waited
from grading.box.wire import Malformed, Stream, as_frame, receive_frame

FLAGS = {"platform_call", "input", "install_skipped", "cuda_as_cpu", "magic_skipped", "output_dropped"}
MAX_CALLBACKS = 20_000  # in one request
MAX_NESTING = 16
WARDEN_SECONDS = 5.0  # until it answers, on a busy machine
STRETCH = 10  # so many times its time an allowance may last where a box has to wait for a core


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
        self._last_word: dict = {}
        self._began = self._allowed = self._waited = self._held_up = self._deadline = self._waits = 0.0
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
            left = self._moved_deadline() - time.monotonic()
        if left <= 0:
            raise self._outcome() if self._last_word else self._lost("timeout", "time is up")
        self._waits = left
        interval = struct.pack("ll", int(left), int(left % 1 * 1e6) or 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._control.setsockopt(socket.SOL_SOCKET, option, interval)

    def held_up(self) -> float:
        """Seconds since the deadline was set in which box and judge could not run, since others had the cores.

        What a box's processes take from each other does not count: while one waited, another worked.
        """
        if self.fault is None:
            used, elapsed = self._seconds_used(), time.monotonic() - self._began
            waited = used.get("waited", 0.0) + seconds_waited() - self._waited
            self._held_up = max(0.0, min(waited, elapsed - used.get("worked", 0.0)))
        return self._held_up

    def _moved_deadline(self) -> float:
        self._deadline = self._began + min(self._allowed + self.held_up(), self._allowed * STRETCH)
        return self._deadline

    def _seconds_used(self) -> dict:
        """What the box used since the deadline was set, as its warden saw it; {} when it says nothing in time."""
        with contextlib.suppress(OSError):  # it has ended: what it said then is still there to be read
            self._life.send(repr(self._began).encode())
        said = json.loads(self._wardens_word(WARDEN_SECONDS) or b"{}")
        if "ended" in said:  # what it answered before stands: the next request finds out
            self._last_word = said
        return said

    def _in_time(self) -> None:
        """The kernel's clock starts anew at every read and write: sets it again when it would run too long."""
        if self._deadline - time.monotonic() < 0.9 * self._waits:
            self._patience()

    def _read(self) -> bytes:
        self._in_time()
        while True:
            try:
                part = self._control.recv(1 << 16)
            except BlockingIOError:
                self._patience()
                continue
            except OSError:  # it hung up with a request unread
                part = b""
            if not part:
                raise self._ended()
            return part

    def _ended(self) -> WorkerFault:
        """The worker closed its socket: asks the warden how it ended, unless it has said so."""
        if self._last_word:
            return self._outcome()
        said = self._wardens_word(0.5)
        if said is None:  # it hung up, but lives: the warden ends it when told that nobody waits any more
            self._life.shutdown(socket.SHUT_WR)
            said = self._wardens_word(WARDEN_SECONDS)
        if said == b"":  # no box can do that to its warden
            return self._lost("sandbox", "the sandbox ended")
        self._last_word = json.loads(said or b"{}")
        return self._outcome()

    def _outcome(self) -> WorkerFault:
        """How the box ended, by the warden's last word."""
        outcome = self._last_word
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
        self._began, self._allowed, self._waited = time.monotonic(), seconds, seconds_waited()
        self._deadline, self._held_up = self._began + seconds, 0.0
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
        self._in_time()
        data = memoryview(as_frame(message))
        while data:
            try:
                data = data[self._control.send(data) :]
            except BlockingIOError:
                self._patience()
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
