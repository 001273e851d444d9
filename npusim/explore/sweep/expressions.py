"""Constraints as expressions: numbers, names and comparisons, and nothing that could do harm."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from npusim.chip.schema import closest, find
from npusim.chip.units import BANDWIDTH, BYTES, CYCLES, HERTZ, SECONDS
from npusim.explore.sweep.errors import ExperimentError

#: Short names of chip keys, as papers have them.
SHORT = {
    "l0a": "core.l0a.size",
    "l0b": "core.l0b.size",
    "l0c": "core.l0c.size",
    "l1": "core.l1.size",
    "ub": "core.ub.size",
    "l2": "l2.size",
    "hbm": "hbm.bandwidth",
    "cores": "cores.count",
}
_UNITS = (BYTES, BANDWIDTH, HERTZ, SECONDS, CYCLES)
_ALLOWED = "numbers, chip keys, 'size' strings with units, + - * / // %, comparisons, and or not"
_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}

Names = Callable[[str], Any]  #: the value of a name


class Expression:
    """A constraint, read once.

    Raises:
        ExperimentError: it is no expression, or has names or operations that are not allowed.
    """

    def __init__(self, text: str, settings: Mapping[str, object]) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            raise self._error("is not an expression") from None
        self._check(self._tree, settings)

    def holds(self, names: Names) -> bool:
        """Whether it is true of a point."""
        try:
            return bool(_value(self._tree, names))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            raise self._error(f"cannot be computed: {error}") from None

    def _check(self, node: ast.AST, settings: Mapping[str, object]) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            name = _dotted(node)
            if name is None:
                raise self._error("has an attribute of something that is no key")
            if name not in settings and find(SHORT.get(name, name)) is None:
                near = closest(name)
                fix = f"did you mean {near}?" if near else f"short names: {', '.join(SHORT)}"
                raise self._error(f"has the unknown name {name}", fix)
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool | int | float | str):
                return
            raise self._error(f"has the constant {node.value!r}")
        operators: list[ast.AST]
        parts: list[ast.AST]
        if isinstance(node, ast.BinOp):
            operators, parts = [node.op], [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            operators, parts = [node.op], [node.operand]
        elif isinstance(node, ast.Compare):
            operators, parts = list(node.ops), [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            operators, parts = [], list(node.values)
        else:
            raise self._error(f"has a {type(node).__name__}")
        for op in operators:
            if type(op) not in _BINARY and type(op) not in _UNARY:
                raise self._error(f"has the operation {type(op).__name__}")
        for part in parts:
            self._check(part, settings)

    def _error(self, problem: str, fix: str = "") -> ExperimentError:
        what = f"constraint {self.text!r} {problem}"
        return ExperimentError(what, _ALLOWED, fix or 'write for example "l0a*2 <= l1"')


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        stem = _dotted(node.value)
        return None if stem is None else f"{stem}.{node.attr}"
    return None


def _value(node: ast.AST, names: Names) -> Any:
    if isinstance(node, ast.Constant):
        return _quantity(node.value) if isinstance(node.value, str) else node.value
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_value(node.operand, names))
    if isinstance(node, ast.BoolOp):
        every = isinstance(node.op, ast.And)
        found = (bool(_value(v, names)) for v in node.values)
        return all(found) if every else any(found)
    if isinstance(node, ast.Compare):
        left = _value(node.left, names)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = _value(right_node, names)
            if not _BINARY[type(op)](left, right):
                return False
            left = right
        return True
    name = _dotted(node)
    assert name is not None, "checked when it was read"
    return names(SHORT.get(name, name))


def _quantity(text: str) -> Any:
    """A string with a unit in base units; any other string as it is."""
    from pydantic_core import PydanticCustomError

    for quantity in _UNITS:
        try:
            return quantity.parse(text)
        except PydanticCustomError:
            continue
    return text
