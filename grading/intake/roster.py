"""The class list: a CSV whose column student_id, id or 学号 names the learners; without headings, its first column."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

from grading.intake.naming import Owner

ID_COLUMNS = ("student id", "studentid", "id", "学号", "学生学号", "学生id", "学员id")
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
OTHER_ID_COLUMNS += ("canvas id", "canvas user id", "moodle id", "user id", "identifier", "账号", "用户名", "编号")
OTHER_ID_COLUMNS += ("student", "学生", "email", "email address", "邮箱")
NAME_COLUMNS = ("name", "full name", "student name", "姓名", "名字", "学生姓名", "first name", "last name")
LOOKED_AT = 6  # lines in which headings are looked for
MIN_NUMBER = 4  # digits; a shorter number inside a name may be a chapter's or a copy's


class InboxError(ValueError):
    """An inbox or roster that cannot be used; the message says which and why."""


def key(text: str) -> str:
    """Under which a roster's id and a submission's are the same: full width, case and spaces ignored."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)).casefold()


class Roster:
    """Learners by id, in the list's order, and how to find one in the name of a submission.

    others: for each learner what further columns identify them by, such as a platform's number.
    """

    def __init__(self, ids: list[str], names: list[str], others: list[list[str]]):
        self.ids = list(dict.fromkeys(ids))
        self._by_key = {key(one): one for one in reversed(self.ids)}
        also: dict[str, set[str]] = {}
        for one, further in zip(ids, others, strict=True):
            for text in filter(None, further):
                also.setdefault(key(text), set()).add(one)
        self._also = {text: next(iter(found)) for text, found in also.items() if len(found) == 1}
        self._exactly = self._also | self._by_key
        people: dict[str, set[str]] = {}
        for one, name in zip(ids, names, strict=True):
            if name:
                people.setdefault(key(name), set()).add(one)
        self._matched: dict[Owner, str | None] = {}
        self._by_name = {name: next(iter(found)) for name, found in people.items() if len(found) == 1}

    def knows(self, owner: Owner) -> bool:
        """Whether the roster has the very id or number that a submission carries."""
        return any(text and key(text) in self._exactly for text in (owner.id, owner.number))

    def match(self, owner: Owner) -> str | None:
        """The roster's id of whom a submission is from; None if nobody, or not just one, fits."""
        if owner not in self._matched:
            self._matched[owner] = self._match(owner)
        return self._matched[owner]

    def _match(self, owner: Owner) -> str | None:
        for text in (owner.id, owner.number, owner.who):
            if text and key(text) in self._exactly:
                return self._exactly[key(text)]
        if key(owner.who) in self._by_name:
            return self._by_name[key(owner.who)]
        text = key(re.sub(r"\s", "_", owner.who))
        for table in (self._by_key, self._by_name):
            found = [known for known in table if known in text and _inside(known, text)]
            longest = [known for known in found if not any(known != other and known in other for other in found)]
            if len({table[known] for known in longest}) == 1:
                return table[longest[0]]
        # last, since the learner has typed it and the platform vouches for nothing in it
        return self._by_key.get(key(owner.typed)) if owner.typed else None

    def only_typed(self, owner: Owner) -> bool:
        """Whether nothing but the number that the learner put into the file's name tells who it is."""
        return self.match(owner) is not None and self._match(replace(owner, typed="")) is None


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
    rows = rows[_titles_above([row for _, row in rows]) :]
    try:
        column, named, header = _columns(rows[0][1], [row for _, row in rows[1:]])
    except InboxError as error:
        raise InboxError(f"roster {path}, line {rows[0][0]}: {error}") from None
    further = [place for place in _id_columns(rows[0][1]) if place != column] if header else []
    ids, names, others = [], [], []
    for line, row in rows[header:]:
        value = _cell(row, column)
        if not value and row[0] == "Points Possible":  # Canvas's gradebook has such a line below the headings
            continue
        if not value:
            raise InboxError(f"roster {path}, line {line}: no student id in column {column + 1}")
        if any(ord(char) < 32 for char in value):
            raise InboxError(f"roster {path}, line {line}: a student id with a line break or control character")
        ids.append(value)
        names.append("" if named is None else _cell(row, named))
        others.append([_cell(row, place) for place in further])
    if not ids:
        raise InboxError(f"roster {path}, line 1: a heading, and no learners below it")
    return Roster(ids, names, others)


def _cell(row: list[str], place: int) -> str:
    """A cell's text; a number that a spreadsheet has written as 20230001.0 is the whole number."""
    return re.sub(r"(?<=\d)\.0+$", "", row[place]) if place < len(row) else ""


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
    named = next((place for place, title in enumerate(_titles(first)) if title in NAME_COLUMNS), None)
    if places := _id_columns(first):
        return places[0], named if named != places[0] else None, 1
    if named is not None and len(first) == 2:
        return 1 - named, named, 1
    if len(first) > 1 and (named is not None or _stands_above(first, others)):
        shown = ", ".join(cell for cell in first if cell)
        raise InboxError(f"no column is called student_id, id or 学号; there are: {shown}. Rename the one with the ids")
    return 0, None, int(named is not None)


def _titles(row: list[str]) -> list[str]:
    return [re.sub(r"[\s_]+", " ", unicodedata.normalize("NFKC", cell)).strip().casefold() for cell in row]


def _id_columns(first: list[str]) -> list[int]:
    """The columns whose heading says that they identify learners, the likeliest first."""
    titles = _titles(first)
    return [titles.index(wanted) for wanted in (*ID_COLUMNS, *OTHER_ID_COLUMNS) if wanted in titles]


def _titles_above(rows: list[list[str]]) -> int:
    """Lines above the headings: a list may begin with the course's name."""
    for number, row in enumerate(rows[:LOOKED_AT]):
        if _id_columns(row):
            return number
    return 0


def _stands_above(first: list[str], others: list[list[str]]) -> bool:
    """Whether a row is a heading that says nothing known: it has no number, and all rows below it have one."""

    def numbered(row: list[str]) -> bool:
        return any(char.isdigit() for cell in row for char in cell)

    return bool(others) and not numbered(first) and all(map(numbered, others))
