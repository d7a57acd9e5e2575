"""A run of many steps: failures against a simulation, the interval against a search, the columns by hand."""

import numpy as np
import pytest
from cost.records import machine
from hypothesis import given
from hypothesis import strategies as st

from dsx.cost.interval import checkpoint_interval_s, goodput, run_columns


def operation(**changes):
    return machine(**changes).operation


def simulated_goodput(mtbf, restart, checkpoint, interval, segments=40_000):
    """The share of the time of a job that fails at random, segment by segment, as a clock sees it."""
    rng = np.random.default_rng(0)
    clock = 0.0
    for _ in range(segments):
        while (until := rng.exponential(mtbf)) < interval + checkpoint:
            clock += until
            while (again := rng.exponential(mtbf)) < restart:
                clock += again
            clock += restart
        clock += interval + checkpoint
    return segments * interval / clock


@pytest.mark.parametrize(("mtbf", "restart", "checkpoint"), [(3600.0, 300.0, 60.0), (7200.0, 1200.0, 300.0)])
def test_goodput_is_that_of_a_simulated_job(mtbf, restart, checkpoint):
    interval = checkpoint_interval_s(mtbf, checkpoint)
    kept = goodput(operation(mtbf=64 * mtbf, restart=restart, checkpoint=checkpoint), 64.0)
    assert float(kept) == pytest.approx(simulated_goodput(mtbf, restart, checkpoint, interval), rel=0.01)


@given(ratio=st.floats(1e-6, 0.5), mtbf=st.floats(60.0, 1e8))
def test_no_other_interval_keeps_a_thousandth_more(ratio, mtbf):
    checkpoint = ratio * mtbf
    intervals = np.geomspace(1e-5, 10.0, 4000) * mtbf
    best = (intervals / np.expm1((intervals + checkpoint) / mtbf)).max()
    interval = checkpoint_interval_s(mtbf, checkpoint)
    assert interval / np.expm1((interval + checkpoint) / mtbf) >= best * (1 - 1e-3)


def test_the_interval_is_near_that_of_young_where_checkpoints_are_short():
    assert checkpoint_interval_s(1e6, 1.0) == pytest.approx(np.sqrt(2 * 1.0 * 1e6), rel=1e-3)
    assert checkpoint_interval_s(100.0, 250.0) == 100.0


@given(gpus=st.integers(1, 100_000), mtbf=st.floats(1e6, 1e9), restart=st.floats(0, 3600), checkpoint=st.floats(1, 600))
def test_goodput_is_a_share_that_more_gpus_lower(gpus, mtbf, restart, checkpoint):
    failures = operation(mtbf=mtbf, restart=restart, checkpoint=checkpoint)
    kept, of_more = (float(goodput(failures, float(number))) for number in (gpus, 2 * gpus))
    assert 0 <= of_more <= kept < 1


def test_columns_of_a_run_its_failures_and_what_is_not_stated():
    # 512 GPUs, 1 M tokens/s, 8.64e12 tokens: 100 days; 2 USD/h, 1000 W at a PUE of 1.2.
    found = run_columns(1e6, 512.0, 8.64e12, operation(price=2 / 3600, site_power=1200.0))
    assert found["tokens_per_s_per_gpu"] == 1e6 / 512
    assert found["training_days"] == pytest.approx(100)
    assert found["gpu_hours"] == pytest.approx(100 * 24 * 512)
    assert found["cost_usd"] == pytest.approx(100 * 24 * 512 * 2)
    assert found["energy_kwh"] == pytest.approx(100 * 24 * 512 * 1.2)
    assert np.isnan(found["goodput"])
    # Failures lengthen a run and what it costs.
    without, failing = (
        run_columns(1e6, 512.0, 8.64e12, operation(price=1.0, mtbf=mtbf, restart=600.0, checkpoint=60.0))
        for mtbf in (0.0, 1e8)
    )
    kept = failing["goodput"]
    assert 0.9 < kept < 1
    for name in ("training_days", "gpu_hours", "cost_usd"):
        assert failing[name] == pytest.approx(without[name] / kept)
    assert failing["tokens_per_s_per_gpu"] == without["tokens_per_s_per_gpu"]
    # What is not stated is not a number.
    found = run_columns(np.ones(3), np.ones(3), np.nan, operation())
    for name in ("goodput", "training_days", "gpu_hours", "cost_usd", "energy_kwh"):
        assert np.isnan(found[name]).all() and found[name].shape == (3,), name
