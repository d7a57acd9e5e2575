"""Rows of a set: conditions on them, their front and its knee, the plain plan, and names that are refused."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from results.frames import candidates

import dsx
from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError
from dsx.plans.choices import BY_NAME
from dsx.results.frames import PLAIN_PLAN_COLUMNS, knee, matching, pareto, parsed, plain_plan
from dsx.verbs.compare import compare

CAPACITY = "device.hbm_capacity"


def test_conditions_and_rows_that_match():
    assert parsed("where", None) == {}
    assert parsed("where", "tp=8 device.hbm_capacity=80 GB nvs.tp=4") == {"tp": "8", CAPACITY: "80 GB", "tp_nvs": "4"}
    assert parsed("where", ["num_gpus = 64"]) == {"num_gpus": "64"}
    assert parsed("where", {"nvs.tp": 8}) == {"tp_nvs": 8}
    # Rows that match.
    df = candidates(what_if={CAPACITY: (60e9, 80e9)})
    df.attrs["units"] |= {CAPACITY: "bytes"}
    for value in ("0.06 TB", 60e9):
        assert (
            matching(df, {CAPACITY: value, "strategy": "grid"}) == ((df[CAPACITY] == 60e9) & (df["strategy"] == "grid"))
        ).all()
    assert matching(df, {}).all()
    assert matching(df, {"num_gpus": "1e3"}, partial=True).sum() == 0


@pytest.mark.parametrize("text", ["tp", "=8", "tp="])
def test_what_is_no_condition(text):
    with pytest.raises(InputError, match=r"where '.*' is no COLUMN=VALUE, as in num_gpus=16384"):
        parsed("where", [text])
    with pytest.raises(InputError, match="where: 5 is given, and COLUMN=VALUE"):
        parsed("where", [5])


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


@pytest.fixture
def df():
    frame = pd.DataFrame(
        {
            "strategy": pd.Categorical(["a", "b", "a", "a", "b", "a"]),
            "step_time_s": np.float32([3, 1, 2, 2, 0.5, 4]),
            "peak_bytes": np.float32([1, 3, 2, 2, 0.5, 5]),
            "mfu": np.float32([0.1, 0.2, 0.3, 0.3, 0.9, 0.5]),
            "training_days": np.float32([np.nan] * 6),
            "reject": [0, 0, 0, 0, 1, 0],
        },
        index=[10, 11, 12, 13, 14, 15],
    )
    frame.attrs = {"units": {"mfu": ""}, "complete": True}
    return frame


def test_fronts(df):
    best = dsx.pareto(df, "step_time_s", "peak_bytes")
    assert list(best.index) == [11, 12, 13, 10]
    assert list(best.columns) == list(df.columns)
    assert best.attrs == df.attrs
    assert list(dsx.pareto(df, "peak_bytes", "step_time_s").index) == [10, 12, 13, 11]
    # Objectives may be a list.
    assert dsx.pareto(df, ["step_time_s", "peak_bytes"]).equals(dsx.pareto(df, "step_time_s", "peak_bytes"))
    # Minus maximises.
    assert list(dsx.pareto(df, "-mfu").index) == [15]
    assert list(dsx.pareto(df, "-mfu", "peak_bytes").index) == [15, 12, 13, 10]
    # Nothing on the front.
    assert len(dsx.pareto(df, "training_days")) == 0
    assert len(dsx.pareto(df[df["reject"] == 1], "-mfu")) == 0
    assert list(dsx.pareto(df.iloc[:0], "-mfu", "step_time_s", "peak_bytes").columns) == list(df.columns)
    # What is no objective.
    with pytest.raises(UnknownNameError, match="unknown column 'mfv'; did you mean 'mfu'"):
        dsx.pareto(df, "-mfv")
    with pytest.raises(InputError, match="'strategy' cannot be an objective"):
        dsx.pareto(df, "strategy")
    with pytest.raises(InputError, match="needs an objective"):
        dsx.pareto(df)
    with pytest.raises(UnknownNameError, match="unknown column 'reject'"):
        dsx.pareto(df.drop(columns="reject"), "-mfu")
    with pytest.raises(InputError, match="the smallest 'mfu' is the worst; write '-mfu' to maximise it"):
        dsx.pareto(df, "step_time_s", "mfu")


def test_the_front_and_the_knee_of_a_stored_set(stored):
    df = dsx.load(stored)
    best = dsx.pareto(df, "step_time_s", "peak_bytes", "-mfu")
    assert len(best) > 0
    assert (best["reject"] == 0).all()
    assert best.attrs["spec"] == df.attrs["spec"]
    # The knee is farthest below the line between the ends.
    assert knee(np.array([0.0, 1.0, 2.0, 10.0]), np.array([10.0, 3.0, 2.5, 0.0])) == 1


@pytest.mark.parametrize(
    ("x", "y"),
    [([], []), ([1], [1]), ([1, 2], [2, 1]), ([1, 2, 3], [3, 2, 1]), ([1, 1, 1], [3, 2, 1]), ([0, 9, 10], [10, 9, 0])],
)
def test_a_front_that_does_not_bulge_has_none(x, y):
    assert knee(np.array(x, float), np.array(y, float)) is None


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=3, max_size=20), st.floats(0.1, 100))
def test_units_do_not_move_it(points, factor):
    x, y = np.array(points, float).T
    x, y = np.sort(x), np.sort(y)[::-1]
    assert knee(x, y) == knee(factor * x, y) == knee(x, 7.0 + factor * y)


def plans_like(*plans):
    """Plans with the defaults of all choices but those given; feasible, and the slower the later."""
    plain = {name: BY_NAME[name].default for name in PLAIN_PLAN_COLUMNS}
    return pd.DataFrame(
        [
            plain | {"tp_nvs": plan.get("tp", 1), "step_time_s": 1.0 + i, "reject": 0} | plan
            for i, plan in enumerate(plans)
        ]
    )


def test_the_plain_plan():
    assert plain_plan(plans_like({"tp": 4}, {"tp": 8, "pp": 4}, {"tp": 8, "pp": 2}, {"tp": 16, "tp_nvs": 8})) == 2
    assert plain_plan(plans_like({"tp": 8, "pp": 2}, {"tp": 8, "reject": 1})) == 0
    # All else is as it is by default.
    other = [
        {"cp": 2}, {"vpp": 2}, {"recompute": "full"}, {"microbatch_size": 2}, {"zero_stage": 3}, {"offload": "both"},
    ]  # fmt: skip
    assert plain_plan(plans_like(*({"tp": 8} | one for one in other))) is None
    assert plain_plan(plans_like(*({"tp": 8} | one for one in other), {"tp": 1})) == len(other)
    # A frame without the columns has none.
    assert plain_plan(plans_like({"tp": 8}).drop(columns="schedule")) is None
    assert plain_plan(plans_like({"tp": 8})[:0]) is None


DF = pd.DataFrame(
    {"tp": [1, 2], "pp": [1, 1], "num_gpus": 8, "step_time_s": [2.0, 1.0], "peak_bytes": 1e9, "reject": 0}
)
ONE, SEVERAL = "is given, and one name is wanted", "is given, and a list of names is wanted"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: plot.front(DF, by=5), f"by: 5 {ONE}"),
        (lambda: plot.front(DF, by=["tp"]), f"by: ['tp'] {ONE}"),
        (lambda: plot.front(DF, x=["step_time_s"]), f"x: ['step_time_s'] {ONE}"),
        (lambda: plot.heatmap(DF, None, "pp"), f"x: None {ONE}"),
        (lambda: plot.heatmap(DF, ["tp"], "pp"), f"x: ['tp'] {ONE}"),
        (lambda: plot.heatmap(DF, "tp", "pp", value=5), f"value: 5 {ONE}"),
        (lambda: plot.scaling(DF, x=["tp", "pp"]), f"x: ['tp', 'pp'] {ONE}"),
        (lambda: plot.scaling(DF), "unknown column 'tokens_per_s_per_gpu'"),
        (lambda: plot.front(DF, baseline=[5]), "baseline: 5 is given, and COLUMN=VALUE"),
        (lambda: plot.scaling(DF, by=5), f"by: 5 {SEVERAL}"),
        (lambda: plot.breakdown(DF, of=None), f"of: None {ONE}"),
        (lambda: plot.breakdown(DF, x=5), f"x: 5 {SEVERAL}"),
        (lambda: pareto(DF, None), "a front needs an objective"),
        (lambda: pareto(DF, 5), f"objectives: 5 {SEVERAL}"),
        (lambda: pareto(DF, ["step_time_s", ["a"]]), f"objectives: ['step_time_s', ['a']] {SEVERAL}"),
        (lambda: compare(DF, DF, per=[5]), f"per: [5] {SEVERAL}"),
        (lambda: plot.front(DF, ax=5), "ax: 5 is given, and an axis of matplotlib is wanted"),
        (lambda: plot.scaling(DF, y="step_time_s", ax=5), "ax: 5 is given"),
        (lambda: plot.heatmap(DF, "tp", "pp", ax=5), "ax: 5 is given"),
        (lambda: plot.save(None, "x.png"), "ax: None is given"),
        (lambda: plot.save(plot.scaling(DF, y="step_time_s"), 5), "path: 5 is given, and a path is wanted"),
    ],
)
def test_what_is_no_column_axis_or_path_is_refused(call, says):
    with pytest.raises(InputError) as error:
        call()
    assert says in str(error.value)
