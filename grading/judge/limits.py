"""What one submission may use."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Seconds are of wall time, but for cpu_seconds; bytes are of the box as a whole but for file_bytes.

    Wall time in which a box could not run since others had the cores is not counted (grading.judge.worker).

    total_seconds exceeds two lost checks in each of four mechanisms plus two lost cells, so that a mechanism's loops
    never cost another's points.
    """

    check_seconds: float = 5.0
    cell_seconds: float = 20.0
    total_seconds: float = 180.0
    cpu_seconds: int = 180
    memory_bytes: int = 1536 * MIB
    disk_bytes: int = 64 * MIB
    file_bytes: int = 48 * MIB
    processes: int = 32

    def for_box(self) -> dict:
        return asdict(self)
