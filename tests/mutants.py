"""Operator-level mutants of the reference's three regions, made from its own syntax tree.

`all_mutants()` lists them without repeats. Which of them behave like the reference is declared in EQUIVALENT, with the
reason; nothing decides it at run time.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from answers import REFERENCE

COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
ATTRIBUTES = ("max_proposal_len", "min_accept_ratio")
NAMES = {1: ("draft_tokens",), 2: ("draft_prob", "target_prob"), 3: ("draft_prob", "target_prob", "i", "token_id")}
COLLECTIONS = ("tuple", "set", "sorted", "reversed", "iter")

# (todo, text) -> why it behaves like the reference.
EQUIVALENT = {
    (1, "proposed = list(draft_tokens)[0:self.max_proposal_len]"): "a slice starts at 0 unless told otherwise",
    (1, "proposed = list(draft_tokens)[:self.max_proposal_len:1]"): "a slice steps by 1 unless told otherwise",
    (1, "proposed = list(list(draft_tokens)[:self.max_proposal_len])"): "a copy of a new list is a new list",
    (2, "accepted = target_prob >= self.min_accept_ratio * draft_prob"): "multiplication commutes, in floats too",
    (2, "accepted = draft_prob * self.min_accept_ratio <= target_prob"): "the comparison read from the other side",
    (2, "accepted = not target_prob < draft_prob * self.min_accept_ratio"): "the negation of <; NaN is not graded",
    (2, "accepted = bool(target_prob >= draft_prob * self.min_accept_ratio)"): "comparing numbers gives a bool",
    (3, "accepted = bool(self._accept_token(draft_prob, target_prob))"): "the rule gives a bool",
    (3, "accepted = int(self._accept_token(draft_prob, target_prob))"): "the skeleton uses only its truth",
    (3, "accepted = float(self._accept_token(draft_prob, target_prob))"): "the skeleton uses only its truth",
}


@dataclass(frozen=True)
class Mutant:
    """todo: whose region; operator: what was done to it; body: the region's text."""

    todo: int
    operator: str
    body: str

    @property
    def equivalent(self) -> bool:
        return (self.todo, self.body) in EQUIVALENT

    @property
    def id(self) -> str:
        return f"todo{self.todo}-{self.operator}-{self.body.partition('=')[2].strip()}"


def all_mutants() -> list[Mutant]:
    """Each different text once, in a fixed order."""
    found: dict[tuple[int, str], Mutant] = {}
    for todo, text in REFERENCE.items():
        original = ast.unparse(ast.parse(text))
        for operator, body in _mutations(todo, ast.parse(text)):
            if body != original:
                found.setdefault((todo, body), Mutant(todo, operator, body))
    return list(found.values())


def _mutations(todo: int, tree: ast.Module) -> Iterator[tuple[str, str]]:
    places = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    for place in range(len(places)):
        # A name that is assigned to and a method that is called are no values of their own.
        node = places[place]
        if isinstance(getattr(node, "ctx", None), ast.Store) or _called(tree, node):
            continue
        for operator, replacement in _replacements(todo, node):
            yield operator, _unparse_with(tree, place, replacement)
    yield "statement-removed", "pass"
    value = tree.body[0].value
    for operator, replacement in _of_the_value(value):
        changed = copy.deepcopy(tree)
        changed.body[0].value = replacement
        yield operator, ast.unparse(ast.fix_missing_locations(changed))


def _called(tree: ast.Module, node: ast.expr) -> bool:
    return any(isinstance(call, ast.Call) and call.func is node for call in ast.walk(tree))


def _unparse_with(tree: ast.Module, place: int, replacement: ast.expr) -> str:
    changed = copy.deepcopy(tree)
    target = [node for node in ast.walk(changed) if isinstance(node, ast.expr)][place]

    class Replace(ast.NodeTransformer):
        def visit(self, node):
            return replacement if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(changed)))


def _replacements(todo: int, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            for other in COMPARISONS:
                if not isinstance(operator, other):
                    yield "comparison", ast.Compare(left, [other()], [right])
            yield "sides-swapped", ast.Compare(right, [operator], [left])
            yield "sides-and-operator-swapped", ast.Compare(right, [ast.LtE()], [left])
        case ast.BinOp(left=left, op=operator, right=right):
            for other in ARITHMETIC:
                if not isinstance(operator, other):
                    yield "arithmetic", ast.BinOp(left, other(), right)
            yield "operand-dropped", left
            yield "operand-dropped", right
            yield "operands-swapped", ast.BinOp(right, operator, left)
            yield "operands-swapped", ast.BinOp(right, ast.Div(), left)
            yield from _nudged(node)
        case ast.Subscript(value=value, slice=ast.Slice(upper=upper)):
            for name, bounds in _slices(upper):
                yield name, ast.Subscript(value, bounds, ast.Load())
            yield "slice-to-index", ast.Subscript(value, upper, ast.Load())
        case ast.Call(func=ast.Name(id="list"), args=[argument]):
            yield "call-removed", argument
            for other in COLLECTIONS:
                yield "call-replaced", ast.Call(ast.Name(other, ast.Load()), [argument], [])
        case ast.Call(func=function, args=[first, second]):
            for name, arguments in (
                ("arguments-swapped", [second, first]),
                ("argument-repeated", [first, first]),
                ("argument-repeated", [second, second]),
                ("argument-dropped", [first]),
                ("argument-dropped", [second]),
                ("argument-dropped", []),
            ):
                yield name, ast.Call(function, arguments, [])
            yield "call-removed", function
            yield "call-removed", first
            yield "call-removed", second
        case ast.Attribute(value=value, attr=attribute) if attribute in ATTRIBUTES:
            other = ATTRIBUTES[1 - ATTRIBUTES.index(attribute)]
            yield "attribute", ast.Attribute(value, other, ast.Load())
            yield from _nudged(node)
        case ast.Name(id=name) if name in NAMES[todo]:
            for other in NAMES[todo]:
                if other != name:
                    yield "name", ast.Name(other, ast.Load())
            if todo > 1:
                yield from _nudged(node)
                yield "constant", ast.Constant(0.5)


def _nudged(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """A number, one more, one less, negated, gone."""
    yield "plus-one", ast.BinOp(node, ast.Add(), ast.Constant(1))
    yield "minus-one", ast.BinOp(node, ast.Sub(), ast.Constant(1))
    yield "negated", ast.UnaryOp(ast.USub(), node)
    yield "constant", ast.Constant(0)
    yield "constant", ast.Constant(1)
    yield "doubled", ast.BinOp(node, ast.Mult(), ast.Constant(2))


def _slices(upper: ast.expr) -> Iterator[tuple[str, ast.Slice]]:
    more = ast.BinOp(upper, ast.Add(), ast.Constant(1))
    yield "bound-dropped", ast.Slice()
    yield "bound-moved", ast.Slice(lower=upper)
    yield "bound-moved", ast.Slice(lower=ast.UnaryOp(ast.USub(), upper))
    for lower in (0, 1, -1):
        yield "lower-bound", ast.Slice(lower=ast.Constant(lower), upper=upper)
    yield "window-shifted", ast.Slice(lower=ast.Constant(1), upper=more)
    for step in (1, 2, -1):
        yield "step", ast.Slice(upper=upper, step=ast.Constant(step))
    yield "bound-to-step", ast.Slice(step=upper)


def _of_the_value(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What is done to the whole right-hand side."""
    yield "not", ast.UnaryOp(ast.Not(), value)
    for constant in (None, True, False, 0, 1):
        yield "constant", ast.Constant(constant)
    if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.GtE):
        yield "not-comparison", ast.UnaryOp(ast.Not(), ast.Compare(value.left, [ast.Lt()], value.comparators))
    for function in ("list", "tuple", "bool", "int", "float", "str"):
        yield f"{function}-call", ast.Call(ast.Name(function, ast.Load()), [value], [])
