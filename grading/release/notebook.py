"""The release with its hidden tests still in: the form in which nbgrader keeps a chapter's cells."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbgrader.preprocessors import CheckCellMetadata, ComputeChecksums, LockCells

from grading.release.preprocessors import DropInstructorCells, FillOpening, TodoStubs


def with_hidden_tests(source: Path) -> nbformat.NotebookNode:
    """What nbgrader's generate_assignment would save of the chapter: stubs, hidden tests and checksums in place."""
    notebook = nbformat.read(source, as_version=4)
    resources = {"nbgrader": {"notebook": source.stem, "assignment": source.stem}}
    for step in (DropInstructorCells, FillOpening, LockCells, TodoStubs, CheckCellMetadata, ComputeChecksums):
        notebook, resources = step().preprocess(notebook, resources)
    return notebook
