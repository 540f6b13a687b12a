"""The command line. Heavy imports stay inside the commands, so that --help answers at once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m grading", description="Release and grade the course's notebooks.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    release = commands.add_parser("release", help="make release/ and notebooks/ from source/, and check them")
    release.add_argument("--check", action="store_true", help="write nothing; fail if anything is out of date")
    grade = commands.add_parser("grade", help="grade an inbox of submissions")
    grade.add_argument("inbox", type=Path, metavar="INBOX", help="a folder with a folder for each learner")
    grade.add_argument("--out", type=Path, default=Path("."), metavar="DIR", help="where results go (default: here)")
    grade.add_argument("--seed", type=int, metavar="N", help="instead of the course's own seed")
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0 done, 1 the check failed, 2 wrong use or environment."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.command == "release":
            from grading.release.command import run
        else:
            from grading.command import run
        return run(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"python -m grading {arguments.command}: {error}", file=sys.stderr)
        return 2
