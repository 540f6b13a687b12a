"""One box a submission: namespaces, mounts, limits, no capabilities, a filter on system calls.

Called in a process forked from the zygote, which itself already lives in bubblewrap's namespaces with a read-only
system. Everything is by ctypes, since Python 3.11 has no os.unshare and no mount.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWCGROUP = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
    0x02000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

LEARNER = 1000  # uid and gid inside the box
OPEN_FILES = 128  # of a process; each may be a socket, whose buffers no count of a process's pages shows

_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _call("unshare", flags)


def mount_tmpfs(target: str, options: str, flags: int = MS_NOSUID | MS_NODEV) -> None:
    _call("mount", b"tmpfs", os.fsencode(target), b"tmpfs", ctypes.c_ulong(flags), options.encode())


def bind(source: str, target: str) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(MS_BIND | MS_REC), None)


def prctl(option: int, argument: int = 0) -> None:
    _call("prctl", option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def die_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Descendants whose parent ended become this process's children."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def become_nobody(uid: int) -> None:
    """Gives up root for good, where the grader runs as root: limits on processes do not hold for root."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    prctl(PR_SET_DUMPABLE, 1)  # or the maps below could not be written


def own_user_and_processes() -> None:
    """A user namespace of its own, and a process namespace for the children to come."""
    uid, gid = os.getuid(), os.getgid()
    unshare(NEWUSER)
    for path, text in (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{LEARNER} {uid} 1"),
        ("/proc/self/gid_map", f"{LEARNER} {gid} 1"),
    ):
        with open(path, "w") as file:
            file.write(text)
    unshare(NEWPID)


COVERED = ("/tmp", "/dev/shm", "/home")
EMPTIED = ("/proc", "/dev/pts")  # terminals would be common to all boxes


def own_files_and_network(disk_bytes: int, kept: dict[str, str]) -> None:
    """Own mounts, network (no interface is up), IPC; fresh /tmp, /dev/shm and home; empty /proc and /dev/pts.

    kept: {path: where else it is mounted} of Python's folders below one of these, made visible again.
    """
    unshare(NEWNS | NEWNET | NEWIPC | NEWUTS | NEWCGROUP)
    _call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    # one file system for all that can be written to, so that its size is the box's
    mount_tmpfs("/tmp", f"size={disk_bytes},nr_inodes=4096,mode=0755")
    for target in reversed(COVERED):  # /tmp last: it then hides where the others lie
        part = f"/tmp/{os.path.basename(target)}"
        os.mkdir(part)
        os.chmod(part, 0o1777)
        bind(part, target)
    for path, elsewhere in kept.items():
        os.makedirs(path)
        bind(elsewhere, path)
    for target in EMPTIED:
        mount_tmpfs(target, "size=4k,nr_inodes=8,mode=0555", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.makedirs("/home/learner", mode=0o755)
    os.chdir("/home/learner")


def limit(memory_bytes: int, processes: int, file_bytes: int, cpu_seconds: int) -> None:
    """Per-process limits. memory_bytes: address space beyond what the zygote already maps."""
    limits = {
        resource.RLIMIT_AS: _zygote["mapped"] + memory_bytes,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for name, wanted in limits.items():
        hard = resource.getrlimit(name)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(name, (value, value))


_zygote = {"mapped": 0, "private": 0}


def remember_zygote() -> None:
    """Reads the zygote's own memory once: inside a box there is no /proc to read it from."""
    with open("/proc/self/statm") as file:
        mapped, resident, shared = (int(pages) * resource.getpagesize() for pages in file.read().split()[:3])
    _zygote.update(mapped=mapped, private=resident - shared)


def zygote_private() -> int:
    """Bytes of private memory that every fork of the zygote starts with, shared until written to."""
    return _zygote["private"]


def drop_capabilities() -> None:
    """No capability, no way to gain one by running a program."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # beyond the last one that this kernel knows
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _call("capset", header, (ctypes.c_uint32 * 6)())
    prctl(PR_SET_NO_NEW_PRIVS, 1)


# --- system calls ----------------------------------------------------------------------------------------------------

# Number on x86_64, number on aarch64 (None: not there). What an answer never needs and a kernel bug may hide in, or
# what takes memory that no count of a process's pages shows (memfd and System V: it stays when nobody maps it).
DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "fanotify_init": (300, 262),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "personality": (135, 92),
    "vmsplice": (278, 75),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
ARCHITECTURES = {  # column in DENIED, AUDIT_ARCH, numbers of clone, socket, socketpair, mmap, setsockopt
    "x86_64": (0, 0xC000003E, 56, 41, 53, 9, 54),
    "aarch64": (1, 0xC00000B7, 220, 198, 199, 222, 208),
}
CLONE3 = 435
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
ALL_NAMESPACES = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWCGROUP
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06  # BPF opcodes
NUMBER, ARCH, ARGUMENT0, ARGUMENT2, ARGUMENT3 = 0, 4, 16, 32, 40  # offsets in struct seccomp_data (little endian)
MAP_SHARED, MAP_ANONYMOUS, SO_SNDBUF = 0x01, 0x20, 7


def filter_program(machine: str) -> bytes:
    """The BPF program for one architecture. Raises KeyError for one it has no numbers for."""
    column, arch, clone, socket, socketpair, mmap, setsockopt = ARCHITECTURES[machine]
    steps: list[tuple[int, int, int, int]] = []

    def refuse_if(test: int, value: int, errno: int) -> None:
        steps.extend([(test, 0, 1, value), (RETURN, 0, 0, ERRNO | errno)])

    def only_for(number: int, body: list[tuple[int, int, int, int]]) -> None:
        steps.extend([(EQUAL, 0, len(body), number), *body])

    refused, allowed = (RETURN, 0, 0, ERRNO | EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)
    steps += [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        refuse_if(AT_LEAST, 0x40000000, ENOSYS)  # the x32 numbers
    for numbers in DENIED.values():
        if numbers[column] is not None:
            refuse_if(EQUAL, numbers[column], EPERM)
    refuse_if(EQUAL, CLONE3, ENOSYS)  # its flags lie in memory, out of a filter's sight; glibc then uses clone
    refuse_flags = (RETURN, 0, 0, ERRNO | EPERM)
    only_for(clone, [(LOAD, 0, 0, ARGUMENT0), (ANY_BIT, 0, 1, ALL_NAMESPACES), refuse_flags, allowed])
    families = [(EQUAL, 2, 0, AF_INET), (EQUAL, 1, 0, AF_INET6)]
    only_for(socket, [(LOAD, 0, 0, ARGUMENT0), (EQUAL, 3, 0, AF_UNIX), *families, refused, allowed])
    only_for(socketpair, [(LOAD, 0, 0, ARGUMENT0), (EQUAL, 1, 0, AF_UNIX), refused, allowed])
    # shared memory without a file stays when it is unmapped, so it would escape the warden's count; /dev/shm does not
    both = MAP_SHARED | MAP_ANONYMOUS
    only_for(mmap, [(LOAD, 0, 0, ARGUMENT3), (AND, 0, 0, both), (EQUAL, 0, 1, both), refuse_flags, allowed])
    only_for(setsockopt, [(LOAD, 0, 0, ARGUMENT2), (EQUAL, 0, 1, SO_SNDBUF), refuse_flags, allowed])
    steps.append(allowed)
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def filter_system_calls() -> None:
    """Installs the filter; needs no_new_privs. Raises KeyError on an unknown architecture, OSError."""
    program = filter_program(platform.machine())
    code = ctypes.create_string_buffer(program)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    pointer = Program(len(program) // 8, ctypes.addressof(code))
    _call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(pointer), ctypes.c_ulong(0), ctypes.c_ulong(0))
