"""Symbolic integer expressions: those of the notation, and those that dsx derives from it.

One small language serves dimension definitions (`dim c = (h + 2*g) * k`), the rules of a strategy and the operator
tables: integers, names, ``+ - * / % ( ) min max``, where ``/`` floors. Evaluation uses arithmetic operators alone, so
it takes plain numbers, fractions and arrays alike, and this module imports no array library.

Equal expressions are one object, so they compare and hash by identity, and a sub-expression that many formulas of a
layer share is evaluated once. Formulas that are evaluated together are compiled into one program.

A sum over a layer is a left-leaning chain of hundreds of operations. Functions here follow left operands in a loop and
recurse into right operands, which are only as deep as a definition wrote them.
"""

import functools
import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

V = TypeVar("V")  # a number, fraction or array
Binary = Callable[[Any, Any], Any]  # of two of these
_E = TypeVar("_E", "Name", "Operation")

_expressions: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
_lock = threading.Lock()


def _interned(kind: type[_E], *fields: "Expression | str") -> _E:
    """Return the only expression of a class with these fields."""
    key = (kind, *fields)
    expression = _expressions.get(key)
    if expression is None:
        expression = object.__new__(kind)
        for name, value in zip(kind.__match_args__, fields, strict=True):
            object.__setattr__(expression, name, value)
        with _lock:
            expression = _expressions.setdefault(key, expression)
    return expression


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Name:
    """A free name: a dimension, a degree, or a quantity of the operator tables."""

    name: str

    def __new__(cls, name: str) -> "Name":
        """Return the only object of this name."""
        return _interned(cls, name)

    def __reduce__(self) -> tuple[object, ...]:
        return Name, (self.name,)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Operation:
    """`sign` applied to two operands; signs are ``+ - * / %`` and ``min max``."""

    sign: str
    left: "Expression"
    right: "Expression"

    def __new__(cls, sign: str, left: "Expression", right: "Expression") -> "Operation":
        """Return the only object of these fields."""
        return _interned(cls, sign, left, right)

    def __reduce__(self) -> tuple[object, ...]:
        return Operation, (self.sign, self.left, self.right)


Expression = int | Name | Operation


def _where(takes_left: Any, left: Any, right: Any) -> Any:
    """Return `left` where `takes_left` holds, else `right`, by arithmetic alone."""
    return takes_left * left + (1 - takes_left) * right


_APPLY: dict[str, Binary] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "min": lambda left, right: _where(left <= right, left, right),
    "max": lambda left, right: _where(left >= right, left, right),
}
RELATIONS: dict[str, Binary] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def product(factors: Iterable[Expression]) -> Expression:
    """Return the product of expressions, dropping factors of 1."""
    return functools.reduce(lambda left, right: combine("*", left, right), factors, 1)


def total(terms: Iterable[Expression]) -> Expression:
    """Return the sum of expressions, dropping terms of 0."""
    return functools.reduce(lambda left, right: combine("+", left, right), terms, 0)


def combine(sign: str, left: Expression, right: Expression) -> Expression:
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


def names(expr: Expression) -> set[str]:
    """Return the free names of an expression."""
    return {leaf.name for leaf in _program_of(expr).leaves if isinstance(leaf, Name)}


def names_within(letters: Iterable[str], definitions: Mapping[str, Expression]) -> set[str]:
    """Return `letters` and all names in their definitions, at any depth."""
    reached = set(letters)
    pending = [*reached]
    while pending:
        more = names(definitions.get(pending.pop(), 1)) - reached
        reached |= more
        pending += more
    return reached


def resolvable(definitions: Mapping[str, Expression], known_names: Iterable[str]) -> Iterator[tuple[str, Expression]]:
    """Yield the definitions in which each name is known or defined, each after the definitions that it uses."""
    resolved, pending = set(known_names), dict(definitions)
    while ready := [letter for letter, expr in pending.items() if names(expr) <= resolved]:
        resolved.update(ready)
        for letter in ready:
            yield letter, pending.pop(letter)


def parts(expr: Expression, of_names: Mapping[str, int] | None = None) -> int:
    """Return the number of integers and names in an expression; a name may stand for several."""
    count = 0
    while isinstance(expr, Operation):
        count += parts(expr.right, of_names)
        expr = expr.left
    return count + (of_names.get(expr.name, 1) if of_names and isinstance(expr, Name) else 1)


def expanded_parts(definitions: Mapping[str, Expression]) -> dict[str, int]:
    """Return the number of integers and names in the size of each letter, with all definitions substituted.

    No letter may be defined through itself.
    """
    sizes: dict[str, int] = {}
    for letter, expr in resolvable(definitions, names_within(definitions, definitions) - definitions.keys()):
        sizes[letter] = parts(expr, sizes)
    return sizes


@dataclass(frozen=True, slots=True)
class Program:
    """Some expressions as operations on slots, each operation once and after those that give its operands."""

    leaves: tuple[int | Name, ...]  # in the first slots
    operations: tuple[tuple[str, int, int], ...]  # sign and slots of the operands; the next slots take the results
    results: tuple[int, ...]  # slot of each expression

    def run(self, values: Mapping[str, V], floor_divide: Binary = operator.floordiv) -> list[V]:
        """Return the value of each expression where `values` gives a number, fraction or array for each name.

        `floor_divide` evaluates ``/``; with exact division, identities can be tested. Raises KeyError with the first
        name that has no value.
        """
        apply = _APPLY | {"/": floor_divide}
        slots: list[Any] = [values[leaf.name] if isinstance(leaf, Name) else leaf for leaf in self.leaves]
        for sign, left, right in self.operations:
            slots.append(apply[sign](slots[left], slots[right]))
        return [slots[result] for result in self.results]


def compiled(expressions: Sequence[Expression]) -> Program:
    """Return the program that evaluates some expressions together."""
    leaves: dict[int | Name, None] = {}
    operations: dict[Operation, None] = {}

    def visit(expr: Expression) -> None:
        chain: list[Operation] = []
        while isinstance(expr, Operation) and expr not in operations:
            chain.append(expr)
            expr = expr.left
        if not isinstance(expr, Operation):
            leaves[expr] = None
        for operation in reversed(chain):
            visit(operation.right)
            operations[operation] = None

    for expr in expressions:
        visit(expr)
    slot = {expr: number for number, expr in enumerate((*leaves, *operations))}
    return Program(
        tuple(leaves),
        tuple((operation.sign, slot[operation.left], slot[operation.right]) for operation in operations),
        tuple(slot[expr] for expr in expressions),
    )


@functools.lru_cache(maxsize=5_000)
def _program_of(expr: Expression) -> Program:
    return compiled([expr])


def evaluate(expr: Expression, values: Mapping[str, V], floor_divide: Binary = operator.floordiv) -> V:
    """Return the value of one expression; see `Program.run`."""
    return _program_of(expr).run(values, floor_divide)[0]


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


def text(expr: Expression, outer: int = 0) -> str:
    """Return the expression in the notation; `outer` is the precedence of the operation around it."""
    opening, closing = [], []
    while isinstance(expr, Operation):
        if expr.sign in ("min", "max"):
            opening.append(f"{expr.sign}(")
            closing.append(f", {text(expr.right)})")
            outer = 0
        else:
            precedence = _PRECEDENCE[expr.sign]
            left_bracket, right_bracket = ("(", ")") if precedence < outer else ("", "")
            opening.append(left_bracket)
            # The right operand of - / % binds tighter than the sign itself: a - (b - c).
            closing.append(f" {expr.sign} {text(expr.right, precedence + (expr.sign != '+'))}{right_bracket}")
            outer = precedence
        expr = expr.left
    return "".join([*opening, expr.name if isinstance(expr, Name) else str(expr), *reversed(closing)])


def divided(size: Expression, axes: Iterable[str]) -> Expression:
    """Return the local size of a dimension: floor(size / product of the degrees of `axes`)."""
    return combine("/", size, product(Name(axis) for axis in axes))


def primes_from(start: int, count: int) -> list[int]:
    """Return the first `count` primes from `start` on, as independent values to test an identity with."""
    primes = (n for n in itertools.count(start) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
    return list(itertools.islice(primes, count))
