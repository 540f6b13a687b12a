"""Plain data on the wire between judge and worker: JSON, exact types, bounded; no code, no pickle.

A value is null, true, an int, a float or a string as itself; anything else is a list that begins with a tag:

    ["l", id, [items]]            list            ["t", [items]]                 tuple
    ["d", id, [[key, value], …]]  dict            ["T", id, dtype, shape, data]  torch tensor
    ["A", id, dtype, shape, data] numpy array (judge to worker only); data: the numbers' bytes in base64
    ["r", id]                     an object already sent in this message
    ["o", handle, type name]      a worker's object without plain form: identity only
    ["c", number]                 a callback (judge to worker only)

Lists, dicts, tensors and arrays carry an id, so that both sides know when an argument comes back as a result
(aliasing) and changes made in place travel (copy in, copy out). Ids given by the judge are odd, by the worker even.
"""

from __future__ import annotations

import base64
import json
import math
import struct

import numpy
import torch

MAX_DEPTH = 24
MAX_NODES = 200_000
MAX_TEXT = 1_000_000  # characters of all strings in one message
MAX_INT_BITS = 2048
MAX_FRAME = 16 << 20  # bytes
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}
ARRAY_KINDS = "biuf"


class Unsendable(Exception):
    """A value has no plain form within the bounds; the message says why."""


class Malformed(Exception):
    """A message that is not in this format."""


class Table:
    """The objects with identity that this side has sent or received, by id and by identity; kept alive here."""

    def __init__(self, first_id: int):
        self._next = first_id
        self.by_id: dict[int, object] = {}
        self._ids: dict[int, int] = {}

    def id_of(self, value: object) -> int:
        """The value's id, a new one for a value not seen before."""
        number = self._ids.get(id(value))
        if number is None:
            number = self._next
            self._next += 2
            self.bind(number, value)
        return number

    def bind(self, number: int, value: object) -> None:
        stale = self.by_id.get(number)
        if stale is not None and stale is not value:
            self._ids.pop(id(stale), None)
        self.by_id[number] = value
        self._ids[id(value)] = number

    def clear(self) -> None:
        self.by_id.clear()
        self._ids.clear()


class Encoder:
    """Turns values into wire form. `special(value)` may give the form of what has no plain one, or None."""

    def __init__(self, table: Table, special=None):
        self.table = table
        self.special = special
        self.sent: dict[int, object] = {}
        self._open: set[int] = set()
        self._nodes = self._text = 0

    def encode(self, value, depth: int = 0):
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise Unsendable(f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise Unsendable(f"nested more than {MAX_DEPTH} deep")
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:
                raise Unsendable(f"an int of more than {MAX_INT_BITS} bits")
            return value
        if kind is str:
            self._text += len(value)
            if self._text > MAX_TEXT:
                raise Unsendable(f"more than {MAX_TEXT} characters of text")
            return value
        if kind is tuple:
            return ["t", [self.encode(item, depth + 1) for item in value]]
        if kind is list or kind is dict:
            return self._container(kind, value, depth)
        if kind is torch.Tensor or kind is numpy.ndarray:
            return self._matrix(kind, value)
        form = self.special(value) if self.special else None
        if form is None:
            raise Unsendable(f"an object of type {kind.__name__[:80]}")
        return form

    def _container(self, kind: type, value, depth: int):
        number = self.table.id_of(value)
        if number in self._open:
            raise Unsendable("a structure that contains itself")
        if number in self.sent:
            return ["r", number]
        self.sent[number] = value
        self._open.add(number)
        # a copy first: the owner may still be changing it
        if kind is list:
            body = [self.encode(item, depth + 1) for item in list(value)]
        else:
            body = [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in list(value.items())]
        self._open.discard(number)
        return ["l" if kind is list else "d", number, body]

    def _matrix(self, kind: type, value):
        number = self.table.id_of(value)
        if number in self.sent:
            return ["r", number]
        if kind is torch.Tensor:
            dtype, size, tag = str(value.dtype).removeprefix("torch."), value.numel(), "T"
            if dtype not in DTYPES or value.layout is not torch.strided or value.is_meta or value.is_quantized:
                raise Unsendable(f"a tensor of {dtype}, {value.layout}")
        else:
            dtype, size, tag = value.dtype.str, value.size, "A"
            if value.dtype.kind not in ARRAY_KINDS:
                raise Unsendable(f"an array of {dtype}")
        self._nodes += size
        if self._nodes > MAX_NODES:
            raise Unsendable(f"more than {MAX_NODES} numbers")
        self.sent[number] = value
        if kind is torch.Tensor:
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if size else b""
        else:
            data = value.tobytes()
        return [tag, number, dtype, list(value.shape), base64.b64encode(data).decode("ascii")]


class Decoder:
    """Turns wire form into values, in place where the id is known. Everything is checked: raises Malformed.

    `special(tag, body)` makes the value of an "o" or "c" node; arrays only where `arrays` is set.
    """

    def __init__(self, table: Table, special=None, arrays: bool = False):
        self.table = table
        self.special = special
        self.arrays = arrays
        self.received: dict[int, object] = {}
        self._nodes = self._text = 0

    def decode(self, node, depth: int = 0):
        self._nodes += 1
        if self._nodes > 2 * MAX_NODES or depth > MAX_DEPTH + 1:
            raise Malformed("too large")
        kind = type(node)
        if node is None or kind is bool or kind is float:
            return node
        if kind is int:
            if node.bit_length() > MAX_INT_BITS:
                raise Malformed("int")
            return node
        if kind is str:
            self._text += len(node)
            if self._text > 2 * MAX_TEXT:
                raise Malformed("text")
            return node
        if kind is not list or not node or type(node[0]) is not str:
            raise Malformed("node")
        tag, body = node[0], node[1:]
        if tag == "t" and len(body) == 1 and type(body[0]) is list:
            return tuple(self.decode(item, depth + 1) for item in body[0])
        if tag in ("o", "c"):
            if self.special is None:
                raise Malformed(tag)
            return self.special(tag, body)
        if not body or type(body[0]) is not int:
            raise Malformed(tag)
        number = body[0]
        if tag == "r":
            if len(body) != 1 or number not in self.received:
                raise Malformed("reference")
            return self.received[number]
        if number in self.received:
            raise Malformed("sent twice")
        if tag in ("l", "d"):
            return self._container(tag, number, body[1:], depth)
        if tag == "T" or (tag == "A" and self.arrays):
            return self._matrix(tag, number, body[1:])
        raise Malformed(tag[:8])

    def _container(self, tag: str, number: int, body: list, depth: int):
        if len(body) != 1 or type(body[0]) is not list:
            raise Malformed(tag)
        kind = list if tag == "l" else dict
        known = self.table.by_id.get(number)
        value = known if type(known) is kind else kind()
        self.received[number] = value
        if kind is list:
            value[:] = [self.decode(item, depth + 1) for item in body[0]]
        else:
            items = []
            for pair in body[0]:
                if type(pair) is not list or len(pair) != 2:
                    raise Malformed("pair")
                items.append((self.decode(pair[0], depth + 1), self.decode(pair[1], depth + 1)))
            value.clear()
            try:
                value.update(items)
            except TypeError:
                raise Malformed("key") from None
        self.table.bind(number, value)
        return value

    def _matrix(self, tag: str, number: int, body: list):
        if len(body) != 3 or type(body[0]) is not str or type(body[1]) is not list or type(body[2]) is not str:
            raise Malformed(tag)
        dtype, shape, text = body
        if not all(type(n) is int and 0 <= n <= MAX_NODES for n in shape) or len(shape) > MAX_DEPTH:
            raise Malformed("shape")
        self._nodes += math.prod(shape)
        if self._nodes > 2 * MAX_NODES:
            raise Malformed("too large")
        try:
            data = bytearray(base64.b64decode(text, validate=True))
            if tag == "A":
                value = numpy.frombuffer(data, numpy.dtype(dtype)).reshape(shape)
            elif data:
                value = torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape)
            else:
                value = torch.empty(shape, dtype=DTYPES[dtype])
        except (KeyError, TypeError, ValueError, RuntimeError):
            raise Malformed("numbers") from None
        if tuple(value.shape) != tuple(shape) or (not data and math.prod(shape)):
            raise Malformed("numbers")
        known = self.table.by_id.get(number)
        if type(known) is type(value) and known.shape == value.shape and known.dtype == value.dtype:
            with torch.no_grad():
                known[...] = value
            value = known
        self.received[number] = value
        self.table.bind(number, value)
        return value


def send_frame(sock, message: dict) -> None:
    """Writes one length-prefixed JSON message. Raises OSError, Unsendable."""
    data = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    if len(data) > MAX_FRAME:
        raise Unsendable(f"more than {MAX_FRAME} bytes")
    sock.sendall(struct.pack("!I", len(data)) + data)


def receive_frame(receive) -> dict:
    """Reads one message; `receive(n)` returns exactly n bytes or raises. Raises Malformed."""
    (size,) = struct.unpack("!I", receive(4))
    if size > MAX_FRAME:
        raise Malformed(f"a message of {size} bytes")
    try:
        message = json.loads(receive(size))
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if type(message) is not dict:
        raise Malformed("not an object")
    return message
