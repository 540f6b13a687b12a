"""The instructor's structure, made ready for recognising its cells in a submission."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from grading.chapter import BEGIN_SOLUTION, END_SOLUTION, Cell, Chapter, regions, without_hidden
from grading.intake import pycode

MIN_LINES = 4  # of a shorter cell too little is left to recognise it by when it was edited
ALIKE = 0.6  # share of a cell's lines that must be the instructor's
HARDLY = 0.3  # below this a cell has nothing but the metadata in common


@dataclass(frozen=True)
class Known:
    """A cell of the instructor's as learners have it. role: as in Cell; name: grade_id, or id where it has none."""

    id: str
    grade_id: str
    kind: str
    role: str
    text: str
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.grade_id or self.id


@dataclass(frozen=True)
class Todo:
    """A region that the learner fills. owner: the class it is in ('' for none); function: whose body it is in."""

    number: int
    owner: str
    function: str


@dataclass(frozen=True)
class Solution:
    """A cell that the learner completes. names: the classes and functions it defines at top level."""

    cell: Cell
    stub: str
    names: tuple[str, ...]
    todos: tuple[Todo, ...]

    @property
    def name(self) -> str:
        return self.cell.grade_id or self.cell.id

    @cached_property
    def stub_lines(self) -> Counter:
        return Counter(pycode.lines(self.stub))

    @cached_property
    def following(self) -> dict[int, str]:
        """The instructor's line below each TODO, which comes at once where nothing was written."""
        lines = self.cell.source.split("\n")
        below = {}
        for number, region in enumerate(regions(self.cell.source, BEGIN_SOLUTION, END_SOLUTION), start=1):
            below[number] = next((line.strip() for line in lines[region.stop + 1 :] if line.strip()), "")
        return below

    @cached_property
    def members(self) -> frozenset[str]:
        """Everything the stub's classes have."""
        return frozenset(name for owner in self.names for name in pycode.members(self.stub, owner))


class Skeleton:
    """A chapter and its release. Raises ValueError if the release lacks a solution cell of the chapter."""

    def __init__(self, chapter: Chapter, release: dict):
        self.chapter = chapter
        texts = {}
        for cell in release["cells"]:
            grade_id = cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", "")
            texts[grade_id or cell.get("id", "")] = "".join(cell["source"])
        self.known: list[Known] = []
        for cell in chapter.cells:
            text = texts.get(cell.grade_id or cell.id)
            if text is None and cell.role != "solution":
                text = without_hidden(cell.source)  # an instructor's cell: the published solution shows it
            if text is not None:
                known = Known(cell.id, cell.grade_id, cell.kind, cell.role, text, pycode.lines(text))
                self.known.append(known)
        stubs = {known.name: known.text for known in self.known if known.role == "solution"}
        try:
            self.solutions = [_solution(cell, stubs[cell.grade_id or cell.id]) for cell in chapter.of("solution")]
        except KeyError as missing:
            raise ValueError(f"the release has no cell {missing}") from None
        self.by_grade_id = {known.grade_id: known for known in self.known if known.grade_id}
        self.by_id = {known.id: known for known in self.known}
        self.by_lines = {known.lines: known for known in self.known if known.lines}
        self.names = frozenset(name for solution in self.solutions for name in solution.names)
        self._code = [(known, Counter(known.lines)) for known in self.known if known.kind == "code"]

    def claimed(self, cell: dict) -> Known | None:
        """The cell of the instructor's that a learner's cell says it is, by its metadata."""
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        return self.by_grade_id.get(grade_id) or self.by_id.get(cell["id"])

    def alike(self, lines: tuple[str, ...]) -> Known | None:
        """The instructor's code cell that a text is an edited copy of, by its lines; None if there is none."""
        if len(lines) < MIN_LINES:
            return None
        mine, best = Counter(lines), (0.0, None)
        for known, theirs in self._code:
            common = (mine & theirs).total()
            if known.role != "solution" and len(known.lines) >= MIN_LINES and common >= ALIKE * len(lines):
                best = max(best, (common / max(len(lines), len(known.lines)), known), key=lambda pair: pair[0])
        return best[1] if best[0] >= HARDLY else None

    def recognised(self, cell: dict) -> str | None:
        """Name of the instructor's cell that a learner's cell is, edited or not; None for one of their own."""
        lines = pycode.lines(cell["source"])
        known = self.by_lines.get(lines) or self.claimed(cell)
        if known is None and cell["cell_type"] == "code":
            known = self.alike(lines)
        return known.name if known is not None else None

    def share(self, lines: tuple[str, ...], known: Known) -> float:
        """Which share of the longer text's lines the two have in common."""
        common = (Counter(lines) & Counter(known.lines)).total()
        return common / max(len(lines), len(known.lines), 1)


def _solution(cell: Cell, stub: str) -> Solution:
    tree = ast.parse(cell.source)
    names = tuple(node.name for node in tree.body if isinstance(node, pycode.DEFINITIONS))
    todos = []
    for number, region in enumerate(regions(cell.source, BEGIN_SOLUTION, END_SOLUTION), start=1):
        around = [
            node for node in ast.walk(tree) if isinstance(node, pycode.DEFINITIONS) and _holds(node, region.start)
        ]
        owners = [node.name for node in around if isinstance(node, ast.ClassDef)]
        functions = [node.name for node in around if not isinstance(node, ast.ClassDef)]
        todos.append(Todo(number, owners[0] if owners else "", functions[0] if functions else ""))
    return Solution(cell, stub, names, tuple(todos))


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line + 1 <= (node.end_lineno or node.lineno)
