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
import time

from . import isolate
from .serve import work
from .shell import make_shell

CONTROL, LIFE = 0, 1  # order of the sockets in a request
PAGE = os.sysconf("SC_PAGE_SIZE")


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


def family(root: int) -> list[tuple[int, int]]:
    """(pid, private resident bytes) of `root` and all its descendants, from /proc."""
    parents, memory = {}, {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
                with open(f"/proc/{name}/statm", "rb") as file:
                    _, resident, shared = map(int, file.read().split()[:3])
                memory[int(name)] = (resident - shared) * PAGE
            except (OSError, IndexError, ValueError):
                continue  # it ended meanwhile
    found = {root}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return [(pid, memory[pid]) for pid in found if pid in memory]


def watch(init: int, life: socket.socket, limits: dict) -> dict:
    """Waits until the box ends or must end; returns what to tell the judge."""
    poll = select.poll()
    poll.register(life, select.POLLIN | select.POLLHUP)
    reason, pause = "", 0.02
    while True:
        pid, status = os.waitpid(init, os.WNOHANG)
        if pid:
            return {"ended": os.waitstatus_to_exitcode(status), "reason": reason}
        if not reason:
            processes = family(init)
            # RLIMIT_NPROC bounds what fork gives, and this ends a box that lives at the bound
            if len(processes) >= limits["processes"] - 2:
                reason = "processes"
            elif sum(max(0, size - isolate.zygote_private()) for _, size in processes) > limits["memory_bytes"]:
                reason = "memory"  # what a fork shares with the zygote is not its own
            if reason:
                os.kill(init, signal.SIGKILL)
        if poll.poll(pause * 1000) and not reason:
            reason = "hung up"
            os.kill(init, signal.SIGKILL)
        elif reason:
            time.sleep(0.001)
        pause = min(0.1, pause * 1.5)


def init_process(control: socket.socket, told: int, shell, limits: dict, kept: dict[str, str] | None) -> None:
    """The box's first process: closes the box around itself, starts the worker, reports the worker's end by its own."""
    isolate.die_with_parent()
    os.nice(5)  # the warden must get its turn, whatever the box does
    if kept is not None:
        isolate.own_files_and_network(limits["disk_bytes"], kept)
        isolate.drop_capabilities()
        isolate.filter_system_calls()
    else:
        os.setsid()
    isolate.limit(limits["memory_bytes"], limits["processes"], limits["file_bytes"], limits["cpu_seconds"])
    worker = os.fork()
    if worker == 0:
        try:
            os.close(told)
            work(control, shell)
        finally:
            os._exit(1)
    control.close()
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
        init = os.fork()
        if init == 0:
            try:
                life.close()
                os.close(ready)
                init_process(control, told, shell, limits, kept)
            except BaseException as error:
                os.write(told, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(70)
        control.close()
        os.close(told)
        outcome = watch(init, life, limits)
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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects wardens
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    channel.send(b"ready")
    while True:
        request, numbers, _, _ = socket.recv_fds(channel, 65536, 2)
        if not request:
            return
        sockets = [socket.socket(fileno=number) for number in numbers]
        if len(sockets) == 2 and os.fork() == 0:
            channel.close()
            warden(sockets[CONTROL], sockets[LIFE], shell, json.loads(request), kept)
        for sock in sockets:
            sock.close()
