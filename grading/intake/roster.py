"""The class list: a CSV whose column student_id, id or 学号 names the learners; without headings, its first column."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from pathlib import Path

from grading.intake.naming import Owner

ID_COLUMNS = ("student_id", "studentid", "student id", "id", "学号", "学生学号", "学生id", "学员id")
OTHER_ID_COLUMNS = (
    "student number",
    "student no",
    "username",
    "user name",
    "login",
    "sid",
    "sis user id",
    "sis login id",
)
OTHER_ID_COLUMNS += ("identifier", "账号", "用户名", "编号", "student", "学生", "email", "email address", "邮箱")
NAME_COLUMNS = ("name", "full name", "student name", "姓名", "名字", "学生姓名", "first name", "last name")
MIN_NUMBER = 4  # digits; a shorter number inside a name may be a chapter's or a copy's


class InboxError(ValueError):
    """An inbox or roster that cannot be used; the message says which and why."""


def key(text: str) -> str:
    """Under which a roster's id and a submission's are the same: full width, case and spaces ignored."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)).casefold()


class Roster:
    """Learners by id, in the list's order, and how to find one in the name of a submission."""

    def __init__(self, ids: list[str], names: list[str]):
        self.ids = list(dict.fromkeys(ids))
        self._by_key = {key(one): one for one in reversed(self.ids)}
        people: dict[str, set[str]] = {}
        for one, name in zip(ids, names, strict=True):
            if name:
                people.setdefault(key(name), set()).add(one)
        self._matched: dict[Owner, str | None] = {}
        self._by_name = {name: next(iter(found)) for name, found in people.items() if len(found) == 1}

    def knows(self, owner: Owner) -> bool:
        """Whether the roster has the very id or number that a submission carries."""
        return any(text and key(text) in self._by_key for text in (owner.id, owner.number))

    def match(self, owner: Owner) -> str | None:
        """The roster's id of whom a submission is from; None if nobody, or not just one, fits."""
        if owner not in self._matched:
            self._matched[owner] = self._match(owner)
        return self._matched[owner]

    def _match(self, owner: Owner) -> str | None:
        for text in (owner.id, owner.number, owner.who):
            if text and key(text) in self._by_key:
                return self._by_key[key(text)]
        if key(owner.who) in self._by_name:
            return self._by_name[key(owner.who)]
        text = key(re.sub(r"\s", "_", owner.who))
        for table in (self._by_key, self._by_name):
            found = [known for known in table if known in text and _inside(known, text)]
            longest = [known for known in found if not any(known != other and known in other for other in found)]
            if len({table[known] for known in longest}) == 1:
                return table[longest[0]]
        return None


def _inside(known: str, text: str) -> bool:
    """Whether an id stands in a name as a whole: what borders on it is of another kind of character."""
    at = text.find(known)
    while at >= 0:
        end = at + len(known)
        free = (at == 0 or _kind(text[at - 1]) != _kind(known[0])) and (
            end == len(text) or _kind(text[end]) != _kind(known[-1])
        )
        bordered = (at == 0 or not text[at - 1].isalnum()) and (end == len(text) or not text[end].isalnum())
        # A short number is a learner's only at the beginning.
        if free and (not known.isdigit() or len(known) >= MIN_NUMBER or (at == 0 and bordered)):
            return True
        at = text.find(known, at + 1)
    return False


def _kind(char: str) -> str:
    if char.isdigit():
        return "digit"
    if char.isascii():
        return "letter" if char.isalpha() else "mark" + char
    return "other"


def load(path: Path) -> Roster:
    """Reads a roster. Raises InboxError naming the file, and the line where one is to blame."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InboxError(f"roster {path}: {error.strerror or error}") from None
    text = _text(path, data)
    text, skipped = (text.split("\n", 1)[-1], 1) if re.match(r"sep=.\r?\n", text, re.I) else (text, 0)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    rows, begins = [], 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((begins + skipped, [cell.strip() for cell in row]))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InboxError(f"roster {path}, line {begins + skipped}: {error}") from None
    if not rows:
        raise InboxError(f"roster {path}, line 1: the file is empty")
    try:
        column, named, header = _columns(rows[0][1], [row for _, row in rows[1:]])
    except InboxError as error:
        raise InboxError(f"roster {path}, line {rows[0][0]}: {error}") from None
    ids, names = [], []
    for line, row in rows[header:]:
        value = row[column] if column < len(row) else ""
        if not value and row[0] == "Points Possible":  # Canvas's gradebook has such a line below the headings
            continue
        if not value:
            raise InboxError(f"roster {path}, line {line}: no student id in column {column + 1}")
        if any(ord(char) < 32 for char in value):
            raise InboxError(f"roster {path}, line {line}: a student id with a line break or control character")
        ids.append(value)
        names.append(row[named] if named is not None and named < len(row) else "")
    if not ids:
        raise InboxError(f"roster {path}, line 1: a heading, and no learners below it")
    return Roster(ids, names)


def _text(path: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise InboxError(f"roster {path}, line 1: an Excel workbook; save it as CSV")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise InboxError(f"roster {path}, line {line}: binary data, not a CSV file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("gb18030")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InboxError(f"roster {path}, line {line}: neither UTF-8 nor GBK") from None


def _delimiter(text: str) -> str:
    first = next((line for line in text.split("\n") if line.strip()), "")
    outside = re.sub(r'"[^"]*"', "", first)
    return max(",;\t", key=outside.count)


def _columns(first: list[str], others: list[list[str]]) -> tuple[int, int | None, int]:
    """(column of ids, column of names, lines of heading: 1 or 0). Raises InboxError for headings without one of ids."""
    titles = [re.sub(r"[\s_]+", " ", unicodedata.normalize("NFKC", cell)).strip().casefold() for cell in first]
    flat = [title.replace(" ", "_") if title == "student id" else title for title in titles]
    named = next((place for place, title in enumerate(titles) if title in NAME_COLUMNS), None)
    for wanted in (*ID_COLUMNS, *OTHER_ID_COLUMNS):
        if wanted in flat or wanted in titles:
            place = flat.index(wanted) if wanted in flat else titles.index(wanted)
            return place, named if named != place else None, 1
    if named is not None and len(first) == 2:
        return 1 - named, named, 1
    if len(first) > 1 and (named is not None or _stands_above(first, others)):
        shown = ", ".join(cell for cell in first if cell)
        raise InboxError(f"no column is called student_id, id or 学号; there are: {shown}. Rename the one with the ids")
    return 0, None, int(named is not None)


def _stands_above(first: list[str], others: list[list[str]]) -> bool:
    """Whether a row is a heading that says nothing known: it has no number, and all rows below it have one."""

    def numbered(row: list[str]) -> bool:
        return any(char.isdigit() for cell in row for char in cell)

    return bool(others) and not numbered(first) and all(map(numbered, others))
