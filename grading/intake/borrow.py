"""What an answer uses of the instructor's other cells, such as an import of the set-up cell.

Those cells do not run when grading (plots take seconds, and nobody looks), so the few definitions that an answer
reaches are taken out of them, in the instructor's text as learners have it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from grading.intake import pycode
from grading.intake.skeleton import Skeleton

ROLES = ("other", "fixture", "instructor")


def _bindings(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    out: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        if isinstance(node, (*pycode.DEFINITIONS, *pycode.IMPORTS, ast.Assign, ast.AnnAssign)):
            for name in pycode.bound(node):
                out.setdefault(name, []).append(node)
    return out


def borrowed(skeleton: Skeleton, roots: Iterable[str], own: Iterable[str]) -> str:
    """The instructor's statements that the code in `roots` needs, directly or through the learner's `own` code."""
    available: dict[str, list[ast.stmt]] = {}
    for known in skeleton.known:
        tree = pycode.parse(known.text) if known.kind == "code" and known.role in ROLES else None
        for name, nodes in _bindings(tree).items() if tree is not None else ():
            available.setdefault(name, nodes)
    given = {name for known in skeleton.known if known.role == "import" for name in _names(known.text)}
    given |= set(dir(builtins))
    mine: dict[str, list[ast.stmt]] = {}
    for source in own:
        tree = pycode.parse(source)
        for node in pycode.blocks(tree.body) if tree is not None else ():
            for name in pycode.bound(node):
                mine.setdefault(name, []).append(node)
    pending = {name for source in roots for name in pycode.reads(source)} - given
    seen, taken = set(), []
    while pending:
        name = pending.pop()
        seen.add(name)
        nodes = mine.get(name) or available.get(name, [])
        if name not in mine:
            taken += [node for node in nodes if not any(node is other for other in taken)]
        pending |= {name for node in nodes for name in pycode.reads(ast.unparse(node))} - seen - given
    order = {id(node): place for place, node in enumerate(node for nodes in available.values() for node in nodes)}
    return "\n".join(ast.unparse(node) for node in sorted(taken, key=lambda node: order[id(node)]))


def _names(source: str) -> set[str]:
    tree = pycode.parse(source)
    return {name for node in tree.body for name in pycode.bound(node)} if tree is not None else set()
