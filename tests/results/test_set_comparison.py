"""Two result sets compared, against rows that are small enough to see what must come out."""

import numpy as np
import pandas as pd
import pytest

from dsx.errors import InputError, NothingFeasible, UnknownNameError
from dsx.verbs.compare import compare

A = """candidate num_gpus global_batch_size strategy reject step_time_s
       1      8    32   flat   0  4.0
       2      8    32   grid   0  3.0
       3      8    32   grid   1  1.0
       4     16    32   flat   0  2.0
       5     16    32   grid   0  2.5
"""
B = """candidate num_gpus global_batch_size strategy reject step_time_s
       1      8    32   flat   0  5.0
       2      8    32   grid   1  3.0
       4     16    32   flat   0  1.0
       5     16    32   grid   0  5.0
       9     16    32   grid   0  7.0
"""


def frame(text: str, clusters=("one",), what_if=(), names=("flat", "grid")) -> pd.DataFrame:
    """A result set written out."""
    header, *lines = (line.split() for line in text.strip().splitlines())
    df = pd.DataFrame(lines, columns=header)
    for name in df:
        match name:
            case "strategy":
                df[name] = pd.Categorical(df[name], names)
            case "cluster":
                df[name] = pd.Categorical(df[name], clusters)
            case "candidate" | "reject":
                df[name] = df[name].astype(np.int64)
            case "num_gpus" | "global_batch_size" | "tp":
                df[name] = df[name].astype(np.int32)
            case _:
                df[name] = df[name].astype(np.float32 if name == "step_time_s" else np.float64)
    df.attrs = {"clusters": list(clusters), "what_if": list(what_if)}
    return df


def columns(table: pd.DataFrame, *names: str) -> list[tuple]:
    return [*table[[*names]].astype(object).where(table[[*names]].notna(), None).itertuples(index=False, name=None)]


def test_bests_of_each_group_and_what_becomes_of_them():
    table = compare(frame(A), frame(B))
    assert table.attrs["per"] == ["num_gpus", "global_batch_size"]
    assert columns(table, "num_gpus", "candidate_a", "candidate_b", "step_time_s_a", "step_time_s_b") == [
        (8, 2, 1, 3.0, 5.0),
        (16, 4, 4, 2.0, 1.0),
    ]
    assert list(table["ratio"]) == pytest.approx([5 / 3, 0.5])
    assert list(table["same_plan"]) == [False, True]
    # What becomes of the other best.
    assert columns(table, "a_in_b", "a_in_b_step_time_s") == [("does not fit", None), ("fits", 1.0)]
    assert columns(table, "b_in_a", "b_in_a_step_time_s") == [("fits", 4.0), ("fits", 2.0)]
    absent = compare(frame(A), frame(B).query("candidate != 4"))
    assert columns(absent, "a_in_b", "a_in_b_step_time_s")[1] == ("not there", None)
    # Summary.
    summary = compare(frame(A), frame(B)).attrs["summary"]
    rows = {"rows_a": 5, "rows_b": 5, "joined": 4, "fit_in_both": 3, "fit_in_a_only": 1, "fit_in_b_only": 0}
    ratios = {"ratio_median": 1.25, "ratio_min": 0.5, "ratio_max": 2.0}
    assert summary == rows | ratios | {"groups": 2, "groups_changed": 1}


def test_groups_that_one_set_lacks_or_names_in_another_order():
    table = compare(frame(A), frame(B, names=("grid", "wide", "flat")), per=["strategy"])
    assert columns(table, "strategy", "candidate_a", "candidate_b") == [("flat", 4, 4), ("grid", 5, 5)]
    # A group that one set lacks.
    table = compare(frame(A), frame(B).query("num_gpus == 16"))
    assert columns(table, "num_gpus", "candidate_a", "candidate_b") == [(8, 2, None), (16, 4, 4)]
    assert columns(table, "a_in_b", "b_in_a")[0] == ("not there", "")
    assert table["candidate_a"].dtype == "Int64"
    assert table.attrs["summary"]["groups_changed"] == 0
    # Ids stay exact where a row is missing.
    big = 2**62 + 1
    text = A.replace(" 4     16", f" {big}     16")
    table = compare(frame(text), frame(B).query("num_gpus == 8"))
    assert table["candidate_a"].iloc[1] == big
    # No candidate in common still compares the bests.
    table = compare(frame(A).query("strategy == 'flat'"), frame(B).query("strategy == 'grid'"))
    assert columns(table, "candidate_a", "candidate_b") == [(1, None), (4, 5)]
    assert table.attrs["summary"]["joined"] == 0
    assert np.isnan(table.attrs["summary"]["ratio_median"])
    assert list(table["a_in_b"]) == ["not there", "not there"]


TWICE = """candidate num_gpus global_batch_size cluster device.hbm_capacity reject step_time_s
       1   8  32  {0}  80e9   0  4.0
       2   8  32  {0}  80e9   1  3.0
       1   8  32  {0}  192e9  0  4.0
       2   8  32  {0}  192e9  0  3.0
       1   8  32  {1}  80e9   0  2.0
       2   8  32  {1}  80e9   1  1.5
       1   8  32  {1}  192e9  0  2.0
       2   8  32  {1}  192e9  0  1.0
"""
CAPACITY = "device.hbm_capacity"


def test_hardware_that_both_vary_is_joined_by_value():
    a = frame(TWICE.format("old", "new"), ("old", "new"), (CAPACITY,))
    b = frame(TWICE.format("new", "next"), ("new", "next"), (CAPACITY,))
    table = compare(a, b)
    assert table.attrs["per"] == ["num_gpus", "global_batch_size", "cluster", CAPACITY]
    assert columns(table, "cluster", CAPACITY, "candidate_a", "candidate_b", "ratio") == [
        ("old", 80e9, 1, None, None),
        ("old", 192e9, 2, None, None),
        ("new", 80e9, 1, 1, 2.0),
        ("new", 192e9, 2, 2, 3.0),
        ("next", 80e9, None, 1, None),
        ("next", 192e9, None, 2, None),
    ]
    assert table.attrs["summary"]["joined"] == 4


def test_hardware_that_one_varies_is_compared_value_by_value():
    a = frame(TWICE.format("old", "new"), ("old", "new"), (CAPACITY,)).query(
        f"cluster == 'old' and `{CAPACITY}` > 1e11"
    )
    a.attrs = {"clusters": ["old"], "what_if": []}
    b = frame(TWICE.format("old", "new"), ("old", "new"), (CAPACITY,))
    table = compare(a.drop(columns=[CAPACITY, "cluster"]), b)
    assert columns(table, "cluster", CAPACITY, "candidate_a", "candidate_b", "a_in_b", "ratio") == [
        ("old", 80e9, 2, 1, "does not fit", pytest.approx(4 / 3)),
        ("old", 192e9, 2, 2, "fits", 1.0),
        ("new", 80e9, 2, 1, "does not fit", pytest.approx(2 / 3)),
        ("new", 192e9, 2, 2, "fits", pytest.approx(1 / 3)),
    ]
    assert table.attrs["summary"]["joined"] == 8


def test_hardware_of_the_bests_where_groups_do_not_name_it():
    a = frame(TWICE.format("old", "new"), ("old", "new"), (CAPACITY,))
    table = compare(a, a, per=["num_gpus"])
    assert columns(table, "candidate_a", "cluster_a", f"{CAPACITY}_b", "a_in_b_step_time_s") == [(2, "new", 192e9, 1.0)]
    only = compare(a, frame(A.replace("16 ", "8 ")), per=["cluster"])
    assert columns(only, "cluster", "candidate_a", "candidate_b") == [("old", 2, 4), ("new", 2, 4)]


def test_nothing_to_compare():
    nothing = frame(A).assign(reject=1)
    with pytest.raises(NothingFeasible, match="neither set"):
        compare(nothing, nothing)
    table = compare(frame(A), nothing)
    assert columns(table, "candidate_a", "candidate_b", "a_in_b") == [
        (2, None, "does not fit"),
        (4, None, "does not fit"),
    ]
    empty = frame(A).iloc[:0]
    assert list(compare(frame(A), empty)["a_in_b"]) == ["not there", "not there"]
    with pytest.raises(NothingFeasible):
        compare(empty, empty)
    # No group in common.
    with pytest.raises(InputError, match="no feasible group in common \\(num_gpus 8 and 16\\)"):
        compare(frame(A).query("num_gpus == 8"), frame(B).query("num_gpus == 16"))
    # Columns that make no groups.
    with pytest.raises(InputError, match="'step_time_s' is a cost"):
        compare(frame(A), frame(B), per=["step_time_s"])
    with pytest.raises(UnknownNameError, match="did you mean 'strategy'"):
        compare(frame(A), frame(B), per=["stratgy"])
    with pytest.raises(UnknownNameError, match="were only some columns loaded"):
        compare(frame(A), frame(B), per=["tp"])
    with pytest.raises(UnknownNameError, match=r"unknown column 'device\.hbm_capacity'"):
        compare(frame(A), frame(B), per=[CAPACITY])
    # The frames stay as they are.
    a, b = frame(A), frame(B, names=("grid", "flat"))
    before = a.copy(), b.copy()
    compare(a, b, per=["strategy"])
    pd.testing.assert_frame_equal(a, before[0])
    pd.testing.assert_frame_equal(b, before[1])


def test_against_a_loop_over_the_rows():
    rng = np.random.default_rng(0)
    sets = []
    for size in (300, 200):
        ids = rng.permutation(400)[:size]
        df = pd.DataFrame({"candidate": ids, "num_gpus": ids % 5, "global_batch_size": 1, "tp": ids % 3})
        df["reject"], df["step_time_s"] = (rng.random(size) < 0.3) * 1, rng.integers(1, 9, size) / 4
        df.attrs = {"clusters": ["one"], "what_if": []}
        sets.append(df)
    table = compare(*sets, per=["num_gpus", "tp"])
    by_id = [{row.candidate: row for row in df.itertuples()} for df in sets]
    assert len(table) == 15
    for row in table.itertuples():
        bests = []
        for rows in by_id:
            group = [r for r in rows.values() if (r.num_gpus, r.tp, r.reject) == (row.num_gpus, row.tp, 0)]
            bests.append(min(group, key=lambda r: (r.step_time_s, r.candidate)))
        assert (row.candidate_a, row.candidate_b) == tuple(best.candidate for best in bests)
        other = by_id[1].get(bests[0].candidate)
        assert row.a_in_b == ("not there" if other is None else "does not fit" if other.reject else "fits")
        assert other is None or other.reject or row.a_in_b_step_time_s == other.step_time_s
    both = [(a, by_id[1][i]) for i, a in by_id[0].items() if i in by_id[1]]
    ratios = [b.step_time_s / a.step_time_s for a, b in both if not a.reject and not b.reject]
    assert table.attrs["summary"]["ratio_median"] == pytest.approx(np.median(ratios))
    assert table.attrs["summary"]["joined"] == len(both)
