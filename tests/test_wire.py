"""The wire between judge and worker: what goes in comes out, and nothing else gets through."""

import copy
import json
import math
import random
import socket
import struct
import threading
import time

import numpy
import pytest
import torch

from grading.box import wire
from grading.box.wire import Decoder, Encoder, Malformed, Stream, Table, Unsendable, receive_frame, send_frame

JUDGE, WORKER = 1, 2  # the first id that each side gives


class Wire:
    """Both ends: the judge's table and the worker's."""

    def __init__(self):
        self.judge, self.worker = Table(JUDGE), Table(WORKER)

    def ask(self, value):
        """From the judge to the worker."""
        node = json.loads(json.dumps(Encoder(self.judge, arrays=True).encode(value)))
        return Decoder(self.worker, arrays=True).decode(node)

    def answer(self, value):
        """From the worker to the judge."""
        return Decoder(self.judge).decode(json.loads(json.dumps(Encoder(self.worker).encode(value))))


def there_and_back(value):
    ends = Wire()
    return ends.answer(copy.deepcopy(value)), ends.ask(value)


def decoded(node, table: Table | None = None):
    """A node from the worker, as the judge takes it."""
    return Decoder(table or Table(JUDGE)).decode(node)


# --- round trips ------------------------------------------------------------------------------------------------------

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**64),
    2**2047,
    0.5,
    1e308,
    5e-324,
    math.pi,
    "",
    '文字 🎓 \x00 \n " \\ \u2028',
    "\ud800",
    "t",
    [],
    {},
    (),
    [1, 2.0, True, None, "x"],
    ["l", 3, [1]],
    ["r", 5],
    ("T", 1, "int64", [1], ""),
    [[[], [()]], ({},)],
    {1: "int", "1": "str", 1.5: "float", (1, ("a",)): "tuple", None: "none"},
    {"l": ["o", 1, "x"], "nested": {"deep": [({"a": (1,)},)]}},
    [{"proposed_tokens": [10, 20], "rejected_at": None, "progress_per_round": 2 / 3}],
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: ascii(value)[:40])
def test_plain_values_come_back_as_they_went(value):
    for got in there_and_back(value):
        assert got == value and type(got) is type(value)
        assert repr(got) == repr(value)  # bool and int, list and tuple, the order of keys


@pytest.mark.parametrize("value", [-0.0, 0.0, math.inf, -math.inf, math.nan])
def test_special_floats_keep_their_bits(value):
    for got in there_and_back(value):
        assert struct.pack("d", got) == struct.pack("d", value)


def test_bool_and_int_stay_apart_also_as_keys():
    for got in there_and_back([True, 1, False, 0, {True: 1}, {1: True}]):
        assert [type(item) for item in got[:4]] == [bool, int, bool, int]
        assert type(next(iter(got[4]))) is bool and type(next(iter(got[5]))) is int


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 3), (0, 4), (2, 0, 5), (1, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("name", wire.DTYPES)
def test_tensors_of_every_type_and_shape(name, shape):
    value = (torch.arange(math.prod(shape)) % 2).reshape(shape).to(wire.DTYPES[name])
    for got in there_and_back(value):
        assert type(got) is torch.Tensor and got.dtype == value.dtype and got.shape == value.shape
        assert torch.equal(got, value) and got.device == value.device


def test_tensors_with_odd_bits_layouts_and_gradients():
    values = torch.tensor([-0.0, math.inf, -math.inf, math.nan, 5e-324, 1e308], dtype=torch.float64)
    for got in there_and_back(values):
        assert got.numpy().tobytes() == values.numpy().tobytes()
    base = torch.arange(12.0).reshape(3, 4)
    for value in (base.t(), base[:, 1::2], base[1], base.expand(2, 3, 4), base.clone().requires_grad_(), base.conj()):
        for got in there_and_back(value.detach()):
            assert torch.equal(got, value) and not got.requires_grad
    assert torch.equal(Wire().answer(base.clone().requires_grad_()), base)
    assert torch.equal(Wire().answer(torch.nn.Parameter(base).data), base)


@pytest.mark.parametrize("kind", ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", ">i4", ">f8"])
def test_arrays_reach_the_worker(kind):
    for shape in ((), (0,), (3,), (2, 3)):
        value = (numpy.arange(math.prod(shape)) % 2).reshape(shape).astype(kind)
        got = Wire().ask(value)
        assert type(got) is numpy.ndarray and got.dtype == value.dtype and numpy.array_equal(got, value)
        got[...] = 1  # the learner may write to it
    turned = numpy.arange(6).reshape(2, 3).T
    assert numpy.array_equal(Wire().ask(turned), turned)


def test_only_the_judges_own_arrays_reach_the_judge():
    ends = Wire()
    with pytest.raises(Unsendable):
        ends.answer(numpy.zeros(3))
    array = numpy.zeros(2)
    inside = ends.ask(array)
    inside[1] = 3
    assert ends.answer(inside) is array and array.tolist() == [0, 3]
    fixed = numpy.broadcast_to(array, (2, 2))
    inside = ends.ask(fixed)
    inside[0, 0] = 8
    with pytest.raises(Malformed):  # what could not be changed over there either
        ends.answer(inside)
    with pytest.raises(Malformed):
        decoded(["A", 1, "|O", [1], ZEROS], ends.judge)


# --- identity ---------------------------------------------------------------------------------------------------------


def test_aliases_stay_aliases_within_a_message():
    shared, tensor = [1], torch.zeros(2)
    for got in there_and_back([shared, shared, {"again": shared}, (shared,), tensor, tensor]):
        assert got[0] is got[1] is got[2]["again"] is got[3][0]
        assert got[4] is got[5]


def test_equal_is_not_the_same():
    for got in there_and_back([[1], [1], {}, {}, torch.zeros(1), torch.zeros(1)]):
        assert len({id(item) for item in got}) == len(got)


def test_an_argument_comes_back_as_itself_and_keeps_its_changes():
    ends = Wire()
    draft, table, probs = [1, 2, 3], {"a": [1]}, torch.zeros(3)
    inside = ends.ask([draft, table, probs])
    inside[0].append(4)
    inside[1]["a"].clear()
    inside[1]["b"] = (True,)
    inside[2][1] = 7
    back = ends.answer(inside)
    assert back[0] is draft and draft == [1, 2, 3, 4]
    assert back[1] is table and table == {"a": [], "b": (True,)}
    assert back[2] is probs and probs.tolist() == [0, 7, 0]


def test_a_result_seen_again_is_the_same_object_and_a_fresh_one_is_not():
    ends = Wire()
    history = [{"round": 1}]
    first = ends.answer(history)
    history.append({"round": 2})
    second = ends.answer(history)
    assert second is first == [{"round": 1}, {"round": 2}]
    assert ends.answer(list(history)) is not first


def test_an_object_that_dies_gives_its_identity_to_nobody():
    ends = Wire()
    seen = {id(ends.answer([number])) for number in range(100)}
    assert len(seen) == 100  # all kept alive, in both tables


# --- bounds -----------------------------------------------------------------------------------------------------------


class Sub(list):
    pass


class Word(str):
    pass


def nested(depth, value=()):
    for _ in range(depth):
        value = [value]
    return value


def cyclic():
    value = [1]
    value.append({"self": value})
    return value


def doubled(levels):
    """2 ** levels leaves, `levels` lists."""
    value = [1]
    for _ in range(levels):
        value = [value, value]
    return value


UNSENDABLE = {
    "set": {1},
    "bytes": b"x",
    "complex": 1j,
    "range": range(3),
    "generator": (n for n in ()),
    "function": print,
    "class": list,
    "list subclass": Sub([1]),
    "str subclass": Word("x"),
    "bool subclass of numpy": numpy.bool_(True),
    "numpy scalar": numpy.float64(1.0),
    "long int": 1 << 2048,
    "long negative int": -(1 << 2048),
    "long text": "x" * 1_000_001,
    "long texts": ["x" * 600_000, "y" * 600_000],
    "many values": [0] * 200_001,
    "deep": nested(30),
    "deep tuples": ((((((((((((((((((((((((((((((1,),),),),),),),),),),),),),),),),),),),),),),),),),),),),),),
    "cyclic": cyclic(),
    "doubled": doubled(20),
    "many keys": dict.fromkeys(range(20_000)),
    "complex tensor": torch.zeros(1, dtype=torch.complex64),
    "sparse tensor": torch.zeros(2, 2).to_sparse(),
    "meta tensor": torch.zeros(1, device="meta"),
    "large tensor": torch.zeros(200_001),
    "expanded tensor": torch.zeros(1).expand(10**9),
    "tensor subclass": torch.nn.Parameter(torch.zeros(1)),
    "object array": numpy.array([None]),
    "text array": numpy.array(["x"]),
    "structured array": numpy.zeros(1, dtype=[("a", "i4")]),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_has_no_plain_form_is_refused_at_once(name):
    started = time.monotonic()
    for value in (UNSENDABLE[name], [UNSENDABLE[name]], {"key": UNSENDABLE[name]}):
        with pytest.raises(Unsendable):
            Encoder(Table(WORKER)).encode(value)
    assert time.monotonic() - started < 10  # not minutes; the machine may be busy


def test_what_fits_just_passes():
    for value in ([0] * 199_999, "x" * 1_000_000, nested(23), 2**2048 - 1, torch.zeros(199_000), doubled(10)):
        Wire().answer(value)


ZEROS = "AAAAAAAAAAA="  # eight bytes
MALFORMED = {
    "object": {},
    "empty": [],
    "no tag": [1],
    "unknown tag": ["x", 2],
    "list as tag": [["l"], 2, []],
    "tuple without body": ["t"],
    "tuple of a dict": ["t", {}],
    "tuple with an id": ["t", 2, []],
    "list without id": ["l", []],
    "list with a float id": ["l", 2.0, []],
    "list with a bool id": ["l", True, []],
    "list with a text id": ["l", "2", []],
    "negative id": ["l", -2, []],
    "id zero": ["l", 0, []],
    "huge id": ["l", 2**64, []],
    "an id of the judge's that it never gave": ["l", 7, []],
    "list of a text": ["l", 2, "abc"],
    "list with too much": ["l", 2, [], []],
    "dict with a lone key": ["d", 2, [["a"]]],
    "dict with three": ["d", 2, [["a", 1, 2]]],
    "dict with text for a pair": ["d", 2, ["ab"]],
    "dict with a list as key": ["d", 2, [[["l", 4, []], 1]]],
    "dict with a dict as key": ["d", 2, [[["d", 4, []], 1]]],
    "object for items": ["d", 2, {"a": 1}],
    "reference to nothing": ["r", 2],
    "reference with too much": ["l", 2, [["r", 2, 3]]],
    "sent twice": ["l", 2, [["l", 4, []], ["l", 4, []]]],
    "list in itself": ["l", 2, [["r", 2]]],
    "list in itself, by its own id": ["l", 2, [["l", 2, []]]],
    "dict in itself": ["d", 2, [["a", ["t", [["r", 2]]]]]],
    "callback": ["c", 1],
    "object of the worker's": ["o", 1, "x"],
    "array": ["A", 2, "<f8", [1], ZEROS],
    "tensor without data": ["T", 2, "float64", [1]],
    "tensor with too little": ["T", 2, "float64", [2], ZEROS],
    "tensor with too much": ["T", 2, "float32", [1], ZEROS],
    "tensor of nothing, with a size": ["T", 2, "float32", [1], ""],
    "tensor of an unknown type": ["T", 2, "complex64", [1], ZEROS],
    "tensor of an attribute of torch": ["T", 2, "load", [1], ZEROS],
    "tensor with a negative size": ["T", 2, "float64", [-1], ZEROS],
    "tensor with a bool size": ["T", 2, "float64", [True], ZEROS],
    "tensor with a huge size": ["T", 2, "float64", [10**30], ZEROS],
    "tensor that overflows": ["T", 2, "float64", [200_000] * 24, ""],
    "tensor of many sizes": ["T", 2, "float64", [1] * 99, ZEROS],
    "tensor with text for a shape": ["T", 2, "float64", "1", ZEROS],
    "tensor with bad base64": ["T", 2, "float64", [1], "!!!!"],
    "tensor with text beyond ASCII": ["T", 2, "float64", [1], "文"],
    "bool tensor with a seven": ["T", 2, "bool", [1], "Bw=="],
    "long int": 1 << 4096,
    "deep": ["t", [nested(30)]],
    "many": ["l", 2, [0] * 500_000],
    "many at once": ["t", [["t", [["r", 2]] * 700]] * 700],
    "long text": "x" * 3_000_000,
    "doubled": None,  # made below
    "keys that collide": ["d", 2, [[n * (2**61 - 1), 0] for n in range(150_000)]],
    "ids that collide": ["t", [["l", 2 * n * (2**61 - 1), []] for n in range(1, 150_000)]],
}
node = ["l", 2, [1]]
for level in range(60):
    node = ["l", 4 + 2 * level, [["r", 2 + 2 * level]] * 8]
    MALFORMED["doubled"] = ["t", [*(MALFORMED["doubled"] or ["t", [["l", 2, [1]]]])[1], node]]


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_is_named_so_and_quickly(name):
    started = time.monotonic()
    with pytest.raises(Malformed):
        decoded(json.loads(json.dumps(MALFORMED[name])))
    assert time.monotonic() - started < 10  # not minutes; the machine may be busy


def test_deep_nesting_by_reference_is_refused():
    """A chain of references would be deeper than any message: comparing and printing it would overflow."""
    links = [["l", 2, []]] + [["l", 2 + 2 * n, [["r", 2 * n]]] for n in range(1, 60)]
    with pytest.raises(Malformed):
        decoded(["t", links])


def test_growing_by_many_messages_is_refused():
    """Each message is small; but each hangs two more of the next size below what the judge already holds."""
    table = Table(JUDGE)
    decoded(["l", 2, []], table)
    with pytest.raises(Malformed):
        for number in range(2, 200, 2):
            decoded(["l", number, [["l", number + 2, []], ["r", number + 2]]], table)
            table.check()
    table = Table(JUDGE)
    decoded(["t", [["l", 2, []], ["r", 2]]], table)
    with pytest.raises(Malformed):
        for number in range(2, 200, 2):
            decoded(["l", number, [["t", [["l", number + 2, []], ["r", number + 2]]]]], table)
            table.check()


def test_cycles_by_two_messages_are_refused():
    table = Table(JUDGE)
    decoded(["l", 2, [["l", 4, []]]], table)
    decoded(["l", 6, [["l", 8, []]]], table)
    decoded(["l", 4, [["l", 6, []]]], table)
    with pytest.raises(Malformed):
        decoded(["l", 8, [["t", [["l", 2, []]]]]], table)
        decoded(["l", 2, [["l", 4, [["l", 6, [["l", 8, [["r", 2]]]]]]]]], table)
        table.check()


def test_an_id_never_changes_its_kind():
    for first, second in (("l", "d"), ("d", "l")):
        table = Table(JUDGE)
        decoded([first, 2, []], table)
        for node in ([second, 2, []], ["T", 2, "uint8", [0], ""]):
            with pytest.raises(Malformed):
                decoded(node, table)
    table = Table(JUDGE)
    tensor = decoded(["T", 2, "uint8", [1], "AQ=="], table)
    assert decoded(["T", 2, "uint8", [1], "Ag=="], table) is tensor and tensor.tolist() == [2]
    assert decoded(["T", 2, "uint8", [2], "AgI="], table) is not tensor  # resized
    with pytest.raises(Malformed):
        decoded(["l", 2, []], table)


def test_table_does_not_grow_for_ever():
    table = Table(JUDGE)
    with pytest.raises(Malformed):
        for start in range(2, 10**7, 100_000):
            decoded(["t", [["l", number, []] for number in range(start, start + 100_000, 2)]], table)


# --- frames -----------------------------------------------------------------------------------------------------------


def received(data: bytes):
    parts = iter([data])

    def read():
        return next(parts, None) or pytest.fail("asked for more")

    return receive_frame(Stream(read))


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


def test_frames_arrive_whole():
    ours, theirs = socket.socketpair()
    message = {"args": ["\u2028文\ud800", [1] * 50_000], "n": math.inf}
    sender = threading.Thread(target=send_frame, args=(ours, message))
    sender.start()

    assert receive_frame(Stream(lambda: theirs.recv(1000))) == message
    sender.join()
    ours.close(), theirs.close()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10_000])
def test_messages_are_told_apart_however_they_come(size):
    messages = [{"value": number, "text": "文" * number} for number in range(20)]
    ours, theirs = socket.socketpair()
    for message in messages:
        send_frame(ours, message)
    stream = Stream(lambda: theirs.recv(size))
    assert [receive_frame(stream) for _ in messages] == messages
    ours.close(), theirs.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"a": 1} {"b": 2}',
        b'{"a": \x00}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"value": ' + b"1" * 10_000 + b"}",
        b'{"value": -Infinit}',
    ],
    ids=lambda body: ascii(body[:24]),
)
def test_bad_frames_are_malformed(body):
    with pytest.raises(Malformed):
        received(framed(body))


def test_a_length_beyond_the_bound_is_refused_before_anything_is_read():
    for size in (wire.MAX_FRAME + 1, 2**31, 2**32 - 1):
        with pytest.raises(Malformed):
            received(struct.pack("!I", size))


def test_a_message_beyond_the_bound_is_not_sent():
    ours, theirs = socket.socketpair()
    with pytest.raises(Unsendable):
        send_frame(ours, {"value": "x" * wire.MAX_FRAME})
    ours.close(), theirs.close()


# --- at random --------------------------------------------------------------------------------------------------------


def tree(rng, depth=0):
    """A well-formed value."""
    kind = rng.randrange(12 if depth < 5 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, 1, -1, 2**40, -(2**70)])
    if kind in (2, 3):
        return rng.choice([0.0, -0.0, 1.5, math.inf, 1e-300])
    if kind in (4, 5):
        return rng.choice(["", "l", "文", "x" * 50])
    if kind in (6, 7):
        return [tree(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 8:
        return tuple(tree(rng, depth + 1) for _ in range(rng.randrange(4)))
    if kind == 9:
        return {rng.choice(["a", 1, 2.5, (1, 2), None, "b"]): tree(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 10:
        return torch.arange(rng.randrange(5)).to(rng.choice(list(wire.DTYPES.values())))
    shared = [tree(rng, depth + 1)]
    return [shared, shared]


def same(first, second) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(map(same, first.values(), second.values()))
    return repr(first) == repr(second)


def test_random_values_come_back():
    rng = random.Random(35)
    for _ in range(1500):
        value = tree(rng)
        for got in there_and_back(value):
            assert same(got, value)


JUNK = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    4,
    10**20,
    1.5,
    math.nan,
    "",
    "l",
    "d",
    "t",
    "T",
    "A",
    "r",
    "o",
    "c",
    "float32",
    [],
    {},
]
JUNK += [
    ["r", 2],
    ["r", 4],
    ["l", 2, []],
    ["l", 3, []],
    ["o", 1, "int"],
    ["T", 2, "bool", [1], "AQ=="],
    ["t", []],
    [[]],
]


def mutate(rng, node):
    """The node with one place changed."""
    if type(node) is not list or not node or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(JUNK))
    node = list(node)
    place = rng.randrange(len(node))
    what = rng.random()
    if what < 0.6:
        node[place] = mutate(rng, node[place])
    elif what < 0.75:
        del node[place]
    elif what < 0.9:
        node.insert(place, copy.deepcopy(rng.choice(JUNK)))
    else:
        node[place], node[-1] = node[-1], node[place]
    return node


def test_random_damage_gives_malformed_and_nothing_else():
    rng, counts = random.Random(36), {"fine": 0, "malformed": 0}
    started = time.monotonic()
    for _ in range(6000):
        table = Table(JUDGE)
        Encoder(table).encode([[1], {"a": [2]}, torch.zeros(2)])  # what the judge has sent before
        node = Encoder(Table(WORKER)).encode(tree(rng))
        for _ in range(rng.randint(1, 4)):
            node = mutate(rng, node)
        try:
            value = Decoder(table, lambda tag, body: None).decode(json.loads(json.dumps(node)))
            table.check()
            repr(value), value == value
            counts["fine"] += 1
        except Malformed:
            counts["malformed"] += 1
    assert min(counts.values()) > 500, counts
    assert time.monotonic() - started < 30


def test_random_bytes_give_malformed_and_nothing_else():
    rng = random.Random(37)
    body = json.dumps({"value": Encoder(Table(WORKER)).encode([1, {"a": (2.5, "x")}, torch.zeros(2)]), "flags": []})
    for _ in range(4000):
        data = bytearray(body.encode())
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(data))
            rng.choice([data.__setitem__, data.insert])(place, rng.randrange(256))
        try:
            message = received(framed(bytes(data)))
            decoded(message.get("value"))
        except Malformed:
            pass
