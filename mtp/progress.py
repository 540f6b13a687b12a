"""One line on a terminal that says how far something is; in a log, a line now and then."""

from __future__ import annotations

import sys


def show_progress(line: str, done: int, total: int, *, every: int | None = None) -> None:
    """Write `line` to stderr. A terminal's line is overwritten by the next one; elsewhere every `every`-th and the last
    are written, or none (None).
    """
    if sys.stderr.isatty():
        print("\r" + line, end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif every is not None and (done % every == 0 or done == total):
        print(line, file=sys.stderr, flush=True)
