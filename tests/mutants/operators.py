"""Small defects of Python source, made by rules: omissions of an author, or gets wrong by one.

    a statement is left out             a guard, a count, a cancelled timer
    two statements change places        the order of effects
    a condition is the other one        `if x` becomes `if not x`
    a bound moves by one                `<` and `<=`, `>` and `>=`, a number and the next
    `and` becomes `or`, and the reverse
    True becomes False, and the reverse
    a `finally` block runs at the end of a success only   `finally`

Docstrings, annotations, `assert`, `raise` and calls that only write text (logs, notes) are left
alone: a changed text is no defect of behaviour. So are `__slots__`, imports and definitions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

BOUNDS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in",
    ast.NotIn: "in",
}  # fmt: skip
SPEAKS = ("log", "logger", "_log", "warnings")
"""Names of functions that only write text."""
PLAIN = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Return, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True)
class Change:
    """One defect: the characters from `start` to `end` are replaced."""

    line: int
    start: int
    end: int
    after: str
    what: str


class Places:
    """Finds where a node stands in its source, in characters."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        """Return the character at a line, from 1, and a column in bytes."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the first character of a node, and the one behind its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno, node.end_col_offset),
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the source of a node."""
        start, end = self.span(node)
        return self.source[start:end]


def changes(source: str) -> list[Change]:
    """Return every defect of the rules, by line.

    Raises:
        SyntaxError: the source is no Python.
    """
    places = Places(source)
    made: list[Change] = []
    for body in _bodies(ast.parse(source)):
        made += _of_statements(places, body)
    for node in _expressions(ast.parse(source)):
        made += _of_expression(places, node)
    return sorted(set(made), key=lambda change: (change.line, change.start, change.after))


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the statements of every function, branch and loop; of no class or module."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.Module)):
            continue
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that are evaluated when a function runs."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            skipped.update(map(id, ast.iter_child_nodes(node)))
            continue
        left_out: list[ast.AST | None] = []
        match node:
            case ast.AnnAssign():
                left_out = [node.annotation]
            case ast.arg():
                left_out = [node.annotation]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                left_out = [node.returns, *node.decorator_list]
            case ast.Assert() | ast.Raise():
                left_out = [*ast.iter_child_nodes(node)]
            case ast.Expr(value=value) if _speaks(value):
                left_out = [value]
            case ast.expr():
                yield node
        skipped.update(id(part) for part in left_out if part is not None)


def _speaks(node: ast.expr) -> bool:
    """True for a docstring, and for a call that only writes."""
    if isinstance(node, ast.Constant):
        return True
    while isinstance(node, (ast.Call, ast.Attribute, ast.Await)):
        if isinstance(node, ast.Attribute) and node.attr in SPEAKS:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in SPEAKS


def _of_statements(places: Places, body: list[ast.stmt]) -> Iterator[Change]:
    for statement in body:
        if isinstance(statement, PLAIN) and not (_is_text(statement) or _binds(statement)):
            yield _replaced(places, statement, "pass", "left out")
        if isinstance(statement, ast.Try) and statement.finalbody:
            yield from _without_finally(places, statement)
    for first, second in pairwise(body):
        if isinstance(first, PLAIN) and isinstance(second, PLAIN) and not _is_text(first):
            yield from _swapped(places, first, second)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and _speaks(statement.value)


def _binds(statement: ast.stmt) -> bool:
    """True if it gives values to local names only: without it, any run fails."""
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.expr)]
    return bool(names) and all(isinstance(n, (ast.Name, ast.Tuple)) for n in names)


def _swapped(places: Places, first: ast.stmt, second: ast.stmt) -> Iterator[Change]:
    """Let two statements change places, unless the second needs a name from the first."""
    bound = {n.id for n in ast.walk(first) if isinstance(n, ast.Name) and _stores(n)}
    used = {n.id for n in ast.walk(second) if isinstance(n, ast.Name)}
    ends = (ast.Return, ast.Continue, ast.Break)
    if bound & used or isinstance(first, ends) or isinstance(second, ends) or _is_text(second):
        return
    (start, end), (begin, stop) = places.span(first), places.span(second)
    between = places.source[end:begin]
    after = places.text(second) + between + places.text(first)
    yield Change(first.lineno, start, stop, after, f"after the next: {_short(places, first)}")


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, (ast.Store, ast.Del))


def _without_finally(places: Places, statement: ast.Try) -> Iterator[Change]:
    for last in statement.finalbody:
        if isinstance(last, PLAIN):
            start, end = places.span(last)
            indent = " " * last.col_offset
            after = (
                f"import sys\n{indent}if sys.exception() is None:\n{indent}    {places.text(last)}"
            )
            if "\n" not in places.text(last):
                yield Change(
                    last.lineno, start, end, after, f"not in the end: {_short(places, last)}"
                )


def _of_expression(places: Places, node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            kind = type(operator)
            for table in (BOUNDS, OPPOSITES):
                if sign := table.get(kind):
                    after = f"({places.text(left)}) {sign} ({places.text(right)})"
                    yield _replaced(places, node, after, sign)
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            after = "(" + word.join(f"({places.text(value)})" for value in values) + ")"
            yield _replaced(places, node, after, word.strip())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _replaced(places, node, f"bool({places.text(operand)})", "without not")
        case ast.IfExp(test=test):
            yield _replaced(places, test, f"(not ({places.text(test)}))", "the other case")
        case ast.Constant(value=bool() as value):
            yield _replaced(places, node, str(not value), str(not value))
        case ast.Constant(value=int() as value):
            yield _replaced(places, node, str(value + 1), str(value + 1))


def _replaced(places: Places, node: ast.expr | ast.stmt, after: str, what: str) -> Change:
    start, end = places.span(node)
    return Change(node.lineno, start, end, after, f"{what}: {_short(places, node)}")


def _short(places: Places, node: ast.expr | ast.stmt) -> str:
    line, *more = places.text(node).splitlines()
    return f"{line} ..." if more else line
