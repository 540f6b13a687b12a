"""`make bench-grading`: our grader against plain `nbgrader autograde` on the same submissions, in one run.

Prints a table; asserts nothing about time. Every submission here is made from the release, so that plain nbgrader,
which has no sandbox, runs only code of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grading import chapter
from grading.chapter import ROOT
from grading.release.check import fill_stubs

# complete, unfinished and wrong in turn: what a class hands in
ANSWERS = (
    {
        1: "proposed = list(draft_tokens)[: self.max_proposal_len]",
        2: "accepted = target_prob >= draft_prob * self.min_accept_ratio",
        3: "accepted = self._accept_token(draft_prob, target_prob)",
    },
    {1: "proposed = [t for _, t in zip(range(self.max_proposal_len), draft_tokens)]"},
    {
        1: "proposed = list(draft_tokens)[-self.max_proposal_len :]",
        2: "accepted = target_prob > draft_prob * self.min_accept_ratio",
        3: "accepted = self._accept_token(target_prob, draft_prob)",
    },
    {
        1: "proposed = list(draft_tokens)[: self.max_proposal_len]",
        2: "accepted = target_prob / draft_prob >= self.min_accept_ratio",
        3: "accepted = True",
    },
)


@dataclass(frozen=True)
class Run:
    """One command: seconds of wall and of CPU, children included; peak memory of all its processes, if looked at."""

    wall: float
    cpu: float
    peak_mib: float


def make_class(folder: Path, count: int) -> dict[str, Path]:
    """`count` submissions, {student: file}."""
    import json

    ch = chapter.load(chapter.find()[0])
    text = (ROOT / "release" / ch.name / f"{ch.name}.ipynb").read_text("utf-8")
    made = {}
    for number in range(count):
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("solution"):
                source = "".join(cell["source"])
                cell["source"] = fill_stubs(source, ch, ch.of("solution")[0], ANSWERS[number % len(ANSWERS)])
        path = folder / f"s{number:04}" / f"{ch.name}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook, ensure_ascii=False), "utf-8")
        made[path.parent.name] = path
    return made


def _tree(root: int) -> list:
    """The processes of a tree that are alive."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    return []


def _memory(processes: list) -> int:
    """Bytes of all together, shared pages counted once. Slow: the kernel goes through every page."""
    import psutil

    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total


def _boxed_seconds(processes: list) -> dict[int, float]:
    """Seconds of processor of what runs inside bubblewrap, which does not hand them on to its parent.

    By process, with those of its children that have ended.
    """
    import psutil

    seconds = {}
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            parent = process.parent()
            if parent is not None and parent.name() == "bwrap":
                seconds[process.pid] = sum(process.cpu_times()[:4])
    return seconds


def timed(command: list[str], memory_every: float | None = None) -> Run:
    """Runs a command to its end. Raises RuntimeError with what it printed if it fails.

    memory_every: seconds between two looks at its memory; None: never looked at, since a look at ours takes a tenth of
    a second from what is timed.
    """
    before, started, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    printed: list[bytes] = []
    reader = threading.Thread(target=lambda: printed.append(process.stdout.read()))
    reader.start()
    boxed: dict[int, float] = {}
    while process.poll() is None:
        processes = _tree(process.pid)
        boxed |= _boxed_seconds(processes)
        if memory_every is not None:
            peak = max(peak, _memory(processes))
        time.sleep(memory_every or 0.3)
    wall = time.monotonic() - started
    reader.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise RuntimeError(printed[0].decode("utf-8", "replace"))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu + sum(boxed.values()), peak / 2**20)


def ours(inbox: Path, out: Path, workers: int, memory_every: float | None = None) -> Run:
    command = [sys.executable, "-m", "grading", "grade", str(inbox), "--out", str(out), "--seed", "0"]
    return timed([*command, "--workers", str(workers)], memory_every)


def plain(inbox: Path, out: Path) -> Run:
    return timed([sys.executable, "-m", "grading.bench", "--plain", str(inbox), str(out)], memory_every=5.0)


def scores(database: Path) -> list[tuple]:
    """(student, cell, score) of a gradebook, sorted."""
    import sqlite3

    query = "select s.id, c.name, g.auto_score from grade g join submitted_notebook n on g.notebook_id = n.id "
    query += "join submitted_assignment a on n.assignment_id = a.id join student s on a.student_id = s.id "
    query += "join base_cell c on g.cell_id = c.id"
    with sqlite3.connect(database) as connection:
        return sorted(connection.execute(query).fetchall())


def row(name: str, runs: list[Run], count: int, peak: float = 0.0) -> str:
    """A line of the table. peak: MiB, of a run of its own; 0: of these runs, if they were looked at."""
    wall, cpu = statistics.median(run.wall for run in runs), statistics.median(run.cpu for run in runs)
    peak = peak or max(run.peak_mib for run in runs)
    shown = f"{peak:.0f}" if peak else ""
    return f"| {name} | {count} | {wall:.1f} | {cpu:.1f} | {wall / count:.2f} | {shown} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=40, help="submissions in the comparison")
    parser.add_argument("--repeats", type=int, default=3, help="runs of our side, of which the median counts")
    parser.add_argument("--growth", type=int, nargs="*", default=[10, 100, 400], help="class sizes for our side alone")
    parser.add_argument("--plain", nargs=2, type=Path, metavar=("INBOX", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        from grading.plain import autograde

        inbox, out = arguments.plain
        out.mkdir(parents=True, exist_ok=True)
        submissions = {folder.name: next(folder.glob("*.ipynb")) for folder in sorted(inbox.iterdir())}
        graded = autograde(chapter.load(chapter.find()[0]), submissions, out, 0)
        return sum(isinstance(scores, str) for scores in graded.values())
    with tempfile.TemporaryDirectory() as scratch:
        folder, count = Path(scratch), arguments.count
        make_class(folder / "inbox", count)
        rows, ratios = [], {}
        baseline = plain(folder / "inbox", folder / "plain")
        rows.append(row("plain nbgrader, one process", [baseline], count))
        for workers in (1, 2):
            runs = []
            for repeat in range(arguments.repeats):
                out = folder / f"ours{workers}-{repeat}"
                runs.append(ours(folder / "inbox", out, workers))
                same = scores(out / "gradebook.db") == scores(folder / "plain" / "gradebook.db")
                print(f"ours, {workers} worker(s), run {repeat + 1}: {runs[-1].wall:.1f} s; scores equal: {same}")
            seen = ours(folder / "inbox", folder / f"memory{workers}", workers, memory_every=0.5)  # not timed
            rows.append(row(f"ours, {workers} worker(s), sandboxed", runs, count, seen.peak_mib))
            ratios[workers] = [baseline.wall / run.wall for run in runs]
        for size in arguments.growth:
            make_class(folder / f"class{size}", size)
            rows.append(
                row("ours, 2 workers, sandboxed", [ours(folder / f"class{size}", folder / f"out{size}", 2)], size)
            )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    print(f"\n{machine}, Python {platform.python_version()}\n")
    print("| side | submissions | wall s | CPU s | wall s each | peak MiB |\n|---|---|---|---|---|---|")
    print("\n".join(rows))
    for workers, values in ratios.items():
        median = statistics.median(values)
        print(
            f"wall time, plain / ours with {workers} worker(s): {median:.1f} x ({min(values):.1f} to {max(values):.1f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
