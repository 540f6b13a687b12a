"""What stands for the learner's names in the judge: calls and attributes are forwarded, plain data comes back."""

from __future__ import annotations

import builtins
import re

import numpy
import torch

from grading.box.wire import MAX_HANDLES, Decoder, Encoder, Malformed, Table, Unsendable
from grading.judge.worker import Worker

MAX_MESSAGE = 2_000
MAX_SHOWN = 300  # characters of a call's description


class NoPlainForm(Exception):
    """The learner's code returned what has no plain form within the bounds: cyclic, too deep, too large."""


def exception_of(error: dict) -> Exception:
    """The exception of the nearest builtin class that a worker's error names; RuntimeError where it names none."""
    kind = getattr(builtins, error["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    message = error["message"][:MAX_MESSAGE]
    if error["name"] != kind.__name__:
        message = f"{error['name'][:80]}: {message}"
    try:
        return kind(message)
    except TypeError:  # UnicodeDecodeError and its like want more arguments
        return RuntimeError(f"{kind.__name__}: {message}")


def shown(value: object) -> str:
    """An argument as a learner would like to read it: a matrix by its shape, not by a screenful of numbers."""
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    try:
        text = repr(value)
    except Exception as error:  # what the learner's code has made of an argument
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


class Link:
    """One worker as seen by one check: identities, handles, stand-ins. Nothing of it outlives the check.

    methods: names that the chapter's own classes define as methods; they are forwarded as calls unasked.
    """

    def __init__(self, worker: Worker, methods: frozenset[str] = frozenset()):
        self.worker = worker
        self.methods = methods
        self.table = Table(first_id=1)
        self.stand_ins: dict[int, tuple[int, object]] = {}  # number: (handle of its instance, function)
        self.objects: dict[int, RemoteObject] = {}
        self._last_call: tuple | None = None
        self._active: list[object] = []  # targets of the calls under way

    # --- values ------------------------------------------------------------------------------------------------------

    def encode(self, value):
        return self._encoder().encode(value)

    def _encoder(self) -> Encoder:
        def special(item):
            if isinstance(item, RemoteObject):
                return ["o", object.__getattribute__(item, "_handle"), ""]
            return None

        return Encoder(self.table, special, arrays=True)

    def _opaque(self, tag: str, body: list):
        if tag != "o" or len(body) != 2 or type(body[0]) is not int or type(body[1]) is not str:
            raise Malformed(tag)
        handle = body[0]
        if handle not in self.objects:
            if len(self.objects) >= MAX_HANDLES:
                raise Malformed("objects")
            module, _, name = re.sub(r"[^\w.]", "_", body[1][:80]).rpartition(".")
            name = name or "object"
            kind = type(name, (RemoteObject,), {"__slots__": (), "__module__": module or "builtins"})
            self.objects[handle] = kind(self, handle, name)
        return self.objects[handle]

    def decode(self, *nodes) -> list:
        """The values of one message's nodes."""
        try:
            values, changed = [], False
            for node in nodes:
                decoder = Decoder(self.table, self._opaque)
                values.append(decoder.decode(node))
                changed = changed or decoder.changed
            if changed:
                self.table.check()
            return values
        except (Malformed, RecursionError) as reason:
            raise self.worker.malformed(reason) from None

    @property
    def last_call(self) -> str:
        """The last call as it would be written, '' before the first; made only when asked for, since repr is slow."""
        if self._last_call is None:
            return ""
        name, arguments, named = self._last_call
        listed = [shown(item) for item in arguments] + [f"{key}={shown(value)}" for key, value in named.items()]
        return f"{name}({', '.join(listed)})"

    # --- requests ----------------------------------------------------------------------------------------------------

    def _result(self, reply: dict, arguments: int = 0):
        """The value of a reply to a request that has sent so many objects, which may have changed."""
        changed = reply.get("changed", [])
        if len(changed) > arguments:
            raise self.worker.malformed("changed")
        self.decode(*changed)
        if "unsendable" in reply:
            raise NoPlainForm(str(reply["unsendable"])[:MAX_MESSAGE])
        if reply.get("error") is not None:
            raise exception_of(reply["error"]) from None
        if "value" not in reply:
            raise self.worker.malformed("no value")
        return self.decode(reply["value"])[0]

    def call(self, target: list, attr: str | None, shown_name: str, arguments: tuple, named: dict):
        encoder = self._encoder()
        message = {"op": "call", "target": target, "attr": attr}
        message["args"] = [encoder.encode(item) for item in arguments]
        message["kwargs"] = {name: encoder.encode(value) for name, value in named.items()}
        self._last_call = (shown_name, arguments, named)
        self._active.append(target[1])
        try:
            return self._result(self.worker.request(message, answer=self._answer), len(encoder.sent))
        finally:
            self._active.pop()

    def get(self, target: list, attr: str, shown_name: str):
        if attr in self.methods:
            return RemoteMethod(self, target, attr, shown_name)
        reply = self.worker.request({"op": "get", "target": target, "attr": attr})
        if reply.get("method") is True:
            return RemoteMethod(self, target, attr, shown_name)
        return self._result(reply)

    def set(self, target: list, attr: str, value: object) -> None:
        if callable(value) and not isinstance(value, RemoteObject):
            number = len(self.stand_ins) + 1
            self.stand_ins[number] = (target[1], value)
            node = ["c", number]
        else:
            node = self.encode(value)
        self.worker.post({"op": "set", "target": target, "attr": attr, "value": node})

    def settle(self) -> None:
        """Has done what was only posted. Raises what it raised."""
        if reply := self.worker.settle():
            self._result(reply)

    def _answer(self, frame: dict) -> dict:
        """A stand-in is called back: valid only while its own instance is being called."""
        number, arguments, named = frame.get("callback"), frame.get("args"), frame.get("kwargs")
        if type(number) is not int or type(arguments) is not list or type(named) is not dict:
            raise self.worker.malformed("callback")
        owner, function = self.stand_ins.get(number, (None, None))
        if function is None or owner not in self._active:
            return {"raise": {"type": "RuntimeError", "message": "a stand-in was called outside its own check"}}
        values = self.decode(*arguments, *named.values())
        pairs = dict(zip(named, values[len(arguments) :], strict=True))
        try:
            return {"answer": self.encode(function(*values[: len(arguments)], **pairs))}
        except Unsendable as reason:
            return {"raise": {"type": "TypeError", "message": str(reason)}}
        except Exception as error:
            kind = type(error).__name__ if type(error).__module__ == "builtins" else "RuntimeError"
            return {"raise": {"type": kind, "message": str(error)[:MAX_MESSAGE]}}


class RemoteObject:
    """A learner's object: identity, attributes and calls; never equal to anything but itself, without a length."""

    __slots__ = ("_link", "_handle", "_name")

    def __init__(self, link: Link, handle: int, name: str):
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_handle", handle)
        object.__setattr__(self, "_name", name)

    def _target(self) -> list:
        return ["obj", object.__getattribute__(self, "_handle")]

    def __getattr__(self, attr: str):
        if attr.startswith("__") and attr.endswith("__"):
            raise AttributeError(attr)
        return self._link.get(self._target(), attr, f"{self._name}.{attr}")

    def __setattr__(self, attr: str, value: object) -> None:
        self._link.set(self._target(), attr, value)

    def __call__(self, /, *arguments, **named):
        return self._link.call(self._target(), None, self._name, arguments, named)

    def __repr__(self) -> str:
        return f"<{self._name} object>"


class RemoteMethod:
    """A bound method of a learner's object."""

    def __init__(self, link: Link, target: list, attr: str, shown_name: str):
        self._link, self._at, self._attr, self._shown = link, target, attr, shown_name

    def __call__(self, /, *arguments, **named):
        return self._link.call(self._at, self._attr, self._shown, arguments, named)


class RemoteName:
    """A name that the solution cells define: a class or a function of the learner's."""

    def __init__(self, link: Link, name: str):
        self.__dict__.update(_link=link, _name=name)

    def __setattr__(self, attr: str, value: object) -> None:
        raise TypeError(f"a stand-in belongs on an instance, not on {self._name} itself")

    def __call__(self, /, *arguments, **named):
        return self._link.call(["name", self._name], None, self._name, arguments, named)

    def __getattr__(self, attr: str):
        if attr.startswith("__") and attr.endswith("__"):
            raise AttributeError(attr)
        return self._link.get(["name", self._name], attr, f"{self._name}.{attr}")

    def __repr__(self) -> str:
        return f"<learner's {self._name}>"
