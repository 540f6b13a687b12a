"""The worker: runs learners' cells and answers the judge's calls, one message after another, on one socket."""

from __future__ import annotations

import os
import random

import numpy
import torch

from . import shell as shells
from . import shims
from .wire import MAX_HANDLES, Decoder, Encoder, Malformed, Stream, Table, Unsendable, receive_frame, send_frame

MAX_MESSAGE = 2_000  # characters of an exception's message


def error_form(error: BaseException) -> dict:
    """An exception as plain data: its nearest builtin class, its own name, its message."""
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException as other:
        message = f"({type(other).__name__} while making the message)"
    return {"type": base.__name__, "name": type(error).__name__[:80], "message": message}


class Callback:
    """A stand-in set by the judge: calling it asks the judge, which knows whether it is valid now."""

    def __init__(self, worker: Worker, number: int):
        self._worker = worker
        self._number = number

    def __call__(self, /, *arguments, **named):
        return self._worker.ask(self._number, arguments, named)


class Worker:
    """State of one worker: the shell, the objects the judge holds handles of, the socket."""

    def __init__(self, sock, shell):
        self.sock = sock
        self.shell = shell
        self.pid = os.getpid()
        self.stream = Stream(self._read)
        self.told: set[str] = set()  # flags
        kinds = (self.run, self.call, self.get, self.set, self.forget, self.move, self.nothing)
        self.requests = {kind.__name__: kind for kind in kinds}
        self.output = shells.redirect()
        self.table = Table(first_id=2)
        self.handles: dict[int, object] = {}
        self.handle_of: dict[int, int] = {}

    # --- values ------------------------------------------------------------------------------------------------------

    def _opaque(self, value):
        number = self.handle_of.get(id(value))
        if number is None:
            if len(self.handles) >= MAX_HANDLES:
                raise Unsendable("too many objects")
            number = len(self.handles) + 1
            self.handles[number] = value
            self.handle_of[id(value)] = number
        kind = type(value)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return ["o", number, f"{module}{kind.__name__}"[:80]]

    def _special(self, tag, body):
        if tag == "c":
            return Callback(self, body[0])
        return self.handles[body[0]]

    def _encode(self, value):
        return Encoder(self.table, self._opaque).encode(value)

    def _target(self, target):
        kind, key = target
        if kind == "obj":
            return self.handles[key]
        if key not in self.shell.user_ns:
            raise NameError(f"name {key!r} is not defined")
        return self.shell.user_ns[key]

    # --- requests ----------------------------------------------------------------------------------------------------

    def run(self, message: dict) -> dict:
        source = message["source"]
        if "cuda" in source:
            shims.cuda_as_cpu()
        result = self.shell.run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        return {"error": error_form(error)} if error is not None else {"value": None}

    def call(self, message: dict) -> dict:
        decoder = Decoder(self.table, self._special, arrays=True)
        arguments = [decoder.decode(node) for node in message["args"]]
        named = {name: decoder.decode(node) for name, node in message["kwargs"].items()}
        try:
            function = self._target(message["target"])
            if message["attr"] is not None:
                function = getattr(function, message["attr"])
            reply = {"value": self._encode(function(*arguments, **named))}
        except Unsendable as reason:
            reply = {"unsendable": str(reason)}
        except BaseException as error:
            reply = {"error": error_form(error)}
        came = (*message["args"], *message["kwargs"].values())
        if any(type(form) is list for form in came):
            self._report_changes(reply, came, (*arguments, *named.values()))
        return reply

    def _report_changes(self, reply: dict, came: tuple, values: tuple) -> None:
        """Adds the arguments that are no longer as they came, or says that one has no plain form now."""
        # in the order in which the judge sent them, so that what did not change has the form that it came in
        encoder = Encoder(self.table, self._opaque, arrays=True)
        try:
            now = [encoder.encode(value) for value in values]
            moved = [value for value, new, old in zip(values, now, came, strict=True) if new != old and new[0] != "o"]
            if moved:
                reply["changed"] = [Encoder(self.table, self._opaque, arrays=True).encode(value) for value in moved]
        except Unsendable as reason:
            reply.clear()
            reply["unsendable"] = f"an argument was changed into {reason}"

    def get(self, message: dict) -> dict:
        try:
            value = getattr(self._target(message["target"]), message["attr"])
            return {"method": True} if callable(value) else {"value": self._encode(value)}
        except Unsendable as reason:
            return {"unsendable": str(reason)}
        except BaseException as error:
            return {"error": error_form(error)}

    def set(self, message: dict) -> dict:
        try:
            value = Decoder(self.table, self._special, arrays=True).decode(message["value"])
            setattr(self._target(message["target"]), message["attr"], value)
            return {"value": None}
        except BaseException as error:
            return {"error": error_form(error)}

    def forget(self, message: dict) -> dict:
        self.table.clear()
        self.handles.clear()
        self.handle_of.clear()
        return {"value": None}

    def move(self, message: dict) -> dict:
        """Goes where the judge runs: they talk in turns, and a core that sleeps is slow to wake."""
        os.sched_setaffinity(0, message["cores"])
        return {"value": None}

    def nothing(self, message: dict) -> dict:
        return {"value": None}

    def ask(self, number: int, arguments: tuple, named: dict):
        """A callback: asks the judge, serves what the judge asks meanwhile, returns the judge's answer."""
        encoder = Encoder(self.table, self._opaque)
        request = {"callback": number, "args": [encoder.encode(item) for item in arguments]}
        request["kwargs"] = {str(name): encoder.encode(value) for name, value in named.items()}
        send_frame(self.sock, request)
        answer = self.serve(until_answer=True)
        if "raise" in answer:
            import builtins

            raise getattr(builtins, answer["raise"]["type"], RuntimeError)(answer["raise"]["message"])
        return Decoder(self.table, self._special, arrays=True).decode(answer["answer"])

    def _read(self) -> bytes:
        return self.sock.recv(1 << 16) or os._exit(0)  # nothing to read: the judge is gone

    def serve(self, until_answer: bool = False) -> dict:
        """Answers requests for ever, or until the judge answers a callback."""
        while True:
            message = receive_frame(self.stream)
            if until_answer and "op" not in message:
                return message
            reply = self._do(message)
            if os.getpid() != self.pid:
                os._exit(0)  # a child that the learner's code forked and let run on
            if shims.flags != self.told:
                self.told = set(shims.flags)
                reply["flags"] = sorted(self.told)
            if output := self.output.take():
                reply["output"] = output[-4000:]
            try:
                send_frame(self.sock, reply)
            except Unsendable as reason:
                send_frame(self.sock, {"unsendable": str(reason)})

    def _do(self, message: dict) -> dict:
        """The reply to a request and to those that go before it: of the first that fails, where one does."""
        for earlier in message.get("first", ()):
            reply = self.requests[earlier["op"]](earlier)
            if "error" in reply:
                return reply
        return self.requests[message["op"]](message)


def work(sock, shell) -> None:
    """The life of a worker, from the fork to the judge's hanging up."""
    shims.install()
    shells.skip_installs(shell)
    seed = int.from_bytes(os.urandom(4), "little")  # the zygote's state would be the same in every box
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    try:
        Worker(sock, shell).serve()
    except (OSError, Malformed):
        os._exit(1)
