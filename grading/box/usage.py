"""What the processes of a box use, read from /proc by its warden."""

from __future__ import annotations

import bisect
import contextlib
import os
import time

from . import isolate

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds


def family() -> list[int]:
    """All descendants of this process, from /proc."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            # it may end meanwhile
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return list(found)


def private_memory(pid: int) -> int:
    """Bytes that a process has in memory and that no file or shared memory stands for; the zygote's among them."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = map(int, file.read().split()[:3])
        return (resident - shared) * PAGE
    except (OSError, ValueError):
        return 0  # it ended meanwhile


def own_memory(pid: int) -> int:
    """Bytes of memory that a process has to itself: a page that it shares with n - 1 others counts for one nth."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            sizes = {line.partition(b":")[0]: line.split()[1] for line in file.read().splitlines()[1:]}
        return sum(int(sizes[name]) for name in (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended meanwhile
    except (OSError, KeyError):
        return private_memory(pid)  # it does not let itself be read


def too_much(processes: list[int], limits: dict) -> str:
    """What a box uses too much of: "processes", "memory" or ""."""
    # RLIMIT_NPROC bounds what fork gives, and this ends a box that lives at the bound
    if len(processes) >= limits["processes"] - 2:
        return "processes"
    # a fork shares most of its pages with the zygote: looked at closely, which is slow, only where it may matter
    room = limits["memory_bytes"] + isolate.zygote_private()
    if sum(map(private_memory, processes)) <= room:
        return ""
    return "memory" if sum(map(own_memory, processes)) > room else ""


def seconds_waited(pid: int | str = "self") -> float:
    """Seconds that a process was ready to run and no core was free; 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0  # it ended meanwhile, or the kernel has no scheduler statistics


def seconds_used(processes: list[int]) -> tuple[float, float]:
    """(seconds of processor, seconds that they were ready to run and no core was free), of all of them together."""
    worked = 0.0
    for pid in processes:
        # it may end meanwhile
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
            worked += sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) * TICK  # its children's too
    return worked, sum(map(seconds_waited, processes))


class Record:
    """The seconds that a box has used, looked at again and again."""

    def __init__(self):
        self._looks = [(time.monotonic(), 0.0, 0.0)]

    def look(self, processes: list[int]) -> None:
        self._looks.append((time.monotonic(), *seconds_used(processes)))

    def since(self, moment: float) -> dict[str, float]:
        """Seconds of processor and of waiting for one, from the last look before a moment to the last of all."""
        _, worked, waited = self._looks[max(0, bisect.bisect_right(self._looks, (moment,)) - 1)]
        _, worked_now, waited_now = self._looks[-1]
        return {"worked": worked_now - worked, "waited": waited_now - waited}
