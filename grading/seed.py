"""The course's seed: hidden inputs are drawn from it, the same for all learners and all ways to grade."""

from __future__ import annotations

import secrets
from pathlib import Path

VARIABLE = "GRADING_SEED"
FILE = ".grading_seed"


def course_seed(folder: Path) -> int:
    """The seed kept in `folder`, beside the gradebook; made at the first grading. Raises ValueError if it is spoilt."""
    path = folder / FILE
    try:
        with path.open("x", encoding="ascii") as file:  # x: of two first gradings at once, one makes it
            file.write(f"{secrets.randbelow(2**31)}\n")
    except FileExistsError:
        pass
    text = path.read_text("ascii", "replace").strip()
    if not text.isdecimal():
        raise ValueError(f"{path}: the seed must be one whole number, found {text[:40]!r}; delete it to make a new one")
    return int(text)
