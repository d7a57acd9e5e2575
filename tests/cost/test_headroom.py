"""The memory that a search leaves, and the probability that a plan fits."""

import pytest
from cost.records import machine, make_assumptions

from dsx.config.evidence import MemoryIntervalSpec
from dsx.cost.interval import probability_of_fitting, room

INTERVAL = MemoryIntervalSpec(low=0.9, median=1.0, high=1.2)


def test_a_margin_is_a_share_of_the_predicted_peak():
    cluster = machine(hbm_capacity=80e9)
    assert room(cluster, make_assumptions(memory_margin=0.25), 8.0).gpu == pytest.approx(64e9)
    assert room(cluster, make_assumptions(), 8.0).gpu == 80e9


@pytest.mark.parametrize(("num_gpus", "share"), [(64.0, 8), (8.0, 8), (2.0, 2)])
def test_the_gpus_of_a_job_on_a_node_share_half_of_its_memory(num_gpus, share):
    assert room(machine(), make_assumptions(), num_gpus).host == 0.5 * 8e12 / share


@pytest.mark.parametrize(("peak", "probability"), [(100.0, 0.5), (100 / 1.2, 0.9), (100 / 0.9, 0.1), (1.0, 1.0)])
def test_quantiles_of_the_errors_are_probabilities(peak, probability):
    assert probability_of_fitting(INTERVAL, peak, 100.0) == pytest.approx(probability, abs=1e-9)


def test_it_falls_with_the_peak():
    found = [probability_of_fitting(INTERVAL, peak, 100.0) for peak in range(50, 200)]
    assert found == sorted(found, reverse=True)


def test_errors_may_have_no_spread():
    exact = MemoryIntervalSpec(low=1, median=1, high=1)
    assert [probability_of_fitting(exact, peak, 100.0) for peak in (99, 101)] == [1.0, 0.0]


def test_quantiles_are_in_order():
    with pytest.raises(ValueError, match="must be in order, but are 1, 0"):
        MemoryIntervalSpec(low=1, median=0.9, high=1.1)
