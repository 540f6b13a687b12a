"""Finding the learner's answer to a solution cell, whatever became of the cell.

The metadata are a hint, then come text markers, then what a cell defines, then where it stands. Of several candidates
the most complete counts.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import dataclass

from grading.intake import pycode
from grading.intake.skeleton import Skeleton, Solution

STUB = re.compile(r"^\s*raise\s+NotImplementedError\s*\(\s*[rf]?[\"']+TODO\s*(\d+)", re.M)
MARKER = re.compile(r"^\s*#\s*TODO\s*(\d+)\s*[：:]")
NOTHING = re.compile(
    r"\s*(?:raise NotImplementedError\b.*|pass|\.\.\.|return(?: None)?|\w+\s*=\s*(?:None|\.\.\.))\s*(?:#.*)?$"
)
FENCE = re.compile(r"[ \t>]*(?:```|~~~)")
STARTS = re.compile(r"^(?=import |from |class |def |@|#)", re.M)


@dataclass(frozen=True)
class Candidate:
    """A text that may be the answer.

    index: of its cell in the submission; claims: whether the metadata say so; defines: whether it defines all names
    of the solution cell; done: TODOs that are written, in a text that parses; attempted: whether it parses or not;
    members: how many of the stub's it has; edits: lines that differ from the stub; retyped: it was no code cell.
    """

    index: int
    source: str
    claims: bool
    defines: bool
    markers: int
    done: frozenset[int]
    attempted: int
    members: int
    edits: int
    retyped: bool = False

    @property
    def rank(self) -> tuple:
        full = (self.defines, len(self.done), self.members, self.attempted)
        return (*full, not self.retyped, self.edits, self.index)


@dataclass(frozen=True)
class Answer:
    """What was found for a solution cell; `chosen` is None when nothing was.

    others: indices of further cells that define the same, which are not run; flags: what was unusual.
    """

    chosen: Candidate | None
    others: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()


def left(source: str, solution: Solution) -> set[int]:
    """Numbers of the TODOs that are still to be written: the stub is there, or nothing takes its place."""
    numbers = {int(number) for number in STUB.findall(source)}
    lines = source.split("\n")
    for place, line in enumerate(lines):
        marker = MARKER.match(line)
        if marker is None:
            continue
        following = (text for text in lines[place + 1 :] if text.strip() and not text.lstrip().startswith("#"))
        first = next(following, "pass")
        number = int(marker[1])
        if NOTHING.match(first) or first.strip() == solution.following.get(number):
            numbers.add(number)
    return numbers & {todo.number for todo in solution.todos}


def _last_definitions(source: str, names: tuple[str, ...]) -> str:
    """Of a cell that defines a name twice, such as the stub and the answer below it, the text that takes effect."""
    tree = pycode.parse(source)
    last = {
        node.name: node for node in pycode.blocks(tree.body if tree else ()) if getattr(node, "name", None) in names
    }
    if set(last) != set(names):
        return source
    lines = source.split("\n")
    return "\n".join(line for node in last.values() for line in lines[node.lineno - 1 : node.end_lineno])


def _candidate(index: int, source: str, solution: Solution, claims: bool, retyped: bool) -> Candidate:
    found = pycode.defines(source, solution.names)
    members = {name for owner in solution.names for name in pycode.members(source, owner)} if found else set()
    there = members | found
    todo = left(_last_definitions(source, solution.names), solution)
    attempted = {item.number for item in solution.todos if item.function in there and item.number not in todo}
    parses = pycode.parse(source) is not None
    changed = Counter(pycode.lines(source))
    return Candidate(
        index=index,
        source=source,
        claims=claims,
        defines=bool(found) and found == set(solution.names),
        markers=sum(1 for line in source.split("\n") if MARKER.match(line)),
        done=frozenset(attempted if parses else ()),
        attempted=len(attempted),
        members=len(members & solution.members),
        edits=((changed - solution.stub_lines) + (solution.stub_lines - changed)).total(),
        retyped=retyped,
    )


def unfenced(source: str, names: tuple[str, ...]) -> str:
    """The code in a text with Markdown around it: the fenced part that defines the names, or from the code's start."""
    parts: list[list[str]] = [[]]
    for line in source.split("\n"):
        if FENCE.match(line):
            parts.append([])
        else:
            parts[-1].append(line)
    fenced = [textwrap.dedent("\n".join(part)) for part in parts[1::2]]
    defining = [part for part in fenced if pycode.defines(part, names)]
    parsing = [part for part in defining if pycode.parse(part) is not None]
    if defining:
        return max(parsing or defining, key=len)
    text = textwrap.dedent("\n".join(line for part in parts for line in part))
    starts = [match.start() for match in STARTS.finditer(text)][:8]
    return next((text[at:] for at in starts if pycode.parse(text[at:]) is not None), text)


def find(skeleton: Skeleton, solution: Solution, cells: list[dict]) -> Answer:
    """The learner's answer to one solution cell."""
    code, retyped = [], []
    mention = re.compile(rf"\b(?:class|def)\s+(?:{'|'.join(solution.names) or '(?!)'})\b")
    for index, cell in enumerate(cells):
        known = skeleton.claimed(cell)
        claims = known is not None and known.name == solution.name
        source = cell["source"]
        if not (claims or mention.search(source) or any(MARKER.match(line) for line in source.split("\n"))):
            continue
        if cell["cell_type"] == "code":
            if pycode.lines(source):
                code.append(_code(index, cell, solution, claims))
        elif len(source) <= pycode.MAX_PARSED and pycode.defines(source, solution.names):
            text = unfenced(source, solution.names)
            retyped.append(_candidate(index, text, solution, claims, True))
    strong = [one for one in code if one.defines]
    if not any(one.done for one in strong):
        strong += retyped
    else:
        strong += [one for one in retyped if one.claims]
    if strong:
        return _chosen(strong, [one.index for one in code + retyped if one.defines], cells)
    return _weak(skeleton, solution, code, cells)


def _code(index: int, cell: dict, solution: Solution, claims: bool) -> Candidate:
    source = cell["source"]
    if "```" in source and pycode.parse(source) is None and pycode.is_python(source):
        inner = unfenced(source, solution.names)
        if pycode.parse(inner) is not None and pycode.defines(inner, solution.names):
            source = inner
    return _candidate(index, source, solution, claims, False)


def _chosen(strong: list[Candidate], defining: list[int], cells: list[dict]) -> Answer:
    first: dict[tuple[str, ...], Candidate] = {}
    for one in sorted(strong, key=lambda one: (not one.claims, one.index)):
        # Of equal texts the learner's later cells may change the first, so that is the one to run.
        first.setdefault(pycode.lines(one.source), one)
    best = max(first.values(), key=lambda one: one.rank)
    flags = []
    if len({one.index for one in strong if not one.retyped}) > 1:
        flags.append("answer_cell_twice")
    if best.retyped:
        flags.append("answer_retyped")
    elif best.source != cells[best.index]["source"]:
        flags.append("answer_fences_removed")
    if not best.claims:
        flags.append("answer_by:name")
    return Answer(best, tuple(index for index in defining if index != best.index), tuple(flags))


def _weak(skeleton: Skeleton, solution: Solution, code: list[Candidate], cells: list[dict]) -> Answer:
    """Where nothing defines the names: what claims to be the answer, bears its markers, or stands in its place."""
    own = [one for one in code if skeleton.recognised(cells[one.index]) in (None, solution.name)]
    claiming = [one for one in own if one.claims]
    marked = [one for one in own if one.markers]
    placed = [] if claiming or marked else _in_place(skeleton, solution, cells)
    for found, flags in ((claiming, ()), (marked, ("answer_by:markers",)), (placed, ("answer_by:position",))):
        if found:
            return Answer(max(found, key=lambda one: (one.markers, one.rank)), (), flags)
    return Answer(None, (), ("answer_missing",))


def _in_place(skeleton: Skeleton, solution: Solution, cells: list[dict]) -> list[Candidate]:
    """Own cells with definitions between the instructor's cells that the solution cell stands between."""
    order = {known.name: place for place, known in enumerate(skeleton.known)}
    here, names = order[solution.name], [skeleton.recognised(cell) for cell in cells]
    places = [order.get(name) for name in names]
    earlier = [index for index, place in enumerate(places) if place is not None and place < here]
    start = earlier[-1] + 1 if earlier else 0
    later = [index for index, place in enumerate(places) if place is not None and place > here and index >= start]
    between = range(start, later[0] if later else len(cells))
    if not earlier or not later:
        return []
    own = [index for index in between if places[index] is None and cells[index]["cell_type"] == "code"]
    defining = [index for index in own if re.search(r"^\s*(?:class|def)\s", cells[index]["source"], re.M)]
    return [_candidate(index, cells[index]["source"], solution, False, False) for index in defining]
