"""Which of a learner's notebooks counts: the one with the most complete answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass

from grading.chapter import Chapter
from grading.intake.inbox import File, Handed
from grading.intake.reading import Unreadable, read
from grading.intake.rebuild import Rebuilt, rebuild, skeleton_of

MAX_FILES = 20  # notebooks of one learner that are looked at
NUMBER = re.compile(r"(?<!\d)(\d{1,3})\s*[)）\]]?\s*(?:copy|副本|版|稿)?\s*$", re.I)


@dataclass(frozen=True)
class Chosen:
    """rebuilt: the notebook that counts, in the instructor's structure; file: where it came from.

    flags: all there are of this learner: of the hand-in, the file, the choice and the rebuilding.
    """

    rebuilt: Rebuilt
    file: File
    flags: tuple[str, ...]


def choose(chapter: Chapter, release: dict, handed: Handed) -> Chosen:
    """Reads, rebuilds a learner's files, picks one. Raises Unreadable, naming each file's reason, if none will do."""
    if not handed.files:
        raise Unreadable(_nothing(handed))
    readable: list[tuple[tuple, File, Rebuilt, list[str]]] = []
    reasons: dict[str, str] = {}
    seen: set[bytes] = set()
    for file in _likely_first(handed.files, skeleton_of(chapter, release).names)[:MAX_FILES]:
        digest = hashlib.sha256(file.data).digest()
        if not file.problem and digest in seen:
            continue
        try:
            if file.problem:
                raise Unreadable(file.problem)
            seen.add(digest)
            notebook, repairs = read(file.data)
            rebuilt = rebuild(chapter, release, notebook)
        except Unreadable as reason:
            reasons[file.path] = str(reason)
            continue
        readable.append(((rebuilt.completeness, *recency(file.path)), file, rebuilt, repairs))
    if not readable:
        raise Unreadable("; ".join(f"{_name(path)}: {reason}" for path, reason in sorted(reasons.items())))
    _, file, rebuilt, repairs = max(readable, key=lambda one: one[0])
    flags = [*handed.flags, *repairs]
    if len(readable) > 1:
        flags.append(f"several_notebooks:{len(readable)}")
    if len(handed.files) > MAX_FILES:
        flags.append(f"notebooks_not_looked_at:{len(handed.files) - MAX_FILES}")
    flags += [f"also_unreadable:{_name(path)}" for path in sorted(reasons)][:10]
    return Chosen(rebuilt, file, tuple(dict.fromkeys((*flags, *rebuilt.plan.flags))))


def recency(path: str) -> tuple[int, str]:
    """(number, path): the number that a browser, an editor or a learner put behind the name of a later version.

    `name (2).ipynb`, `name-Copy1.ipynb`, `name - 副本 (2).ipynb`, `name_v3.ipynb`, Canvas' `name-1.ipynb`; 0 without.
    """
    stem = re.sub(r"(?i)(\.ipynb|\.txt|\.json)+$", "", _name(path))
    match = NUMBER.search(stem)
    return (int(match[1]) if match else 0, path)


def _likely_first(files: tuple[File, ...], names: Collection[str]) -> list[File]:
    """Files that name what the chapter defines first, since some hand in a whole course; of these the latest."""
    words = [name.encode(form) for name in names for form in ("utf-8", "utf-16-le", "utf-16-be")]

    def likely(file: File) -> tuple:
        return (not any(word in file.data for word in words), -recency(file.path)[0], file.path)

    return sorted(files, key=likely)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _nothing(handed: Handed) -> str:
    if not handed.others:
        return (
            "no notebook was handed in: nothing there but links"
            if "link_ignored" in handed.flags
            else ("no notebook was handed in: the folder is empty")
        )
    shown = ", ".join(_name(name) for name in handed.others[:5])
    return f"no notebook was handed in, only {shown}" + (" and more" if len(handed.others) > 5 else "")
