"""What nbgrader's generate_assignment cannot do by itself, as preprocessors for its own list.

nbgrader knows one stub for every solution region, cannot drop a cell and leaves a trace of its hidden regions in the
checksums only; these three do what the course needs, so that `nbgrader generate_assignment` and `python -m grading
release` write the same bytes.
"""

from __future__ import annotations

from nbformat.notebooknode import NotebookNode
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor

from grading import chapter
from grading.release.opening import fill_opening


class DropInstructorCells(NbGraderPreprocessor):
    """Drops the cells tagged `instructor`."""

    def preprocess(self, nb: NotebookNode, resources):
        nb.cells = [cell for cell in nb.cells if "instructor" not in cell.metadata.get("tags", [])]
        return nb, resources


class TodoStubs(ClearSolutions):
    """Replaces each solution region by a `raise NotImplementedError` that names its TODO."""

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        bodies = chapter.stubs(cell.source)
        if bodies:
            cell.source = chapter.fill(cell.source, bodies)
        return bool(bodies)


class FillOpening(NbGraderPreprocessor):
    """Writes badges, or how to open the file by upload, into the opening cell."""

    def preprocess_cell(self, cell: NotebookNode, resources, index: int):
        if cell.cell_type == "markdown":
            notebook = resources["nbgrader"]["notebook"]
            cell.source = fill_opening(cell.source, f"release/{notebook}/{notebook}.ipynb")
        return cell, resources
