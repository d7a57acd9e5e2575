"""The single values of a spec: with and without source, in and out of their bounds, and back as JSON."""

import pytest
from pydantic import TypeAdapter, ValidationError

from dsx.config.values import (
    Bytes,
    BytesPerSecond,
    Choice,
    Count,
    Flag,
    FlopsPerSecond,
    Fraction,
    NonNegative,
    Positive,
    Seconds,
)


@pytest.mark.parametrize(
    ("kind", "plain", "value"),
    [
        (Bytes, "0 GB", 0.0),
        (BytesPerSecond, "400 Gb/s", 50e9),
        (FlopsPerSecond, "2.5 PFLOP/s", 2.5e15),
        (Seconds, "2.5 us", 2.5e-6),
        (Count, 8, 8),
        (Count, "1e3", 1000),
        (Fraction, 1, 1.0),
        (NonNegative, 0, 0.0),
        (Positive, "1e12", 1e12),
        (Flag, False, False),
        (Choice, "1f1b", "1f1b"),
        (Choice, 8.0, 8),
    ],
)
def test_both_forms_give_the_value(kind, plain, value):
    adapter = TypeAdapter(kind)
    assert adapter.validate_python(plain) == value
    assert adapter.validate_python({"value": plain, "source": "data sheet"}) == value
    assert adapter.validate_python(adapter.dump_python(adapter.validate_python(plain), mode="json")) == value


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (Bytes, "-1 GB", "greater than or equal to 0"),
        (Bytes, 80, "has no unit"),
        (BytesPerSecond, "0 GB/s", "greater than 0"),
        (Fraction, "61 %", "'61 %' is not a share from 0 to 1, as 0.1 for 10 %"),
        (BytesPerSecond, "900 GB", "is a unit of bytes"),
        (Seconds, {"vale": "1 us", "source": "x"}, "unknown key 'vale'; did you mean 'value'?"),
        (Seconds, {"source": "x"}, "the value is missing"),
        (Seconds, {}, "the value is missing"),
        (Count, 0, "0 is not a whole number from 1 to 2147483647"),
        (Count, 1e30, "is not a whole number from 1"),
        (Choice, -1, "-1 is not a whole number from 0"),
        (Count, 1.5, "1.5 is not a whole number"),
        (Count, "x", "'x' is not a whole number, as in 512"),
        (Count, True, "True is not a whole number, as in 512"),
        (Fraction, 1.01, "less than or equal to 1"),
        (Fraction, 0, "greater than 0"),
        (Positive, None, "None is not a finite number"),
        (Flag, "yes", "valid boolean"),
        (Flag, 1, "valid boolean"),
        (Choice, True, "neither a whole number nor a name"),
        (Choice, 1.5, "neither a whole number nor a name"),
        (Choice, "", "neither a whole number nor a name"),
    ],
)
def test_what_is_out_of_bounds_or_no_value_is_refused(kind, given, says):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(given)
    assert says in str(caught.value)
