"""`python -m grading release`."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from grading import chapter
from grading.chapter import ROOT
from grading.release.build import build, generate_release, published, without_outputs
from grading.release.check import check


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
    return stale


def run(arguments: argparse.Namespace) -> int:
    if arguments.check:
        problems = out_of_date()
    else:
        for path in build():
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
