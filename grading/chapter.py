"""A chapter as its instructor wrote it: cells with roles, regions, points and mechanisms.

Every decision about what a cell *is* rests on the source notebook and is made here; nothing is ever learnt from a
submission. Only the standard library is used, so that the command line stays quick.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
TODO_COMMENT = re.compile(r"^\s*#\s*(TODO \d+：.+?)\s*$")
TEST_ID = re.compile(r"^test_([a-z]+)_\w+$")


class ChapterError(ValueError):
    """The chapter's source notebook breaks a rule of docs/design.md; the message says which cell and how."""


@dataclass(frozen=True)
class Region:
    """The lines of a cell between a begin and an end marker, markers excluded.

    start, stop: line numbers of the markers themselves (0-based); indent: of the begin marker.
    """

    start: int
    stop: int
    indent: str
    lines: tuple[str, ...]


def regions(source: str, begin: str, end: str) -> list[Region]:
    """The marked regions of a cell's source, in order. Raises ChapterError for unpaired markers."""
    found, opened, lines = [], None, source.split("\n")
    for number, line in enumerate(lines):
        if begin in line:
            if opened is not None:
                raise ChapterError(f"line {number + 1}: '{begin}' inside another region")
            opened = number
        elif end in line:
            if opened is None:
                raise ChapterError(f"line {number + 1}: '{end}' without '{begin}'")
            indent = lines[opened][: len(lines[opened]) - len(lines[opened].lstrip())]
            found.append(Region(opened, number, indent, tuple(lines[opened + 1 : number])))
            opened = None
    if opened is not None:
        raise ChapterError(f"line {opened + 1}: '{begin}' without '{end}'")
    return found


def fill(source: str, bodies: dict[int, str], begin: str = BEGIN_SOLUTION, end: str = END_SOLUTION) -> str:
    """A cell's source without markers, region n (from 1) replaced by bodies[n] where given, indented to fit."""
    out, position, lines = [], 0, source.split("\n")
    for number, region in enumerate(regions(source, begin, end), start=1):
        out += lines[position : region.start]
        if number in bodies:
            out += [region.indent + line if line.strip() else line for line in bodies[number].split("\n")]
        else:
            out += region.lines
        position = region.stop + 1
    return "\n".join(out + lines[position:])


def dedent(lines: tuple[str, ...]) -> str:
    """A region's lines as a body for `fill`: without the indentation they share."""
    width = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[width:] for line in lines)


def without_hidden(source: str) -> str:
    """A test cell's source as learners see it."""
    out, position, lines = [], 0, source.split("\n")
    for region in regions(source, BEGIN_HIDDEN, END_HIDDEN):
        out += lines[position : region.start]
        position = region.stop + 1
    return "\n".join(out + lines[position:])


def stubs(source: str) -> dict[int, str]:
    """The stub of every solution region: `raise NotImplementedError` with the text of the TODO comment above it."""
    out, lines = {}, source.split("\n")
    for number, region in enumerate(regions(source, BEGIN_SOLUTION, END_SOLUTION), start=1):
        comment = TODO_COMMENT.match(lines[region.start - 1]) if region.start else None
        if comment is None or not comment[1].startswith(f"TODO {number}："):
            raise ChapterError(f"solution region {number} needs the comment '# TODO {number}：…' on the line above it")
        out[number] = f"raise NotImplementedError({json.dumps(comment[1], ensure_ascii=False)})"
    return out


@dataclass(frozen=True)
class Cell:
    """One cell of the source notebook.

    role: import, solution, fixture, test, instructor or other (docs/design.md).
    points: 0 unless role is test; mechanism: '' unless role is test.
    """

    index: int
    id: str
    grade_id: str
    kind: str
    role: str
    source: str
    points: float = 0.0
    mechanism: str = ""
    tags: tuple[str, ...] = ()

    @property
    def hidden(self) -> bool:
        """Whether the cell holds hidden checks."""
        return BEGIN_HIDDEN in self.source


@dataclass(frozen=True)
class Chapter:
    """A chapter's source notebook with its cells; `name` is both the assignment's and the notebook's name."""

    name: str
    notebook: dict = field(repr=False)
    cells: tuple[Cell, ...] = field(repr=False)

    def of(self, *roles: str) -> list[Cell]:
        """The cells that have one of the roles, in order."""
        return [cell for cell in self.cells if cell.role in roles]

    @cached_property
    def tests(self) -> list[Cell]:
        return self.of("test")

    @cached_property
    def mechanisms(self) -> tuple[str, ...]:
        """Mechanisms in the order in which their tests first appear."""
        return tuple(dict.fromkeys(cell.mechanism for cell in self.tests))

    @property
    def max_score(self) -> float:
        return sum(cell.points for cell in self.tests)

    def points(self, mechanism: str) -> float:
        return sum(cell.points for cell in self.tests if cell.mechanism == mechanism)


def _cell(index: int, raw: dict) -> Cell:
    meta = raw["metadata"]
    nbgrader, tags = meta.get("nbgrader", {}), tuple(meta.get("tags", ()))
    source = raw["source"]
    grade_id, mechanism = nbgrader.get("grade_id", ""), ""
    if nbgrader.get("grade"):
        role, match = "test", TEST_ID.match(grade_id)
        if match is None:
            raise ChapterError(f"cell {index} ({grade_id}): a graded cell's id is test_<mechanism>_<what>")
        mechanism = match[1]
        points = nbgrader.get("points")
        if type(points) not in (int, float) or not 0 <= points < float("inf"):
            raise ChapterError(f"cell {index} ({grade_id}): points must be a number of 0 or more, found {points!r}")
    elif nbgrader.get("solution"):
        role = "solution"
    else:
        role = next((tag for tag in tags if tag in ("import", "fixture", "instructor")), "other")
    return Cell(
        index=index,
        id=raw.get("id", str(index)),
        grade_id=grade_id,
        kind=raw["cell_type"],
        role=role,
        source=source,
        points=float(nbgrader.get("points", 0)) if role == "test" else 0.0,
        mechanism=mechanism,
        tags=tags,
    )


def load(path: Path) -> Chapter:
    """Reads a chapter from its source notebook. Raises ChapterError if the notebook breaks a rule."""
    notebook = json.loads(path.read_text("utf-8"))
    for raw in notebook["cells"]:
        raw["source"] = "".join(raw["source"])
    try:
        cells = tuple(_cell(index, raw) for index, raw in enumerate(notebook["cells"]))
        for cell in cells:
            stubs(cell.source)
            regions(cell.source, BEGIN_HIDDEN, END_HIDDEN)
    except ChapterError as error:
        raise ChapterError(f"{path}: {error}") from None
    return Chapter(path.stem, notebook, cells)


def find(root: Path = ROOT) -> list[Path]:
    """The source notebooks of the course: source/<chapter>/<chapter>.ipynb (folders that begin with _ are left out)."""
    folders = sorted(p for p in (root / "source").glob("*") if p.is_dir() and not p.name.startswith(("_", ".")))
    return [folder / f"{folder.name}.ipynb" for folder in folders if (folder / f"{folder.name}.ipynb").exists()]
