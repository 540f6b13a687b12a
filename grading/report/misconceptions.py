"""Known mistakes, recognised by what an answer does, never by its text.

`grading/misconceptions/<chapter>.json` lists the mistakes; each has `bodies`, our own TODO bodies that make it. Once a
process, every body is put into the chapter's class and run against the test cells of its mechanism, in this process:
the code is ours, trusted. What comes of it is the mistake's signature:

    which of the mechanism's cells, public and hidden, passed; and the exact complaints of the public ones

A submission shows a mistake if its mechanism has the same signature. Hidden inputs are drawn from the seed, so what a
hidden cell says is left out; whether it passes rarely depends on the seed. Where it does, or where the bodies draw
themselves, the entry says `varies`: its bodies are tried with many seeds, and it counts only where no other entry fits.

Mistakes that these checks cannot tell apart (always true and p > 0 fail the same first case in the same way) stand in
the data as one entry that is named by what was observed. Where a signature still belongs to several entries, the first
MAX_CANDIDATES in the file's order are reported. `shown_by` stands for what no body shows in-process: an error's type,
a fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

from grading.chapter import BEGIN_SOLUTION, Cell, Chapter, fill
from grading.result import CheckResult
from grading.seed import VARIABLE

FOLDER = Path(__file__).resolve().parent.parent / "misconceptions"
MAX_CANDIDATES = 3
SEEDS = range(24)  # that the bodies of an entry with `varies` are tried with
MAX_MESSAGE = 4_000  # as in grading.judge.run
OBJECT = re.compile(r"<([\w.]+)( object)?[^<>]*>")

Signature = tuple[str, tuple[bool, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Misconception:
    """One known mistake. name, hint: for learners, Chinese; the hint never gives the answer.

    shown_by: ("error", type), ("fault", kind) or (): then the bodies show it. varies: whether what they show depends on
    a seed.
    """

    key: str
    todo: int
    mechanism: str
    name: str
    hint: str
    bodies: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()
    varies: bool = False


@cache
def known(chapter_name: str) -> dict[str, Misconception]:
    """The chapter's known mistakes by key, in the file's order; none for a chapter without a file."""
    path = FOLDER / f"{chapter_name}.json"
    if not path.is_file():
        return {}
    found = {}
    for entry in json.loads(path.read_text("utf-8")):
        shown_by = next(iter(entry.pop("shown_by", {}).items()), ())
        found[entry["key"]] = Misconception(**entry | {"bodies": tuple(entry["bodies"]), "shown_by": shown_by})
    return found


def recognise(chapter: Chapter, checks: Sequence[CheckResult]) -> tuple[str, ...]:
    """Keys of the known mistakes that the failed checks show, in the order of the chapter's mechanisms.

    Imports torch and runs our own bodies at the first call (well under a second); only for the trusted process.
    """
    found = []
    for mechanism in chapter.mechanisms:
        own = [check for check in checks if check.mechanism == mechanism]
        if all(check.passed for check in own):
            continue
        found += _plainly_shown(chapter, mechanism, own) or _by_behaviour(chapter, mechanism, own)
    return tuple(dict.fromkeys(found))


def packed(chapter: Chapter) -> str:
    """What the first `recognise` computes, as text: made in one process, it serves another by `unpack`."""
    return json.dumps([[*signature, keys] for signature, keys in _signatures(chapter).items()])


def unpack(chapter: Chapter, text: str) -> None:
    """Takes over what another process has computed. Raises ValueError when it is not what `packed` made."""
    signatures = {(name, tuple(passed), tuple(said)): tuple(keys) for name, passed, said, keys in json.loads(text)}
    _CACHE[_state(chapter)] = signatures


def _plainly_shown(chapter: Chapter, mechanism: str, own: Sequence[CheckResult]) -> list[str]:
    """What an error's type in a public check, or a fault in any, says by itself."""
    seen = {("error", check.error) for check in own if not check.passed and not check.hidden}
    seen |= {("fault", check.fault) for check in own if not check.passed}
    entries = known(chapter.name).values()
    return [entry.key for entry in entries if entry.mechanism == mechanism and entry.shown_by in seen]


def _by_behaviour(chapter: Chapter, mechanism: str, own: Sequence[CheckResult]) -> list[str]:
    outcome = {check.grade_id: (check.passed, f"{check.error}: {check.message}") for check in own}
    cells = [cell for cell in chapter.tests if cell.mechanism == mechanism]
    if any(check.fault for check in own) or {cell.grade_id for cell in cells} != set(outcome):
        return []
    keys = _signatures(chapter).get(_signature(cells, outcome), ())
    return list(keys[:MAX_CANDIDATES])


def _signature(cells: Sequence[Cell], outcome: dict[str, tuple[bool, str]]) -> Signature:
    said = (outcome[cell.grade_id][1] for cell in cells if not cell.hidden and not outcome[cell.grade_id][0])
    return cells[0].mechanism, tuple(outcome[cell.grade_id][0] for cell in cells), tuple(_normal(text) for text in said)


def _normal(text: str) -> str:
    """A complaint without what differs from run to run: the address in an object's repr."""
    return OBJECT.sub(r"<\1>", text)


_CACHE: dict[tuple, dict[Signature, tuple[str, ...]]] = {}


def _signatures(chapter: Chapter) -> dict[Signature, tuple[str, ...]]:
    """{signature: keys}, computed once a process for each state of the chapter."""
    key = _state(chapter)
    if key not in _CACHE:
        _CACHE[key] = _compute(chapter)
    return _CACHE[key]


def _state(chapter: Chapter) -> tuple[str, ...]:
    return chapter.name, *(cell.source for cell in chapter.of("import", "fixture", "solution", "test"))


def _compute(chapter: Chapter) -> dict[Signature, tuple[str, ...]]:
    bench = _Bench(chapter)
    certain: dict[Signature, list[str]] = {}
    by_chance: dict[Signature, list[str]] = {}
    for entry in known(chapter.name).values():
        target = by_chance if entry.varies else certain
        for body in entry.bodies:
            codes = bench.compiled(entry.todo, body)
            for seed in SEEDS if entry.varies else SEEDS[:1]:
                with _seeded(seed):
                    signature = bench.signature(entry.mechanism, codes)
                if not all(signature[1]) and entry.key not in target.setdefault(signature, []):
                    target[signature].append(entry.key)
    return {signature: tuple(keys) for signature, keys in (by_chance | certain).items()}


@contextlib.contextmanager
def _seeded(seed: int):
    """Random draws and hidden inputs from the seed; afterwards everything is as it was."""
    state, before = random.getstate(), os.environ.get(VARIABLE)
    random.seed(seed)
    os.environ[VARIABLE] = str(seed)
    try:
        yield
    finally:
        random.setstate(state)
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


class _Bench:
    """The chapter's test cells, compiled, and the names they start from; their prints go nowhere."""

    def __init__(self, chapter: Chapter):
        self._tests = {name: [c for c in chapter.tests if c.mechanism == name] for name in chapter.mechanisms}
        self._code = {cell.grade_id: compile(cell.source, cell.grade_id, "exec") for cell in chapter.tests}
        self._solutions = chapter.of("solution")
        self._start: dict[str, object] = {"__name__": "__main__", "print": lambda *values, **options: None}
        for cell in chapter.of("import", "fixture"):
            exec(compile(cell.source, cell.id, "exec"), self._start)

    def compiled(self, todo: int, body: str) -> list[CodeType]:
        """The solution cells with the body in its region, the reference in all others."""
        sources = [
            (cell, fill(cell.source, {todo: body}) if BEGIN_SOLUTION in cell.source else cell.source)
            for cell in self._solutions
        ]
        return [compile(source, cell.id, "exec") for cell, source in sources]

    def signature(self, mechanism: str, codes: Sequence[CodeType]) -> Signature:
        namespace = dict(self._start)
        for code in codes:
            exec(code, namespace)
        cells = self._tests[mechanism]
        return _signature(cells, {cell.grade_id: self._outcome(cell, dict(namespace)) for cell in cells})

    def _outcome(self, cell: Cell, namespace: dict) -> tuple[bool, str]:
        try:
            exec(self._code[cell.grade_id], namespace)
        except Exception as error:
            return False, f"{type(error).__name__}: {str(error)[:MAX_MESSAGE]}"
        return True, ""
