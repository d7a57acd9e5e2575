"""Rows of a result set as plain data, and the fastest of them."""

import pytest

from dsx.errors import UnknownNameError
from dsx.results import sets as store
from dsx.results.schema import ExtraColumn
from dsx.results.sets import as_plans, fastest

WHAT_IF = (
    ExtraColumn("device.hbm_capacity", "bytes", "hbm_capacity of the device, varied by the sweep", integer=False),
    ExtraColumn("network.nvs.size", "", "size of the fast domain, varied by the sweep", integer=True),
)


@pytest.fixture
def varied(tmp_path, written, begun):
    """The folder of a set of two clusters and a what_if, in parts of 30 and 20 rows."""
    written(tmp_path / "varied", begun(what_if=WHAT_IF), 30, 20)
    return tmp_path / "varied"


def test_the_fastest_over_all_parts(varied):
    frame = store.load(varied)
    fits = frame[frame["reject"] == 0].sort_values("step_time_s")
    plans = fastest(varied, 4)
    assert [plan["plan"]["candidate"] for plan in plans] == list(fits["candidate"][:4])
    assert [plan["step_time_s"] for plan in plans] == list(fits["step_time_s"][:4])
    assert len(fastest(varied, None)) == len(fits)


def test_of_each_group(varied):
    frame = store.load(varied)
    fits = frame[frame["reject"] == 0]
    groups = fits.groupby(["cluster", "strategy"], observed=True)["step_time_s"]
    assert [plan["step_time_s"] for plan in fastest(varied, None, ["cluster", "strategy"])] == list(groups.min())
    twice = fastest(varied, None, ["cluster", "strategy"], of_each=2)
    assert [plan["step_time_s"] for plan in twice] == [t for _, group in groups for t in group.nsmallest(2)]
    assert fastest(varied, 3, ["cluster", "strategy"], of_each=2) == twice[:3]


def test_hardware_and_reasons(varied):
    frame = store.load(varied)
    for plan, (_, row) in zip(as_plans(frame), frame.iterrows(), strict=True):
        assert plan["hardware"] == {name: row[name] for name in ("cluster", "device.hbm_capacity", "network.nvs.size")}
        assert plan["reject"] == {0: [], 1: ["memory"], 2: ["layers"]}[row["reject"]]
        assert plan["fits"] == (row["reject"] != 1)
        assert plan["plan"]["tp"] == row["tp"]


def test_unknown_column(varied):
    with pytest.raises(UnknownNameError, match="did you mean 'strategy'"):
        fastest(varied, 1, ["stratgy"])
