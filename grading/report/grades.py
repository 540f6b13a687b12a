"""grades.csv, and the table printed after grading."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from unicodedata import east_asian_width

from grading.result import Result


def columns(mechanisms: Sequence[str]) -> list[str]:
    return ["student_id", "status", "score", "max_score", *mechanisms, "flags", "file", "seconds", "seed"]


def number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def row(result: Result, mechanisms: Sequence[str]) -> list[str]:
    flags = "; ".join(([result.reason] if result.reason else []) + list(result.flags))
    scores = [number(result.mechanism(name)) for name in mechanisms]
    head = [result.student_id, result.status, number(result.score), number(result.max_score)]
    return [*head, *scores, flags, result.file, f"{result.seconds:.2f}", str(result.seed)]


def plain_text(value: str) -> str:
    """A field that a spreadsheet shows and never runs: a leading =, +, -, @, tab or return gets an apostrophe."""
    return "'" + value if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def write_csv(path: Path, results: Iterable[Result], mechanisms: Sequence[str]) -> None:
    """One row a learner, UTF-8 with BOM (Excel), every field quoted; replaced in one step."""
    partial = path.with_suffix(".csv.partial")
    with partial.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(columns(mechanisms))
        for result in results:
            writer.writerow([plain_text(value) for value in row(result, mechanisms)])
    os.replace(partial, path)


def _cut(text: str, most: int = 100) -> str:
    """The whole of it stands in grades.csv."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def table(results: Sequence[Result], mechanisms: Sequence[str]) -> str:
    """The class as text, a line a learner, columns aligned, wide characters counted as two."""
    head = ["student", "status", *mechanisms, "score", "notes"]
    lines = [head]
    for result in results:
        scores = [number(result.mechanism(name)) for name in mechanisms]
        total = "" if result.score is None else f"{number(result.score)}/{number(result.max_score)}"
        notes = _cut("; ".join(([result.reason] if result.reason else []) + list(result.flags)))
        lines.append([result.student_id, result.status, *scores, total, notes])
    widths = [max(_width(line[i]) for line in lines) for i in range(len(head))]
    numeric = range(2, len(head) - 1)

    def pad(text: str, i: int) -> str:
        space = " " * (widths[i] - _width(text))
        return space + text if i in numeric else text + space

    rendered = ["  ".join(pad(text, i) for i, text in enumerate(line)).rstrip() for line in lines]
    return "\n".join([rendered[0], "-" * max(_width(line) for line in rendered[:1]), *rendered[1:]])
