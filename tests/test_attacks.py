"""Dishonest answers: all three TODOs wrong, and a trick. None gets more than the same answer without the trick.

Where a trick makes something happen (a fault, a flag), the outcome must say so: `says` names what.
"""

import ast
import json
import re
import resource
import time
from dataclasses import asdict, replace
from functools import cache

import pytest
from answers import CHAPTER, REFERENCE
from judging import FULL, SHORT, WRONG, happened, judged, plan, points, settled, shared_sandbox

HIDDEN = [cell.grade_id for cell in CHAPTER.tests if cell.hidden]
LIMITS = replace(SHORT, check_seconds=0.8)


@pytest.fixture(scope="session")
def sandbox():
    return shared_sandbox()


@cache
def honest() -> dict[str, float]:
    """Points of the wrong answer without a trick."""
    got = points(judged(shared_sandbox(), plan(WRONG), LIMITS))
    assert sum(got.values()) < 10
    return got


ATTACKS: dict[str, dict] = {}


def attack(name: str, after: str = "", *, says: set[str] = frozenset(), bodies=WRONG, cells=(), error: str = ""):
    """error: what the cell with the answer ends in; a trick that fails by itself shows nothing."""
    assert name not in ATTACKS
    made = plan(bodies, after=after, cells=tuple(cells))
    ATTACKS[name] = {"says": set(says), "plan": made, "error": error}


def trick(name: str, method: str, body: str, **more):
    """A method of the class replaced."""
    lines = "\n".join("    " + line for line in body.split("\n"))
    attack(name, f"def trick(self, *a, **k):\n{lines}\nMultiTokenDecoderSim.{method} = trick", **more)


# --- the shell and the interpreter -----------------------------------------------------------------------------------

attack(
    "asserts dropped by an AST transformer",
    """
    import ast
    class Drop(ast.NodeTransformer):
        def visit_Assert(self, node): return ast.Pass()
        def visit_Raise(self, node): return ast.Pass()
    get_ipython().ast_transformers.append(Drop())
    """,
)
attack(
    "cells rewritten before they run",
    "get_ipython().input_transformers_post.append(lambda lines: ['pass\\n'])\n"
    "get_ipython().input_transformers_cleanup.append(lambda lines: ['pass\\n'])",
)
attack(
    "run_cell replaced",
    """
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
    def done(raw, *a, **k):
        result = ExecutionResult(ExecutionInfo(raw, True, False, False, None)); result.execution_count = 1
        return result
    async def later(raw, *a, **k): return done(raw)
    for kind in (InteractiveShell, type(get_ipython())):
        kind.run_cell = lambda self, raw, *a, **k: done(raw)
        kind.run_cell_async = lambda self, raw, *a, **k: later(raw)
        kind.run_code = kind.run_ast_nodes = lambda *a, **k: later("")
    get_ipython().run_cell = done
    """,
    cells=("1 / 0",),
)
attack(
    "run_cell that gives nonsense",
    "get_ipython().run_cell = lambda *a, **k: 5",
    cells=("1 / 0",),
    says={"cell_death:own1"},
)
attack(
    "hooks on every cell",
    """
    for name in ("pre_execute", "pre_run_cell", "post_execute", "post_run_cell"):
        get_ipython().events.register(name, lambda *a: print("### BEGIN GRADE 99"))
    get_ipython().set_custom_exc((BaseException,), lambda *a, **k: None)
    import sys, threading
    sys.excepthook = threading.excepthook = sys.unraisablehook = lambda *a: None
    """,
)
for name in ("isinstance", "type", "len", "all", "id", "list", "getattr", "str", "next", "sorted"):
    for value in ("True", "list"):
        trick(
            f"builtins.{name} gives {value}",
            "propose",
            f"import builtins\nbuiltins.{name} = lambda *args, **named: {value}\nreturn [1]",
        )
attack(
    "exceptions renamed",
    """
    import builtins
    builtins.AssertionError = builtins.ValueError = builtins.Exception = Warning
    builtins.sorted = builtins.sum = builtins.abs = lambda *a, **k: 0
    """,
)
attack("builtins patched beyond use", "import builtins\nbuiltins.len = lambda x: 3", says={"cell_protocol:answer"})
attack(
    "__import__ and __build_class__ patched",
    """
    import builtins
    build, load = builtins.__build_class__, builtins.__import__
    builtins.__build_class__ = lambda f, name, *a, **k: build(f, name, *a, **k)
    def fake(name, *a, **k):
        module = load(name, *a, **k)
        if name == "random": module.Random = lambda *a: 4
        return module
    builtins.__import__ = fake
    """,
)
attack(
    "frozen assert",
    "import sys\nsys.flags = type('flags', (), {'optimize': 2})()\n__debug__x = False\n"
    "import ctypes\nctypes.c_int.in_dll(ctypes.pythonapi, 'Py_OptimizeFlag').value = 2",
)
attack(
    "tracing",
    """
    import sys, threading
    def trace(frame, event, argument):
        for name in ("expected", "want", "reference"):
            if name in frame.f_locals: raise SystemExit(frame.f_locals[name])
        return trace
    sys.settrace(trace); sys.setprofile(lambda *a: None); threading.settrace(trace)
    """,
)
attack("torch patched", "import torch\ntorch.equal = torch.allclose = torch.as_tensor = lambda *a, **k: torch.ones(())")
attack(
    "tensors that agree with everything",
    """
    import torch
    torch.Tensor.__eq__ = torch.Tensor.__bool__ = lambda *a: True
    torch.Tensor.tolist = torch.Tensor.item = lambda *a: [10, 20, 30]
    MultiTokenDecoderSim.propose = lambda self, t: torch.ones(3)
    MultiTokenDecoderSim.verify = lambda self, *a: (torch.ones(2), torch.ones(()))
    """,
)
attack(
    "exit hooks",
    "import atexit, os\natexit.register(lambda: print('99 of 100'))\nos.register_at_fork(before=lambda: None)",
)
attack("leaves before the tests", "import os\nos._exit(0)", says={"cell_death:answer"})
attack("leaves in the middle", says={"death"}, bodies={**WRONG, 1: "import os\nos._exit(0)\nproposed = []"})
attack("raises SystemExit", bodies={n: "raise SystemExit(0)" for n in WRONG})
attack("raises KeyboardInterrupt", bodies={n: "raise KeyboardInterrupt" for n in WRONG})
attack("raises GeneratorExit", bodies={n: "raise GeneratorExit" for n in WRONG})
attack("raises StopIteration", bodies={n: "raise StopIteration([10, 20, 30])" for n in WRONG})
attack("pretends to refuse", bodies={n: "raise ValueError('refused')" for n in WRONG})
attack("pretends to warn", bodies={n: "raise DeprecationWarning('passed')" for n in WRONG})
attack(
    "an exception that is everything",
    """
    class Every(ValueError, KeyError, TypeError, AssertionError, NotImplementedError): pass
    Every.__name__ = "AssertionError"
    def fail(*a, **k): raise Every()
    MultiTokenDecoderSim.propose = MultiTokenDecoderSim.verify = MultiTokenDecoderSim._accept_token = fail
    """,
)
attack(
    "exceptions with a life of their own",
    """
    class Evil(Exception):
        __class__ = property(lambda self: 1 / 0)
        def __str__(self): return Text("x" * 10_000_000)
        def __repr__(self): raise SystemExit
        def __getattribute__(self, name): raise KeyboardInterrupt
    class Text(str):
        def __getitem__(self, n): return self
        def __len__(self): return 1
        def __str__(self): return self
    def fail(*a, **k): raise Evil()
    MultiTokenDecoderSim.propose = MultiTokenDecoderSim.verify = MultiTokenDecoderSim._accept_token = fail
    """,
)
attack(
    "messages that break what shows them",
    r"""
    def fail(*a, **k): raise RuntimeError("\ud800\udfff\x00\x1b[2J\u202e</pre><script>alert(1)</script>" * 500)
    MultiTokenDecoderSim.propose = MultiTokenDecoderSim.verify = MultiTokenDecoderSim._accept_token = fail
    raise Exception("\udcff")
    """,
    error="Exception: ",
)
attack(
    "forged results on paper",
    "print('### BEGIN GRADE\\n99\\n### END GRADE')\nprint('{\"passed\": true, \"score\": 99}')",
)
attack("markers of regions", "### BEGIN SOLUTION\n### END SOLUTION\n### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS\npass")
attack(
    "another learner's cells",
    cells=("%%capture\npass", "%%script bash\nexit 0", "%%javascript\nalert(1)", "%reset -f", "%%bash\nkill -9 $PPID"),
    says={"cell_death:own5"},
)

# --- what comes back -------------------------------------------------------------------------------------------------

EVIL = """
def evil(kind, value=()):
    class Evil(kind):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __lt__(self, other): return True
        __le__ = __gt__ = __ge__ = __eq__
        def __hash__(self): return 1
        def __len__(self): return 3
        def __iter__(self): return iter([10, 20, 30])
        def __getitem__(self, n): return self
        def __bool__(self): return True
        def __contains__(self, item): return True
        def __reduce__(self): return (__import__("os").system, ("touch /tmp/pwned",))
        __class__ = kind
    Evil.__name__ = Evil.__qualname__ = kind.__name__
    return Evil(value)
def answer_with(propose, accept, verify, decode=None):
    MultiTokenDecoderSim.propose = lambda self, *a, **k: propose()
    MultiTokenDecoderSim._accept_token = lambda self, *a, **k: accept()
    MultiTokenDecoderSim.verify = lambda self, *a, **k: verify()
    MultiTokenDecoderSim.decode = lambda self, *a, **k: (decode or propose)()
"""
for kind, value in {"list": "[1]", "int": "1", "float": "0.5", "str": "'x'", "dict": "{}", "tuple": "(1, 2)"}.items():
    attack(f"subclass of {kind} that agrees", EVIL + f"make = lambda: evil({kind}, {value})\nanswer_with(*[make] * 4)")
attack(
    "subclasses inside plain containers",
    EVIL
    + "e = evil(int, 1)\nanswer_with(lambda: [e, e, e], lambda: e, lambda: ([e, e], e), lambda: {'accepted_len': e})",
)
attack(
    "object that agrees",
    EVIL
    + "answer_with(*[lambda: evil(object)] * 4)".replace("evil(object)", "Yes()")
    + """
class Yes:
    __eq__ = __ne__ = __lt__ = __instancecheck__ = lambda *a: True
    __hash__ = None
    __bool__ = lambda self: True
""",
)
attack(
    "a mock",
    "from unittest.mock import MagicMock\nMultiTokenDecoderSim = MagicMock(return_value=MagicMock(list))",
)
RESULTS = {
    "cyclic": "x = []\nx.append(x)",
    "cyclic dict": "x = {}\nx['x'] = (x,)",
    "deep": "x = []\nfor _ in range(10**5): x = [x]",
    "doubled": "x = [1]\nfor _ in range(40): x = [x, x]",
    "enormous": "x = list(range(10**6))",
    "enormous text": "x = 'x' * 10**8",
    "enormous int": "x = 1 << 10**7",
    "enormous tensor": "import torch\nx = torch.zeros(3 * 10**7)",
    "many objects": "x = [object() for _ in range(10**5)]",
    "many keys": "x = {n * (2**61 - 1): n for n in range(2000)}",
    "generator": "x = (n for n in (10, 20, 30))",
    "coroutine": "async def c(): return [10, 20, 30]\nx = c()",
    "code": "x = (lambda: 1).__code__",
    "class": "x = type('list', (), {})",
    "module": "import builtins as x",
    "nan": "x = float('nan')",
    "tensor": "import torch\nx = torch.tensor([10, 20, 30])",
    "tensors": "import torch\nx = [torch.tensor(10), torch.tensor(20)]",
    "sparse": "import torch\nx = torch.eye(3).to_sparse()",
    "complex": "import torch\nx = torch.ones(3, dtype=torch.complex64)",
    "meta": "import torch\nx = torch.ones(3, device='meta')",
    "expanded": "import torch\nx = torch.ones(1).expand(10**12)",
    "gradient": "import torch\nx = torch.ones(3, requires_grad=True) * 2",
    "tensor subclass": "import torch\nx = torch.nn.Parameter(torch.ones(3))",
    "nan tensor": "import torch\nx = torch.full((3,), float('nan'))",
    "not finished": "x = NotImplemented",
    "ellipsis": "x = ...",
}
for name, source in RESULTS.items():
    attack(
        f"result: {name}",
        EVIL + source + "\nanswer_with(lambda: x, lambda: x, lambda: ([], x), lambda: {'accepted_len': x})",
    )

# --- the class -------------------------------------------------------------------------------------------------------

attack("class gone", "del MultiTokenDecoderSim")
attack("class is a function", "def MultiTokenDecoderSim(*a, **k): return [10, 20, 30]")
attack("class is an instance", "MultiTokenDecoderSim = MultiTokenDecoderSim()")
attack("class is a module", "import json as MultiTokenDecoderSim")
attack(
    "class is a stand-in of the judge's",
    "import sys\nMultiTokenDecoderSim = sys.modules['box.serve'].Callback(None, 1)",
)
attack(
    "a metaclass with a mind of its own",
    """
    class Meta(type):
        def __call__(cls, *a, **k): return [10, 20, 30]
        def __getattribute__(cls, name): return type.__getattribute__(cls, "__doc__")
        def __instancecheck__(cls, other): return True
        def __eq__(cls, other): return True
        __hash__ = type.__hash__
    class MultiTokenDecoderSim(metaclass=Meta): pass
    """,
)
attack(
    "properties that change between reads",
    """
    import itertools
    count = itertools.count()
    for name in ("max_proposal_len", "min_accept_ratio", "history"):
        setattr(MultiTokenDecoderSim, name, property(lambda self: next(count), lambda self, value: None))
    """,
)
attack("stand-ins ignored", "MultiTokenDecoderSim.__setattr__ = lambda self, name, value: None")
attack(
    "stand-ins kept apart",
    """
    kept = []
    def keep(self, name, value):
        kept.append(value); object.__setattr__(self, name, value)
    MultiTokenDecoderSim.__setattr__ = keep
    MultiTokenDecoderSim.__getattr__ = lambda self, name: kept[-1]
    MultiTokenDecoderSim.__getattribute__ = lambda self, name: object.__getattribute__(self, name)
    """,
)
SAVE = """
import threading
kept, box = [], []
def keep(self, name, value):
    object.__setattr__(self, name, value)
    if callable(value): kept.append(value)
MultiTokenDecoderSim.__setattr__ = keep
def ask(*a):
    for call in kept:
        try: return call(*a)
        except Exception as error: box.append(error)
    return None
"""
attack(
    "stand-ins used in other checks",
    SAVE + "MultiTokenDecoderSim.propose = lambda self, t: ask(t)\n"
    "MultiTokenDecoderSim._accept_token = lambda self, q, p: ask(q, p)\n"
    "MultiTokenDecoderSim.decode = lambda self, *a: {'accepted_len': ask(*a)}",
)
attack(
    "stand-ins called from a thread",
    SAVE
    + """
def verify(self, *a):
    thread = threading.Thread(target=lambda: [ask(*a) for _ in range(50)])
    thread.start()
    return ask(*a), None
MultiTokenDecoderSim.verify = verify
""",
)
attack(
    "stand-ins called in a property",
    SAVE + "MultiTokenDecoderSim.history = property(lambda self: ask(1), lambda self, v: None)",
)
attack(
    "stand-ins called without end",
    SAVE + "def verify(self, *a):\n    while True: ask(a[2])\nMultiTokenDecoderSim.verify = verify",
    says={"timeout"},
)
attack(
    "stand-ins called by themselves",
    SAVE
    + """
def verify(self, *a):
    def down(): return ask(a[2]) and down()
    return down()
MultiTokenDecoderSim.verify = verify
""",
)
attack(
    "stand-ins by numbers never given",
    """
    import gc, sys
    serve = sys.modules["box.serve"]
    (worker,) = [thing for thing in gc.get_objects() if type(thing) is serve.Worker]
    def ask(self, *a):
        for number in (0, -1, 1, 2, 3, 10**6):
            try: return serve.Callback(worker, number)(*a)
            except RuntimeError: pass
        return [10, 20, 30]
    MultiTokenDecoderSim.propose = MultiTokenDecoderSim._accept_token = ask
    """,
)

# --- looking for the answer ------------------------------------------------------------------------------------------

trick(
    "frames walked",
    "propose",
    """
import sys
frame = sys._getframe()
while frame:
    for scope in (frame.f_locals, frame.f_globals):
        for name in ("expected", "want", "reference", "rule", "cases", "case", "oracle"):
            if name in scope: return scope[name]
    frame = frame.f_back
raise LookupError""",
)
trick(
    "heap searched",
    "propose",
    """
import gc
for thing in gc.get_objects():
    if isinstance(thing, type) and thing.__name__ in ("Reference", "Oracle", "Bench", "Chapter"): return thing
    if isinstance(thing, dict) and ("expected" in thing or "GRADING_SEED" in thing): return thing
    if isinstance(thing, str) and ("HIDDEN TESTS" in thing or "rng.randint" in thing): return thing
raise LookupError""",
)
trick(
    "history read",
    "propose",
    """
import re
shell = get_ipython()
text = str(shell.user_ns.get("In")) + str(shell.history_manager.input_hist_raw) + str(shell.user_ns.get("_i"))
return eval(re.findall(r"\\[[\\d, ]*\\]", text)[-1])""",
)
trick("modules searched", "propose", "import sys\nreturn [m for m in sys.modules if 'grading' in m or 'judge' in m][0]")
trick(
    "files searched",
    "propose",
    """
import os
for folder, _, files in os.walk("/"):
    if any(name.endswith((".ipynb", ".db")) for name in files): return folder
    if folder.count("/") > 4: break
raise LookupError""",
)
trick(
    "seed guessed",
    "propose",
    """
import os, random
rng = random.Random(f"{os.environ.get('GRADING_SEED', '0')}/propose/prefix")
return [rng.randrange(50_000) for _ in range(3)]""",
)
trick(
    "memory read",
    "propose",
    "import ctypes, os\nreturn [open('/proc/self/mem').read(), open('/proc/1/environ').read()]",
)
attack("argument changed to fit", "MultiTokenDecoderSim.propose = lambda self, t: t.clear() or []")
attack(
    "arguments changed to fit, all of them",
    """
    def verify(self, draft_probs, target_probs, draft_tokens):
        draft_tokens[:] = []
        draft_probs[...] = 0; target_probs[...] = 0
        return [], None
    MultiTokenDecoderSim.verify = verify
    def decode(self, draft_probs, target_probs, draft_tokens):
        draft_tokens[:] = []
        return dict.fromkeys(["proposed_tokens", "accepted_tokens", "accepted_len", "rejected_at", "rejected_suffix"])
    MultiTokenDecoderSim.decode = decode
    """,
)

# --- the wire --------------------------------------------------------------------------------------------------------

HIJACK = """
import gc, json, os, struct, sys, threading, time
serve, wire = sys.modules["box.serve"], sys.modules["box.wire"]
(WORKER,) = [thing for thing in gc.get_objects() if type(thing) is serve.Worker]
true_send = serve.send_frame
def raw(data): WORKER.sock.sendall(struct.pack("!I", len(data)) + data)
def say(reply): raw(json.dumps(reply).encode())
last = [None]
def receive(read, true_receive=serve.receive_frame):
    last[0] = true_receive(read)
    return last[0]
serve.receive_frame = receive
"""
FRAMES = {  # instead of every reply to a call of propose: (bytes, or a reply), what the outcome says
    "not JSON": ("b'{'", "protocol"),
    "a list": ("b'[]'", "protocol"),
    "empty": ("b''", "protocol"),
    "deep": ("b'[' * 10**5", "protocol"),
    "deep value": ("b'{\"value\":' + b'[' * 10**5 + b']' * 10**5 + b'}'", "protocol"),
    "long number": ("b'{\"value\": ' + b'1' * 10**6 + b'}'", "protocol"),
    "large int": ("{'value': 1 << 4000}", "protocol"),
    "object": ("{'value': {'a': 1}}", "protocol"),
    "no value": ("{}", "protocol"),
    "unknown tag": ("{'value': ['x', 1]}", "protocol"),
    "unknown reference": ("{'value': ['r', 2]}", "protocol"),
    "negative id": ("{'value': ['l', -2, []]}", "protocol"),
    "same id twice": ("{'value': ['l', 2, [['l', 4, []], ['l', 4, []]]]}", "protocol"),
    "an id of the judge's": ("{'value': ['l', 99999, []]}", "protocol"),
    "in itself": ("{'value': ['l', 2, [['r', 2]]]}", "protocol"),
    "doubled": (
        "{'value': ['t', [['l', 2, []], *(['l', 2 * n, [['r', 2 * n - 2]] * 9] for n in range(2, 40))]]}",
        "protocol",
    ),
    "colliding keys": ("{'value': ['d', 2, [[n * (2**61 - 1), 0] for n in range(30_000)]]}", "protocol"),
    "colliding ids": ("{'value': ['t', [['l', n * (2**61 - 1) * 2, []] for n in range(1, 30_000)]]}", "protocol"),
    "many objects": ("{'value': ['t', [['o', n, 'int'] for n in range(1, 30_000)]]}", "protocol"),
    "callback to the judge": ("{'value': ['c', 1]}", "protocol"),
    "array": ("{'value': ['A', 2, '<f8', [1], 'AAAAAAAAAAA=']}", "protocol"),
    "array of objects": ("{'value': ['A', 2, '|O', [1], 'AAAAAAAAAAA=']}", "protocol"),
    "tensor by a name of torch's": ("{'value': ['T', 2, 'load', [1], 'AAAAAAAAAAA=']}", "protocol"),
    "odd bool": ("{'value': ['T', 2, 'bool', [1], 'Bw==']}", "protocol"),
    "callback never set": ("{'callback': 99, 'args': [], 'kwargs': {}}", "death"),
    "callback by a text": ("{'callback': '1', 'args': [], 'kwargs': {}}", "protocol"),
    "callback without arguments": ("{'callback': 1}", "protocol"),
    "callback with bad arguments": ("{'callback': 1, 'args': {}, 'kwargs': []}", "protocol"),
    "changed is no list": ("{'value': None, 'changed': {'a': 1}}", "protocol"),
    "changed is too much": ("{'value': None, 'changed': [['l', 2 * n, []] for n in range(1, 1000)]}", "protocol"),
    "error is a number": ("{'error': 5}", "protocol"),
    "error without a message": ("{'error': {'type': 'ValueError', 'name': 'ValueError'}}", "protocol"),
    "error of odd types": ("{'error': {'type': 1, 'name': None, 'message': []}}", "protocol"),
    "error: ValueError": ("{'error': {'type': 'ValueError', 'name': 'ValueError', 'message': ''}}", ""),
    "error: no exception": ("{'error': {'type': 'print', 'name': '', 'message': 'x'}}", ""),
    "error: __build_class__": ("{'error': {'type': '__build_class__', 'name': '__class__', 'message': 'x'}}", ""),
    "error: KeyboardInterrupt": ("{'error': {'type': 'KeyboardInterrupt', 'name': 'x', 'message': 'x'}}", ""),
    "error: surrogates": ("{'error': {'type': 'ValueError', 'name': '\\ud800', 'message': '\\udfff' * 5000}}", ""),
    "error: long": ("{'error': {'type': 'KeyError', 'name': 'x' * 10**6, 'message': 'y' * 10**6}}", ""),
    "a method": ("{'method': True, 'value': None}", ""),
    "unsendable of odd type": ("{'unsendable': {'a': [1] * 1000}}", ""),
    "nan": ("b'{\"value\": NaN}'", ""),
    "infinity": ('b\'{"value": ["t", [Infinity, -Infinity]]}\'', ""),
    "flags and output of odd types": ("{'value': None, 'flags': {'a': 1}, 'output': [1]}", ""),
    "flags never heard of": ("{'value': None, 'flags': ['full_marks', 5, None], 'output': 'passed'}", ""),
    "type names": ("{'value': ['l', 2, [['o', 1, 'int'], ['o', 2, 'int'], ['o', 3, '\\ud800']]]}", ""),
}
for name, (frame, says) in FRAMES.items():
    attack(
        f"frame: {name}",
        HIJACK
        + f"""
def send(sock, message):
    if (last[0] or {{}}).get("attr") != "propose": return true_send(sock, message)
    reply = {frame}
    raw(reply) if isinstance(reply, bytes) else say(reply)
serve.send_frame = send
""",
        says={says} - {""},
    )
attack(
    "frame: a length without end",
    HIJACK + "serve.send_frame = lambda sock, m: sock.sendall(b'\\xff' * 5000) if 'value' in m else true_send(sock, m)",
    says={"cell_protocol:answer"},
)
attack(
    "frame: one byte now and then",
    HIJACK
    + """
def send(sock, message):
    if (last[0] or {}).get("attr") != "decode": return true_send(sock, message)
    for byte in struct.pack("!I", 1000) + b" " * 1000:
        sock.sendall(bytes([byte])); time.sleep(0.1)
serve.send_frame = send
""",
    says={"timeout"},
)
attack(
    "garbage on every descriptor",
    """
    import os
    for fd in range(256):
        try: os.write(fd, b"\\x00\\x00\\x00\\x02{}" * 100)
        except OSError: pass
    """,
)
attack(
    "replies sent ahead",
    HIJACK
    + """
for _ in range(3): say({"value": None})
for _ in range(200):
    for value in (["l", 2, [10, 20, 30]], True, ["t", [["l", 4, [10, 20]], 2]]): say({"value": value})
""",
)
attack(
    "replies by a thread during the call",
    HIJACK
    + """
def pour():
    while True:
        try: say({"value": True, "changed": []})
        except OSError: return
        time.sleep(0.001)
threading.Thread(target=pour, daemon=True).start()
""",
)
attack(
    "arguments overwritten by their ids",
    HIJACK
    + """
def send(sock, message):
    if (last[0] or {}).get("op") == "call":
        message = {"value": ["l", 2, []], "changed": [["l", n, []] for n in (1, 3, 5, 7, 9)]}
    true_send(sock, message)
serve.send_frame = send
""",
)
attack(
    "growing by many replies",
    HIJACK
    + """
count = [0]
def send(sock, message):
    if (last[0] or {}).get("op") == "call":
        count[0] += 2
        message = {"value": ["l", count[0], [["l", count[0] + 2, []]] + [["r", count[0] + 2]] * 50]}
    true_send(sock, message)
serve.send_frame = send
""",
)
attack("a second worker", HIJACK + "if os.fork() == 0:\n    serve.Worker(WORKER.sock, get_ipython()).serve()")
attack(
    "the first one dead, a child answers",
    HIJACK
    + """
if os.fork() == 0:
    time.sleep(0.1)
    while True: say({"value": True})
os.kill(os.getpid(), 9)
""",
    says={"cell_death:answer"},
)


@pytest.mark.parametrize("name", ATTACKS)
def test_dishonest_gets_no_more_than_honest(sandbox, name):
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    outcome = judged(sandbox, ATTACKS[name]["plan"], LIMITS)
    got = points(outcome)
    assert all(got[mechanism] <= honest()[mechanism] for mechanism in got), got
    says = happened(outcome)
    assert ATTACKS[name]["says"] <= says, says
    cell_error = outcome.cell_errors.get("answer", "")
    if not any(word.endswith(":answer") for word in says):
        assert cell_error.startswith(ATTACKS[name]["error"]) if ATTACKS[name]["error"] else cell_error == ""
    json.dumps(asdict(outcome), ensure_ascii=False, allow_nan=False).encode("utf-8")  # as reports are written
    assert all(len(verdict.message) <= 4000 and len(verdict.call) <= 1000 for verdict in outcome.verdicts)
    assert time.monotonic() - started < 25
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KiB: the judge's own memory


def test_all_that_was_tried_left_the_next_one_alone(sandbox):
    assert sandbox.alive() and settled(sandbox) == []
    assert points(judged(sandbox, plan())) == FULL
    assert points(judged(sandbox, plan(WRONG), LIMITS)) == honest()


# --- right in public only --------------------------------------------------------------------------------------------


def public_cases(grade_id: str) -> list[tuple]:
    """What a public check asks, as a learner reads it off the page: the list `cases`."""
    (cell,) = [cell for cell in CHAPTER.tests if cell.grade_id == grade_id]
    values = [node.value for node in ast.parse(cell.source).body if isinstance(node, ast.Assign) and node.lineno < 20]
    return next(ast.literal_eval(value) for value in values if isinstance(value, ast.List))


PROPOSED = {(budget, tuple(draft)): right for _, budget, draft, right in public_cases("test_propose_public")}
ACCEPTED = {tuple(case) for _, *case, right in public_cases("test_accept_public") if right}
BY_HEART = {
    1: f"proposed = list({PROPOSED}.get((self.max_proposal_len, tuple(draft_tokens)), []))",
    2: f"accepted = (self.min_accept_ratio, draft_prob, target_prob) in {ACCEPTED}",
    3: "accepted = self._accept_token(draft_prob, target_prob) and token_id in (0, 1, 2, 10, 20, 30, 31)",
}
FIXTURE_FINDER = {
    1: f"public = tuple(draft_tokens) in {[draft for _, draft in PROPOSED]}\n"
    "proposed = list(draft_tokens)[: self.max_proposal_len] if public else [1]",
    2: "accepted = target_prob >= draft_prob * self.min_accept_ratio if len(str(draft_prob)) < 4 else False",
    3: REFERENCE[3],
}


@pytest.mark.parametrize("bodies", [BY_HEART, FIXTURE_FINDER], ids=["by heart", "finds the fixture"])
def test_right_in_public_only_gets_no_hidden_point_for_it(sandbox, bodies):
    outcome = judged(sandbox, plan(bodies), LIMITS, seed=11)
    passed = {verdict.grade_id for verdict in outcome.verdicts if verdict.passed}
    assert {"test_propose_public", "test_accept_public"} <= passed
    for mechanism in ("propose", "accept"):
        assert not [grade_id for grade_id in HIDDEN if grade_id in passed and mechanism in grade_id]
    assert "test_decode_rounds" not in passed


def test_no_hidden_input_gets_into_what_learners_read(sandbox):
    """An answer that keeps all it was ever asked, and tells it in the messages of public checks and of cells."""
    spy = """
    import random
    seen, right = [], MultiTokenDecoderSim.propose
    def propose(self, tokens):
        seen.append(list(tokens))
        return right(self, tokens)
    def accept(self, q, p):
        seen.append([q, p])
        raise RuntimeError("seen " + str(seen))
    def verify(self, *arguments):
        raise RuntimeError("seen " + str(seen))
    MultiTokenDecoderSim.propose, MultiTokenDecoderSim._accept_token = propose, accept
    MultiTokenDecoderSim.verify = verify
    """
    outcome = judged(sandbox, plan(after=spy), LIMITS)
    messages = [
        verdict.message for verdict in outcome.verdicts if verdict.grade_id not in HIDDEN and not verdict.passed
    ]
    assert len(messages) == 4 and all("seen " in message for message in messages if "RuntimeError" in message)
    numbers = {int(number) for message in messages for number in re.findall(r"\b\d+\b", message.partition("seen")[2])}
    asked = {token for _, draft in PROPOSED for token in draft}
    assert {10, 31} <= numbers and max(numbers) <= max(asked) < 100, numbers  # hidden drafts have larger ones


def test_hidden_inputs_follow_the_seed_and_the_worker_cannot_know_it(sandbox):
    spy = """
    import os
    seen = []
    def propose(self, tokens):
        seen.append([self.max_proposal_len, list(tokens)])
        raise RuntimeError(str((seen, os.environ.get("GRADING_SEED"))))
    """
    body = "return_value = list(draft_tokens)[: self.max_proposal_len]\nproposed = return_value"
    told = {}
    for seed in (1, 2):
        outcome = judged(
            sandbox, plan({1: body}, after=spy + "MultiTokenDecoderSim.propose = propose".strip()), LIMITS, seed
        )
        told[seed] = [verdict.message for verdict in outcome.verdicts if verdict.grade_id.startswith("test_propose")]
        assert all("None" in message for message in told[seed])
    wrong_late = {1: "proposed = list(draft_tokens)[: self.max_proposal_len] if len(draft_tokens) < 5 else []"}
    calls = {
        seed: [
            v.call
            for v in judged(sandbox, plan(wrong_late), LIMITS, seed).verdicts
            if v.grade_id == "test_propose_prefix"
        ]
        for seed in (1, 2)
    }
    assert calls[1] != calls[2]
