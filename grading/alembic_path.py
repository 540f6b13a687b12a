"""nbgrader calls `alembic` by name for a new gradebook, and leaves a half-made one when it is not found."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def ensure_alembic_on_path() -> None:
    """Puts this Python's scripts first on PATH, unless they are on it already."""
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = scripts + os.pathsep + os.environ.get("PATH", "")
