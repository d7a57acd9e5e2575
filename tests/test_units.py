"""Units: what is read, what is refused and how it says so, and that what is shown reads back."""

import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import SpecError, UnitError
from dsx.units import (
    REAL,
    exact_quantity,
    format_quantity,
    parse_count,
    parse_number,
    parse_quantity,
    parse_share,
    parse_total,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", "bytes", 80e9),
        ("80GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("0 GB", "bytes", 0.0),
        ("900 GB/s", "bytes/s", 900e9),
        ("400 Gb/s", "bytes/s", 50e9),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("400 Gbps", "bytes/s", 50e9),
        ("3.35 TB/s", "bytes/s", 3.35e12),
        ("2.5 us", "s", 2.5e-6),
        ("2.5 µs", "s", 2.5e-6),
        ("1.5 h", "s", 5400.0),
        ("2.5 PFLOP/s", "flop/s", 2.5e15),
        (" 312  TFLOP/s ", "flop/s", 312e12),
        ("312 TFLOPS", "flop/s", 312e12),
        ("1e3 GFLOP/s", "flop/s", 1e12),
    ],
)
def test_a_quantity_is_read_as_the_nearest_float(text, dimension, value):
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "says"),
    [
        ("80", "bytes", "'80' has no unit: write for example '80 GB'"),
        (80, "bytes", "80 has no unit: write for example '80 GB'"),
        (80e9, "bytes", "write for example '80 GB'"),
        (2.5e-6, "s", "write for example '2.5 us'"),
        (0, "bytes", "write for example '0 GB'"),
        ("900 GB", "bytes/s", "'GB' is a unit of bytes; expected a unit of bytes/s"),
        ("900 GB/s", "bytes", "'GB/s' is a unit of bytes/s; expected a unit of bytes"),
        ("80 Gb", "bytes", "unknown unit 'Gb' for bytes; did you mean 'GB'?"),
        ("80 gb", "bytes", "unknown unit 'gb' for bytes; did you mean 'GB'?"),
        ("2 PFLOPs", "flop/s", "unknown unit 'PFLOPs' for flop/s; did you mean 'PFLOPS'?"),
        ("3.35 TBps", "bytes/s", "unknown unit 'TBps' for bytes/s; did you mean 'TB/s'?"),
        ("3.35 GiBps", "bytes/s", "did you mean 'GiB/s'?"),
        ("450 GBPS", "bytes/s", "did you mean 'GB/s'?"),
        ("3.35 tb/s", "bytes/s", "did you mean 'TB/s'? ('Tb/s' are bits)"),
        ("400 gbps", "bytes/s", "did you mean 'Gbps'?"),
        ("2.5 USD", "USD/s", "unknown unit 'USD' for USD/s; write '2.5 USD/h', the price of one GPU an hour"),
        ("2.5 usd/h", "USD/s", "did you mean 'USD/h'?"),
        ("2.5 EUR/h", "USD/s", "prices are in USD, of one GPU an hour, as in '2.5 USD/h'"),
        ("20 USD/h per node", "USD/s", "a price is of one GPU an hour, as in '2.5 USD/h'"),
        (50000, "s", "50000 has no unit: write for example '50000 us', '50000 s' or '50000 h'"),
        ("1e6", "s", "write for example '1e6 us', '1e6 s' or '1e6 h'"),
        ("soon", "s", "expected a quantity in s, such as '80 us', '80 s' or '80 h'"),
        ("5 GB", "s", "expected a unit of s, such as 'us', 's' or 'h'"),
        ("GB", "bytes", "'GB' does not start with a number"),
        ("", "bytes", "does not start with a number"),
        ("nan GB", "bytes", "does not start with a number"),
        ("1e400 GB", "bytes", "too large"),
        ("1e99999999 GB", "bytes", "too large"),
        (True, "bytes", "True is not a quantity in bytes"),
        (None, "s", "None is not a quantity in s"),
        (["1 s"], "s", "is not a quantity in s"),
    ],
)
def test_a_refusal_says_what_to_write(text, dimension, says):
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, dimension)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("1e12", 1e12), ("4_096", 4096), (" 0.8 ", 0.8), (".5", 0.5), ("-3", -3), (7, 7), (0.5, 0.5)]
)
def test_numbers(text, value):
    assert parse_number(text) == value
    assert type(parse_number(text)) is type(value)


@pytest.mark.parametrize("text", ["", "x", "1__0", "1 2", "1e999", "9" * 5000, math.nan, math.inf, True, None, [1]])
def test_what_is_not_a_number_is_refused(text):
    with pytest.raises(SpecError, match="is not a finite number"):
        parse_number(text)


@pytest.mark.parametrize("value", ["abc", "16 GPUs", "61 %", [16, 32], True, None, math.nan])
def test_where_a_count_is_wanted_the_message_says_so(value):
    with pytest.raises(SpecError, match=r"is not a whole number, as in 512$"):
        parse_count(value)


@pytest.mark.parametrize(
    ("text", "written_out"), [("8k", "8000 or 8192"), ("1M", "1000000 or 1048576"), ("1.5M", "1500000 or 1572864")]
)
def test_thousands_are_to_be_written_out(text, written_out):
    with pytest.raises(SpecError, match=rf"'{text}' is not a whole number, as in 512: write {written_out}"):
        parse_count(text)


@pytest.mark.parametrize("text", ["10T", "3B", "2148M"])
def test_a_number_with_a_suffix_may_be_too_large(text):
    with pytest.raises(SpecError, match=rf"'{text}' is not a whole number from 1 to 2147483647$"):
        parse_count(text)


@pytest.mark.parametrize("read", [parse_number, parse_count, parse_total])
def test_a_comma_of_thousands_is_to_be_left_out(read):
    with pytest.raises(SpecError, match=r"'0,125' is not a finite number$"):
        parse_number("0,125")
    with pytest.raises(SpecError, match=r"'1,070,000' is not .*: leave out the comma, as in 1070000$"):
        read("1,070,000")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (65.67e9, "bytes", "65.7 GB"),
        (999.9e6, "bytes", "1.00 GB"),
        (512, "bytes", "512 B"),
        (0.0, "bytes", "0 B"),
        (12345e18, "bytes", "12300 EB"),
        (50e9, "bytes/s", "50.0 GB/s"),
        (2.5e15, "flop/s", "2.50 PFLOP/s"),
        (192e9, "bytes", "192 GB"),
        (99.96e9, "bytes", "100 GB"),
        (2.9999, "s", "3.00 s"),
        (3.2334, "s", "3.23 s"),
        (20e-6, "s", "20.0 us"),
        (0.0, "s", "0 s"),
        (4000.4, "s", "4000 s"),
        (-2e-3, "s", "-2.00 ms"),
        (4.4567, "days", "4.46 days"),
        (2596456.7, "1/s", "2,596,457 1/s"),
        (0.0, "days", "0 days"),
        (365.2, "days", "365 days"),
        (16384, "", "16384"),
        (0.51234, "", "0.512"),
        (math.nan, "days", "nan"),
        (math.inf, "s", "inf"),
    ],
)
def test_what_is_shown(value, unit, text):
    assert format_quantity(value, unit) == text


@given(value=st.floats(min_value=1e-12, max_value=1e20), dimension=st.sampled_from(["bytes", "bytes/s", "flop/s", "s"]))
def test_what_is_shown_reads_back_to_three_digits(value, dimension):
    assert parse_quantity(format_quantity(value, dimension), dimension) == pytest.approx(value, rel=0.0051)


@given(value=st.floats(min_value=0, allow_infinity=False))
def test_a_float_with_its_si_unit_reads_back_exactly(value):
    assert parse_quantity(f"{value!r} s", "s") == value


@given(text=st.text(max_size=20), dimension=st.sampled_from(["bytes", "bytes/s", "flop/s", "s"]))
def test_no_text_escapes_as_another_error(text, dimension):
    try:
        assert math.isfinite(parse_quantity(text, dimension))
    except UnitError:
        pass


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (80e9, "bytes", "80 GB"),
        (1.555e12, "bytes/s", "1.555 TB/s"),
        (989.4e12, "flop/s", "989.4 TFLOP/s"),
        (2.5e-6, "s", "2.5 us"),
        (0.0, "bytes", "0 B"),
        (0.8, "", "0.8"),
        (8, "", "8"),
    ],
)
def test_an_exact_quantity_has_all_digits(value, unit, text):
    assert exact_quantity(value, unit) == text


@given(value=st.floats(1e-9, 1e18), unit=st.sampled_from(["bytes", "bytes/s", "flop/s", "s", "W", "USD/s"]))
def test_an_exact_quantity_reads_back(value, unit):
    assert parse_quantity(exact_quantity(value, unit), unit) == value


@given(cents=st.integers(1, 10**7))
def test_a_price_is_shown_as_people_state_it(cents):
    stated = f"{cents / 100:.15g} USD/h"
    price = parse_quantity(stated, "USD/s")
    assert exact_quantity(price, "USD/s") == stated
    number, unit = format_quantity(price, "USD/s").split()
    assert unit == "USD/h"
    assert float(number) == pytest.approx(cents / 100, rel=5.001e-3)


@pytest.mark.parametrize(
    "text",
    [
        "80" + " " * 100_000 + "x",
        " " * 100_000 + "x",
        "1" * 100_000 + "x",
        "1 " + "G" * 100_000,
        "80 GB" + " " * 100_000 + "!",
    ],
)
def test_long_texts_are_refused_at_once(text):
    begun = time.perf_counter()
    with pytest.raises(UnitError):
        parse_quantity(text, "bytes")
    with pytest.raises(SpecError):
        parse_number(text)
    assert time.perf_counter() - begun < 2.0


@given(text=st.text(alphabet="0123456789.eE+-_ ", max_size=12))
def test_the_texts_that_are_numbers_are_those_of_python(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) or (math.isinf(value) and "inf" not in text):
        assert re.fullmatch(REAL, text.strip().replace("_", "")) is not None
    else:
        assert re.fullmatch(REAL, text) is None


@pytest.mark.parametrize("value", [0, 1, 0.1, "0.1", "1e-2"])
def test_a_share_is_a_number_from_0_to_1(value):
    assert parse_share(value) == float(value)


@pytest.mark.parametrize("value", [-0.1, 1.1, "ten", "61 %", True, float("nan"), None, [0.1]])
def test_anything_else_is_no_share(value):
    with pytest.raises(SpecError, match=r"is not a share from 0 to 1, as 0\.1 for 10 %"):
        parse_share(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("15T", 15 * 10**12), ("1.5 B", 1_500_000_000), ("300k", 300_000), ("2.5M", 2_500_000), ("5e6", 5e6), (7, 7)],
)
def test_a_total_may_have_a_suffix(text, value):
    assert parse_total(text) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("15t", "unknown suffix 't'; did you mean 'T'?"),
        ("15 TB", "unknown suffix 'TB'"),
        ("T", "'T' is not a number, as in 5e6 or 15T"),
        ("1e400T", "is not a finite number"),
        (None, "None is not a number, as in 5e6 or 15T"),
    ],
)
def test_what_is_no_total_is_refused(text, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        parse_total(text)


def test_a_price_is_of_a_time():
    assert parse_quantity("2.5 USD/h", "USD/s") == pytest.approx(2.5 / 3600, rel=1e-15)
    assert parse_quantity("60 USD/d", "USD/s") == parse_quantity("2.5 USD/h", "USD/s")
    with pytest.raises(UnitError, match=re.escape("'2.5' has no unit: write for example '2.5 USD/h'")):
        parse_quantity("2.5", "USD/s")
    assert parse_quantity("60 days", "s") == parse_quantity("60d", "s") == 60 * 86400
