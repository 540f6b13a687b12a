"""Holds a release against what it must be: no leak; unsolved it fails only by its TODOs; solved it runs clean."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import nbformat

from grading import chapter
from grading.release.build import execute
from grading.release.leaks import leaks


def solved(ch: chapter.Chapter, release: dict) -> dict:
    """The release with the reference in place of its stubs. Raises ChapterError when a stub is missing."""
    notebook = deepcopy(release)
    for cell in ch.of("solution"):
        target = next(
            c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == cell.grade_id
        )
        target["source"] = fill_stubs("".join(target["source"]), ch, cell)
    return notebook


def fill_stubs(source: str, ch: chapter.Chapter, cell: chapter.Cell, bodies: dict[int, str] | None = None) -> str:
    """A released solution cell's source with `bodies` (by default the reference's) in place of its stubs."""
    found = chapter.regions(cell.source, chapter.BEGIN_SOLUTION, chapter.END_SOLUTION)
    reference = {n: chapter.dedent(region.lines) for n, region in enumerate(found, 1)}
    for number, stub in chapter.stubs(cell.source).items():
        body = (reference if bodies is None else bodies).get(number)
        if body is None:
            continue
        line = re.search(rf"^([ \t]*){re.escape(stub)}$", source, re.MULTILINE)
        if line is None:
            raise chapter.ChapterError(f"{ch.name}, cell {cell.id}: the stub of TODO {number} is not in the release")
        indented = "\n".join(line[1] + part if part.strip() else part for part in body.split("\n"))
        source = source[: line.start()] + indented + source[line.end() :]
    return source


def _outputs(notebook: nbformat.NotebookNode):
    return [(cell, output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def _unsolved(ch: chapter.Chapter, release: dict) -> list[str]:
    notebook = nbformat.from_dict(deepcopy(release))
    execute(notebook, allow_errors=True)
    problems, failed = [], set()
    for cell, output in _outputs(notebook):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if output.output_type == "error":
            if not (grade_id.startswith("test_") and output.ename == "NotImplementedError" and "TODO" in output.evalue):
                problems.append(f"unsolved, cell {cell.id} fails by {output.ename}: {output.evalue}")
            failed.add(grade_id)
        elif output.output_type == "stream" and output.name == "stderr":
            problems.append(f"unsolved, cell {cell.id} writes to stderr: {output.text.strip()[:200]}")
    problems += [f"unsolved, cell {cell.id} passes" for cell in ch.tests if cell.grade_id not in failed]
    return problems


def _solved(ch: chapter.Chapter, release: dict) -> list[str]:
    notebook = nbformat.from_dict(solved(ch, release))
    execute(notebook, allow_errors=True)
    problems = []
    for cell, output in _outputs(notebook):
        if output.output_type == "error":
            problems.append(f"solved, cell {cell.id} fails by {output.ename}: {output.evalue}")
        elif output.output_type == "stream" and output.name == "stderr":
            problems.append(f"solved, cell {cell.id} writes to stderr: {output.text.strip()[:200]}")
    return problems


def check(ch: chapter.Chapter, release_path: Path) -> list[str]:
    """What is wrong with the release at `release_path`, in words; [] when nothing."""
    release = json.loads(release_path.read_text("utf-8"))
    for cell in release["cells"]:
        cell["source"] = "".join(cell["source"])
    problems = [f"gives away {leak}" for leak in leaks(ch, release)]
    with ThreadPoolExecutor(2) as pool:
        unsolved, done = pool.submit(_unsolved, ch, release), pool.submit(_solved, ch, release)
    return problems + unsolved.result() + done.result()
