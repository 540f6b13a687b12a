"""Writes release/ (through nbgrader) and notebooks/ (the published solution, executed) from source/."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config, PyFileConfigLoader

from grading import chapter
from grading.chapter import ROOT
from grading.nbgrader_start import quickly_import_nbgrader
from grading.release.opening import fill_opening, refresh_readme


class ReleaseError(RuntimeError):
    """nbgrader refused to make the release, or the published solution does not run; the message says why."""


def course_config(db_url: str | None = None, root: Path = ROOT) -> Config:
    """The course's nbgrader_config.py, with another gradebook where `db_url` is given."""
    quickly_import_nbgrader()
    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    if db_url is not None:
        config.CourseDirectory.db_url = db_url
    return config


def notebook_text(notebook) -> str:
    """A notebook's normal form on disk (docs/design.md): nbformat's writer and one newline at the end."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def generate_release(name: str, out: Path, root: Path = ROOT, db_url: str | None = None) -> Path:
    """Has nbgrader make the learner's notebook of chapter `name` below `out`; returns its path.

    The gradebook `db_url` learns the chapter's cells and points; by default it is a throw-away. Raises ReleaseError.
    """
    with tempfile.TemporaryDirectory() as scratch:
        config = course_config(db_url or f"sqlite:///{scratch}/gradebook.db", root)
        config.CourseDirectory.release_directory = str(Path(scratch) / "release")
        config.Exchange.root = str(Path(scratch) / "exchange")
        api = NbGraderAPI(config=config, log_level="ERROR")
        result = api.generate_assignment(name, force=True)
        if not result["success"]:
            raise ReleaseError(
                f"nbgrader could not make the release of {name}:\n{result.get('error') or result['log']}"
            )
        made = Path(scratch) / "release" / name / f"{name}.ipynb"
        target = out / name / f"{name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, target)
    return target


def published(ch: chapter.Chapter, root: Path = ROOT) -> nbformat.NotebookNode:
    """The solution for readers, not yet executed: no hidden checks, no markers, nothing of nbgrader's."""
    notebook = nbformat.from_dict(deepcopy(ch.notebook))
    for cell in notebook.cells:
        cell.source = chapter.fill(chapter.without_hidden(cell.source), {})
        if cell.cell_type == "markdown":
            cell.source = fill_opening(cell.source, f"notebooks/{ch.name}.ipynb", root)
        cell.metadata.pop("nbgrader", None)
        kept = [tag for tag in cell.metadata.get("tags", []) if tag.startswith(("nbval", "form"))]
        cell.metadata.pop("tags", None)
        if kept:
            cell.metadata["tags"] = kept
    return notebook


def execute(notebook: nbformat.NotebookNode, *, allow_errors: bool = False, timeout: int = 300) -> None:
    """Runs a notebook in place in an empty folder, as a learner's runtime would. Raises nbclient's errors."""
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        # sockets in the folder: a TCP port is open to every user of the machine, and the kernel says so
        config = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        client = NotebookClient(
            notebook, timeout=timeout, allow_errors=allow_errors, resources=resources, config=config
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # time stamps
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def without_outputs(notebook) -> list[dict]:
    """What two notebooks must share to be the same text: every cell's type, id, source and metadata."""
    return [{key: cell.get(key) for key in ("cell_type", "id", "source", "metadata")} for cell in notebook["cells"]]


def build(root: Path = ROOT, log=print) -> list[Path]:
    """Regenerates release/ and notebooks/ of every chapter; a published solution is executed only when its text moved.

    Returns the files that changed. Raises ReleaseError, ChapterError.
    """
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    changed = []
    for source in chapter.find(root):
        ch = chapter.load(source)
        with tempfile.TemporaryDirectory() as scratch:
            made = generate_release(ch.name, Path(scratch), root)
            target = root / "release" / ch.name / made.name
            if not target.exists() or target.read_bytes() != made.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made, target)
                changed.append(target)
        solution, target = published(ch, root), root / "notebooks" / f"{ch.name}.ipynb"
        current = json.loads(target.read_text("utf-8")) if target.exists() else {"cells": []}
        joined = [{**cell, "source": "".join(cell["source"])} for cell in current["cells"]]
        if without_outputs(solution) != without_outputs({"cells": joined}):
            log(f"executing {target.relative_to(root)} …")
            execute(solution)
            target.parent.mkdir(exist_ok=True)
            target.write_text(notebook_text(solution), "utf-8")
            changed.append(target)
    if refresh_readme(root):
        changed.append(root / "README.md")
    return changed
