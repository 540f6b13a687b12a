"""The command line. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m grading", description="Release and grade the course's notebooks.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    release = commands.add_parser("release", help="make release/ and notebooks/ from source/, and check them")
    release.add_argument("--check", action="store_true", help="write nothing; fail if anything is out of date")

    release.add_argument(
        "--solved", type=Path, metavar="DIR", help="only write the release with the reference in place, below DIR"
    )

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    grade = commands.add_parser("grade", help="grade an inbox of submissions")
    add = grade.add_argument
    add("inbox", type=Path, metavar="INBOX", help="a folder (or zip) of submissions, in any shape platforms export")
    add("--out", type=Path, default=Path("."), metavar="DIR", help="where results go (default: here)")
    add("--roster", type=Path, metavar="CSV", help="who should have handed in: a table with a column student_id")
    add("--workers", type=positive, default=cores, metavar="N", help=f"submissions at once (default: cores, {cores})")
    add("--seed", type=int, metavar="N", help="instead of the course's own seed")
    add("--scheduler", metavar="ADDRESS", help="grade on the Dask cluster at tcp://…, not on this machine")
    add("--sandbox", choices=("bwrap", "none"), default="bwrap", help="none: only for code that you trust")
    add("--db", metavar="URL", help="another gradebook than DIR/gradebook.db, such as postgresql://…")
    add("--chapter", metavar="NAME", help="which chapter, where source/ holds several")
    add("--force", action="store_true", help="grade unchanged submissions too")

    report = commands.add_parser("report", help="write the class report of a results folder again")
    forget = commands.add_parser("forget", help="take learners' rows out of a results folder, manual scores too")
    forget.add_argument("student_ids", nargs="+", metavar="STUDENT_ID", help="as in grades.csv")
    for command in (report, forget):
        add = command.add_argument
        add("--out", type=Path, default=Path("."), metavar="DIR", help="the results folder (default: here)")
        add("--db", metavar="URL", help="another gradebook than DIR/gradebook.db")
        add("--chapter", metavar="NAME", help="which chapter, where source/ holds several")
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0 done, 1 the check failed, 2 wrong use or environment, 130 Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.command == "release":
            from grading.release.command import run
        elif arguments.command == "report":
            from grading.report.command import run
        elif arguments.command == "forget":
            from grading.forgetting import run
        else:
            from grading.command import run
        return run(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"python -m grading {arguments.command}: {error}", file=sys.stderr)
        return 2
    except ImportError as error:  # importlib.metadata's, for a package that is not there, is one too
        print(f"python -m grading {arguments.command}: {error}", file=sys.stderr)
        print("this Python lacks what grading needs: make env, then source .venv/bin/activate", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on where it stopped", file=sys.stderr)
        return 130
