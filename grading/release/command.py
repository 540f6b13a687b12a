"""`python -m grading release`."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import nbformat

from grading import chapter
from grading.chapter import ROOT
from grading.release.build import build, generate_release, notebook_text, published, without_outputs
from grading.release.check import check, solved
from grading.release.labs import labs, refresh_labs, refreshed


def out_of_date(root: Path = ROOT) -> list[str]:
    """What in release/ and notebooks/ no longer follows from source/, in words."""
    stale = []
    for source in chapter.find(root):
        ch = chapter.load(source)
        target, solution = root / "release" / ch.name / source.name, root / "notebooks" / source.name
        with tempfile.TemporaryDirectory() as scratch:
            made = generate_release(ch.name, Path(scratch), root)
            if not target.exists() or target.read_bytes() != made.read_bytes():
                stale.append(f"{target.relative_to(root)} is not what source/ gives")
        current = json.loads(solution.read_text("utf-8")) if solution.exists() else {"cells": []}
        for cell in current["cells"]:
            cell["source"] = "".join(cell["source"])
        if without_outputs(current) != without_outputs(published(ch, root)):
            stale.append(f"{solution.relative_to(root)} is not what source/ gives")
    for lab in labs(root):
        if refreshed(lab, root) != lab.read_text("utf-8"):
            stale.append(f"{lab.relative_to(root)} does not say how to open it at the course's address")
    return stale


def write_solved(folder: Path, root: Path = ROOT) -> list[Path]:
    """Every release with the reference in place of its stubs, as a learner would hand it in; returns the files."""
    written = []
    for source in chapter.find(root):
        ch, target = chapter.load(source), folder / source.name
        release = json.loads((root / "release" / ch.name / source.name).read_text("utf-8"))
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(notebook_text(nbformat.from_dict(solved(ch, release))), "utf-8")
        written.append(target)
    return written


def run(arguments: argparse.Namespace) -> int:
    if arguments.solved is not None:
        for path in write_solved(arguments.solved):
            print(f"wrote {path}")
        return 0
    if arguments.check:
        problems = out_of_date()
    else:
        for path in [*build(), *refresh_labs()]:
            print(f"wrote {path.relative_to(ROOT)}")
        problems = []
    for source in chapter.find():
        ch = chapter.load(source)
        found = check(ch, ROOT / "release" / ch.name / source.name)
        problems += [f"{ch.name}: {problem}" for problem in found]
        if not found:
            print(f"{ch.name}: nothing given away; unsolved it fails only by its TODOs; solved it runs clean")
    for problem in problems:
        print(f"PROBLEM {problem}")
    return 1 if problems else 0
