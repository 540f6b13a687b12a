"""Zip archives from strangers, read into memory: whatever is refused is named with a reason, the rest goes on.

Nothing is written to disk, so a member's name can do no harm by itself; names that climb out are refused all the same,
since they show that the archive was made to.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
HEAD = 4096  # bytes of a member that decide whether it is read at all
LINK = "a link, which is never followed"
DOUBLE = "its name stands twice in the archive; the first of that name counts"
# Zip files by their format, documents or models by their use.
NOT_ARCHIVES = frozenset(
    (".docx", ".docm", ".xlsx", ".xlsm", ".pptx", ".odt", ".ods", ".odp", ".epub", ".wps", ".pages", ".numbers", ".key")
    + (".jar", ".apk", ".whl", ".npz", ".pt", ".pth", ".pkl", ".safetensors", ".keras", ".xmind", ".kmz")
)


class BadArchive(ValueError):
    """An archive that cannot be opened at all; the message says why."""


@dataclass(frozen=True)
class Limits:
    """Bounds on what one archive, those inside it included, may make of itself.

    members: count; member_bytes, total_bytes: after unpacking; ratio: unpacked to packed, for members above
    `ratio_from` bytes (an output that repeats a line packs well too); depth: archives inside archives.
    """

    members: int = 5_000
    member_bytes: int = 20 * MIB
    total_bytes: int = 100 * MIB
    ratio: int = 200
    ratio_from: int = 4 * MIB
    depth: int = 2


# A class of hundreds in one file; an archive inside it is a learner's and gets bounds of its own.
CLASS = Limits(members=100_000, total_bytes=1024 * MIB, member_bytes=100 * MIB, depth=0)


@dataclass(frozen=True)
class Member:
    """One file of an archive. A name that ends in / is a folder.

    problem: in words why it could not be read, '' if it could; whole: False where only the head was asked for.
    """

    name: str
    data: bytes = b""
    problem: str = ""
    whole: bool = True


class _Budget:
    def __init__(self, limits: Limits):
        self.members, self.bytes = limits.members, limits.total_bytes


def is_archive(name: str, head: bytes) -> bool:
    """Whether a file is a zip archive that may hold submissions; documents in zip form are not."""
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06")) and Path(name).suffix.lower() not in NOT_ARCHIVES


def read(
    source: bytes | Path, limits: Limits | None = None, wanted: Callable[[str, bytes], bool] | None = None
) -> list[Member]:
    """The files of an archive, those of archives inside it included, as outer.zip/inner.

    wanted(name, head) says of a file by its first bytes whether to read on; without it all are read.
    Raises BadArchive if the archive itself cannot be opened.
    """
    limits = limits or Limits()
    return _read(source, limits, wanted or (lambda name, head: True), _Budget(limits), 0)


def _read(source, limits: Limits, wanted, budget: _Budget, depth: int) -> list[Member]:
    # zipfile makes an object of every entry before anybody can count them.
    if isinstance(source, bytes) and source.count(b"PK\x01\x02") > 4 * limits.members:
        raise BadArchive(f"the archive has more than {limits.members} members")
    try:
        opened = zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)
    except OSError as error:
        raise BadArchive(f"the archive cannot be opened: {error.strerror or error}") from None
    except Exception:  # zipfile lets struct.error, UnicodeDecodeError and others through
        raise BadArchive("a zip archive that is cut off or damaged") from None
    with opened:
        infos = opened.infolist()
        if any(info.filename == "[Content_Types].xml" for info in infos):
            raise BadArchive("a Word, Excel or PowerPoint document, not an archive")
        out, seen = [], set()
        for info, name in zip(infos, _names(infos), strict=True):
            if budget.members <= 0:
                out.append(Member(name, problem=f"the archive has more than {limits.members} members"))
                break
            budget.members -= 1
            problem = _refusal(info, name, limits)
            name = name.replace("\\", "/")
            if problem is None and name in seen and not name.endswith("/"):
                problem = DOUBLE
            seen.add(name)
            if problem is not None or name.endswith("/"):
                out.append(Member(name, problem=problem or ""))
            else:
                out += _member(opened, info, name, limits, wanted, budget, depth)
    return out


def _member(opened, info, name: str, limits: Limits, wanted, budget: _Budget, depth: int) -> list[Member]:
    try:
        with opened.open(info) as file:
            data = file.read(HEAD)
            nested = depth < limits.depth and is_archive(name, data)
            if not nested and not wanted(name, data):
                return [Member(name, data, whole=False)]
            if info.file_size > limits.member_bytes:
                return [Member(name, problem=too_large(info.file_size, limits.member_bytes))]
            if info.file_size > budget.bytes:
                return [Member(name, problem=f"the archive unpacks to more than {limits.total_bytes // MIB} MiB")]
            data += file.read(limits.member_bytes + 1 - len(data))
    except Exception as error:
        return [Member(name, problem=_damage(error))]
    budget.bytes -= len(data)
    if not nested:
        if depth >= limits.depth > 0 and is_archive(name, data):
            return [Member(name, problem="an archive in an archive in an archive, which is not opened")]
        return [Member(name, data)]
    try:
        inner = _read(data, limits, wanted, budget, depth + 1)
    except BadArchive as error:
        return [Member(name, problem=str(error))]
    return [Member(f"{name}/{member.name}", member.data, member.problem, member.whole) for member in inner]


def too_large(size: int, limit: int) -> str:
    return f"too large: {size / MIB:.1f} MiB, the limit is {limit // MIB} MiB"


def _damage(error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        return "packed by a method that is not supported"
    if isinstance(error, RuntimeError) and "password" in str(error):
        return "encrypted"
    if isinstance(error, zipfile.BadZipFile) and "CRC" in str(error):
        return "damaged: its checksum is wrong"
    return "damaged: it cannot be unpacked"


def _refusal(info: zipfile.ZipInfo, name: str, limits: Limits) -> str | None:
    """Why a member is refused before its data are looked at; None if it is not."""
    plain = name.replace("\\", "/")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if not plain.strip("/ ") or len(plain) > 1_000:
        return "its name is empty or too long"
    if plain.startswith("/") or re.match(r"[A-Za-z]:", plain):
        return "its name is an absolute path"
    if ".." in plain.split("/"):
        return "its name climbs out of the archive"
    if kind == stat.S_IFLNK:
        return LINK
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "not a plain file"
    if info.flag_bits & 0x41:
        return "encrypted"
    if info.file_size > limits.ratio_from and info.file_size > limits.ratio * max(1, info.compress_size):
        return f"it unpacks to more than {limits.ratio} times its size"
    return None


def _names(infos: list[zipfile.ZipInfo]) -> list[str]:
    """Members' names, decoded. Without the UTF-8 flag zipfile takes CP437; what it was is decided for all together."""
    raw = [None if info.flag_bits & 0x800 else info.orig_filename.encode("cp437", "replace") for info in infos]
    try:
        guessed = [name and name.decode("utf-8") for name in raw]  # macOS writes UTF-8 without the flag
    except UnicodeDecodeError:
        guessed = [name and name.decode("gb18030", "replace") for name in raw]
    names = []
    for info, own, guess in zip(infos, raw, guessed, strict=True):
        name = info.orig_filename if own is None else _unicode_path(info, own) or guess or ""
        names.append(name.split("\0")[0])
    return names


def _unicode_path(info: zipfile.ZipInfo, raw: bytes) -> str | None:
    """The name in Info-ZIP's extra field 0x7075, which WinRAR and 7-Zip write; None if there is none that is valid."""
    extra = info.extra
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        field, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == 0x7075 and len(field) > 5 and struct.unpack("<L", field[1:5])[0] == zlib.crc32(raw):
            return field[5:].decode("utf-8", "replace")
    return None
