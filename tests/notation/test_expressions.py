"""Expressions: precedence, floors, folding, text that reads back to the same value."""

import copy
import operator
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import NotationError
from dsx.notation.expressions import (
    Name,
    Operation,
    combine,
    compiled,
    divided,
    evaluate,
    names,
    primes_from,
    product,
    text,
    total,
)
from dsx.notation.syntax import LineReader, parse_expression


def read(source):
    line = LineReader(source, "a.layer", 3)
    result = parse_expression(line)
    line.finish()
    return result


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("7", 7),
        ("a", 10),
        ("a + b * c", 10 + 3 * 4),
        ("(a + b) * c", 52),
        ("a - b - c", 3),
        ("a - (b - c)", 11),
        ("a / b", 3),
        ("a / b * c", 12),
        ("a * c / b", 13),
        ("a / (b * c)", 0),
        ("a % c + b % 2", 3),
        ("2 * a % 3", 2),
        ("min(a, b)", 3),
        ("max(a, b + c)", 10),
        ("min(max(a, 20), 2*c) - 1", 7),
        ("min", 99),  # a name like any other where no bracket follows
        ("((((a))))", 10),
        ("(a+2*b)*c", 64),
        ("a # + nonsense ?", 10),
    ],
)
def test_values(source, value):
    assert evaluate(read(source), {"a": 10, "b": 3, "c": 4, "min": 99}) == value


@pytest.mark.parametrize(
    ("source", "column", "message"),
    [
        ("", 1, "expected a number or a name, found 'end of line'"),
        ("a +", 4, "expected a number or a name, found 'end of line'"),
        ("a + * b", 5, "expected a number or a name, found '*'"),
        ("-a", 1, "expected a number or a name, found '-'"),
        ("(a", 3, "expected ')', found 'end of line'"),
        ("a)", 2, "unexpected ')'"),
        ("a b", 3, "unexpected 'b'"),
        ("min(a)", 6, "expected ',': min takes two values, found ')'"),
        ("max(a, b, c)", 9, "expected ')', found ','"),
        ("f(a)", 2, "unexpected '('"),
        ("2d", 1, "expected a number or a name, found '2d'"),
        ("a ? b", 3, "unexpected character '?'"),
        ("1.5", 2, "unexpected character '.'"),
        ("a / 0", 3, "divides by zero"),
        ("a % 0", 3, "divides by zero"),
        ("9" * 5000, 1, "more than 18 digits"),
        ("(" * 5000 + "a" + ")" * 5000, 101, "more than 100 numbers and names"),
        ("+".join("a" * 5000), 201, "more than 100 numbers and names"),
    ],
)
def test_errors_have_their_place(source, column, message):
    with pytest.raises(NotationError) as caught:
        read(source)
    assert (caught.value.file, caught.value.line, caught.value.column) == ("a.layer", 3, column)
    assert message in str(caught.value)


EXPRESSIONS = st.recursive(
    st.integers(0, 20) | st.sampled_from("abc").map(Name),
    lambda inner: st.builds(Operation, st.sampled_from(["+", "-", "*", "/", "%", "min", "max"]), inner, inner),
    max_leaves=12,
)
VALUES = {"a": 17, "b": 5, "c": 2}


def by_hand(expr):
    """The value by Python's own operators, or None where something is divided by zero."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, Name):
        return VALUES[expr.name]
    left, right = by_hand(expr.left), by_hand(expr.right)
    if left is None or right is None or (expr.sign in "/%" and right == 0):
        return None
    if expr.sign in ("min", "max"):
        return min(left, right) if expr.sign == "min" else max(left, right)
    return eval(f"({left}) {expr.sign.replace('/', '//')} ({right})")


@given(EXPRESSIONS)
def test_text_reads_back_to_the_same_value(expr):
    expected = by_hand(expr)
    if expected is None:
        return
    assert evaluate(expr, VALUES) == expected
    assert evaluate(read(text(expr)), VALUES) == expected
    assert names(read(text(expr))) == names(expr)


@given(EXPRESSIONS)
def test_arrays_change_nothing(expr):
    if (expected := by_hand(expr)) is None:
        return
    arrays = {name: np.array([value, value]) for name, value in VALUES.items()}
    assert np.all(np.asarray(evaluate(expr, arrays)) == expected)


@given(EXPRESSIONS)
def test_equal_expressions_are_one_object(expr):
    built = copy.deepcopy(expr)
    assert built is expr or isinstance(expr, int)
    assert pickle.loads(pickle.dumps(expr)) == expr


@given(st.lists(EXPRESSIONS, max_size=5))
def test_a_program_has_the_values_of_its_expressions_and_each_operation_once(exprs):
    values = {name: Fraction(value) for name, value in VALUES.items()}
    if any(by_hand(expr) is None for expr in exprs):
        return
    program = compiled([*exprs, *exprs])
    assert program.run(values) == [evaluate(expr, values) for expr in exprs] * 2
    assert len({*program.operations}) == len(program.operations)


def test_a_long_sum_is_no_deep_recursion():
    terms = [Operation("*", Name(f"x{index}"), index) for index in range(50_000)]
    expr = total(terms)
    assert evaluate(expr, {f"x{index}": 1 for index in range(50_000)}) == sum(range(50_000))
    del expr


@given(st.sampled_from(["+", "-", "*", "/", "%"]), EXPRESSIONS, EXPRESSIONS)
def test_folding_keeps_the_value(sign, left, right):
    expected = by_hand(Operation(sign, left, right))
    if expected is not None:
        assert evaluate(combine(sign, left, right), VALUES) == expected


def test_neutral_elements_primes_and_exact_division():
    a = Name("a")
    assert product([1, a, 1]) is a
    assert total([0, a, 0]) is a
    assert product([a, 0]) == 0
    assert total([]) == 0
    assert product([]) == 1
    assert divided(a, ()) is a
    assert evaluate(combine("%", a, 1), {"a": 5}) == 0
    assert evaluate(combine("-", 0, a), {"a": 5}) == -5
    assert evaluate(divided(a, ("b", "c")), {"a": 29, "b": 2, "c": 5}) == 2
    # Exact division is exact.
    expr = read("a / b * b")
    assert evaluate(expr, {"a": 7, "b": 2}) == 6
    assert evaluate(expr, {"a": Fraction(7), "b": Fraction(2)}, floor_divide=operator.truediv) == 7
    # A name without a value is a key error with that name.
    with pytest.raises(KeyError, match="b"):
        evaluate(read("a + b"), {"a": 1})
    # Primes.
    assert primes_from(100, 4) == [101, 103, 107, 109]
