"""The zygote: has imported what notebooks import, and forks a box for each request that comes with two sockets.

Three processes a box. The *warden* stays outside it: it ends the box when the judge hangs up and watches its memory.
*init* is the box's first process: when it ends, the kernel kills every process of the box. The *worker* runs the
learner's code.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys

from . import isolate
from .serve import work
from .shell import make_shell
from .usage import Record, family, too_much

CONTROL, LIFE = 0, 1  # order of the sockets in a request
SHORTEST_PAUSE = 0.02  # seconds between two looks at a box
COLLECT_MILLISECONDS = 200  # between two looks for wardens that have ended


def preload() -> object:
    """Imports everything once and returns the shell that every worker will use."""
    import matplotlib
    import numpy  # noqa: F401
    import torch

    matplotlib.use("Agg")
    import matplotlib.pyplot  # noqa: F401

    torch.set_num_threads(1)
    return make_shell()


def quiet_files(keep: set[int]) -> None:
    """Standard streams to /dev/null, every other descriptor closed but for those to keep."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    kept = sorted(keep | {0, 1, 2})
    for low, high in zip(kept, [*kept[1:], 65536], strict=True):
        os.closerange(low + 1, high)


def collect_children() -> bool:
    """Takes note of the children that have ended, so that their seconds of processor are counted; whether any live."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def end_orphans() -> None:
    """Without namespaces, what a worker left running is this process's to end."""
    while left := family():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        collect_children()


def watch(init: int, life: socket.socket, limits: dict) -> dict:
    """Waits until the box ends or must end; returns what to tell the judge.

    Meanwhile the judge may send a moment (time.monotonic, in ASCII) and is told what seconds the box has used since.
    """
    poll = select.poll()
    poll.register(life, select.POLLIN | select.POLLHUP)
    poll.register(os.pidfd_open(init), select.POLLIN)
    reason, pause = "", SHORTEST_PAUSE
    record = Record()
    while True:
        pid, status = os.waitpid(init, os.WNOHANG)
        if pid:
            return {"ended": os.waitstatus_to_exitcode(status), "reason": reason}
        happened = dict(poll.poll(pause * 1000))
        if not reason:
            processes = family()
            record.look(processes)
            if life.fileno() in happened and (moment := life.recv(64)):
                life.send(json.dumps(record.since(float(moment))).encode())
                continue
            reason = "hung up" if life.fileno() in happened else too_much(processes, limits)
            if reason:
                poll.unregister(life)
                os.kill(init, signal.SIGKILL)  # takes all others along, where it is the first of a namespace
            # more than init, worker and a helper may be a bomb
            pause = SHORTEST_PAUSE if len(processes) > 3 else min(0.1, pause * 1.5)


def init_process(control: socket.socket, told: int, shell, limits: dict, kept: dict[str, str] | None) -> None:
    """The box's first process: closes the box around itself, starts the worker, reports the worker's end by its own."""
    isolate.die_with_parent()
    os.setsid()  # or kill(0, …) would reach whoever shares the process group, neighbours included
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one signal that Python gives a handler: a box can send it
    os.nice(5)  # the warden must get its turn, whatever the box does
    if kept is not None:
        isolate.own_files_and_network(limits["disk_bytes"], kept)
        isolate.drop_capabilities()
        isolate.filter_system_calls()
    isolate.limit(limits["memory_bytes"], limits["processes"], limits["file_bytes"], limits["cpu_seconds"])
    worker = os.fork()
    if worker == 0:
        try:
            os.close(told)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            work(control, shell)
        finally:
            os._exit(1)
    control.close()
    os.close(told)  # the box is made: nothing from here on may say that it was not
    while True:
        pid, status = os.wait()  # orphans of the box end up here too
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def warden(control: socket.socket, life: socket.socket, shell, limits: dict, kept: dict[str, str] | None) -> None:
    """Makes the box, watches it, tells the judge how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    quiet_files({control.fileno(), life.fileno()})
    ready, told = os.pipe()
    try:
        if kept is not None:
            isolate.own_user_and_processes()
        else:
            isolate.adopt_orphans()
        init = os.fork()
        if init == 0:
            try:
                life.close()
                os.close(ready)
                init_process(control, told, shell, limits, kept)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(told, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(70)
        control.close()
        os.close(told)
        outcome = watch(init, life, limits)
        if kept is None:
            end_orphans()
        failure = os.read(ready, 1000).decode("utf-8", "replace") if outcome["ended"] == 70 else ""
        if failure:
            outcome["failed"] = failure
    except BaseException as error:
        outcome = {"ended": 70, "reason": "", "failed": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):  # the judge may have hung up
        life.send(json.dumps(outcome).encode())
    os._exit(0)


def main(channel_number: int, kept: dict[str, str] | None, nobody: int) -> None:
    """Serves requests from the channel until it is closed.

    kept: see isolate.own_files_and_network; None: no namespaces at all, for code that is trusted.
    nobody: the uid to become when started as root, else 0.
    """
    channel = socket.socket(fileno=channel_number)
    if nobody:
        isolate.become_nobody(nobody)
    sys.path = [path for path in sys.path if not path.startswith("/opt/grading")]
    shell = preload()
    isolate.remember_zygote()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    channel.send(b"ready")
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        while not poll.poll(COLLECT_MILLISECONDS if collect_children() else None):
            pass
        request, numbers, _, _ = socket.recv_fds(channel, 65536, 2)
        if not request:
            return
        sockets = [socket.socket(fileno=number) for number in numbers]
        if len(sockets) == 2 and os.fork() == 0:
            channel.close()
            warden(sockets[CONTROL], sockets[LIFE], shell, json.loads(request), kept)
        for sock in sockets:
            sock.close()
