"""Types of the values of a document, and the bounds of what is fitted."""

import pytest
from pydantic import TypeAdapter, ValidationError

from dsx.config.assumption_set import load_assumptions, load_fitted
from dsx.config.cluster_file import load_cluster
from dsx.config.schema import (
    Bounds,
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
from dsx.errors import SpecError


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


FREE = "{deviation: 0.1, between: [0.1, 1]}"
SEVEN = [f"{name}_efficiency" for name in ("matrix", "vector", "hbm", "nvs", "net", "host", "fp8")]


def write(folder, *lines):
    file = folder / "own.yaml"
    file.write_text("\n".join(["extends: default", *lines]) + "\n")
    return str(file)


def test_bounds_are_read_beside_the_value(tmp_path):
    own = write(tmp_path, "launch_latency: {value: 4 us, between: [1 us, 0.02 ms]}", "hbm_efficiency: 0.7")
    spec, between = load_fitted(own)
    assert (spec.launch_latency, spec.hbm_efficiency) == (4e-6, 0.7)
    assert between["launch_latency"] == Bounds(1e-6, 2e-5)
    assert "hbm_efficiency" not in between  # its value was replaced, and its bounds with it
    assert between["tile_latency"] == load_fitted("default")[1]["tile_latency"]
    assert load_assumptions(own) == spec
    # A number that is set is not fitted.
    assert "matrix_efficiency" in load_fitted("software-neutral")[1]
    assert "matrix_efficiency" not in load_fitted("software-neutral", [("matrix_efficiency", "0.9")])[1]
    # A set without bounds has nothing to fit.
    assert load_fitted("paper-2410.00273")[1] == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hbm_efficiency: {value: 0.5, between: [0.6, 0.9]}", "the value 0.5 is not between 0.6 and 0.9"),
        ("hbm_efficiency: {value: 0.5, between: [0.9, 0.4]}", "the lower bound comes first, but 0.9 is not below 0.4"),
        ("hbm_efficiency: {value: 0.5, between: [0.5, 0.5]}", "0.5 is not below 0.5"),
        ("hbm_efficiency: {value: 0.5, between: [0.4, 1.5]}", "between: 1.5: input should be less than or equal to 1"),
        ("hbm_efficiency: {value: 0.5, between: [0.4]}", "between: expected two numbers, [lowest, highest], got [0.4]"),
        ("hbm_efficiency: {value: 0.5, between: 0.4}", "expected two numbers"),
        ("launch_latency: {value: 5 us, between: [1, 9]}", "between: 1: 1 has no unit: write for example '1 us'"),
        ("weight_bytes: {value: 2, between: [1, 4]}", "has 'between', but is not a real number"),
        ("algorithms: {broadcast: {value: [ring], between: [1, 2]}}", "only fitted real numbers of an assumption set"),
    ],
)
def test_wrong_bounds_are_refused_with_their_line(tmp_path, line, says):
    with pytest.raises(SpecError) as caught:
        load_assumptions(write(tmp_path, "name: own", line))
    assert "own.yaml:3: " in str(caught.value)
    assert says in str(caught.value)


def test_every_fault_is_listed_and_a_cluster_has_no_bounds(tmp_path):
    lines = [f"{name}_efficiency: {{value: 0.5, between: [0.9, 0.4]}}" for name in ("hbm", "net", "nvs")]
    with pytest.raises(SpecError) as caught:
        load_assumptions(write(tmp_path, *lines))
    faults = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert sorted(faults) == ["hbm_efficiency", "net_efficiency", "nvs_efficiency"]
    # A cluster has no bounds.
    file = tmp_path / "own.yaml"
    file.write_text("extends: h100-nvs8\nname: own\ndevice:\n  hbm_capacity: {value: 80 GB, between: [1 GB, 90 GB]}\n")
    with pytest.raises(
        SpecError, match=r"own.yaml:4: device.hbm_capacity: only fitted real numbers of an assumption set"
    ):
        load_cluster(str(file))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "specialise: {matrix_eficiency: {deviation: 0.1, between: [0, 1]}}",
            "not a real number of an assumption set; did you mean 'matrix_efficiency'?",
        ),
        ("specialise: {weight_bytes: {deviation: 0.1, between: [1, 4]}}", "'weight_bytes' is not a real number"),
        (f"specialise: {{{', '.join(f'{name}: {FREE}' for name in SEVEN)}}}", "only up to 6"),
        ("specialise: {relay: {deviation: 0, between: [0, 1]}}", "greater than 0"),
        ("specialise: {relay: {deviation: 0.1}}", "specialise.relay.between: is required, but missing"),
        ("specialise: {relay: {deviation: 0.1, between: [1, 0]}}", "the lower bound comes first, but 1 is not below 0"),
        ("specialise: {call_latency: {deviation: 0.1, between: [1, 9]}}", "1 has no unit: write for example '1 us'"),
        ("interval: [{low: 0.9, high: 0.8}]", "0.8 is less than low, 0.9"),
        ("interval: [{where: {domains: two}, low: 0.9, high: 1}]", "'two' is not one of one, several"),
        ("interval: [{where: {domain: one}, low: 0.9, high: 1}]", "unknown key; did you mean 'domains'?"),
        ("resolution: -0.1", "greater than or equal to 0"),
        ("noise: 0", "greater than 0"),
    ],
)
def test_what_is_said_of_errors_is_checked(tmp_path, line, says):
    # Sections merge with those of `default`, so the set begins without any.
    with pytest.raises(SpecError) as caught:
        load_assumptions(write(tmp_path, "name: own", line))
    assert "own.yaml:3: " in str(caught.value)
    assert says in str(caught.value)
