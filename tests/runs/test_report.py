"""The figures of a validation: by hand on small cases, and properties on any."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.runs.error_report import (
    LEAST_LAYOUTS,
    LayoutGroup,
    groups,
    pairs,
    regret,
    report,
    spearman,
    weighted_mean,
    weighted_median,
    weights,
)
from dsx.runs.predict import PredictedRows
from dsx.runs.table import UnmodelledReason

NAN = math.nan
FIGURES = {*("source_id", "rows", "modelled", "median_ape", "mape", "bias"), *("inside_interval", "memory_mape")}


@dataclasses.dataclass(frozen=True)
class Software:
    """What the noise floor reads of a run."""

    framework: str | None = None
    software: str | None = None
    year: int | None = None


def figures(rows, runs=None):
    return report(rows, runs or [Software()] * len(rows.id))


def rows_of(source, measured, predicted, **others):
    """Return rows with these times; every row is a layout of the one group of its source, unless stated."""
    count = len(source)

    def numbers(name, default):
        return np.array(others.pop(name, [default] * count), dtype=np.float64)

    predicted = np.array(predicted, dtype=np.float64)
    rows = PredictedRows(
        id=tuple(f"r{number}" for number in range(count)),
        source=tuple(source),
        measured_s=np.array(measured, dtype=np.float64),
        predicted_s=predicted,
        low=numbers("low", NAN),
        high=numbers("high", NAN),
        measured_bytes=numbers("measured_bytes", NAN),
        predicted_bytes=numbers("predicted_bytes", NAN),
        oom=numbers("oom", 0.0),
        fits=np.array(others.pop("fits", [True] * count), dtype=bool),
        group=tuple(others.pop("group", source)),
        layout=tuple(others.pop("layout", range(count))),
        inferred_recompute=(None,) * count,
        reason=tuple(others.pop("reason", [None] * count)),
    )
    assert not others
    return rows


SMALL = rows_of(
    ["a", "a", "a", "b", "b"],
    [10.0, 10.0, NAN, 2.0, NAN],
    [11.0, 7.0, 5.0, 3.0, NAN],
    low=[10.5, 5.0, 4.0, NAN, NAN],
    high=[12.0, 11.0, 6.0, NAN, NAN],
    measured_bytes=[4e9, NAN, 4e9, 1e9, NAN],
    predicted_bytes=[5e9, 1e9, 8e9, 2e9, NAN],
    oom=[0, 0, 1, 0, NAN],
    fits=[True, False, False, True, False],
    reason=[None, None, None, None, UnmodelledReason("no cluster has this gpu", "'X'")],
)


def test_the_figures_of_a_source():
    a, b = figures(SMALL)["sources"]
    assert a == {
        "source_id": "a",
        "rows": 3,
        "modelled": 3,
        "median_ape": pytest.approx(0.2),
        "mape": pytest.approx(0.2),
        "bias": pytest.approx(-0.1),
        "inside_interval": pytest.approx(0.5),
        "memory_mape": pytest.approx(0.25),  # the row that ran out of memory has no memory to compare
    }
    assert (b["rows"], b["modelled"], b["mape"], b["inside_interval"]) == (2, 1, pytest.approx(0.5), None)


def test_overall_weighs_sources_alike_and_says_what_fits():
    overall = figures(SMALL)["overall"]
    assert overall.keys() == FIGURES
    assert (overall["source_id"], overall["rows"], overall["modelled"]) == ("all", 5, 4)
    assert overall["mape"] == pytest.approx((0.2 + 0.5) / 2)
    assert overall["bias"] == pytest.approx((-0.1 + 0.5) / 2)
    assert overall["memory_mape"] == pytest.approx((0.25 + 1.0) / 2)
    # 0.1 and 0.3 weigh a quarter each, 0.5 a half: the half falls between 0.3 and 0.5.
    assert overall["median_ape"] == pytest.approx(0.4)
    assert overall["inside_interval"] == pytest.approx(0.5)
    # What fits and what is not modelled.
    data = figures(SMALL)
    assert data["oom"] == {"fit": 3, "fit_correct": 2, "oom": 1, "oom_correct": 1}
    assert data["not_modelled"] == {"no cluster has this gpu": 1}
    # Figures over nothing are none.
    empty = rows_of(["a"], [NAN], [NAN], oom=[NAN], reason=[UnmodelledReason("nothing was measured")])
    data = figures(empty)
    assert {name for name, value in data["overall"].items() if value is None} == FIGURES - {
        *("source_id", "rows", "modelled")
    }
    assert data["regret"] == {"groups": 0, "median": None, "p95": None, "within_5_percent": None}
    assert data["spearman_median"] is None
    assert data["pairs"] == {"pairs": 0, "right": None, "sources": {}}
    assert data["noise_floor"]["same_software"] == {"configurations": 0, "median": None, "p90": None, "sources": {}}


def test_regret_is_over_layouts():
    measured = [4.0, 5.0, 6.0, 4.4, 1.0, 2.0, 3.0]
    predicted = [4.0, 5.0, 6.0, 3.0, 9.0, 1.0, 2.0]
    data = figures(rows_of([*"aaaabbb"], measured, predicted))
    assert data["regret"] == {
        "groups": 1,
        "median": pytest.approx(0.1),
        "p95": pytest.approx(0.1),
        "within_5_percent": 0.0,
    }
    assert data["spearman_median"] == pytest.approx(0.8)
    # A layout that was measured again is one layout.
    rows = rows_of([*"aaaaa"], [1.0, 3.0, 2.0, 5.0, 6.0], [2.0, 2.0, 3.0, 4.0, 5.0], layout=[0, 0, 1, 2, 3])
    (group,) = groups(rows)
    assert [*group.measured_s] == [2.0, 2.0, 5.0, 6.0]
    assert groups(dataclasses.replace(rows, layout=(0, 0, 1, 1, 2))) == []
    # A row without a time is no layout.
    rows = rows_of([*"aaaa"], [1.0, 3.0, 2.0, NAN], [2.0, 2.0, 3.0, 4.0])
    assert groups(rows) == []
    unmodelled = rows_of([*"aaaa"], [1.0] * 4, [2.0] * 4, reason=[None, None, None, UnmodelledReason("x")])
    assert groups(unmodelled) == []
    # Of layouts predicted alike the slowest counts.
    assert regret(LayoutGroup("own", np.array([1.0, 2.0, 4.0, 3.0]), np.array([5.0, 5.0, 6.0, 5.0]))) == pytest.approx(
        2.0
    )


def test_pairs_of_layouts():
    one = LayoutGroup(
        "a", np.array([1.0, 1.04, 2.0]), np.array([1.1, 1.0, 3.0])
    )  # the first two are ranked wrongly: a tie
    assert pairs([one]) == {"pairs": 2, "right": 1.0, "sources": {"a": 1.0}}
    wrong = LayoutGroup("b", np.array([1.0, 1.06]), np.array([1.0, 0.9]))
    same = LayoutGroup("b", np.array([1.0, 1.06]), np.array([1.0, 1.0]))  # a prediction that ranks nothing is not right
    assert pairs([one, wrong, same]) == {"pairs": 4, "right": 0.5, "sources": {"a": 1.0, "b": 0.0}}
    # Two layouts are a pair and have no regret.
    data = figures(rows_of([*"aab"], [1.0, 2.0, 3.0], [1.0, 3.0, 1.0]))
    assert data["pairs"] == {"pairs": 1, "right": 1.0, "sources": {"a": 1.0}}
    assert data["regret"]["groups"] == 0
    # The correlation of a constant is undefined.
    assert math.isnan(spearman(LayoutGroup("own", np.array([1.0, 2.0, 4.0, 3.0]), np.ones(4))))


def test_the_noise_floor_is_the_spread_of_repetitions():
    measured = np.exp([0.0, 0.2, 1.0, 1.0, 1.0, NAN])
    rows = rows_of([*"aaaabb"], measured, measured, layout=[0, 0, 1, 1, 0, 0])
    runs = [Software("f", "1"), Software("f", "2"), *[Software("f", "1")] * 4]
    floor = figures(rows, runs)["noise_floor"]
    # One release: the two rows of layout 1, which agree. All of them: those of layout 0 too, of deviation 0.2 / sqrt 2.
    assert floor["same_software"]["configurations"] == 1 and floor["same_software"]["median"] == 0
    every = floor["all_releases"]
    assert every["configurations"] == 2
    assert every["median"] == pytest.approx(0.1 / math.sqrt(2)) and every["p90"] == pytest.approx(0.18 / math.sqrt(2))
    assert every["sources"].keys() == {"a"}
    # Two frameworks are not two releases of one.
    others = [Software("g", "2") if run.software == "2" else run for run in runs]
    assert figures(rows, others)["noise_floor"]["all_releases"]["configurations"] == 1


times = st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0]), min_size=LEAST_LAYOUTS, max_size=12)


@given(times, st.randoms(use_true_random=False))
def test_regret_and_correlation_do_not_depend_on_order(measured, random):
    predicted = [random.choice(measured) for _ in measured]
    order = random.sample(range(len(measured)), len(measured))
    group = LayoutGroup("own", np.array(measured), np.array(predicted))
    again = LayoutGroup("own", group.measured_s[order], group.predicted_s[order])
    assert regret(group) == regret(again) >= 0
    assert spearman(group) == pytest.approx(spearman(again), abs=1e-12, nan_ok=True)


@given(times)
def test_a_perfect_order_has_no_regret(measured):
    group = LayoutGroup("own", np.array(measured), 3 * np.array(measured) ** 2)
    assert regret(group) == 0
    assert len({*measured}) == 1 or spearman(group) == pytest.approx(1)


def test_the_correlation_is_that_of_ranks():
    # Ranks 1 2.5 2.5 4 and 1 3 2 4: of a mean of 2.5, with a covariance of 4.5 / 4 and variances of 4.5 / 4 and 5 / 4.
    found = spearman(LayoutGroup("own", np.array([1.0, 2.0, 2.0, 9.0]), np.array([0.1, 0.3, 0.2, 8.0])))
    assert found == pytest.approx(4.5 / math.sqrt(4.5 * 5), abs=1e-12)
    assert spearman(
        LayoutGroup("own", np.array([1.0, 2.0, 4.0, 9.0]), np.array([8.0, 0.3, 0.2, 0.1]))
    ) == pytest.approx(-1)


numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(numbers)
def test_the_median_under_equal_weights_is_the_median(values):
    array = np.array(values)
    equal = np.full(len(array), 1 / len(array))
    assert weighted_median(array, equal) == pytest.approx(np.median(array))


@given(numbers, st.integers(2, 9))
def test_a_source_weighs_the_same_however_many_rows_it_has(values, copies):
    array = np.array([*values, *[3.0] * copies])
    source = np.array([0] * len(values) + [1] * copies)
    share = weights(source)
    assert share.sum() == pytest.approx(1)
    assert weighted_mean(array, share) == pytest.approx((np.mean(values) + 3) / 2, abs=1e-6)
    once = np.array([*values, 3.0])
    assert weighted_median(array, share) == pytest.approx(
        weighted_median(once, weights(np.array([0] * len(values) + [1])))
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=20))
def test_overall_is_the_mean_over_sources(entries):
    source, measured, predicted = zip(*entries, strict=True)
    data = figures(rows_of(source, measured, predicted))
    for name in ("mape", "bias"):
        assert data["overall"][name] == pytest.approx(np.mean([entry[name] for entry in data["sources"]]))
    assert data["overall"]["mape"] >= abs(data["overall"]["bias"]) - 1e-12
    assert sum(entry["rows"] for entry in data["sources"]) == data["overall"]["rows"] == len(entries)


def test_pairs_of_a_large_group_take_the_memory_of_its_rows():
    """20,000 layouts are 200 million pairs."""
    measured_s = np.exp(np.random.default_rng(0).uniform(0.0, 3.0, 20_000))
    tracemalloc.start()
    found = pairs(
        [LayoutGroup("a", measured_s, measured_s), LayoutGroup("b", measured_s[:1000], 1 / measured_s[:1000])]
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert found["sources"] == {"a": 1.0, "b": 0.0}
    apart = np.abs(np.subtract.outer(*[np.log(measured_s[:1000])] * 2)) > np.log1p(0.05)
    assert pairs([LayoutGroup("b", measured_s[:1000], measured_s[:1000])])["pairs"] == apart.sum() // 2
