"""A small chapter and what learners and platforms make of it, for the tests of grading.intake. No torch."""

import copy
import io
import json
import stat
import zipfile
from pathlib import Path

from grading import chapter
from grading.intake.inbox import collect
from grading.intake.reading import read
from grading.intake.rebuild import rebuild

SETUP = """import os
import re as patterns

missing = [name for name in ("torch",) if not name]
if missing:
    print("pip install torch")
"""
SOLVED = '''class Box:
    """A box of numbers."""

    def __init__(self, limit=3):
        self.limit = limit

    def keep(self, numbers):
        """numbers -> a new list of at most limit of them."""
        # TODO 1：the first numbers, as a new list kept
        ### BEGIN SOLUTION
        kept = list(numbers)[: self.limit]
        ### END SOLUTION
        return kept

    def total(self, numbers):
        # TODO 2：the square root of their sum, as root
        ### BEGIN SOLUTION
        root = math.sqrt(sum(self.keep(numbers)))
        ### END SOLUTION
        return root
'''
FIXTURE = """def explain(call, expected, got):
    return f"{call}: expected {expected}, got {got}"


def same(call, expected, got):
    assert got == expected, explain(call, expected, got)
"""
KEEP = """# public check of keep
box = Box(limit=2)
got = box.keep([1, 2, 3])
assert type(got) is list
same("keep", [1, 2], got)
print("keep passed")
"""
KEEP_HIDDEN = """# hidden check of keep
got = Box(limit=1).keep((5, 6))
same("keep", [5], got)
### BEGIN HIDDEN TESTS
same("keep", [], Box().keep([]))
### END HIDDEN TESTS
print("keep: hidden checks run later")
"""
TOTAL = """# public check of total
box = Box(limit=2)
box.keep = lambda numbers: [9, 16]
got = box.total([1, 2, 3])
same("total", 5.0, got)
print("total passed")
"""
PLOT = """def bars(limits=(1, 2, 3)):
    heights = []
    for limit in limits:
        heights.append(len(Box(limit).keep([1, 2, 3, 4])))
    return heights


print(bars())
"""
PROSE = "## Step 1\n\nA box keeps the first few of the numbers that it is given, and knows their sum."
RIGHT = {1: "kept = list(numbers)[: self.limit]", 2: "root = math.sqrt(sum(self.keep(numbers)))"}
TESTS = ("test_keep_public", "test_keep_hidden", "test_total_public")


def cell(name: str, source: str, kind: str = "code", tags=(), **nbgrader) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    if nbgrader:
        common = {"locked": True, "schema_version": 3, "task": False, "grade": False, "solution": False}
        metadata["nbgrader"] = common | nbgrader
    made = {"cell_type": kind, "id": name, "metadata": metadata, "source": source}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def own(source: str, kind: str = "code", name: str = "abcd1234") -> dict:
    return cell(name, source, kind)


def _source() -> dict:
    cells = [
        cell("title", "# 7. Boxes | a chapter made for tests of the intake", "markdown"),
        cell("setup", SETUP, tags=["form"]),
        cell("step1", PROSE, "markdown"),
        cell("imports", "import math", tags=["import"], grade_id="imports"),
        cell("box", SOLVED, grade_id="the_box", solution=True, locked=False),
        cell("fixture", FIXTURE, tags=["fixture"], grade_id="fixture"),
        cell("test-keep-public", KEEP, grade_id="test_keep_public", grade=True, points=4),
        cell("test-keep-hidden", KEEP_HIDDEN, grade_id="test_keep_hidden", grade=True, points=6),
        cell("test-total-public", TOTAL, grade_id="test_total_public", grade=True, points=10),
        cell("plot", PLOT),
        cell("closing", "## Further reading\n\nBoxes in theory and in practice, with many pictures.", "markdown"),
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


SOURCE = _source()
CHAPTER = chapter.Chapter("07_boxes", SOURCE, tuple(chapter._cell(n, raw) for n, raw in enumerate(SOURCE["cells"])))


def answer(bodies: dict | None = None) -> str:
    """The solution cell with these bodies; a TODO that is not named keeps its stub."""
    return chapter.fill(SOLVED, chapter.stubs(SOLVED) | (RIGHT if bodies is None else bodies))


def _release() -> dict:
    made = copy.deepcopy(SOURCE)
    for one in made["cells"]:
        one["source"] = answer({}) if one["id"] == "box" else chapter.without_hidden(one["source"])
    return made


RELEASE = _release()
STUB = answer({})


def notebook(text: str | None = None) -> dict:
    """A learner's notebook: the release with this text in its solution cell, or with the right answer."""
    made = copy.deepcopy(RELEASE)
    at(made, "box")["source"] = answer() if text is None else text
    return made


def index(made: dict, name: str) -> int:
    return next(n for n, one in enumerate(made["cells"]) if one["id"] == name)


def at(made: dict, name: str) -> dict:
    return made["cells"][index(made, name)]


def put(made: dict, name: str, *cells: dict, after: bool = False) -> dict:
    """Puts cells before (or after) the named one."""
    place = index(made, name) + after
    made["cells"][place:place] = cells
    return made


def remove(made: dict, *names: str) -> dict:
    made["cells"] = [one for one in made["cells"] if one["id"] not in names]
    return made


def strip(made: dict) -> dict:
    """Without metadata and ids."""
    for one in made["cells"]:
        one["metadata"] = {}
        del one["id"]
    return made


def passed(plan) -> set[str]:
    """The test cells that a trusted plan passes, run in this process as the judge would."""
    namespace, fixture, good = {"__name__": "__main__"}, {}, set()
    exec(FIXTURE, fixture)
    sources = {one.grade_id: one.source for one in CHAPTER.tests}
    for step in plan.steps:
        try:
            if step.grade_id:
                exec(sources[step.grade_id], namespace | {"explain": fixture["explain"], "same": fixture["same"]})
                good.add(step.grade_id)
            else:
                exec(step.source, namespace)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
    return good


def data(made: dict | None = None) -> bytes:
    return json.dumps(notebook() if made is None else made, ensure_ascii=False).encode()


class _RawName(zipfile.ZipInfo):
    """A member whose name is written as the bytes it has in CP437, without the UTF-8 flag."""

    def _encodeFilenameFlags(self):
        return self.orig_filename.encode("cp437"), self.flag_bits


def zipped(files: dict, *, utf8_flag: bool = True, encoding: str = "utf-8", links=(), folders=()) -> bytes:
    """A zip archive of name -> bytes; without the flag names are written as bytes in the encoding."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in folders:
            archive.writestr(zipfile.ZipInfo(name), b"")
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            if not utf8_flag:
                info = _RawName(name.encode(encoding).decode("cp437"))
            if name in links:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def made(root: Path, tree: dict) -> Path:
    """Writes path -> bytes below root; a path that ends in / is an empty folder."""
    root.mkdir(exist_ok=True)
    for name, content in tree.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return root


def got(inbox: Path, roster: Path | None = None) -> dict:
    return {one.student_id: one for one in collect(inbox, roster)}


def shape(inbox: Path, roster: Path | None = None) -> dict[str, list[str]]:
    return {name: [file.path for file in one.files] for name, one in got(inbox, roster).items()}


def roster(folder: Path, text: str | bytes) -> Path:
    path = folder / "roster.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def built(notebook: dict):
    """Rebuilt from a learner's notebook, through JSON as a file would come."""
    return rebuild(CHAPTER, RELEASE, read(data(notebook))[0])


def flags(notebook: dict) -> set[str]:
    return set(built(notebook).plan.flags)
