"""The box from inside: what learner's code can reach, use up and leave behind. Nothing, but for itself.

Every case runs hostile code in a real box. Where the claim is that something outside cannot be reached, a canary lies
outside; where it is that a limit holds, the code runs into it; and afterwards the next box must work as ever.
"""

import contextlib
import os
import platform
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from judging import (
    CANARY,
    FULL,
    MIB,
    SMALL,
    Limits,
    box,
    boxed,
    fault_of,
    inside,
    judged,
    plan,
    points,
    settled,
    shared_sandbox,
    user_sandbox,
    zygote,
)

from grading.box import isolate
from grading.chapter import ROOT
from grading.judge.sandbox import ENVIRONMENT, HUGE_PAGES_STATE, python_folders
from grading.judge.worker import WorkerFault


@pytest.fixture(scope="session")
def sandbox():
    return shared_sandbox()


# Put before every case: what a case may need to knock on the kernel's door.
TOOLS = """
import ctypes, errno, mmap, os, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def code_of(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    except BaseException as error:
        return type(error).__name__
    return "done"

def system_call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(argument) for argument in arguments])
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def answers(sandbox, source: str, limits: Limits = SMALL):
    return inside(sandbox, TOOLS + source, limits)


@pytest.fixture(autouse=True)
def sandbox_survives(sandbox):
    """After every case the zygote is the same process, and a new box comes up with a clean worker."""
    before = zygote(sandbox).pid
    yield
    assert sandbox.alive() and zygote(sandbox).pid == before
    assert inside(sandbox, "def probe():\n    return sum([1, 2])") == 3


# --- what can be reached ---------------------------------------------------------------------------------------------


def test_no_network_and_no_socket_of_the_host(sandbox, tmp_path):
    with contextlib.ExitStack() as opened:
        listeners = []
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", 0)),
            (socket.AF_UNIX, f"\0grading-canary-{os.getpid()}"),
            (socket.AF_UNIX, str(tmp_path / "canary.sock")),
        ):
            listener = opened.enter_context(socket.socket(family))
            listener.bind(address)
            listener.listen()
            listener.setblocking(False)
            listeners.append(listener)
        port, abstract, path = (listener.getsockname() for listener in listeners)
        with socket.create_connection(port):  # the canary sings when it is reached
            listeners[0].accept()[0].close()
        source = f"""
def probe():
    def connect(family, address):
        knock = socket.socket(family)
        knock.settimeout(0.5)
        knock.connect(address)
    out = [code_of(lambda: connect(socket.AF_INET, (host, {port[1]}))) for host in ("127.0.0.1", "10.0.0.1", "8.8.8.8")]
    out.append(code_of(lambda: connect(socket.AF_INET6, ("::1", {port[1]}))))
    out.append(code_of(lambda: connect(socket.AF_UNIX, {abstract!r})))
    out.append(code_of(lambda: connect(socket.AF_UNIX, {path!r})))
    out.append(code_of(lambda: socket.getaddrinfo("example.org", 80)))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.append(code_of(lambda: udp.sendto(b"x", ("127.0.0.1", {port[1]}))))
    return out
"""
        assert "done" not in answers(sandbox, source)
        for listener in listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_other_families_of_sockets_are_refused(sandbox):
    families = {"NETLINK": 16, "PACKET": 17, "VSOCK": 40, "ALG": 38, "TIPC": 30, "BLUETOOTH": 31, "CAN": 29, "RDS": 21}
    source = f"""
def probe():
    out = {{}}
    for name, family in {families}.items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            out[name, kind] = code_of(lambda: socket.socket(family, kind))
        out[name, "pair"] = code_of(lambda: socket.socketpair(family, socket.SOCK_STREAM))
    out["RAW"] = code_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    return {{key: code for key, code in out.items() if code not in ("EAFNOSUPPORT", "EPERM")}}
"""
    assert answers(sandbox, source) == {}


def test_sees_no_file_of_the_host(sandbox, tmp_path):
    (tmp_path / "canary.txt").write_text("secret")
    hidden = [tmp_path / "canary.txt", Path.home() / ".bashrc", *ROOT.glob("source/*/*.ipynb"), ROOT / "tests"]
    hidden += [ROOT / "pyproject.toml", ROOT / "grading" / "judge", ROOT / "gradebook.db", ROOT / "release"]
    hidden += map(Path, ("/etc/shadow", "/etc/hostname", "/etc/ssh", "/var", "/run", "/mnt", "/media", "/boot"))
    hidden += map(Path, ("/sys/class", "/sys/devices", "/sys/fs", "/sys/module"))
    hidden += map(Path, ("/proc/self/mem", "/proc/1/root", "/proc/self/root", "/dev/fd/3", "/dev/sda", "/dev/kmsg"))
    source = f"""
def probe():
    return [path for path in {list(map(str, hidden))} if os.path.lexists(path)]
"""
    assert answers(sandbox, source) == []


def test_everything_in_sight_is_the_system_python_or_the_boxs_own(sandbox):
    """What lies outside /usr and Python's own folders is a short list."""
    known = ["/usr", *python_folders()]
    source = f"""
def probe():
    found = []
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in {known}
                      and not os.path.islink(os.path.join(folder, name))]
        if folder.startswith("/opt/grading/python"):
            folders.clear()
            continue
        found += [os.path.join(folder, name) for name in files]
    return found, os.listdir("/")
"""
    files, top = answers(sandbox, source)
    own = {f"/opt/grading/box/{path.name}" for path in (ROOT / "grading" / "box").glob("*.py")}
    allowed = own | {"/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/localtime"}
    folders = ("/dev/", "/opt/grading/box/__p", f"{HUGE_PAGES_STATE}/")
    strange = [path for path in files if path not in allowed and not path.startswith(folders)]
    assert [path for path in strange if not path.startswith("/etc/alternatives/")] == []
    expected = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "home", "tmp", "dev"}
    expected |= {"proc", "sys"}
    assert set(top) <= expected | {Path(folder).parts[1] for folder in python_folders()}


def test_environment_holds_nothing_of_the_host(sandbox):
    found = answers(sandbox, "def probe(): return dict(os.environ)")
    assert CANARY not in found and "GRADING_SEED" not in found
    assert set(found) <= set(ENVIRONMENT) | {"PWD"}


def test_sees_no_process_and_hurts_only_its_own(sandbox):
    with box(sandbox) as neighbour:
        assert neighbour.run("state = 5\ndef probe(): return state") is None
        with box(sandbox) as hostile:
            source = """
def probe():
    def there(pid):
        return code_of(lambda: os.kill(pid, 0)) != "ESRCH"
    return os.listdir("/proc"), [pid for pid in range(1, 40_000) if there(pid)], os.getpid(), os.getpgrp(), os.getsid(0)
"""
            assert hostile.run(TOOLS + source) is None
            listed, pids, own, group, session = hostile.call()
            assert listed == [] and pids == [1, own]
            assert 0 not in (group, session), "its process group is one that others are in"
        for target in ("-1", "0", "1", "-1 * os.getpgrp()", "os.getppid()"):
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGINT):
                cell = f"import os, signal\nsignal.signal(2, signal.SIG_IGN)\nos.kill({target}, {int(number)})"
                with box(sandbox, Limits(cell_seconds=0.4)) as hostile, contextlib.suppress(WorkerFault):
                    hostile.run(cell)
        assert neighbour.call() == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1])
def test_signals_to_the_boxs_first_process_are_no_way_out(sandbox, number):
    """A box that "could not be made" is the grader's fault, and its submission gets no score: nobody may ask for it."""
    source = f"import os, time\nos.kill(1, {int(number)})\ntime.sleep(0.1)\ndef probe(): return 1"
    assert inside(sandbox, source) == 1


def test_exit_status_of_a_box_that_failed_to_start_is_no_way_out(sandbox):
    assert fault_of(sandbox, "import os\nos._exit(70)").kind == "death"


def test_no_descriptor_but_the_control_socket(sandbox):
    source = """
def probe():
    out = []
    for number in range(4096):
        try:
            status = os.fstat(number)
        except OSError:
            continue
        out.append("null" if status.st_rdev == os.makedev(1, 3) else "socket" if status.st_mode >> 12 == 12 else "?")
    return out
"""
    kinds = answers(sandbox, source)
    assert sorted(kinds) == ["null", "null", "null", "socket"]


def test_cannot_take_descriptors_of_its_first_process(sandbox):
    pidfd_open, pidfd_getfd = 434, 438
    source = f"""
def probe():
    opened = libc.syscall({pidfd_open}, 1, 0)
    return [system_call({pidfd_getfd}, opened, number, 0) for number in range(32)]
"""
    assert "done" not in answers(sandbox, source)


def test_zygote_shares_no_writable_memory_with_boxes(sandbox):
    """Memory mapped as shared before the fork would be one whiteboard for all boxes."""
    shared = [line for line in Path(f"/proc/{zygote(sandbox).pid}/maps").read_text().splitlines() if "rw-s" in line]
    assert shared == []


def test_two_boxes_share_nothing(sandbox):
    write = """
import threading
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
    open(folder + "/canary", "w").write("here")
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0canary")
listener.listen()
server = socket.socket()
bound = code_of(lambda: server.bind(("0.0.0.0", 8000)))
terminal = code_of(os.openpty)
def probe(): return [bound, code_of(lambda: server.listen())]
"""
    read = """
def probe():
    out = [path for path in ("/tmp/canary", "/dev/shm/canary", "/home/learner/canary") if os.path.exists(path)]
    out += [code_of(lambda: socket.socket(socket.AF_UNIX).connect("\\0canary"))]
    out += [code_of(lambda: socket.socket().connect(("127.0.0.1", 8000)))]
    folders = ("/tmp", "/dev/shm", "/home/learner", "/dev/pts")
    return out + [name for folder in folders for name in os.listdir(folder) if name != "ptmx"]
"""
    with box(sandbox) as first, box(sandbox) as second:
        assert first.run(TOOLS + write) is None
        first.call()
        assert second.run(TOOLS + read) is None
        refused, unreachable, *listed = second.call()
        assert refused == "ECONNREFUSED" and unreachable in ("ENETUNREACH", "ECONNREFUSED")
        assert [name for name in listed if name != Path(sys.prefix).parts[2]] == []  # a Python that lives below /tmp


def test_nothing_persists_from_one_submission_to_the_next(sandbox):
    poison = """
import builtins, json, random, torch
home = os.path.expanduser("~")
for path in (".ipython/profile_default/startup/00.py", ".config/matplotlib/matplotlibrc", "sitecustomize.py",
             "usercustomize.py", ".pythonrc.py", ".bashrc", "torch.py", ".local/lib/python3/site-packages/x.pth"):
    os.makedirs(os.path.dirname(os.path.join(home, path)), exist_ok=True)
    open(os.path.join(home, path), "w").write("raise SystemExit")
os.makedirs("/tmp/ipython/profile_default/startup", exist_ok=True)
open("/tmp/ipython/profile_default/startup/00.py", "w").write("raise SystemExit")
os.environ["PYTHONSTARTUP"] = home + "/.pythonrc.py"
builtins.canary = torch.canary = json.canary = sys.canary = 1
builtins.sorted = torch.equal = random.random = lambda *a, **k: 4
sys.modules["canary"] = json
sys.path.insert(0, home)
torch.set_default_dtype(torch.float64)
get_ipython().user_ns["canary"] = 1
get_ipython().ast_transformers.append(1)
get_ipython().input_transformers_post.append(lambda lines: ["1/0"])
def probe(): return 1
"""
    assert answers(sandbox, poison) == 1
    look = """
import builtins, json, random, torch
def probe():
    names = [name for name in ("builtins", "torch", "json", "sys") if hasattr(sys.modules[name], "canary")]
    shell = get_ipython()
    names += [name for name in ("canary",) if name in sys.modules or name in shell.user_ns]
    names += shell.ast_transformers + shell.input_transformers_post
    names += [name for name in os.environ if name == "PYTHONSTARTUP"]
    names += os.listdir(os.path.expanduser("~")) + [name for name in os.listdir("/tmp") if name == "ipython"]
    return names, sorted([2, 1]), random.random() == random.random(), str(torch.get_default_dtype())
"""
    assert answers(sandbox, look) == ([], [1, 2], False, "torch.float32")


# --- time ------------------------------------------------------------------------------------------------------------

STUBBORN = {
    "sleep": "time.sleep(1e6)",
    "busy loop": "while True: pass",
    "C call": "sum(range(10**12))",
    "C call without the lock": "import hashlib\nhashlib.pbkdf2_hmac('sha512', b'x', b'y', 2**31 - 1)",
    "handlers of all signals": """
for number in range(1, 65):
    try: signal.signal(number, lambda *_: None)
    except (OSError, ValueError): pass
while True: pass""",
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "swallows BaseException": """
while True:
    try:
        while True: pass
    except BaseException: pass""",
    "finally without end": "try:\n    raise SystemExit\nfinally:\n    while True: pass",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "thread": "import threading\nthreading.Thread(target=lambda: time.sleep(1e6)).start()\nthreading.Event().wait()",
    "regular expression": "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
    "big integer": "9 ** 9 ** 9",
    "reads for ever": "ends = socket.socketpair()\nends[0].recv(1)",
    "waits on its own socket": "os.read(3, 1)\nwhile True: pass",
}


@pytest.mark.parametrize("name", STUBBORN)
def test_cannot_outlive_its_time(sandbox, name):
    limits = Limits(cell_seconds=0.4, memory_bytes=512 * MIB)
    started = time.monotonic()
    fault = fault_of(sandbox, TOOLS + STUBBORN[name], limits)
    assert time.monotonic() - started < 2.0
    assert fault.kind in ("timeout", "memory") or name == "waits on its own socket"
    assert settled(sandbox) == []


def test_daemons_die_with_the_box(sandbox):
    source = """
def daemon():
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        if os.fork() == 0:
            for number in range(256):
                try: os.close(number)
                except OSError: pass
            time.sleep(1e6)
        os._exit(0)
for _ in range(3): daemon()
subprocess.Popen(["sleep", "7777"], start_new_session=True)
subprocess.Popen("nohup setsid sleep 7777 &", shell=True)
time.sleep(0.2)
def probe(): return 1
"""
    with box(sandbox) as hostile:
        assert hostile.run(TOOLS + source) is None
        assert hostile.call() == 1
        assert len(boxed(sandbox)) >= 3 + 5
    assert settled(sandbox) == []


def test_the_box_ends_with_the_worker(sandbox):
    source = "subprocess.Popen(['sleep', '7777'], start_new_session=True)\nos._exit(0)"
    assert fault_of(sandbox, TOOLS + source).kind == "death"
    assert settled(sandbox) == []


# --- disk, memory, processes -----------------------------------------------------------------------------------------


def test_disk_is_bounded_over_all_writable_folders(sandbox):
    source = """
def probe():
    written, files = 0, 0
    for folder in ("/tmp", "/home/learner", "/home", "/dev/shm", "/var/tmp", "/run", "."):
        for number in range(20):
            try:
                with open(f"{folder}/{number}", "wb", buffering=0) as file:
                    for _ in range(200):
                        written += file.write(b"x" * 100_000)
            except OSError:
                pass
    os.system("rm -rf /tmp/[0-9]* /home/learner/* /home/[0-9]* /dev/shm/*")
    for folder in ("/tmp", "/home/learner", "/dev/shm"):
        for number in range(20_000):
            try:
                os.mkdir(f"{folder}/{number}")
                files += 1
            except OSError:
                break
    return written, files
"""
    written, files = answers(sandbox, source, Limits(disk_bytes=8 * MIB, file_bytes=6 * MIB))
    assert 4 * MIB < written <= 8 * MIB
    assert 100 < files <= 4096


def test_file_size_is_bounded_sparse_files_too(sandbox):
    source = """
def probe():
    with open("/tmp/sparse", "wb") as file:
        return [code_of(lambda: file.truncate(1 << 40)), code_of(lambda: os.posix_fallocate(file.fileno(), 0, 1 << 30)),
                code_of(lambda: os.pwrite(file.fileno(), b"x", 1 << 33)), os.path.getsize("/tmp/sparse")]
"""
    *codes, size = answers(sandbox, source)
    assert codes == ["EFBIG"] * 3 and size == 0


GREEDY = {  # each must end in an exception inside or in the fault "memory"
    "one process": "hog = [bytearray(1 << 26) for _ in range(64)]",
    "torch": "import torch\nhog = [torch.zeros(1 << 24) for _ in range(64)]",
    "numpy": "import numpy\nhog = [numpy.ones(1 << 23) for _ in range(64)]",
    "shared tensor": "import torch\nhog = [torch.zeros(1 << 24).share_memory_() for _ in range(64)]",
    "recursion": "sys.setrecursionlimit(10**9)\ndef down(n): return down(n + 1) + 1\ndown(0)",
    "string": "text = 'x' * (1 << 34)",
    "list": "hog = []\nwhile True: hog.append(list(range(100_000)))",
    "forks": """
for _ in range(10):
    if os.fork() == 0:
        hog = bytearray(80 << 20)
        time.sleep(60)
time.sleep(1.5)""",
    "programs": f"""
code = "hog = bytearray(60 << 20)\\nimport time\\ntime.sleep(60)"
for _ in range(10): subprocess.Popen([{sys.executable!r}, "-I", "-S", "-c", code])
time.sleep(1.7)""",
    "anonymous shared memory": """
hogs = []
def take():
    hogs.append(mmap.mmap(-1, 200 << 20))
    hogs[-1].madvise(mmap.MADV_POPULATE_WRITE if hasattr(mmap, "MADV_POPULATE_WRITE") else 23)
for _ in range(10):
    take()
    if os.fork(): time.sleep(60)""",
    "memory files": """
files = [os.memfd_create("hog") for _ in range(200)]
for file in files: os.write(file, b"x" * (10 << 20))""",
    "secret memory": "assert libc.syscall(447, 0) >= 0, os.strerror(ctypes.get_errno())",
    "System V": """
for _ in range(10):
    number = libc.shmget(0, 100 << 20, 0o1600)
    assert number >= 0""",
    "System V queues": "assert min(libc.msgget(0, 0o1600) for _ in range(4000)) >= 0",
    "System V semaphores": "assert min(libc.semget(0, 32000, 0o1600) for _ in range(1000)) >= 0",
    "POSIX queue": "assert libc.mq_open(b'/hog', 0o102, 0o600, None) >= 0",
    "zero device": """
zero = os.open("/dev/zero", os.O_RDWR)
hog = mmap.mmap(zero, 200 << 20, mmap.MAP_SHARED)""",
    "locked memory": "assert libc.mlockall(7) == 0",
}


@pytest.mark.parametrize("name", GREEDY)
def test_memory_is_bounded(sandbox, name):
    """Refused inside, or ended from outside; and the machine never misses much."""
    seconds = 2.0 if name == "recursion" else 6.0
    limits = Limits(cell_seconds=seconds, memory_bytes=300 * MIB, disk_bytes=16 * MIB, processes=16)
    free = psutil.virtual_memory().available
    with box(sandbox, limits) as hostile:
        try:
            error = hostile.run(TOOLS + GREEDY[name])
        except WorkerFault as fault:
            assert fault.kind in ("memory", "death") or name == "recursion", fault  # that one may run out of time first
        else:
            assert error is not None, "it got all it asked for"
        assert free - psutil.virtual_memory().available < 2000 * MIB
    assert settled(sandbox) == []


def test_memory_is_counted_of_processes_that_hide(sandbox):
    """One that is not dumpable cannot be looked into: all its pages count."""
    source = """
for _ in range(10):
    if os.fork() == 0:
        libc.prctl(4, 0, 0, 0, 0)
        hog = bytearray(80 << 20)
        time.sleep(60)
time.sleep(1.5)
"""
    limits = Limits(cell_seconds=4.0, memory_bytes=300 * MIB)
    assert fault_of(sandbox, TOOLS + source, limits).kind == "memory"


def test_memory_of_forks_is_counted_though_it_was_the_zygotes(sandbox):
    """Every fork starts with the zygote's pages; one that writes to them has pages of its own."""
    source = """
import gc, torch
hogs = []
for _ in range(12):
    if os.fork() == 0:
        hogs.append(bytearray(40 << 20))
        time.sleep(60)
time.sleep(1.5)
"""
    limits = Limits(cell_seconds=4.0, memory_bytes=300 * MIB, processes=20)
    assert fault_of(sandbox, TOOLS + source, limits).kind == "memory"


def test_many_forks_that_take_nothing_are_not_taken_for_greedy(sandbox):
    source = """
for _ in range(8):
    if os.fork() == 0: time.sleep(60)
time.sleep(0.5)
def probe(): return 1
"""
    assert answers(sandbox, source, Limits(memory_bytes=100 * MIB, processes=16)) == 1


BOMBS = {
    "children": "for _ in range(4096):\n    try: os.fork()\n    except OSError: pass",
    "a chain": "while True:\n    try:\n        if os.fork(): time.sleep(60)\n    except OSError: pass",
    "vanishing parents": "while True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass",
    "a shell": "subprocess.run('bomb() { bomb | bomb & }; bomb; sleep 60', shell=True)",
    "vfork": "while True: subprocess.Popen(['sleep', '60'])",
}


@pytest.mark.parametrize("name", BOMBS)
def test_cannot_fork_without_bound(sandbox, name):
    assert most_processes(sandbox, BOMBS[name]) <= 16 + 1, "the warden and what the box may hold"


def most_processes(sandbox, source: str) -> int:
    """How many processes a box of at most 16 has had at once. It must end well, or be ended."""
    seen, done = [0], threading.Event()

    def count():
        while not done.wait(0.02):
            with contextlib.suppress(psutil.NoSuchProcess):
                seen.append(len(boxed(sandbox)))

    watcher = threading.Thread(target=count)
    watcher.start()
    try:
        with box(sandbox, Limits(cell_seconds=1.0, processes=16)) as hostile:
            try:
                hostile.run(TOOLS + source)
            except WorkerFault as fault:
                assert fault.kind in ("processes", "timeout", "death"), fault
    finally:
        done.set()
        watcher.join()
    assert settled(sandbox) == []
    return max(seen)


def test_threads_are_bounded(sandbox):
    source = """
import threading
def probe():
    started = 0
    try:
        for _ in range(500):
            threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
            started += 1
    except RuntimeError:
        return started
"""
    assert answers(sandbox, source, Limits(processes=16)) < 16


def test_open_files_are_bounded_and_the_worker_answers_without_any(sandbox):
    source = """
hoard = []
def probe():
    try:
        while True: hoard.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return len(hoard), error.errno == errno.EMFILE
"""
    with box(sandbox) as hostile:
        assert hostile.run(TOOLS + source) is None
        count, refused = hostile.call()
        assert 64 < count <= 128 and refused
        assert hostile.call()[0] == count


def test_buffers_of_sockets_are_bounded(sandbox):
    """The kernel's memory for them is in no process's account: a box may hold so many sockets, so large, no larger."""
    source = """
def probe():
    hoard, held = [], 0
    larger = code_of(lambda: socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22))
    try:
        while True: hoard += socket.socketpair()
    except OSError:
        for end in hoard:
            end.setblocking(False)
            try:
                while True: held += end.send(b"x" * 65536)
            except OSError: pass
    return larger, len(hoard), held
"""
    larger, count, held = answers(sandbox, source)
    assert larger == "EPERM" and count <= 128 and held < 32 * MIB


# --- output, crashes -------------------------------------------------------------------------------------------------


def test_output_is_bounded_and_never_a_fault(sandbox):
    source = """
import sys
print("x" * 100_000_000)
for _ in range(20_000): print("line", flush=True)
sys.stderr.write("\\udcff\\x00\\x1b[2J" * 1000)
sys.stdout.buffer.write(bytes(range(256)) * 10_000)
for number in (0, 1, 2):
    os.write(number, b"\\xff" * 1_000_000)
os.system("yes | head -c 50000000")
subprocess.run(["head", "-c", "50000000", "/dev/zero"])
os.close(0); os.close(1); os.close(2)
print("after closing")
sys.stdout.close(); sys.stdout = None
print("after that")
def probe():
    print("y" * 1_000_000)
    return 7
"""
    with box(sandbox) as loud:
        assert loud.run(TOOLS + source) is None
        assert loud.call() == 7
        assert "output_dropped" in loud.worker.flags
        assert len(loud.worker.output) <= 4000


ENDS = {
    "null pointer": "ctypes.string_at(0)",
    "wild write": "ctypes.memset(0xdead0000, 1, 10)",
    "abort": "os.abort()",
    "exit": "os._exit(0)",
    "exit with the code for a box that failed": "os._exit(70)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "illegal instruction": "os.kill(os.getpid(), signal.SIGILL)",
    "free": "libc.free(ctypes.c_void_p(0x1234))",
    "exec": "os.execv('/bin/true', ['true'])",
    "closes its socket": "os.closerange(3, 256)\nos._exit(3)",
    "bad code object": """
import types
code = (lambda: 1).__code__
exec(code.replace(co_code=bytes([151, 0, 100, 255]) * 50, co_stacksize=0))
os.abort()""",
    "C recursion": "nested = ()\nfor _ in range(10**6): nested = (nested,)\nhash(nested)\nos.abort()",
    "forbidden architecture": "libc.syscall(0x40000000 + 39) and os.abort()",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_crash_costs_the_box_only(sandbox, name):
    assert fault_of(sandbox, TOOLS + ENDS[name]).kind == "death"
    assert settled(sandbox) == []


def test_a_worker_that_hangs_up_but_lives_on_is_ended(sandbox):
    started = time.monotonic()
    assert fault_of(sandbox, TOOLS + "os.closerange(3, 256)\ntime.sleep(60)").kind == "death"
    assert time.monotonic() - started < 7
    assert settled(sandbox) == []


# --- privileges ------------------------------------------------------------------------------------------------------

# Written out here, so that a system call that vanishes from the filter is missed. (x86_64, aarch64, arguments)
REFUSED = {
    "mount": (165, 40, ()),
    "umount2": (166, 39, ()),
    "pivot_root": (155, 41, ()),
    "chroot": (161, 51, ()),
    "unshare a user namespace": (272, 97, (isolate.NEWUSER,)),
    "unshare mounts": (272, 97, (isolate.NEWNS,)),
    "clone into a user namespace": (56, 220, (isolate.NEWUSER | signal.SIGCHLD,)),
    "clone3": (435, 435, ()),
    "setns": (308, 268, (3, 0)),
    "fsopen": (430, 430, ()),
    "open_tree": (428, 428, ()),
    "move_mount": (429, 429, ()),
    "mount_setattr": (442, 442, ()),
    "ptrace traceme": (101, 117, (0,)),
    "process_vm_readv": (310, 270, (1,)),
    "process_vm_writev": (311, 271, (1,)),
    "pidfd_getfd": (438, 438, (3, 0)),
    "kcmp": (312, 272, (1, 1)),
    "bpf": (321, 280, (5,)),
    "perf_event_open": (298, 241, ()),
    "userfaultfd": (323, 282, (0,)),
    "io_uring_setup": (425, 425, (8,)),
    "keyctl": (250, 219, (0, -3)),
    "add_key": (248, 217, ()),
    "request_key": (249, 218, ()),
    "memfd_create": (319, 279, ()),
    "memfd_secret": (447, 447, (0,)),
    "shmget": (29, 194, (0, 4096, 0o1600)),
    "semget": (64, 190, (0, 1, 0o1600)),
    "msgget": (68, 186, (0, 0o1600)),
    "fanotify_init": (300, 262, (0,)),
    "open_by_handle_at": (304, 265, ()),
    "name_to_handle_at": (303, 264, ()),
    "init_module": (175, 105, ()),
    "finit_module": (313, 273, ()),
    "kexec_load": (246, 104, ()),
    "reboot": (169, 142, ()),
    "swapon": (167, 224, ()),
    "syslog": (103, 116, (3,)),
    "personality": (135, 92, (0x0040000,)),
    "sethostname": (170, 161, ()),
    "setuid": (105, 146, (0,)),
    "setgid": (106, 144, (0,)),
    "setgroups": (116, 159, (0, 0)),
    "nice up": (141, 140, (0, 0, -20)),
    "realtime": (144, 119, (0, 1)),
}


def test_system_calls_for_privileges_are_refused(sandbox):
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    calls = {name: (row[column], *row[2]) for name, row in REFUSED.items()}
    found = answers(sandbox, f"def probe(): return {{name: system_call(*call) for name, call in {calls}.items()}}")
    odd = {name: code for name, code in found.items() if code not in ("EPERM", "ENOSYS", "EACCES")}
    assert odd == {"realtime": "EFAULT", "setuid": "EINVAL", "setgid": "EINVAL"}  # there is no such user


def run_filter(machine: str, arch: int, number: int, arguments: tuple = ()) -> int:
    """What the filter's program answers, by interpreting it."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", isolate.filter_program(machine)))
    at, loaded = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
            continue
        if code == 0x54:
            loaded &= value
            continue
        holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
        at += yes if holds else no


@pytest.mark.parametrize("machine, column", [("x86_64", 0), ("aarch64", 1)])
def test_filter_on_both_architectures(machine, column):
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    by_the_kernel = {"sethostname", "setuid", "setgid", "setgroups", "nice up", "realtime"}
    for name, row in REFUSED.items():
        allowed = (
            run_filter(machine, arch, row[column], row[2][:1] if row[2] and row[2][0] >= 0 else ()) == isolate.ALLOW
        )
        assert allowed == (name in by_the_kernel), name
    assert run_filter(machine, 0x40000003, 1) == isolate.KILL  # 32-bit system calls
    clone, socket_, pair, mmap_, read = {0: (56, 41, 53, 9, 0), 1: (220, 198, 199, 222, 63)}[column]
    assert run_filter(machine, arch, read) == isolate.ALLOW
    assert run_filter(machine, arch, clone, (0x3D0F00,)) == isolate.ALLOW  # what starting a thread asks for
    for flag in (isolate.NEWNS, isolate.NEWUSER, isolate.NEWPID, isolate.NEWNET, isolate.NEWIPC):
        assert run_filter(machine, arch, clone, (flag | signal.SIGCHLD,)) != isolate.ALLOW
    for family in range(46):
        assert (run_filter(machine, arch, socket_, (family,)) == isolate.ALLOW) == (family in (1, 2, 10))
        assert (run_filter(machine, arch, pair, (family,)) == isolate.ALLOW) == (family == 1)
    private, shared, anonymous = 2, 1, 0x20
    for flags, fine in ((private | anonymous, True), (private, True), (shared, True), (shared | anonymous, False)):
        assert (run_filter(machine, arch, mmap_, (0, 4096, 3, flags, 0)) == isolate.ALLOW) == fine
    assert run_filter(machine, arch, mmap_, (0, 4096, 3, 3 | anonymous, 0)) != isolate.ALLOW
    setsockopt = {0: 54, 1: 208}[column]
    assert run_filter(machine, arch, setsockopt, (3, 1, 7)) != isolate.ALLOW
    assert run_filter(machine, arch, setsockopt, (3, 1, 2)) == isolate.ALLOW
    if machine == "x86_64":
        assert run_filter(machine, arch, 0x40000000 + 1) != isolate.ALLOW  # the x32 numbers


def test_unknown_architecture_is_an_error_not_an_open_door():
    with pytest.raises(KeyError):
        isolate.filter_program("riscv64")


def test_no_capabilities_and_no_way_to_new_ones(sandbox):
    source = """
def probe():
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    bounding = [n for n in range(64) if libc.prctl(23, n, 0, 0, 0) == 1]
    ambient = [n for n in range(64) if libc.prctl(47, 1, n, 0, 0) == 1]
    no_new_privileges, seccomp = libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0)
    return list(data), bounding, ambient, no_new_privileges, seccomp, os.getresuid(), os.getgroups()
"""
    sets, bounding, ambient, no_new_privileges, seccomp, users, groups = answers(sandbox, source)
    assert (sets, bounding, ambient) == ([0] * 6, [], [])
    assert no_new_privileges == 1 and seccomp == 2
    assert users == (isolate.LEARNER,) * 3 and 0 not in groups


def test_setuid_programs_are_useless(sandbox):
    """Every mount is nosuid, and no_new_privs holds; so the programs that the system has run as the learner."""
    source = """
def probe():
    found = []
    for folder in ("/usr/bin", "/usr/sbin", "/usr/lib"):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.stat(path).st_mode & 0o6000: found.append(path)
    open("/tmp/mine", "wb").write(open("/usr/bin/id", "rb").read())
    os.chmod("/tmp/mine", 0o6755)
    found += ["/", "/usr", "/tmp", "/home", "/dev"]
    suid = [path for path in found if not os.statvfs(path).f_flag & os.ST_NOSUID]
    programs = ("/tmp/mine", "/usr/bin/id")
    ran = [subprocess.run([path, "-u"], capture_output=True, text=True).stdout.strip() for path in programs]
    return ran, suid, code_of(lambda: os.chown("/tmp/mine", 0, 0))
"""
    ran, suid, chown = answers(sandbox, source)
    assert set(ran) <= {"", str(isolate.LEARNER)} and str(isolate.LEARNER) in ran
    assert suid == [] and chown in ("EPERM", "EINVAL")


def test_system_is_read_only(sandbox):
    site = next(path for path in sys.path if path.endswith("site-packages"))
    fixed = [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/etc",
        "/opt",
        "/opt/grading",
        "/opt/grading/box",
        "/dev",
        "/proc",
        "/dev/pts",
        site,
    ]
    fixed += python_folders()
    source = f"""
def probe():
    out = {{}}
    for folder in {fixed}:
        out[folder] = code_of(lambda: open(folder + "/canary", "w"))
        out[folder, "mkdir"] = code_of(lambda: os.mkdir(folder + "/canary2"))
        out[folder, "link"] = code_of(lambda: os.symlink("/tmp", folder + "/canary3"))
        out[folder, "rename"] = code_of(lambda: os.rename("/tmp", folder + "/canary4"))
        out[folder, "chmod"] = code_of(lambda: os.chmod(folder, 0o777))
    import torch
    for path in (torch.__file__, sys.executable, "/opt/grading/box/wire.py", "/etc/passwd", "/bin/sh"):
        out[path] = code_of(lambda: open(path, "r+b"))
        out[path, "unlink"] = code_of(lambda: os.unlink(path))
        out[path, "utime"] = code_of(lambda: os.utime(path))
    out["remount"] = system_call(165, 0, 0, 0, 32, 0)
    return out
"""
    refused = ("EROFS", "EACCES", "EPERM", "EXDEV", "EBUSY", "ETXTBSY")
    assert {key: code for key, code in answers(sandbox, source).items() if code not in refused} == {}


def test_writable_folders_are_few(sandbox):
    source = f"""
def probe():
    found = []
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
        if os.access(folder, os.W_OK): found.append(folder)
        if folder in {["/usr", *python_folders()]} or folder.startswith("/opt/grading/python"): folders.clear()
    return found
"""
    above = {str(parent) for folder in python_folders() for parent in Path(folder).parents}  # made in /tmp, in memory
    assert set(answers(sandbox, source)) - above <= {"/tmp", "/dev/shm", "/home", "/home/learner"}


def test_devices_are_harmless(sandbox):
    source = """
import stat
def probe():
    out = []
    for folder, folders, files in os.walk("/dev"):
        for name in files + folders:
            status = os.stat(os.path.join(folder, name), follow_symlinks=False)
            if stat.S_ISCHR(status.st_mode): out.append((os.major(status.st_rdev), os.minor(status.st_rdev)))
            elif not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode): out.append(name)
    mknod = code_of(lambda: os.mknod("/tmp/sda", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
    return out, mknod, code_of(lambda: open("/dev/tty"))
"""
    nodes, mknod, terminal = answers(sandbox, source)
    harmless = {
        (1, 3): "null",
        (1, 5): "zero",
        (1, 7): "full",
        (1, 8): "random",
        (1, 9): "urandom",
        (5, 0): "tty",
        (5, 2): "ptmx",
    }
    assert set(nodes) <= set(harmless)
    assert mknod == "EPERM" and terminal in ("ENXIO", "ENOENT")


def test_links_copy_no_data(sandbox):
    source = """
def probe():
    os.symlink("/etc/shadow", "/tmp/a")
    os.symlink("../../../../../../../../root/.bashrc", "/tmp/b")
    os.symlink("/proc/1/root/etc/shadow", "/tmp/c")
    return [code_of(lambda: open(path)) for path in ("/tmp/a", "/tmp/b", "/tmp/c")] + [
        code_of(lambda: os.link("/etc/passwd", "/tmp/d")), code_of(lambda: os.link("/bin/sh", "/tmp/e"))]
"""
    assert "done" not in answers(sandbox, source)


# --- what must work all the same -------------------------------------------------------------------------------------


def test_ordinary_things_work(sandbox):
    source = """
import asyncio, getpass, multiprocessing, pathlib, sqlite3, tempfile, threading
import numpy, torch
def probe():
    async def later():
        await asyncio.sleep(0)
        return 6
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    pathlib.Path("notes.txt").write_text("kept")
    out = [asyncio.run(later()), getpass.getuser(), os.path.expanduser("~"), pathlib.Path("notes.txt").read_text()]
    out.append(subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout)
    thread = threading.Thread(target=out.append, args=("thread",))
    thread.start()
    thread.join()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        out.append(pool.map(abs, [-1, -2]))
    out.append(float(torch.nn.Linear(4, 4)(torch.zeros(1, 4)).sum() * 0))
    out.append(float(numpy.linalg.norm(numpy.ones((64, 64)) @ numpy.ones((64, 64)))))
    out.append(sqlite3.connect(":memory:").execute("select 1").fetchone())
    import matplotlib.pyplot as plt
    plt.plot([1, 2]); plt.savefig("plot.png"); plt.show()
    import pwd
    out.append(pwd.getpwuid(os.getuid()).pw_dir)
    return out
"""
    home = "/home/learner"
    assert answers(sandbox, source, Limits()) == [
        6, "learner", home, "kept", "hi\n", "thread", [1, 2], 0.0, 4096.0, (1,), home
    ]  # fmt: skip


def test_security_md_names_the_real_limits():
    text, limits = (ROOT / "SECURITY.md").read_text("utf-8"), Limits()
    seconds = f"{limits.check_seconds:.0f} s, {limits.cell_seconds:.0f} s, {limits.total_seconds:.0f} s"
    assert seconds in text and f"{limits.memory_bytes / 1024**3:.1f} GiB" in text
    assert f"{limits.disk_bytes // MIB} MiB in all, {limits.file_bytes // MIB} MiB a file" in text
    assert f"| processes, open files of each | {limits.processes}, {isolate.OPEN_FILES} |" in text


def test_full_marks_after_all_this(sandbox):
    assert points(judged(sandbox, plan(), Limits())) == FULL


# --- an ordinary user's way ------------------------------------------------------------------------------------------


def test_a_user_namespace_gives_the_same_box(sandbox, tmp_path):
    """The main cases again, in a sandbox as an ordinary user starts it."""
    if os.geteuid():  # then all other cases have run in one
        assert not sandbox._ways[0][1].keywords["as_root"]
        return
    with contextlib.closing(user_sandbox()) as other:
        for test in (
            test_other_families_of_sockets_are_refused,
            test_everything_in_sight_is_the_system_python_or_the_boxs_own,
            test_environment_holds_nothing_of_the_host,
            test_sees_no_process_and_hurts_only_its_own,
            test_no_descriptor_but_the_control_socket,
            test_two_boxes_share_nothing,
            test_nothing_persists_from_one_submission_to_the_next,
            test_daemons_die_with_the_box,
            test_disk_is_bounded_over_all_writable_folders,
            test_system_calls_for_privileges_are_refused,
            test_no_capabilities_and_no_way_to_new_ones,
            test_setuid_programs_are_useless,
            test_system_is_read_only,
            test_writable_folders_are_few,
            test_devices_are_harmless,
            test_ordinary_things_work,
            test_full_marks_after_all_this,
        ):
            test(other)
        test_no_network_and_no_socket_of_the_host(other, tmp_path)
        test_sees_no_file_of_the_host(other, tmp_path)
        for name in ("forks", "programs", "anonymous shared memory", "memory files", "zero device"):
            test_memory_is_bounded(other, name)
        for name in BOMBS:
            test_cannot_fork_without_bound(other, name)
        for name in ("busy loop", "handlers of all signals"):
            test_cannot_outlive_its_time(other, name)
