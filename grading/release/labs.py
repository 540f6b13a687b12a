"""Labs: notebooks/ that are written by hand. Their opening note and the address in their set-up cell are filled in."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from grading import chapter
from grading.chapter import ROOT
from grading.release.build import notebook_text
from grading.release.opening import fill_opening, repository

PACKED = "mtp-lab.zip"  # what `python -m mtp pack` writes
ADDRESS = re.compile(r'^REPOSITORY = "[^"]*"', re.MULTILINE)


def labs(root: Path = ROOT) -> list[Path]:
    """The notebooks in notebooks/ that follow from no chapter, sorted."""
    derived = {source.name for source in chapter.find(root)}
    return sorted(path for path in (root / "notebooks").glob("*.ipynb") if path.name not in derived)


def refreshed(path: Path, root: Path = ROOT) -> str:
    """A lab's text as it should be; outputs stay, since what is filled in shows in none."""
    notebook, address = nbformat.read(path, as_version=4), repository(root)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = fill_opening(cell.source, path.relative_to(root).as_posix(), root, PACKED)
        else:
            cell.source = ADDRESS.sub(f'REPOSITORY = "{address}"', cell.source)
    return notebook_text(notebook)


def refresh_labs(root: Path = ROOT) -> list[Path]:
    """Rewrites the labs that are out of date; returns them."""
    stale = [path for path in labs(root) if refreshed(path, root) != path.read_text("utf-8")]
    for path in stale:
        path.write_text(refreshed(path, root), "utf-8")
    return stale
