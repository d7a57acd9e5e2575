"""Formulas of config keys: what they say, what they refuse, and faults that show the values."""

import pytest

from dsx.config.hf_family import evaluate, parse
from dsx.errors import SpecError

VALUES = {"hidden_size": 4096, "heads": 32, "tied": True, "layer_types": ["full", "sliding"], "none": 0, "i": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hidden_size / heads", 128),
        ("hidden_size // 33 + 7 % 4 - 2 ** 3", 119),
        ("-heads * 2", -64),
        ("none or heads", 32),
        ("none and heads / none", 0),
        ("tied and not none", True),
        ("1 < heads <= 32", True),
        ("heads if tied else heads / none", 32),
        ("layer_types[i] == 'sliding'", True),
        ("len(layer_types) in [0, 2]", True),
        ("heads not in []", True),
        (4096, 4096),
        (True, True),
        ([], []),
        ({}, {}),
    ],
)
def test_values(text, value):
    found = evaluate(parse(text), VALUES)
    assert found == value
    assert type(found) is type(value)


def test_names_are_those_of_keys():
    assert parse("len(layer_types) + heads").names == {"layer_types", "heads"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heads +", "is not a formula"),
        ("open('x')", "the only functions of a formula are len, min, max"),
        ("len(layer_types, 2)", "the only functions of a formula are len, min, max"),
        ("heads.bit_length", "Attribute is not part of a formula"),
        ("[h for h in layer_types]", "ListComp is not part of a formula"),
        ("lambda: 1", "Lambda is not part of a formula"),
        ({"a": 1}, "the only object of a formula is the empty one"),
    ],
)
def test_what_is_no_formula(text, says):
    with pytest.raises(ValueError, match="formula") as caught:
        parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hidden_size / 33", "hidden_size / 33 = 4096 / 33 leaves a remainder"),
        ("hidden_size / none", "4096 / 0 leaves a remainder"),
        ("heads % none", "heads % none has no value where heads = 32, none = 0"),
        ("layer_types[heads]", "has no value where heads = 32, layer_types = ['full', 'sliding']"),
        ("len(heads)", "len(heads) has no value where heads = 32"),
    ],
)
def test_values_that_a_formula_cannot_take(text, says):
    with pytest.raises(SpecError) as caught:
        evaluate(parse(text), VALUES)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1000 + "1" + ")" * 1000,
        "-" * 1500 + "1",
        "1+" * 1500 + "1",
        "heads\0",
        "b'heads'",
        "1j",
        "...",
        "9" * 5000,
    ],
)
def test_a_formula_that_cannot_be_read_is_a_value_error(text):
    with pytest.raises(ValueError, match="formula"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "hidden_size ** 99999999",
        "2 ** 64",
        "'x' * 10**12",
        "layer_types * 10**12",
        "'%999999999999d' % 5",
        "1e308 * 10",
        "(0 - 8) ** 0.5",
        "heads + 'x'",
    ],
)
def test_arithmetic_is_of_numbers_and_bounded(text):
    with pytest.raises(SpecError, match="has no value where"):
        evaluate(parse(text), VALUES)
