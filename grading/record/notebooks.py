"""The record's notebooks: what was submitted in the instructor's structure, and that with each test's result."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from pathlib import Path

from grading.plan import Plan
from grading.result import Result
from grading.unit import Course

UNSAFE = {code: "\ufffd" for code in (*range(0xD800, 0xE000), *range(0x00, 0x09), 0x0B, 0x0C, *range(0x0E, 0x20))}


def clean(text: str) -> str:
    """Text that any reader of UTF-8 and JSON takes: lone surrogates and control characters replaced."""
    return text.translate(UNSAFE)


def _own_cell(name: str, source: str) -> dict:
    number = hashlib.sha256(f"{name}\n{source}".encode("utf-8", "replace")).hexdigest()[:12]
    cell = {"cell_type": "code", "execution_count": None, "id": f"own-{number}", "metadata": {}, "outputs": []}
    return cell | {"source": clean(source)}


def submitted(course: Course, plan: Plan) -> dict:
    """The learner's code in the release's structure: what plain nbgrader can grade too."""
    cells = deepcopy(course.release["cells"])
    places = {cell["metadata"].get("nbgrader", {}).get("grade_id"): index for index, cell in enumerate(cells)}
    solution = places[course.chapter.of("solution")[0].grade_id]
    inserted: dict[int, list[dict]] = {}
    place = solution - 1
    for step in plan.steps:
        if step.grade_id:
            place = places[step.grade_id]
        elif step.name == "answer":
            cells[solution]["source"] = clean(step.source)
            place = solution
        elif step.name.startswith("own cell"):
            inserted.setdefault(place, []).append(_own_cell(step.name, step.source))
    notebook = {key: value for key, value in course.release.items() if key != "cells"}
    notebook["cells"] = [cell for index, kept in enumerate(cells) for cell in (kept, *inserted.get(index, ()))]
    return notebook


def autograded(course: Course, notebook: dict, result: Result) -> dict:
    """A submitted notebook with the tests in full and each one's result as its output."""
    notebook = deepcopy(notebook)
    checks = {check.grade_id: check for check in result.checks}
    sources = {cell.grade_id: cell.source for cell in course.chapter.tests}
    for cell in notebook["cells"]:
        check = checks.get(cell["metadata"].get("nbgrader", {}).get("grade_id"))
        if check is None:
            continue
        cell["source"] = sources[check.grade_id]
        if check.passed:
            text = f"passed in {check.seconds:.2f} s: {check.score:g} of {check.points:g} points\n"
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}]
        else:
            name = check.error or check.fault or "failed"
            lines = [line for line in (f"{name}: {check.message}", check.call and f"last call: {check.call}") if line]
            cell["outputs"] = [
                {
                    "output_type": "error",
                    "ename": clean(name),
                    "evalue": clean(check.message),
                    "traceback": [clean(line) for line in lines],
                }
            ]
    return notebook


def write(path: Path, notebook: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n", "utf-8")
