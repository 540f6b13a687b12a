"""Cutting learners' cells: what must not be lost apart from what may fail, and definitions apart from the rest."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder

from grading.intake import pycode

PLATFORMS = {"google", "modelscope_studio", "kaggle_secrets"}  # the box has stand-ins for them


@dataclass(frozen=True)
class Piece:
    """A run of a cell's lines. answer: whether it defines what the chapter's solution cell defines."""

    source: str
    answer: bool = False


@cache
def _absent(module: str) -> bool:
    if module in sys.stdlib_module_names or module in PLATFORMS:
        return False
    try:
        return PathFinder.find_spec(module) is None
    except (ImportError, ValueError, AttributeError, OSError):
        return True


def absent_modules(node: ast.stmt) -> list[str]:
    """Modules that a statement imports and this installation has not got."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    else:
        names = []
    return [name for name in dict.fromkeys(name.split(".")[0] for name in names) if len(name) < 100 and _absent(name)]


def _quiet(node: ast.stmt) -> bool:
    """Whether a statement only defines: it cannot hang, and hardly fail."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is None or not any(isinstance(part, ast.Call | ast.Await) for part in ast.walk(node.value))
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, (*pycode.DEFINITIONS, *pycode.IMPORTS, ast.Pass))


def cut(source: str, names: Collection[str] = ()) -> list[Piece]:
    """A cell in pieces that run one after another, each whether or not the one before failed.

    An import of a module that is not installed here (it was where the learner worked) stands alone, and so do calls
    before and after the definition of `names`: a demonstration that never ends must not cost the answer itself.
    """
    whole = [Piece(source, bool(names))]
    tree = pycode.parse(source)
    if tree is None or pycode.CELL_MAGIC.match(source):
        return whole
    kinds = []
    for node in tree.body:
        mine = names and any(
            part.name in names for part in pycode.blocks([node]) if isinstance(part, pycode.DEFINITIONS)
        )
        kinds.append("answer" if mine else "absent" if absent_modules(node) else "quiet" if _quiet(node) else "loud")
    if names and "answer" not in kinds:
        return whole
    if names:
        first, last = kinds.index("answer"), len(kinds) - 1 - kinds[::-1].index("answer")
        kinds[first : last + 1] = ["answer"] * (last + 1 - first)
        for step, place in ((-1, first - 1), (1, last + 1)):  # definitions beside the answer stay with it
            while 0 <= place < len(kinds) and kinds[place] == "quiet":
                kinds[place] = "answer"
                place += step
    labels = [kind if kind in ("answer", "absent") else "other" for kind in kinds]
    return _joined(source, tree, labels) or whole


def _joined(source: str, tree: ast.Module, labels: list[str]) -> list[Piece] | None:
    """Pieces of neighbouring statements with equal labels; None if statements share a line."""
    text, out, begin = source.split("\n"), [], 0
    for number, (node, label) in enumerate(zip(tree.body, labels, strict=True)):
        after = tree.body[number + 1] if number + 1 < len(labels) else None
        if after is not None and label == labels[number + 1] != "absent":
            continue
        end = node.end_lineno if after is not None else len(text)
        if after is not None and _first_line(after) <= end:
            return None
        out.append(Piece("\n".join(text[begin:end]), label == "answer"))
        begin = end
    return out


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", ()))])


def definitions(source: str, known: str, names: Collection[str]) -> str | None:
    """Imports, functions, classes and simple assignments of a cell that do not stand in the text `known` as well.

    names: what the chapter's solution cells define; it is not defined anew here, nor called. Each statement is kept
    from failing the next. '' if there are none, None if the cell does not parse.
    """
    tree = pycode.parse(source)
    if tree is None:
        return None
    old = pycode.parse(known)
    try:
        present = {ast.dump(node) for node in old.body} if old is not None else set()
        kept = [_guarded(node) for node in tree.body if _defines(node, names) and ast.dump(node) not in present]
        return ast.unparse(ast.fix_missing_locations(ast.Module(kept, []))) if kept else ""
    except RecursionError:
        return None


def _defines(node: ast.stmt, names: Collection[str]) -> bool:
    if isinstance(node, pycode.DEFINITIONS):
        return node.name not in names or pycode.extends_itself(node)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is not None and not pycode.used(node.value) & set(names)
    if isinstance(node, ast.If):
        return all(_defines(part, names) for part in (*node.body, *node.orelse))
    if isinstance(node, ast.Try):
        handlers = [part for handler in node.handlers for part in handler.body if not isinstance(part, ast.Pass)]
        return all(_defines(part, names) for part in (*node.body, *handlers, *node.orelse, *node.finalbody))
    return isinstance(node, pycode.IMPORTS)


def _guarded(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.Try) or (isinstance(node, pycode.DEFINITIONS) and not node.decorator_list):
        return node
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
    return ast.Try([node], [handler], [], [])
