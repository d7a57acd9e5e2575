"""Formulas of a family file: small expressions in config keys, such as ``hidden_size / num_attention_heads``.

They are a subset of Python: names of keys, numbers, strings, True, False and None; ``+ - * // % **``; ``/``, which must
leave no remainder; comparisons, ``in``, ``and or not``, ``a if condition else b``, ``list[index]``, and the functions
``len``, ``min`` and ``max`` of a list. Reading the family file checks the syntax, so later errors come from the values
of a config alone.
"""

import ast
import operator
import reprlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsx.errors import SpecError

_LONGEST, _MOST_NODES = 2_000, 400  # characters, and parts with signs; packaged formulas have up to 132 and 27
_LARGEST = 10**18  # absolute value of a result; no size is as large


@dataclass(frozen=True)
class Formula:
    """An expression in config keys."""

    text: str
    tree: ast.expr
    names: frozenset[str]  # keys that it reads


def parse(value: Any) -> Formula:
    """Return a string or a plain constant of YAML as a formula; raises ValueError for any other expression."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _LONGEST:
        raise ValueError(f"{text!r}: a formula has at most {_LONGEST:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "1 if x else2" is only a warning of Python
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a formula: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):  # invalid characters, or nested too deeply
        raise ValueError(f"{text!r} is not a formula that can be read") from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise ValueError(f"{text!r}: a formula has at most {_MOST_NODES} parts")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | None):
            raise ValueError(f"{text!r}: {node.value!r} is not part of a formula")
        if not isinstance(node, _KNOWN):
            raise ValueError(f"{text!r}: {type(node).__name__} is not part of a formula")
        if isinstance(node, ast.Dict) and node.keys:
            raise ValueError(f"{text!r}: the only object of a formula is the empty one, {{}}")
        if isinstance(node, ast.Call) and (_function(node) is None or len(node.args) != 1 or node.keywords):
            raise ValueError(f"{text!r}: the only functions of a formula are {', '.join(_FUNCTIONS)}, of one argument")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _FUNCTIONS.keys()
    return Formula(text, tree, frozenset(names))


def evaluate(formula: Formula, values: Mapping[str, Any]) -> Any:
    """Return the value of the formula for these values of its names.

    Raises SpecError, with the formula and the values, if it has none: a remainder, an index out of range.
    """
    try:
        return _value(formula.tree, values)
    except _Remainder as error:
        raise SpecError(f"{formula.text} = {error} leaves a remainder") from None
    except (TypeError, ArithmeticError, LookupError, ValueError) as error:
        given = ", ".join(f"{name} = {reprlib.repr(values.get(name))}" for name in sorted(formula.names))
        raise SpecError(f"{formula.text} has no value where {given}: {error}") from None


class _Remainder(ArithmeticError):
    pass


def _divide(a: Any, b: Any) -> Any:
    if b == 0 or a % b:
        raise _Remainder(f"{a} / {b}")
    return a // b


def _power(a: Any, b: Any) -> Any:
    # Python would compute a power of integers to any number of digits.
    if abs(a) > 1 and abs(b) > _LARGEST.bit_length():
        raise OverflowError(f"{a} ** {b} is too large")
    return a**b


def _of_numbers(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return arithmetic that accepts numbers alone: a string or a list times a number could be of any length."""

    def applied(a: Any, b: Any) -> Any:
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            raise TypeError(f"{reprlib.repr(a)} and {reprlib.repr(b)} are not two numbers")
        result = apply(a, b)
        if not isinstance(result, int | float) or not abs(result) <= _LARGEST:
            raise OverflowError(f"the result is not a number up to {_LARGEST:,}")
        return result

    return applied


_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: _of_numbers(operator.add),
    ast.Sub: _of_numbers(operator.sub),
    ast.Mult: _of_numbers(operator.mul),
    ast.Div: _of_numbers(_divide),
    ast.FloorDiv: _of_numbers(operator.floordiv),
    ast.Mod: _of_numbers(operator.mod),
    ast.Pow: _of_numbers(_power),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg}
_KNOWN = (
    *(*_BINARY, *_UNARY, ast.And, ast.Or, ast.Load),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Subscript),
    *(ast.Name, ast.Constant, ast.List, ast.Dict),
)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"len": len, "min": min, "max": max}


def _function(node: ast.Call) -> Callable[[Any], Any] | None:
    return _FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.List(elts=items):
            return [_value(item, values) for item in items]
        case ast.Dict():
            return {}
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, values))
        case ast.BoolOp(op=op, values=parts):
            # The value is that of the first part that decides.
            decides = isinstance(op, ast.Or)
            for part in parts[:-1]:
                value = _value(part, values)
                if bool(value) is decides:
                    return value
            return _value(parts[-1], values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            operands = [_value(operand, values) for operand in (left, *others)]
            pairs = zip(ops, operands, operands[1:], strict=False)
            return all(_BINARY[type(op)](a, b) for op, a, b in pairs)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, values) else other, values)
        case ast.Subscript(value=sequence, slice=index):
            return _value(sequence, values)[_value(index, values)]
        case ast.Call(args=[argument]) if (function := _function(node)) is not None:
            return function(_value(argument, values))
    raise TypeError(f"{type(node).__name__} is not part of a formula")
