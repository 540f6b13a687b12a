"""Does a release give anything away? Compares it with its source, as text and as syntax trees."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from grading import chapter

MARKERS = ("BEGIN SOLUTION", "END SOLUTION", "BEGIN HIDDEN", "END HIDDEN", "GRADING_SEED")
# below this size an expression (`i`, `len(x)`) says nothing about an answer
MIN_NODES = 4


def _hidden_lines(ch: chapter.Chapter) -> Iterator[tuple[str, str]]:
    """(where, line) for every line that must not reach learners."""
    for cell in ch.cells:
        if cell.role == "instructor":
            yield from ((f"instructor's cell {cell.id}", line) for line in cell.source.split("\n"))
        for begin, end, what in (
            (chapter.BEGIN_SOLUTION, chapter.END_SOLUTION, "solution of"),
            (chapter.BEGIN_HIDDEN, chapter.END_HIDDEN, "hidden tests of"),
        ):
            for region in chapter.regions(cell.source, begin, end):
                yield from ((f"{what} cell {cell.id}", line) for line in region.lines)


def _public_text(ch: chapter.Chapter) -> str:
    """What the source itself shows to learners."""
    shown = [cell for cell in ch.cells if cell.role != "instructor"]
    return "\n".join(chapter.without_hidden(chapter.fill(cell.source, chapter.stubs(cell.source))) for cell in shown)


def _trees(code: str) -> set[str]:
    """The syntax trees, names kept, of every statement and every expression that is not tiny."""
    found = set()
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return found  # magics
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and sum(1 for _ in ast.walk(node)) >= MIN_NODES:
            found.add(ast.dump(node))
    return found


def leaks(ch: chapter.Chapter, release: dict) -> list[str]:
    """What `release` gives away of its source `ch`, in words; [] when nothing. Metadata and outputs count too."""
    found = []
    text = json.dumps(release, ensure_ascii=False)
    sources = ["".join(cell["source"]) for cell in release["cells"]]
    lines = {line.strip() for source in sources for line in source.split("\n")}
    public = _public_text(ch)
    found += [f"the marker {marker!r}" for marker in MARKERS if marker in text]
    for where, line in _hidden_lines(ch):
        bare = line.strip()
        if (
            len(bare) > 3
            and bare not in public
            and (bare in lines or json.dumps(bare, ensure_ascii=False)[1:-1] in text)
        ):
            found.append(f"{where}: {bare!r}")
    released = set().union(*(_trees("".join(c["source"])) for c in release["cells"] if c["cell_type"] == "code"))
    for cell in ch.of("solution"):
        for number, region in enumerate(chapter.regions(cell.source, chapter.BEGIN_SOLUTION, chapter.END_SOLUTION), 1):
            if _trees(chapter.dedent(region.lines)) & released:
                found.append(f"the syntax tree of solution {number} of cell {cell.id}")
    kept = {cell.get("id") for cell in release["cells"]}
    found += [f"instructor's cell {cell.id}" for cell in ch.of("instructor") if cell.id in kept]
    return found
