"""Files of measured kernel times: what is read, and what is refused with its place."""

import json

import pytest

from dsx.config.operator_files import OperatorTimes, read_operator_times, shape_text
from dsx.errors import OperatorTimesError, SpecError

HEADER = "operator,direction,m,n,k,batch,dtype,time\n"


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "times.csv").write_text(text, encoding="utf-8")
        return read_operator_times("times.csv", tmp_path / "sweep.yaml")

    return read


def test_rows_are_read(read):
    times = read(f"# one GPU\n{HEADER}einsum,,8,16,32,,,12.5 us\n\n# more\nattention,backward,8,8,4,6,BF16,1ms\n")
    first, second = times.rows
    assert (first.line, first.operator, first.directions, first.shape) == (3, "einsum", (0, 1), (8, 16, 32, 1))
    assert (first.dtype, first.time_s) == ("", 1.25e-5)
    assert (second.line, second.directions, second.shape) == (6, (1,), (8, 8, 4, 6))
    assert (second.dtype, second.time_s) == ("bf16", 1e-3)
    # A kernel without multiplies has no k.
    (row,) = read("time,gpu,n,m,operator,direction\n9 us,H100,4096,2048,norm,forward\n").rows
    assert row.shape == (2048, 4096, 0, 0)
    assert shape_text(row.shape) == "2048 x 4096"
    assert (shape_text((8, 4, 2, 1)), shape_text((8, 4, 2, 3))) == ("8 x 4 x 2", "3 of 8 x 4 x 2")
    # What was read can be written as plain data.
    times = read(f"{HEADER}einsum,,8,16,32,2,fp8,12.5 us\nnorm,forward,8,8,,,,1 us\n")
    again = OperatorTimes.from_data(json.loads(json.dumps(times.to_data())))
    assert (again.file, again.rows) == ("times.csv", times.rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: is empty"),
        (HEADER, "has no rows below its header"),
        ("operator,m,n\neinsum,1,2\n", ":1: lacks the column 'time'"),
        ("operator,m,n,time_us\nnorm,1,2,3\n", "lacks the column 'time'; did you mean 'time_us'?"),
        (
            "operator,m,n,time,directon\nnorm,1,2,3 us,\n",
            ":1: column 'directon' is not known; did you mean 'direction'?",
        ),
        ("operator,m,n,time,m\nnorm,1,2,3 us,1\n", ":1: has the column 'm' twice"),
        (f"{HEADER}einsum,,8,16,32,1,,12.5\n", ":2: time: '12.5' has no unit"),
        (f"{HEADER}einsum,,8,16,32,1,,12.5 GB\n", ":2: time: '12.5 GB': 'GB' is a unit of bytes"),
        (f"{HEADER}einsum,,8,16,32,1,,0 us\n", ":2: time: '0 us' is not above 0"),
        (f"{HEADER}einsum,,8,16,32,1,,-1 us\n", ":2: time: '-1 us' is not above 0"),
        (f"{HEADER}einsum,,8,16,32,1,,\n", ":2: time: is blank"),
        (f"{HEADER}einsum,,8.5,16,32,1,,1 us\n", ":2: m: '8.5' is not a whole number"),
        (f"{HEADER}einsum,,many,16,32,1,,1 us\n", ":2: m: 'many' is not a whole number, as in 512"),
        (f"{HEADER}einsum,,8,16,,4,,1 us\n", ":2: batch: counts matrix multiplies, so k is needed"),
        (
            f"{HEADER}norm,fwd,8,16,,,,1 us\n",
            ":2: direction: 'fwd' is not one of forward, backward; did you mean 'forward'?",
        ),
        (f"{HEADER}norm,forward,8,16,,,bfloat16,1 us\n", ":2: dtype: 'bfloat16' is not one of fp32, tf32, bf16"),
        (f"{HEADER}norm,forward,8,16\n", ":2: has 4 cells, but the header has 8 columns"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(read, text, said):
    with pytest.raises(OperatorTimesError) as error:
        read(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("einsum,,8,16,32,1,bf16,1 us", "einsum,,8,16,32,,bf16,2 us"),
        ("einsum,,8,16,32,1,bf16,1 us", "einsum,forward,8,16,32,,bf16,2 us"),
        ("einsum,,8,16,32,1,bf16,1 us", "einsum,,8,16,32,,fp16,2 us"),
        ("einsum,,8,16,32,1,,1 us", "einsum,,8,16,32,,fp8,2 us"),
        ("einsum,,8,16,32,1,fp8,1 us", "einsum,backward,8,16,32,,,2 us"),
    ],
)
def test_two_times_of_one_kernel_are_refused(read, first, second):
    with pytest.raises(OperatorTimesError, match=r"times\.csv:4: einsum of 8 x 16 x 32 takes .* in line 2: a kernel"):
        read(f"{HEADER}{first}\nnorm,forward,8,8,,,,1 us\n{second}\n")


@pytest.mark.parametrize(
    "second",
    [
        "einsum,,8,16,32,1,bf16,1 us",
        "einsum,,8,16,32,1,fp8,2 us",
        "einsum,,16,8,32,1,bf16,2 us",
        "einsum,,8,16,32,2,bf16,2 us",
    ],
)
def test_equal_times_and_other_kernels_are_none_of_them(read, second):
    assert len(read(f"{HEADER}einsum,,8,16,32,1,bf16,1 us\n{second}\n").rows) == 2


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match=r"operator times 'no\.csv'"):
        read_operator_times("no.csv", tmp_path / "sweep.yaml")
