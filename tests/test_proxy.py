"""Proxies: a test cell sees a learner's objects in another process as it would see them in its own."""

import time

import numpy
import pytest
import torch
from judging import SHORT, SMALL, box, shared_sandbox

from grading.box.wire import Unsendable
from grading.judge.proxy import NoPlainForm, RemoteName, RemoteObject
from grading.judge.worker import WorkerFault


@pytest.fixture(scope="session")
def sandbox():
    return shared_sandbox()


@pytest.fixture
def remote(sandbox):
    """remote(source, name): the learner's name, in a box in which the source has run."""
    opened = []

    def make(source: str, name: str = "Learner", limits=SMALL, methods=frozenset()):
        context = box(sandbox, limits)
        opened.append((context, context.__enter__()))
        assert opened[-1][1].run(source) is None
        link = opened[-1][1].link()
        link.methods = methods
        return RemoteName(link, name)

    yield make
    for context, _ in opened:
        context.__exit__(None, None, None)


# --- arguments and results --------------------------------------------------------------------------------------------


def test_changes_in_place_come_back_to_the_same_objects(remote):
    change = remote(
        """
        import torch
        def change(tokens, table, probs, nested):
            tokens.append(4); tokens.sort(reverse=True)
            table["new"] = table.pop("old")
            probs.mul_(2)
            nested[0]["deep"].clear()
            nested[1] = (1, "x")
        """,
        "change",
    )
    tokens, table, probs, nested = [1, 2], {"old": [5]}, torch.tensor([1.0, 2.0]), [{"deep": [1]}, 0]
    kept, inner, deep = table["old"], nested[0], nested[0]["deep"]
    assert change(tokens, table, probs, nested) is None
    assert tokens == [4, 2, 1] and table == {"new": [5]} and probs.tolist() == [2.0, 4.0]
    assert nested == [{"deep": []}, (1, "x")]
    assert table["new"] is kept and nested[0] is inner and inner["deep"] is deep


def test_changes_come_back_from_a_call_that_raised_too(remote):
    change = remote("def change(tokens):\n    tokens.clear()\n    raise ValueError('after')", "change")
    tokens = [1]
    with pytest.raises(ValueError, match="after"):
        change(tokens)
    assert tokens == []


def test_an_argument_that_cannot_be_told_any_more_is_named(remote):
    change = remote(
        "import torch\ndef change(tokens, odd): tokens.append(torch.zeros(1).to_sparse() if odd else object)", "change"
    )
    tokens = [1]
    change(tokens, False)
    assert tokens[0] == 1 and isinstance(tokens[1], RemoteObject)
    with pytest.raises(NoPlainForm, match="argument"):
        change([1], True)


def test_what_was_not_changed_is_untouched(remote):
    look = remote("def look(tokens, probs): return sum(tokens) + float(probs.sum())", "look")
    tokens, probs = (1, 2), torch.ones(2, 2).t()
    assert look(tokens, probs) == 7 and tokens == (1, 2)


def test_a_result_that_is_the_argument_is_it(remote):
    same = remote("def same(x): return x", "same")
    for value in ([1], {"a": 1}, torch.zeros(2), []):
        assert same(value) is value
    pair = remote("def pair(x): return (x, [x, list(x)])", "pair")
    value = [1]
    first, (second, copied) = pair(value)
    assert first is second is value and copied == value and copied is not value


def test_a_kept_result_is_the_same_and_a_fresh_one_is_not(remote):
    learner = remote("""
        class Learner:
            def __init__(self):
                self.history = []
            def keep(self):
                self.history.append(len(self.history))
                return self.history
            def fresh(self):
                return list(self.history)
        """)()
    first = learner.keep()
    assert first == [0]
    assert learner.keep() is first and first == [0, 1]
    assert learner.history is first
    assert learner.fresh() == first and learner.fresh() is not first
    assert learner.fresh() is not learner.fresh()


def test_keywords_defaults_and_stars(remote):
    call = remote("def call(a, /, b=2, *rest, c, **others): return [a, b, rest, c, others]", "call")
    assert call(1, c=3) == [1, 2, (), 3, {}]
    assert call(1, 5, 6, 7, c=3, self=[8]) == [1, 5, (6, 7), 3, {"self": [8]}]
    with pytest.raises(TypeError):
        call(1)


def test_arrays_as_arguments(remote):
    look = remote(
        """
        import numpy, torch
        def look(a): return [type(a).__name__, a.shape, str(a.dtype), torch.as_tensor(a).tolist()]
        """,
        "look",
    )
    assert look(numpy.array([[1.5, 2.0]], dtype="f4")) == ["ndarray", (1, 2), "float32", [[1.5, 2.0]]]
    assert look(numpy.arange(4).reshape(2, 2).T) == ["ndarray", (2, 2), "int64", [[0, 2], [1, 3]]]


def test_arrays_come_back_when_they_were_the_judges(remote):
    use = remote("def use(a, n):\n    if n: a[0] = n\n    return a", "use")
    array = numpy.array([1.0, 2.0])
    assert use(array, 5) is array and array.tolist() == [5.0, 2.0]
    assert use(array, 0) is array and array.tolist() == [5.0, 2.0]
    fresh = remote("import numpy\ndef fresh(): return numpy.zeros(2)", "fresh")
    assert isinstance(fresh(), RemoteObject) and type(fresh()).__name__ == "ndarray"


def test_results_keep_their_exact_types(remote):
    values = remote(
        """
        import collections, enum, numpy, torch
        class Mine(list): pass
        class Colour(enum.IntEnum): RED = 1
        Pair = collections.namedtuple("Pair", "a b")
        class Odd(torch.Tensor): pass
        VALUES = {
            "bool": True, "int": 1, "float": 1.0, "numpy bool": numpy.True_, "numpy int": numpy.int64(1),
            "numpy float": numpy.float64(1), "mine": Mine([1]), "enum": Colour.RED, "pair": Pair(1, 2),
            "ordered": collections.OrderedDict(a=1), "default": collections.defaultdict(int, a=1), "set": {1},
            "range": range(3), "bytes": b"x", "generator": (n for n in [1]), "type": int, "none": None,
            "array": numpy.zeros(2), "tensor subclass": torch.zeros(2).as_subclass(Odd), "method": [].append,
        }
        def value(name): return VALUES[name]
        """,
        "value",
    )
    plain = {"bool": True, "int": 1, "float": 1.0, "none": None}
    for name, wanted in plain.items():
        assert values(name) == wanted and type(values(name)) is type(wanted)
    opaque = {
        "numpy bool": "bool",
        "numpy int": "int64",
        "numpy float": "float64",
        "mine": "Mine",
        "enum": "Colour",
        "pair": "Pair",
        "ordered": "OrderedDict",
        "default": "defaultdict",
        "set": "set",
        "range": "range",
        "bytes": "bytes",
        "generator": "generator",
        "type": "type",
        "tensor subclass": "Odd",
        "array": "ndarray",
        "method": "builtin_function_or_method",
    }
    for name, kind in opaque.items():
        got = values(name)
        assert isinstance(got, RemoteObject), name
        assert type(got).__name__.startswith(kind), name
        assert got not in (True, 1, 1.0, [1], (1, 2), {"a": 1}, {1}), name


# --- objects ----------------------------------------------------------------------------------------------------------


def test_an_object_has_identity_and_nothing_else(remote):
    make = remote(
        """
        class Yes:
            def __eq__(self, other): return True
            __ne__ = __lt__ = __gt__ = __eq__
            def __hash__(self): return 1
            def __len__(self): return 3
            def __iter__(self): return iter([10, 20, 30])
            def __bool__(self): return True
            def __getitem__(self, n): return [10, 20, 30][n]
            def __float__(self): return 0.5
            def __index__(self): return 1
            def __contains__(self, item): return True
            def __instancecheck__(self, item): return True
            def __str__(self): return "[10, 20, 30]"
            __repr__ = __str__
            __class__ = list
        one = Yes()
        def make(fresh=False): return Yes() if fresh else one
        """,
        "make",
    )
    got = make()
    assert got is make() and got is not make(True)
    assert got == got and got != [10, 20, 30] and got != make(True) and got != 1
    assert not isinstance(got, (list, int, float, str, tuple, dict, bool)) and type(got) is not list
    for use in (len, iter, list, float, int, range, sum, sorted, lambda x: x[0], lambda x: 1 in x, lambda x: x + 1):
        with pytest.raises(TypeError):
            use(got)
    with pytest.raises(TypeError):
        assert got < 3
    assert type(got).__name__ == "Yes" and "10" not in repr(got) and "10" not in f"{got}"
    assert [got, 1] != [10, 1] and {"a": got} != {"a": [10, 20, 30]}


def test_an_object_comes_back_as_itself(remote):
    learner = remote(
        "class Learner:\n    def me(self): return self\n    def same(self, other): return other is self\n    value = 5"
    )()
    assert learner.me() is learner
    assert learner.same(learner) is True and learner.same(learner.me()) is True
    assert learner.me().me().value == 5


def test_names_of_types_are_only_names(remote):
    make = remote(
        "def make(name, bases=()):\n    kind = type('x', (), {})\n    kind.__name__ = name\n    return kind()", "make"
    )
    for name in (
        "int",
        "list",
        "<script>alert(1)</script>",
        "a b\n",
        "文字",
        "__class__",
        "x" * 10_000,
        "1",
        "",
        "mro",
    ):
        got = make(name)
        assert isinstance(got, RemoteObject) and type(got) not in (int, list)
        assert type(got).__name__.isidentifier() or type(got).__name__.replace("_", "a").isalnum()
        assert len(type(got).__name__) <= 80


def test_attributes_are_read_and_set(remote):
    learner = remote("""
        class Learner:
            def __init__(self): self.count = 0
            @property
            def doubled(self): return 2 * self.count
            def __getattr__(self, name): return name + "?"
        """)()
    learner.count = 21
    assert (learner.count, learner.doubled, learner.missing) == (21, 42, "missing?")
    with pytest.raises(AttributeError):
        learner.__length__  # noqa: B018  (never asked of the learner)
    learner.doubled = 1  # goes with the next request
    with pytest.raises(AttributeError):
        learner.count  # noqa: B018
    assert learner.count == 21


def test_what_was_set_is_there_in_the_order_in_which_it_was_set(remote):
    learner = remote("""
        class Learner:
            def first(self): return self.a
            def total(self): return self.a + self.b()
        """)()
    learner.a, learner.b = 1, lambda: 10
    learner.a = 2
    assert learner.total() == 12
    learner.a = shared = [1]
    shared.append(2)  # by value: as it was when it was set
    assert learner.first() == [1]


def test_a_check_does_not_end_before_what_was_set_is_set(sandbox):
    with box(sandbox) as opened:
        opened.run("class Learner:\n    __slots__ = ()")
        link = opened.link()
        RemoteName(link, "Learner")().propose = lambda tokens: []
        with pytest.raises(AttributeError):
            link.settle()
        link.settle()  # nothing is left of it


def test_a_class_has_attributes_but_takes_no_stand_in(remote):
    learner = remote("class Learner:\n    size = 3\n    @staticmethod\n    def twice(x): return 2 * x")
    assert learner.size == 3 and learner.twice(4) == 8
    with pytest.raises(TypeError, match="instance"):
        learner.twice = lambda x: x


def test_a_name_that_is_gone_or_is_something_else(remote):
    with pytest.raises(NameError, match="Learner"):
        remote("1")()
    with pytest.raises(TypeError):
        remote("Learner = [1]")()
    assert remote("Learner = lambda n=1: n")(n=5) == 5
    assert remote("import math as Learner").floor(2.5) == 2


# --- exceptions -------------------------------------------------------------------------------------------------------

RAISED = {  # what is raised: (what a test cell sees, what its message must contain)
    "ValueError('no')": (ValueError, "no"),
    "Mine('no')": (ValueError, "Mine: no"),
    "Mine()": (ValueError, "Mine"),
    "Deep('no')": (KeyError, "Deep"),
    "KeyError('k')": (KeyError, "k"),
    "IndexError": (IndexError, ""),
    "StopIteration(3)": (StopIteration, "3"),
    "AssertionError": (AssertionError, ""),
    "NotImplementedError('TODO')": (NotImplementedError, "TODO"),
    "UnicodeDecodeError('utf-8', b'x', 0, 1, 'why')": (RuntimeError, "UnicodeDecodeError"),
    "OSError(2, 'gone')": (FileNotFoundError, "gone"),
    "ExceptionGroup('many', [ValueError()])": (RuntimeError, "many"),
    "SystemExit(0)": (RuntimeError, "SystemExit"),
    "KeyboardInterrupt": (RuntimeError, "KeyboardInterrupt"),
    "GeneratorExit": (RuntimeError, "GeneratorExit"),
    "Base('no')": (RuntimeError, "Base"),
    "torch.cuda.OutOfMemoryError('no')": (RuntimeError, "no"),
    "Silent()": (TypeError, "while making the message"),
    "Long()": (ValueError, "xxx"),
    "Liar()": (ValueError, ""),
}


@pytest.mark.parametrize("raised", RAISED)
def test_exceptions_cross_as_the_nearest_builtin(remote, raised):
    fail = remote(
        f"""
        import torch
        class Mine(ValueError): pass
        class Deep(Mine, KeyError):
            __mro__ = ()
        Deep = type("Deep", (KeyError,), {{}})
        class Base(BaseException): pass
        class Silent(TypeError):
            def __str__(self): raise SystemExit
            __repr__ = __str__
        class Long(ValueError):
            def __str__(self): return "x" * 10_000_000
        class Liar(ValueError):
            __class__ = AssertionError
            def __getattribute__(self, name): raise SystemExit
        def fail(): raise {raised}
        """,
        "fail",
    )
    kind, message = RAISED[raised]
    with pytest.raises(kind) as caught:
        fail()
    assert type(caught.value) is kind
    assert message in str(caught.value) and len(str(caught.value)) < 2200


# --- stand-ins --------------------------------------------------------------------------------------------------------

CALLER = """
class Learner:
    def __init__(self, n=1): self.n = n
    def helper(self, x): return -1
    def run(self, *arguments, **named): return self.helper(*arguments, **named)
    def twice(self, x): return [self.helper(x), self.helper(x)]
"""


def test_a_stand_in_answers_for_its_instance_only(remote):
    make = remote(CALLER)
    learner, other = make(), make()
    learner.helper = lambda x: x + 1
    assert learner.run(1) == 2 and other.run(1) == -1
    learner.helper = lambda x: x + 10
    assert learner.run(1) == 11


def test_a_stand_in_takes_positions_keywords_and_defaults(remote):
    learner = remote(CALLER)()
    seen = []
    learner.helper = lambda a, b=2, *rest, **named: seen.append((a, b, rest, named))
    assert learner.run(1) is None
    learner.run(1, b=(5, [6]))
    learner.run([1], 2, 3, c={"k": torch.zeros(1)}, number=4)
    assert seen[:2] == [(1, 2, (), {}), (1, (5, [6]), (), {})]
    assert seen[2][:3] == ([1], 2, (3,)) and seen[2][3]["number"] == 4 and seen[2][3]["c"]["k"].tolist() == [0]


def test_identities_hold_through_a_stand_in(remote):
    learner = remote(CALLER)()
    argument, answer, seen = [1], [2], []

    def helper(x):
        seen.append(x)
        return answer

    learner.helper = helper
    got = learner.twice(argument)
    assert seen[0] is seen[1] is argument
    assert got[0] is answer and got[1] is answer


def test_a_stand_ins_exception_arrives_where_it_was_called(remote):
    learner = remote("""
        class Learner:
            def helper(self): pass
            def caught(self):
                try:
                    self.helper()
                except ValueError as error:
                    return "caught " + str(error)
            def loose(self): self.helper()
        """)()

    def refuse():
        raise ValueError("so")

    learner.helper = refuse
    assert learner.caught() == "caught so"
    with pytest.raises(ValueError, match="so"):
        learner.loose()


def test_a_stand_in_may_call_the_learner_again(remote):
    learner = remote("""
        class Learner:
            def down(self, n): return 0 if n == 0 else 1 + self.step(n - 1)
            def step(self, n): return self.down(n)
        """)()
    learner.step = lambda n: learner.down(n)
    assert learner.down(5) == 5
    with pytest.raises(WorkerFault, match="nested too deep"):
        learner.down(50)


def test_what_a_stand_in_cannot_say_is_a_type_error_over_there(remote):
    learner = remote(CALLER)()
    learner.helper = lambda x: {1, 2}
    with pytest.raises(TypeError):
        learner.run(1)


def test_a_test_cell_that_passes_what_has_no_plain_form_is_told(remote):
    learner = remote(CALLER)()
    with pytest.raises(Unsendable, match="set"):
        learner.run({1})


def test_a_stand_in_is_worth_nothing_outside_a_call_of_its_instance(remote):
    make = remote("""
        saved = []
        class Learner:
            def helper(self): return "own"
            def save(self):
                saved.append(self.helper)
                return self.helper()
            def again(self):
                try:
                    return saved[0]()
                except RuntimeError as error:
                    return str(error)
            @property
            def sly(self): return self.helper()
        """)
    learner, other = make(), make()
    learner.helper = lambda: "stand-in"
    assert learner.save() == "stand-in" and learner.again() == "stand-in"
    assert "outside" in other.again()  # another instance is being called
    with pytest.raises(WorkerFault, match="callback"):
        learner.sly  # noqa: B018  (an attribute is no call)


def test_a_stand_in_of_an_earlier_check_is_worth_nothing(sandbox):
    with box(sandbox) as opened:
        opened.run("""
            saved = []
            class Learner:
                def helper(self): pass
                def save(self): saved.append(self.helper)
                def use(self):
                    try:
                        return saved[0]()
                    except RuntimeError as error:
                        return str(error)
            """)
        first = RemoteName(opened.link(), "Learner")()
        first.helper = lambda: "secret"
        first.save()
        second = RemoteName(opened.link(), "Learner")()
        assert "outside" in second.use()


def test_callbacks_are_bounded_in_number(remote, monkeypatch):
    monkeypatch.setattr("grading.judge.worker.MAX_CALLBACKS", 500)
    learner = remote(CALLER + "    def many(self, n):\n        for _ in range(n): self.helper(0)\n        return n")()
    learner.helper = lambda x: x
    assert learner.many(499) == 499
    with pytest.raises(WorkerFault, match="callbacks"):
        learner.many(10**6)


def test_time_is_up_also_for_one_that_asks_and_sleeps(remote):
    slow = """
    def slow(self):
        import time
        time.sleep(0.9)
        self.helper(0)
        time.sleep(60)
"""
    learner = remote(CALLER + slow, limits=SHORT)()
    learner.helper = lambda x: x
    learner._link.worker.allow(1.0)
    started = time.monotonic()
    with pytest.raises(WorkerFault) as caught:
        learner.slow()
    assert caught.value.kind == "timeout" and time.monotonic() - started < 1.4


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_the_last_call_is_shown_shortly_whatever_it_was(remote):
    learner = remote(
        """
        class Learner:
            def __init__(self, n=1): pass
            def grow(self, items):
                for _ in range(20): items[:] = [list(items)]
            def take(self, x): return None
        """
    )(n=2)
    link = learner._link
    assert link.last_call == "Learner(n=2)"
    learner.take([1, "文"])
    assert link.last_call.endswith("take([1, '文'])")
    learner.take("x" * 5000)
    assert len(link.last_call) < 400
    learner.take(learner)
    assert "object>" in link.last_call
    learner.grow([1])
    assert len(link.last_call) < 400
