"""Whose a file is by its name, and names that are safe as a folder and as a key."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

MAX_ID = 100  # characters
MAX_ID_BYTES = 200  # of UTF-8: a folder's name may have 255, and ".html" and the like are added

# Moodle: Name_12345_assignsubmission_file_ (a folder, or the beginning of a file's name). The number tells apart two
# learners with the same name, so the id is Name_12345.
MOODLE = re.compile(r"(?P<who>.+?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext|comments)(?:_(?P<rest>.*))?$")
# Canvas: lastfirst_123456_7890123_name.ipynb, or lastfirst_LATE_123456_7890123_name.ipynb: learner's and file's number.
CANVAS = re.compile(r"(?P<who>[^\W\d][^_]*)_(?P<late>LATE_)?(?P<number>\d{3,})_\d{3,}_(?P<rest>.+)$")
CANVAS_ANONYMOUS = re.compile(r"(?P<who>anon_[A-Za-z0-9]{5})_(?P<late>LATE_)?\d{3,}_(?P<rest>.+)$")
# Blackboard: Assignment_username_attempt_2026-05-01-10-20-30_name.ipynb
BLACKBOARD = re.compile(r".+_(?P<who>[^_]+)_attempt_\d{4}(?:-\d\d){5}(?:_(?P<rest>.*)|\.txt)?$")
ENDINGS = re.compile(r"(?i)(\.(ipynb|zip|txt|json|html?|py|pdf|docx?|rar|7z|gz|tar|part|crdownload|download))+$")
DECORATION = re.compile(
    r"(?i)^(?:copy of|kopie von|副本)[ _-]*|[ _-]*(?:[(（]\d+[)）]|-?copy\d*| - 副本| - copy|的副本|副本)$"
)
VERSION = re.compile(
    r"(?i)final|copy|new|done|submit|solution|answer|ans|homework|hw|v?\d{1,3}(?!\d)|副本|最终版?|完成版?|作业|答案|终稿"
)
ASSIGNMENT = re.compile(
    r"(?i)(?:hw|homework|lab|week|ex|exercise|assignment|task|chapter|ch|作业|实验|练习|第.+)?\s*\d{0,3}"
)
# What the notebook's last cell names its file: number_name_chapter. The number is the learner's, at least four digits.
NUMBERED = re.compile(r"(?P<id>[A-Za-z]{0,4}\d{4,}[A-Za-z0-9]*(?:-[A-Za-z0-9]+)*)_\s*\S")
IGNORED = {"__macosx", ".ds_store", "thumbs.db", "desktop.ini", "__pycache__", "node_modules", "$recycle.bin"}
RESERVED = re.compile(r"(?i)^(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
UNSAFE = re.compile(r'[/\\:*?"<>|]')


@dataclass(frozen=True)
class Owner:
    """Who handed a file or folder in, as far as its name tells.

    id: what identifies the learner; who: the part to look for a roster's id or name in; number: the platform's number
    of the learner, '' without; platform: whether the name is of a learning platform's making; late: handed in late;
    typed: the number in the name that the learner gave the file, '' without.
    """

    id: str
    who: str
    number: str = ""
    platform: bool = False
    late: bool = False
    typed: str = ""


def ignored(name: str, folder: bool) -> bool:
    """What operating systems and editors leave behind."""
    lower = name.lower()
    if lower in IGNORED or name.startswith("._") or lower.endswith(".ipynb_checkpoints"):
        return True
    return name.startswith((".", "~$")) and (folder or ".ipynb" not in lower)


def platform_owner(name: str) -> Owner | None:
    """The owner by a learning platform's naming of a folder or file; None if it is not of that making."""
    for shape in (MOODLE, CANVAS_ANONYMOUS, BLACKBOARD, CANVAS):
        if match := shape.match(name):
            found = match.groupdict()
            number, anonymous = found.get("number") or "", shape is CANVAS_ANONYMOUS
            typed = NUMBERED.match(bare(found.get("rest") or ""))
            return Owner(
                f"{found['who']}_{number}" if number else found["who"],
                found["who"],
                number,
                platform=True,
                late=bool(found.get("late")),
                typed=typed["id"] if typed and not anonymous else "",
            )
    return None


def folder_owner(name: str) -> Owner:
    return platform_owner(name) or Owner(name, name)


def file_owner(name: str, chapters: tuple[str, ...] = ()) -> Owner:
    """The owner of a file that lies in no learner's folder.

    What stands before the chapter's own name, else what stands before the first _, is the learner:
    `zhang_san_35_multi_token_decoding.ipynb`, `20230001_hw.ipynb`; also `20230001-hw.ipynb`. Of a number and a name
    before the chapter (`20230001_张三_35_multi_token_decoding.ipynb`) the number is. A name without any of
    this, or that begins with what is an assignment's (`hw3_li.ipynb`), is its own learner: better a row too many than
    two learners in one.
    """
    if owner := platform_owner(name):
        return owner
    stem = bare(name)
    for chapter in chapters:
        at = stem.casefold().find(chapter.casefold())
        if at >= 0:
            before, after = stem[:at].strip(" _-+·—“\"'("), stem[at + len(chapter) :].strip(" _-+·—”\"')")
            numbered = NUMBERED.match(before)
            return Owner(numbered["id"] if numbered else before or (after if _person(after) else stem), stem)
    first = re.split("[_＿]", stem)[0].strip()
    if first in ("", stem):
        match = re.match(r"\d{4,}(?=[-+—\s])", stem)
        first = match[0] if match else stem
    return Owner(stem if ASSIGNMENT.fullmatch(first) else first, stem)


def bare(name: str) -> str:
    """A file's name without endings and without what copying and downloading added to it."""
    while True:
        cut = DECORATION.sub("", ENDINGS.sub("", name.strip(" “”\"'"))).strip(" “”\"'")
        if not cut or cut == name:
            return cut or name
        name = cut


def _person(text: str) -> bool:
    """Whether what stands behind the chapter's name may be a learner, and not `final` or `v2`."""
    return bool(VERSION.sub("", re.sub(r"[\W_]+", "", text)))


def same(text: str) -> str:
    """Under which two ids count as one learner's: Unicode composed, case and spaces at the ends ignored."""
    return unicodedata.normalize("NFC", text).strip().casefold()


def safe(text: str) -> str:
    """A text as a student id: usable as a folder's name on any system and as a key; Chinese stays Chinese."""
    text = unicodedata.normalize("NFC", text)
    text = "".join("_" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co") else char for char in text)
    text = UNSAFE.sub("_", text).strip().rstrip(". ")
    text = re.sub(r"^\.+", lambda dots: "_" * len(dots[0]), text)
    if not text:
        return "unnamed"
    if RESERVED.match(text):
        text = "_" + text
    if len(text) > MAX_ID or len(text.encode()) > MAX_ID_BYTES:
        mark = digest(text)
        text = text[: MAX_ID - 9].encode()[: MAX_ID_BYTES - 9].decode("utf-8", "ignore").rstrip(". ") + "-" + mark
    return text


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def shown(path: str) -> str:
    """A path for display: no control characters, no lone surrogates."""
    return "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cs") else char for char in path)
