"""The files of an inbox, from a folder or from a zip archive, in one form; read only as far as they may matter."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grading.intake import archive, naming
from grading.intake.archive import HEAD, LINK, MIB, too_large
from grading.intake.sniff import archive_or_binary

MAX_FILE = 20 * MIB
MAX_ARCHIVE = 100 * MIB
MAX_FILES = 200_000  # in an inbox
MAX_DEPTH = 40  # folders


@dataclass(frozen=True)
class Entry:
    """A file or folder of an inbox. parts: its path below the inbox, without climbing parts.

    path: the path as it was written; data: '' of a folder or of what was not worth reading; problem: why it could not
    be read; link: whether it is one; folder: whether it is one.
    """

    parts: tuple[str, ...]
    path: str
    data: bytes = b""
    problem: str = ""
    link: bool = False
    folder: bool = False


def claims_notebook(name: str) -> bool:
    return ".ipynb" in name.lower()


def _starts_as_json(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(b"{")


def is_candidate(name: str, data: bytes) -> bool:
    """Whether a file is or claims to be a notebook, whatever its name."""
    if claims_notebook(name):
        return True
    if not _starts_as_json(data[:HEAD]):
        return False
    plain = data.replace(b"\0", b"") if data[:HEAD].count(0) > 10 else data
    return b'"cell_type"' in plain and (b'"cells"' in plain or b'"worksheets"' in plain)


def closed_archive(head: bytes) -> str:
    """What kind of archive a file is that is not opened, in words; '' if it is none."""
    kind = archive_or_binary(head)
    return kind if "not opened" in kind else ""


def wanted(name: str, head: bytes) -> bool:
    """Whether to read a file beyond its head."""
    return claims_notebook(name) or archive.is_archive(name, head) or _starts_as_json(head)


def of_folder(root: Path) -> Iterator[Entry]:
    """The entries below a folder, sorted; links are named and never followed, special files left out."""
    count, pending = 0, [(root, ())]
    while pending:
        folder, parts = pending.pop()
        try:
            with os.scandir(folder) as found:
                inside = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            if not parts:
                raise
            yield Entry(parts, "/".join(parts), problem=f"the folder cannot be opened: {_why(error)}")
            continue
        below = []
        for item in inside:
            count += 1
            name = readable(item.name)
            here = (*parts, name)
            path = "/".join(here)
            kind = _mode(item)
            if naming.ignored(name, stat.S_ISDIR(kind)):
                continue
            if count > MAX_FILES or len(here) > MAX_DEPTH:
                yield Entry(here, path, problem="not read: too many files, or folders nested too deep")
                break
            if stat.S_ISLNK(kind) or getattr(item, "is_junction", bool)():  # junctions: Windows, Python 3.12
                yield Entry(here, path, problem=LINK, link=True)
            elif stat.S_ISDIR(kind):
                yield Entry(here, path, folder=True)
                below.append((Path(item.path), here))
            elif stat.S_ISREG(kind):
                yield _file(item.path, here, path)
        pending += below[::-1]


def _mode(item: os.DirEntry) -> int:
    try:
        return item.stat(follow_symlinks=False).st_mode
    except OSError:
        return 0  # gone since it was listed


def _why(error: OSError) -> str:
    return "permission denied" if isinstance(error, PermissionError) else (error.strerror or "it cannot be read")


def _file(location: str, parts: tuple[str, ...], path: str) -> Entry:
    try:
        # Between listing and opening it may have become a link or a pipe.
        opened = os.open(location, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return Entry(parts, path, problem="not a plain file")
            head = file.read(HEAD)
            if not wanted(path, head):
                return Entry(parts, path, head if closed_archive(head) else b"")
            limit = MAX_ARCHIVE if archive.is_archive(path, head) else MAX_FILE
            data = head + file.read(max(0, limit + 1 - len(head)))
            if len(data) <= limit:
                return Entry(parts, path, data)
            if not claims_notebook(path) and not archive.is_archive(path, head):
                return Entry(parts, path)  # large data in JSON
            return Entry(parts, path, problem=too_large(os.fstat(opened).st_size, limit))
    except OSError as error:
        return Entry(parts, path, problem=f"it cannot be read: {_why(error)}")


def readable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 are what `unzip` leaves of names in GBK."""
    try:
        name.encode("utf-8")
        return name
    except UnicodeEncodeError:
        return os.fsencode(name).decode("gb18030", "replace")


def of_archive(source: Path | bytes, limits: archive.Limits | None = None, base: str = "") -> Iterator[Entry]:
    """The entries of a zip archive; a learner's own (`base`: its path in the inbox) with archives inside it opened.

    Raises archive.BadArchive.
    """
    members = archive.read(source, limits, wanted)
    for member in members:
        folder = member.name.endswith("/")
        parts = tuple(part for part in member.name.split("/") if part not in ("", ".", ".."))
        if not parts or any(naming.ignored(part, True) for part in parts[:-1]) or naming.ignored(parts[-1], folder):
            continue
        path = f"{base}/{member.name}" if base else member.name
        data, problem = member.data, member.problem
        if not member.whole:
            data = data if closed_archive(data) else b""
        elif len(data) > MAX_FILE and not archive.is_archive(path, data):
            data, problem = b"", too_large(len(data), MAX_FILE)
        yield Entry(parts, path, data, problem, link=problem == LINK, folder=folder)
