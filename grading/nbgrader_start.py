"""nbgrader without what costs seconds at the start of every command and serves no gradebook."""

from __future__ import annotations

import sys
from pathlib import Path


def quickly_import_nbgrader() -> None:
    """Imports nbgrader's gradebook, in a third of the time.

    jsonschema, where the package rfc3987_syntax is installed, compiles 38 grammars at import (2.3 s), for a format that
    no notebook's schema names: it is told that the package is not there. And for a new gradebook nbgrader runs the
    program `alembic` (1.5 s; from PATH, with a half-made gradebook left when it is not found): the answer is read here.
    """
    name = "rfc3987_syntax"
    if name not in sys.modules:
        sys.modules[name] = None  # the import system's way to say that there is none
    import nbgrader.api

    if sys.modules[name] is None:
        del sys.modules[name]
    nbgrader.api.get_alembic_version = newest_revision


def newest_revision() -> str:
    """The revision of the gradebook's schema that this nbgrader makes."""
    import nbgrader
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(Path(nbgrader.__file__).parent / "alembic")).get_current_head()
