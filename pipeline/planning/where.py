"""Filter rules over sidecar columns: a string in a small, safe language becomes a pyarrow expression.

    language == "de" and 1 <= seconds < 20 and speaker not in ["s1", "s2"] and text_chars / seconds > 2

Comparisons (chained too), and / or / not, in / not in with a list of literals, is None / is not None, + - * /,
parentheses, string, number and truth literals, column names, and the derived columns `seconds` and `frames`.
The text is parsed, never evaluated as Python. A comparison with a null is null, and null is not kept.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    # Arrow divides integers to an integer, and its operator fails on a zero: neither is what text_chars / seconds
    # means.
    ast.Div: lambda left, right: pc.divide(left.cast(pa.float64()), right.cast(pa.float64())),
}


@dataclass(frozen=True)
class Where:
    """One filter rule: its text, the columns it names (None if unknown), and the expression."""

    text: str
    columns: frozenset[str] | None
    expression: pc.Expression = field(compare=False, repr=False)


class _NotAllowedError(Exception):
    """A piece of syntax outside the language, and the node where it stands."""

    def __init__(self, node: ast.AST, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def parse_where(rule: str | pc.Expression | Where) -> Where:
    """Return a filter rule, parsed; whether its columns exist is checked when it meets them.

    Raises:
        ConfigError: the text is not in the language; the message shows the place.

    Example:
        >>> sorted(parse_where("1 <= seconds < 20 and language == 'de'").columns)
        ['language', 'seconds']
    """
    if isinstance(rule, Where):
        return rule
    if isinstance(rule, pc.Expression):
        return Where(str(rule), None, rule)
    if not isinstance(rule, str):
        raise ConfigError(
            f"where={rule!r} is a {type(rule).__name__}: give a string such as 'seconds < 20', "
            "a pyarrow.compute.Expression, or a sequence of those"
        )
    text = rule.strip()
    try:
        tree = ast.parse(text, mode="eval").body
        names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        return Where(text, names, _build(tree))
    except SyntaxError as cause:
        place = text[max(0, (cause.offset or 1) - 1) :] or "its end"
        raise ConfigError(
            f"where={text!r} does not parse at {place!r} ({cause.msg}): write it like "
            "'language == \"de\" and seconds < 20'"
        ) from cause
    except _NotAllowedError as cause:
        place = ast.get_source_segment(text, cause.node) or text
        raise ConfigError(f"where={text!r}: {place!r} is not allowed: {cause}") from cause
    except (pa.ArrowException, OverflowError, ValueError, RecursionError, MemoryError) as cause:
        raise ConfigError(f"where={text!r} is no usable rule: {cause}") from cause


def _build(node: ast.expr) -> pc.Expression:
    match node:
        case ast.Name(id=name):
            return pc.field(name)
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return pc.scalar(_literal(node))
        case ast.BoolOp(op=op, values=values):
            combine = operator.and_ if isinstance(op, ast.And) else operator.or_
            return functools.reduce(combine, map(_build, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_build(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return pc.negate_checked(_build(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_build(left), _build(right))
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            raise _NotAllowedError(node, "write `and` and `or` instead of & and |")
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = zip([left, *comparators], ops, comparators, strict=False)
            return functools.reduce(operator.and_, (_compare(*pair) for pair in pairs))
    raise _NotAllowedError(
        node, "use column names, literals, comparisons, and / or / not, in, is None, + - * / and parentheses"
    )


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
    if isinstance(op, ast.Is | ast.IsNot):
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise _NotAllowedError(right, "`is` compares with None only; use == for values")
        column = _build(left)
        return column.is_null() if isinstance(op, ast.Is) else column.is_valid()
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
            raise _NotAllowedError(right, "`in` needs a list of literals with at least one element")
        column = _build(left)
        found = column.isin([_literal(element) for element in right.elts])
        # Arrow finds null in no list, so that `not in` would keep what `!=` removes.
        found = pc.if_else(column.is_valid(), found, pc.scalar(pa.scalar(None, pa.bool_())))
        return found if isinstance(op, ast.In) else ~found
    return _COMPARISONS[type(op)](_build(left), _build(right))


def _literal(node: ast.expr) -> str | int | float | bool:
    match node:
        case ast.Constant(value=value) if isinstance(value, str | int | float):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(
            value, int | float
        ) and not isinstance(value, bool):
            return -value
        case ast.Constant(value=None):
            raise _NotAllowedError(node, "compare with None by `is None` or `is not None`")
    raise _NotAllowedError(node, "expected a string, a number, True or False")
