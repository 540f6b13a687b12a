"""Reading learners' cells as Python without running them: syntax trees, what a cell defines, which names it uses."""

from __future__ import annotations

import ast
import re
import symtable
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache

MAX_PARSED = 60_000  # characters; a longer cell is looked at by patterns only, since parsing can take its square
FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)
CELL_MAGIC = re.compile(r"\s*%%(\w+)")
PYTHON_MAGICS = {"time", "timeit", "capture", "prun", "memit", "mprun"}  # the rest of the cell is Python
LINE_MAGIC = re.compile(r"^(\s*)(?:[%!].*|\?{1,2}[\w.]+\s*|[\w.]+\?{1,2}\s*)$")
FORM_FIELD = re.compile(r"^(\w+ = ).*?(\s*# ?@param\b.*)$", re.MULTILINE)
ASSIGNED_MAGIC = re.compile(r"^(\s*[A-Za-z_][\w, ]*=\s*)[%!].*$")


def lines(source: str) -> tuple[str, ...]:
    """The lines that count when texts are compared: without blank ones and without spaces at the end.

    What was filled into a form's fields (`name = ""  # @param`) is left out: forms are there to be filled in.
    """
    source = FORM_FIELD.sub(r"\1…\2", source) if "@param" in source else source
    return tuple(line.rstrip() for line in source.split("\n") if line.strip())


@lru_cache(maxsize=256)
def parse(source: str) -> ast.Module | None:
    """The syntax tree of a cell, with IPython's magics and commands as `pass`; None if it is no Python."""
    if len(source) > MAX_PARSED:
        return None
    for text in (source, _without_magics(source)):
        try:
            with warnings.catch_warnings(action="ignore"):
                return compile(text, "<cell>", "exec", FLAGS)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def is_python(source: str) -> bool:
    """Whether a cell may be Python at all: %%bash, %%writefile and the like are not."""
    magic = CELL_MAGIC.match(source)
    return magic is None or magic[1] in PYTHON_MAGICS


def _without_magics(source: str) -> str:
    if not is_python(source):
        return source
    out = []
    for line in source.split("\n"):
        line = ASSIGNED_MAGIC.sub(r"\1None", line)
        out.append(LINE_MAGIC.sub(r"\1pass", line))
    return textwrap.dedent("\n".join(out))  # as IPython does


def blocks(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at module level, those inside if, try, with and for included, functions and classes not entered."""
    stack = list(body)[::-1]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, DEFINITIONS):
            continue
        inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(node, name, ())]
        inner += [part for handler in getattr(node, "handlers", ()) for part in handler.body]
        stack += inner[::-1]


def bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds by itself."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, IMPORTS):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    walked = [part for target in targets if target is not None for part in ast.walk(target)]
    return {part.id for part in walked if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def used(*nodes: ast.AST) -> set[str]:
    """Names that are read anywhere in the nodes."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


@lru_cache(maxsize=256)
def reads(source: str) -> frozenset[str]:
    """Names that a text takes from the module it runs in: not its functions' own variables."""
    out: set[str] = set()
    try:
        with warnings.catch_warnings(action="ignore"):
            tables = [symtable.symtable(_without_magics(source), "<cell>", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        out |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return frozenset(out)


def extends_itself(node: ast.stmt) -> bool:
    """`class A(A)`: it changes a class that must be there already."""
    return isinstance(node, ast.ClassDef) and any(node.name in used(base) for base in node.bases)


def definitions(tree: ast.Module) -> list[ast.stmt]:
    """A cell's classes and functions, without those that build on one of the same name from an earlier cell."""
    found, inherited = [], set()
    for node in blocks(tree.body):
        if isinstance(node, DEFINITIONS):
            if not extends_itself(node) and node.name not in inherited:
                found.append(node)
        elif isinstance(node, ast.Assign):  # Base = Box, and then class Box(Base)
            inherited |= used(node.value) - {one.name for one in found}
    return found


def defines(source: str, names: Iterable[str]) -> set[str]:
    """Which of the names the cell defines as a class or function of its own; by pattern if it does not parse."""
    if not is_python(source):
        return set()
    tree = parse(source)
    if tree is not None:
        return {node.name for node in definitions(tree)} & set(names)
    return {name for name in names if re.search(rf"^[ \t>]*(?:class|(?:async )?def)\s+{name}\b", source, re.M)}


def members(source: str, owner: str) -> set[str]:
    """Names that the class `owner` gets in its body; by pattern if the cell does not parse."""
    tree = parse(source)
    if tree is None:
        return set(re.findall(r"^[ \t]+(?:async )?def\s+(\w+)", source, re.M))
    classes = [node for node in blocks(tree.body) if isinstance(node, ast.ClassDef) and node.name == owner]
    return {name for node in classes for part in blocks(node.body) for name in bound(part)}


def patches(source: str, owner: str) -> set[str]:
    """Members that a cell gives an existing class: `Owner.name = …`, `setattr(Owner, "name", …)`, `class Owner(Owner)`.

    A cell that gives the name itself a new value patches everything: {"*"}.
    """
    if owner not in source:
        return set()
    tree, out = parse(source), set()
    if tree is None:
        return set()
    whole = definitions(tree)
    for node in blocks(tree.body):
        if isinstance(node, ast.ClassDef) and node.name == owner and not any(node is one for one in whole):
            out |= {name for part in blocks(node.body) for name in bound(part)}
        elif not isinstance(node, DEFINITIONS) and owner in bound(node):
            out.add("*")
        elif isinstance(node, ast.Assign):
            found = [part for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Attribute)]
            out |= {part.attr for part in found if isinstance(part.value, ast.Name) and part.value.id == owner}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            names = [part.value for part in call.args[1:2] if isinstance(part, ast.Constant)]
            if isinstance(call.func, ast.Name) and call.func.id == "setattr" and used(*call.args[:1]) == {owner}:
                out |= {name for name in names if isinstance(name, str)}
    return out
