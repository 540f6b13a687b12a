"""Progress on a terminal: how many are done, how many could not be read, how long it will take. Silent elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    """A line that rewrites itself on standard error."""

    def __init__(self, total: int, stream=None):
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty() and total > 0
        self._total, self._done, self._failed, self._started = total, 0, 0, time.monotonic()

    def step(self, *, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        if self._shown:
            left = (time.monotonic() - self._started) / self._done * (self._total - self._done)
            line = f"\r{self._done}/{self._total} graded, {self._failed} unreadable, {left:.0f} s left "
            self._stream.write(line)
            self._stream.flush()

    def close(self) -> None:
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()
