"""Conditions on rows: how they are written, and which rows meet them."""

import pytest
from results.frames import candidates

from dsx.errors import InputError, UnknownNameError
from dsx.results.frames import matching, parsed

CAPACITY = "device.hbm_capacity"


def test_texts_and_mappings():
    assert parsed("where", None) == {}
    assert parsed("where", "tp=8 device.hbm_capacity=80 GB nvs.tp=4") == {"tp": "8", CAPACITY: "80 GB", "tp_nvs": "4"}
    assert parsed("where", ["num_gpus = 64"]) == {"num_gpus": "64"}
    assert parsed("where", {"nvs.tp": 8}) == {"tp_nvs": 8}


@pytest.mark.parametrize("text", ["tp", "=8", "tp="])
def test_what_is_no_condition(text):
    with pytest.raises(InputError, match=r"where '.*' is no COLUMN=VALUE, as in num_gpus=16384"):
        parsed("where", [text])
    with pytest.raises(InputError, match="where: 5 is given, and COLUMN=VALUE"):
        parsed("where", [5])


def test_rows_that_match():
    df = candidates(what_if={CAPACITY: (60e9, 80e9)})
    df.attrs["units"] |= {CAPACITY: "bytes"}
    for value in ("0.06 TB", 60e9):
        assert (
            matching(df, {CAPACITY: value, "strategy": "grid"}) == ((df[CAPACITY] == 60e9) & (df["strategy"] == "grid"))
        ).all()
    assert matching(df, {}).all()
    assert matching(df, {"num_gpus": "1e3"}, partial=True).sum() == 0


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ({"num_gpus": "1000"}, r"no row has num_gpus=1000; did you mean '1024'\? \(known: 1024, 2048, 4096\)"),
        ({"strategy": "gird"}, "did you mean 'grid'"),
        ({CAPACITY: "80"}, "has no unit: write for example '80 GB'"),
        ({CAPACITY: "70 GB"}, "known: 60.0 GB, 80.0 GB"),
        ({"num_gpus": "many"}, "no row has num_gpus=many"),
    ],
)
def test_no_row_matches(conditions, says):
    df = candidates(what_if={CAPACITY: (60e9, 80e9)})
    df.attrs["units"] |= {CAPACITY: "bytes"}
    with pytest.raises(InputError, match=says):
        matching(df, conditions)
    with pytest.raises(UnknownNameError, match="did you mean 'num_gpus'"):
        matching(df, {"num_gpu": 8})
