"""Symbolic integer expressions: those of the notation, and those that dsx derives from it.

One small language serves dimension definitions (`dim c = (h + 2*g) * k`), the rules of a strategy and the operator
tables: integers, names, ``+ - * / % ( ) min max``, where ``/`` floors. Evaluation uses arithmetic operators alone, so
it takes plain numbers, fractions and arrays alike, and this module imports no array library.

A sum over a layer is a left-leaning chain of hundreds of operations. Functions here follow left operands in a loop and
recurse into right operands, which are only as deep as a definition wrote them.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Name:
    """A free name: a dimension, a degree, or a quantity of the operator tables."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """`sign` applied to two operands; signs are ``+ - * / %`` and ``min max``."""

    sign: str
    left: "int | Name | Operation"
    right: "int | Name | Operation"


def _pick(largest: bool) -> Callable[[Any, Any], Any]:
    """Return an elementwise min or max made of arithmetic alone."""

    def choose(a: Any, b: Any) -> Any:
        takes_a = (a >= b) if largest else (a <= b)
        return takes_a * a + (1 - takes_a) * b

    return choose


_APPLY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "min": _pick(largest=False),
    "max": _pick(largest=True),
}
RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def product(factors: Iterable[Any]) -> Any:
    """Return the product of expressions, dropping factors of 1."""
    result: Any = 1
    for factor in factors:
        result = combine("*", result, factor)
    return result


def total(terms: Iterable[Any]) -> Any:
    """Return the sum of expressions, dropping terms of 0."""
    result: Any = 0
    for term in terms:
        result = combine("+", result, term)
    return result


def combine(sign: str, left: Any, right: Any) -> Any:
    """Return ``left sign right``, simplified where both are integers or one is neutral."""
    if isinstance(left, int) and isinstance(right, int):
        return int(_APPLY[sign](left, right))
    if (sign, left) in (("*", 1), ("+", 0)):
        return right
    if (sign, right) in (("*", 1), ("/", 1), ("+", 0), ("-", 0)):
        return left
    if sign == "*" and 0 in (left, right):
        return 0
    return Operation(sign, left, right)


def names(expr: Any) -> set[str]:
    """Return the free names of an expression."""
    found: set[str] = set()
    while isinstance(expr, Operation):
        found |= names(expr.right)
        expr = expr.left
    return found | {expr.name} if isinstance(expr, Name) else found


def parts(expr: Any) -> int:
    """Return the number of integers and names in an expression."""
    count = 1
    while isinstance(expr, Operation):
        count += parts(expr.right)
        expr = expr.left
    return count


def evaluate(
    expr: Any,
    values: Mapping[str, Any],
    memo: dict[int, Any] | None = None,
    floor_divide: Callable[[Any, Any], Any] = operator.floordiv,
) -> Any:
    """Evaluate `expr` where `values` gives a number, fraction or array for each name.

    `floor_divide` evaluates ``/``; with exact division, identities can be tested. `memo` shares the results of
    sub-expressions between calls with the same `values`. Its keys are object ids, so the expressions must outlive it.
    Raises KeyError with the first name that has no value.
    """
    chain: list[Operation] = []
    while isinstance(expr, Operation) and (memo is None or id(expr) not in memo):
        chain.append(expr)
        expr = expr.left
    if isinstance(expr, Operation):
        result = (memo or {})[id(expr)]
    else:
        result = values[expr.name] if isinstance(expr, Name) else expr
    for operation in reversed(chain):
        right = evaluate(operation.right, values, memo, floor_divide)
        apply = floor_divide if operation.sign == "/" else _APPLY[operation.sign]
        result = apply(result, right)
        if memo is not None:
            memo[id(operation)] = result
    return result


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


def text(expr: Any, outer: int = 0) -> str:
    """Return the expression in the notation; `outer` is the precedence of the operation around it."""
    before, after = [], []
    while isinstance(expr, Operation):
        if expr.sign in ("min", "max"):
            before.append(f"{expr.sign}(")
            after.append(f", {text(expr.right)})")
            outer = 0
        else:
            precedence = _PRECEDENCE[expr.sign]
            left_bracket, right_bracket = ("(", ")") if precedence < outer else ("", "")
            before.append(left_bracket)
            # The right operand of - / % binds tighter than the sign itself: a - (b - c).
            after.append(f" {expr.sign} {text(expr.right, precedence + (expr.sign != '+'))}{right_bracket}")
            outer = precedence
        expr = expr.left
    return "".join([*before, expr.name if isinstance(expr, Name) else str(expr), *reversed(after)])


def divided(size: Any, axes: Iterable[str]) -> Any:
    """Return the local size of a dimension: floor(size / product of the degrees of `axes`)."""
    return combine("/", size, product(Name(axis) for axis in axes))


def primes_from(start: int, count: int) -> list[int]:
    """Return the first `count` primes from `start` on, as independent values to test an identity with."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
        candidate += 1
    return found
