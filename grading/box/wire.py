"""Plain data on the wire between judge and worker: JSON, exact types, bounded; no code, no pickle.

A value is null, true, an int, a float or a string as itself; anything else is a list that begins with a tag:

    ["l", id, [items]]            list            ["t", [items]]                 tuple
    ["d", id, [[key, value], …]]  dict            ["T", id, dtype, shape, data]  torch tensor
    ["A", id, dtype, shape, data] numpy array (from the worker only one that the judge sent, in place);
                                  data: the numbers' bytes in base64
    ["r", id]                     an object already sent in this message
    ["o", handle, type name]      a worker's object without plain form: identity only
    ["c", number]                 a callback (judge to worker only)

A message is an object behind its length. The judge's carry "op" and may carry "first", requests to be done before it
and not answered by themselves: a turn from one process to the other costs more than the request. The worker's reply
has "value", "error" or "unsendable", and "changed", "flags", "output" where there is something to say.

Lists, dicts, tensors and arrays carry an id, so that both sides know when an argument comes back as a result
(aliasing) and changes made in place travel (copy in, copy out). Ids given by the judge are odd, by the worker even.

The bounds are on what a value is when written out, with what is referred to counted each time: a few references can
otherwise make a value that takes for ever to print or to compare. Nothing that contains itself crosses.
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
MAX_KEYS = 10_000  # of all dicts in one message: ints that collide make a dict of n keys cost n * n
MAX_ID = 1 << 53
MAX_OBJECTS = 100_000  # with identity, in one table
MAX_HANDLES = 4_000  # of objects without plain form, in one check
MAX_FRAME = 8 << 20  # bytes
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
        self._first = self._next = first_id
        self.by_id: dict[int, object] = {}
        self._ids: dict[int, int] = {}
        self.tuples: list[tuple] = []  # received, with containers in them

    def id_of(self, value: object) -> int:
        """The value's id, a new one for a value not seen before."""
        number = self._ids.get(id(value))
        if number is None:
            number = self._next
            self._next += 2
            self.bind(number, value)
        return number

    def knows(self, value: object) -> bool:
        return id(value) in self._ids

    def bind(self, number: int, value: object) -> None:
        stale = self.by_id.get(number)
        if stale is not None and stale is not value:
            self._ids.pop(id(stale), None)
        self.by_id[number] = value
        self._ids[id(value)] = number

    def may_receive(self, number: int) -> bool:
        """Whether the other side may send an object by this id: one that it gave, or one that this side sent."""
        if number in self.by_id:
            return True
        return 0 < number < MAX_ID and number % 2 != self._first % 2 and len(self.by_id) < MAX_OBJECTS

    def check(self) -> None:
        """Whether all that is held here is within the bounds, though it came in many messages. Raises Malformed."""
        done: dict[int, tuple[int, int]] = {}  # id(): number of values, depth

        def measure(value, above: int) -> tuple[int, int]:
            kind = type(value)
            if kind is not list and kind is not tuple and kind is not dict:
                return 1, 0
            known = done.get(id(value))
            if known is None:
                if above > 2 * MAX_DEPTH:
                    raise Malformed("nested too deep, or in itself")
                inner = [*value, *value.values()] if kind is dict else value
                parts = [measure(item, above + 1) for item in inner if type(item) in (list, tuple, dict)]
                known = 1 + len(inner) + sum(size for size, _ in parts), 1 + max((deep for _, deep in parts), default=0)
                if known[0] > 4 * MAX_NODES or known[1] > 2 * MAX_DEPTH:
                    raise Malformed("too large")
                done[id(value)] = known
            return known

        for value in (*self.by_id.values(), *self.tuples):
            measure(value, 0)

    def clear(self) -> None:
        self.by_id.clear()
        self._ids.clear()
        self.tuples.clear()


class Encoder:
    """Turns values into wire form. `special(value)` may give the form of what has no plain one, or None.

    arrays: whether any numpy array is sent, not only one that the other side knows.
    """

    def __init__(self, table: Table, special=None, arrays: bool = False):
        self.table = table
        self.special = special
        self.arrays = arrays
        self.sent: dict[int, object] = {}
        self._sizes: dict[int, int] = {}  # by id, of containers that are complete
        self._nodes = self._text = self._keys = 0

    def _count(self, values: int) -> None:
        self._nodes += values
        if self._nodes > MAX_NODES:
            raise Unsendable(f"more than {MAX_NODES} values")

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
        if kind is torch.Tensor or (kind is numpy.ndarray and (self.arrays or self.table.knows(value))):
            return self._matrix(kind, value)
        form = self.special(value) if self.special else None
        if form is None:
            raise Unsendable(f"an object of type {kind.__name__[:80]}")
        return form

    def _container(self, kind: type, value, depth: int):
        number = self.table.id_of(value)
        if number in self.sent:
            if number not in self._sizes:
                raise Unsendable("a structure that contains itself")
            self._count(self._sizes[number])
            return ["r", number]
        self.sent[number] = value
        before = self._nodes
        # a copy first: the owner may still be changing it
        if kind is list:
            body = [self.encode(item, depth + 1) for item in list(value)]
        else:
            self._keys += len(value)
            if self._keys > MAX_KEYS:
                raise Unsendable(f"more than {MAX_KEYS} keys")
            body = [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in list(value.items())]
        self._sizes[number] = self._nodes - before
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
        self._count(size)
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
        self.changed = False  # whether containers known before now hold others
        self._sizes: dict[int, tuple[int, int]] = {}  # by id, of containers that are complete: values, levels
        self._deepest = 0
        self._nodes = self._text = self._keys = 0

    def _again(self, number: int, depth: int) -> None:
        """Counts a container that is referred to as if it were written out once more."""
        if number not in self._sizes:
            raise Malformed("in itself")
        size, levels = self._sizes[number]
        self._nodes += size
        self._deepest = max(self._deepest, depth + levels)
        if self._nodes > 2 * MAX_NODES or self._deepest > MAX_DEPTH + 1:
            raise Malformed("too large")

    def decode(self, node, depth: int = 0):
        self._nodes += 1
        if self._nodes > 2 * MAX_NODES or depth > MAX_DEPTH + 1:
            raise Malformed("too large")
        if depth > self._deepest:
            self._deepest = depth
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
            value = tuple(self.decode(item, depth + 1) for item in body[0])
            if depth == 0 and any(type(item) in (list, tuple, dict) for item in value):
                self.table.tuples.append(value)
            return value
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
            if type(self.received[number]) in (list, dict):
                self._again(number, depth)
            return self.received[number]
        if number in self.received:
            raise Malformed("sent twice")
        if not self.table.may_receive(number):
            raise Malformed("id")
        if tag in ("l", "d"):
            return self._container(tag, number, body[1:], depth)
        if tag == "T" or (tag == "A" and (self.arrays or type(self.table.by_id.get(number)) is numpy.ndarray)):
            return self._matrix(tag, number, body[1:])
        raise Malformed(tag[:8])

    def _container(self, tag: str, number: int, body: list, depth: int):
        if len(body) != 1 or type(body[0]) is not list:
            raise Malformed(tag)
        kind = list if tag == "l" else dict
        known = self.table.by_id.get(number)
        if known is not None and type(known) is not kind:
            raise Malformed("kind")
        value = kind() if known is None else known
        self.received[number] = value
        before, above, self._deepest = self._nodes, self._deepest, depth
        if kind is list:
            items = [self.decode(item, depth + 1) for item in body[0]]
            value[:] = items
        else:
            self._keys += len(body[0])
            if self._keys > MAX_KEYS:
                raise Malformed("keys")
            pairs = []
            for pair in body[0]:
                if type(pair) is not list or len(pair) != 2:
                    raise Malformed("pair")
                pairs.append((self.decode(pair[0], depth + 1), self.decode(pair[1], depth + 1)))
            value.clear()
            try:
                value.update(pairs)
            except TypeError:
                raise Malformed("key") from None
            items = value.values()
        self._sizes[number] = self._nodes - before, self._deepest - depth
        self._deepest = max(above, self._deepest)
        if value is known and any(type(item) in (list, tuple, dict) for item in items):
            self.changed = True
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
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
            raise Malformed("numbers") from None
        if tuple(value.shape) != tuple(shape) or (not data and math.prod(shape)):
            raise Malformed("numbers")
        if dtype == "bool" and data and max(data) > 1:
            raise Malformed("bool")
        known = self.table.by_id.get(number)
        if known is not None and (type(known) is not type(value) or known.dtype != value.dtype):
            raise Malformed("kind")
        if known is not None and known.shape == value.shape:
            try:
                with torch.no_grad():
                    known[...] = value
            except (ValueError, RuntimeError):
                raise Malformed("read-only") from None
            value = known
        self.received[number] = value
        self.table.bind(number, value)
        return value


# made once: json.dumps with separators makes an encoder a call
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().decode
_LENGTH = struct.Struct("!I")


def as_frame(message: dict) -> bytes:
    """One message as length-prefixed JSON. Raises Unsendable."""
    data = _to_json(message).encode("ascii")
    if len(data) > MAX_FRAME:
        raise Unsendable(f"more than {MAX_FRAME} bytes")
    return _LENGTH.pack(len(data)) + data


def send_frame(sock, message: dict) -> None:
    """Writes one message. Raises OSError, Unsendable."""
    sock.sendall(as_frame(message))


class Stream:
    """Bytes as they come, to be read as messages. `read()` returns the next ones, at least one, or raises."""

    def __init__(self, read):
        self.read = read
        self.rest = b""  # came with an earlier message


def receive_frame(stream: Stream) -> dict:
    """Reads one message. Raises Malformed."""
    data = stream.rest or stream.read()
    while len(data) < 4:
        data += stream.read()
    (size,) = _LENGTH.unpack_from(data)
    if size > MAX_FRAME:
        raise Malformed(f"a message of {size} bytes")
    end = size + 4
    if len(data) < end:
        longer = bytearray(data)
        while len(longer) < end:
            longer += stream.read()
        data = bytes(longer)
    stream.rest = data[end:]
    try:
        message = _from_json(str(data[4:end], "ascii"))
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if type(message) is not dict:
        raise Malformed("not an object")
    return message
