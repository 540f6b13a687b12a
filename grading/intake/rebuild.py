"""A submission's notebook -> the Plan that the judge runs: the learner's code in the instructor's structure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from grading.chapter import Chapter
from grading.intake import pycode
from grading.intake.answer import Answer, find
from grading.intake.borrow import borrowed
from grading.intake.pieces import absent_modules, cut, definitions
from grading.intake.reading import Unreadable
from grading.intake.skeleton import HARDLY, Known, Skeleton
from grading.plan import Plan, Step

MAX_CODE = 1_000_000  # characters of the learner's code in all
EVIDENCE = 3  # cells of prose or plots that make a notebook this chapter's when nothing else does


@dataclass(frozen=True)
class Rebuilt:
    """plan: what to run; answer: source of the solution cell that counts; completeness: grows with what is written."""

    plan: Plan
    answer: str
    completeness: int


@dataclass(frozen=True)
class Own:
    """Code of the learner's besides the answer. index: of its cell in the submission."""

    index: int
    source: str

    @property
    def name(self) -> str:
        return f"own cell {self.index + 1}"


@dataclass(frozen=True)
class Match:
    """A submission's cell and the instructor's cell it is; exact: with the same text."""

    known: Known | None = None
    exact: bool = False


def rebuild(chapter: Chapter, release: dict, notebook: dict) -> Rebuilt:
    """The learner's code of a notebook (as `reading.read` returns it, or in nbformat 4) in the chapter's structure.

    Raises Unreadable when the notebook is of something else, or holds too much code.
    """
    try:
        return Rebuilder(chapter, release, notebook).result()
    except (RecursionError, MemoryError):
        raise Unreadable("code that is nested too deep to be looked at") from None


_last: list[tuple[Chapter, dict, Skeleton]] = []


def skeleton_of(chapter: Chapter, release: dict) -> Skeleton:
    """The skeleton of a chapter; the last one is kept, since a class has one chapter."""
    if not (_last and _last[0][0] is chapter and _last[0][1] is release):
        _last[:] = [(chapter, release, Skeleton(chapter, release))]
    return _last[0][2]


class Rebuilder:
    """One submission on its way."""

    def __init__(self, chapter: Chapter, release: dict, notebook: dict):
        self.chapter = chapter
        self.skeleton = skeleton_of(chapter, release)
        self.cells = [_plain(cell) for cell in notebook["cells"]]
        if sum(len(cell["source"]) for cell in self.cells if cell["cell_type"] == "code") > MAX_CODE:
            raise Unreadable(f"too much code: more than {MAX_CODE} characters")
        self.matches = self._matched()
        self.places: dict[str, list[int]] = {}
        for index, match in enumerate(self.matches):
            if match.known:
                self.places.setdefault(match.known.name, []).append(index)
        self._check_chapter()
        self.answers = [find(self.skeleton, solution, self.cells) for solution in self.skeleton.solutions]
        self.flags = [flag for answer in self.answers for flag in answer.flags]
        self.missing: list[str] = []

    # --- which cell is which -----------------------------------------------------------------------------------------

    def _matched(self) -> list[Match]:
        lines = [pycode.lines(cell["source"]) for cell in self.cells]
        exact = [self.skeleton.by_lines.get(text) for text in lines]
        present = {known.name for known in exact if known is not None}
        out = []
        for cell, text, known in zip(self.cells, lines, exact, strict=True):
            if known is not None:
                out.append(Match(known, True))
                continue
            claimed = self.skeleton.claimed(cell)
            if claimed is not None and claimed.name in present and self.skeleton.share(text, claimed) < HARDLY:
                claimed = None  # a copy that was emptied to write something of their own
            out.append(Match(claimed or (self.skeleton.alike(text) if cell["cell_type"] == "code" else None)))
        return out

    def _check_chapter(self) -> None:
        """Raises Unreadable unless the notebook is this chapter's, by what only this chapter has."""
        for cell, match in zip(self.cells, self.matches, strict=True):
            if match.known and match.known.role in ("test", "solution"):
                named = cell["metadata"]["nbgrader"]["grade_id"] == match.known.grade_id
                if named or self.skeleton.share(pycode.lines(cell["source"]), match.known) >= HARDLY:
                    return
        if any(pycode.defines(cell["source"], self.skeleton.names) for cell in self.cells):
            return
        # Chapters of a course share their import and set-up cells, so of other cells it takes several.
        exact = {m.known.name for m in self.matches if m.exact and m.known.role != "import" and len(m.known.text) > 40}
        if len(exact) >= EVIDENCE:
            return
        names = ", ".join(sorted(self.skeleton.names))
        raise Unreadable(f"a notebook of something else: it neither defines {names} nor has this chapter's cells")

    # --- the learner's code ------------------------------------------------------------------------------------------

    def _own(self) -> Iterator[Own]:
        """The learner's own code in the order of the submission, the answers themselves left out."""
        chosen = {answer.chosen.index for answer in self.answers if answer.chosen}
        others = {index for answer in self.answers for index in answer.others}
        for index, (cell, match) in enumerate(zip(self.cells, self.matches, strict=True)):
            if index in chosen or cell["cell_type"] != "code" or not pycode.lines(cell["source"]):
                continue
            source, known = cell["source"], match.known
            if index in others:
                yield from self._definitions(
                    index, source, "\n".join(a.chosen.source for a in self.answers if a.chosen)
                )
            elif known is None or (known.role == "solution" and not match.exact):
                yield from (Own(index, piece.source) for piece in self._cut(source))
            elif not match.exact:
                if known.role != "test":
                    self.flags.append(f"instructor_cell_edited:{known.name}")
                yield from self._definitions(index, source, known.text)

    def _definitions(self, index: int, source: str, known: str) -> Iterator[Own]:
        text = definitions(source, known, self.skeleton.names)
        if text is None:
            self.flags.append(f"cell_not_python:{index + 1}")
        elif text:
            yield Own(index, text)

    def _cut(self, source: str, names=()):
        tree = pycode.parse(source)
        for node in tree.body if tree is not None else ():
            self.missing += absent_modules(node)
        return cut(source, names)

    def _answers(self) -> tuple[dict[str, str], dict[str, list[list[Own]]]]:
        """For each solution cell the text to run; the pieces of its cell to run before and after."""
        texts, around = {}, {}
        for solution, answer in zip(self.skeleton.solutions, self.answers, strict=True):
            texts[solution.name], around[solution.name] = solution.stub, [[], []]
            if answer.chosen is None:
                continue
            pieces = self._cut(answer.chosen.source, solution.names if answer.chosen.defines else ())
            texts[solution.name] = answer.chosen.source
            if answer.chosen.defines and any(piece.answer for piece in pieces):
                at = [piece.answer for piece in pieces].index(True)
                texts[solution.name] = pieces[at].source
                own = [Own(answer.chosen.index, piece.source) for piece in pieces]
                around[solution.name] = [own[:at], own[at + 1 :]]
        return texts, around

    # --- the plan ----------------------------------------------------------------------------------------------------

    def result(self) -> Rebuilt:
        texts, around = self._answers()
        own = list(self._own())
        order = self.chapter.of("solution", "test")
        slots: list[list[Own]] = [[] for _ in range(len(order) + 1)]
        for one in own:
            slots[self._slot(one.index, order)].append(one)
        steps = [Step(cell.grade_id or cell.id, cell.source) for cell in self.chapter.of("import")]
        everything = [one.source for pair in around.values() for part in pair for one in part]
        everything += [one.source for one in own]
        patching = [text for text in everything if any(pycode.patches(text, name) for name in self.skeleton.names)]
        if needed := borrowed(self.skeleton, [*texts.values(), *patching], [*texts.values(), *everything]):
            steps.append(Step("the chapter's definitions", needed))
        steps += [Step(one.name, one.source) for one in slots[0]]
        for place, cell in enumerate(order, start=1):
            if cell.role == "test":
                steps.append(Step(cell.grade_id, grade_id=cell.grade_id))
            else:
                name = cell.grade_id or cell.id
                before, after = around[name]
                steps += [Step(one.name, one.source) for one in before]
                single = len(self.skeleton.solutions) == 1
                steps.append(Step("answer" if single else f"answer {name}", texts[name]))
                steps += [Step(one.name, one.source) for one in after]
            steps += [Step(one.name, one.source) for one in slots[place]]
        self._flag_tests()
        self.flags += [f"module_missing:{name}" for name in dict.fromkeys(self.missing)]
        plan = Plan(tuple(steps), tuple(dict.fromkeys(self.flags)))
        pairs = zip(self.skeleton.solutions, self.answers, strict=True)
        full = [answer.chosen.source if answer.chosen else solution.stub for solution, answer in pairs]
        return Rebuilt(plan, "\n\n".join(full), self._completeness(everything))

    def _slot(self, index: int, order: list) -> int:
        """After how many of the chapter's solution and test cells a cell of the learner's runs.

        A test cell counts only where it comes after the answer in the submission too, so that tests that were moved
        to the top take nothing with them.
        """
        slot, answered, position = 0, -1, {}
        for solution, answer in zip(self.skeleton.solutions, self.answers, strict=True):
            position[solution.name] = answer.chosen.index if answer.chosen else -1
        for place, cell in enumerate(order, start=1):
            name = cell.grade_id or cell.id
            if cell.role == "solution":
                answered = max(answered, position[name])
                passed = position[name] < index
            else:
                passed = any(
                    answered < at < index
                    for at, match in enumerate(self.matches)
                    if match.known and match.known.name == name
                )
            if passed:
                slot = place
        return slot

    def _flag_tests(self) -> None:
        taken = {answer.chosen.index for answer in self.answers if answer.chosen}
        found: dict[str, list[bool]] = {}
        for index, match in enumerate(self.matches):
            if match.known and match.known.role == "test" and index not in taken:
                found.setdefault(match.known.name, []).append(match.exact)
        tests = [cell.grade_id for cell in self.chapter.tests]
        if any(self._holds_test(answer) for answer in self.answers):
            self.flags.append("test_in_answer")
        if gone := [name for name in tests if name not in found]:
            self.flags.append(f"test_cells_restored:{len(gone)}")
        if any(len(exact) > 1 for exact in found.values()):
            self.flags.append("test_cell_twice")
        self.flags += [f"test_cell_edited:{name}" for name in tests if name in found and not any(found[name])]

    def _holds_test(self, answer: Answer) -> bool:
        if answer.chosen is None:
            return False
        mine = set(pycode.lines(answer.chosen.source))
        tests = [known for known in self.skeleton.known if known.role == "test"]
        return any(sum(line in mine for line in known.lines) > 0.7 * len(known.lines) for known in tests)

    def _completeness(self, own: list[str]) -> int:
        """Two for each TODO that is written, in its place or by a patch; one if anything was changed at all."""
        done, changed = 0, False
        for solution, answer in zip(self.skeleton.solutions, self.answers, strict=True):
            texts = [*own, answer.chosen.source] if answer.chosen else own
            patched = {name for text in texts for owner in solution.names for name in pycode.patches(text, owner)}
            written = answer.chosen.done if answer.chosen else frozenset()
            done += sum(todo.number in written or bool({todo.function, "*"} & patched) for todo in solution.todos)
            changed |= answer.chosen is not None and answer.chosen.edits > 0
        return 2 * done + changed


def _plain(cell: dict) -> dict:
    """A cell as `reading.read` returns it, of one that may come from elsewhere."""
    source, metadata = cell.get("source", ""), cell.get("metadata")
    text = source if isinstance(source, str) else "".join(line for line in source or () if isinstance(line, str))
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    metadata = metadata if isinstance(metadata, dict) else {}
    nbgrader = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
    grade_id = nbgrader.get("grade_id")
    kept = {"nbgrader": {"grade_id": grade_id if isinstance(grade_id, str) else ""}}
    name = cell.get("id") or metadata.get("id")
    kind = cell.get("cell_type", "raw")
    return {"cell_type": kind, "source": text, "metadata": kept, "id": name if isinstance(name, str) else ""}
