"""A free worker takes the next batch; results come in the order of the batches."""

import threading
import time

import jax
import numpy as np
import pytest
from laws.spaces import problem_of, space_of
from search.sweeps import assert_identical, set_workers, study_of, swept

from dsx.config.sweep_file import KeepTop
from dsx.pricing import compiled as devices
from dsx.pricing.compiled import map_over_devices


@pytest.fixture
def all_devices(monkeypatch, all_workers):
    """Price on the true workers."""
    monkeypatch.setattr(devices, "workers", all_workers)


def test_every_device_or_core_has_a_worker(all_devices, monkeypatch):
    assert set(devices.workers()) == set(jax.local_devices())
    assert len(jax.local_devices()) == 2
    # A cpu has a worker for every core.
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    first, second = jax.local_devices()
    assert devices.workers() == [first] * 4 + [second] * 4


@pytest.mark.parametrize("count", [1, 2, 5])
def test_results_come_in_the_order_of_the_batches(monkeypatch, count):
    set_workers(monkeypatch, count)
    random = np.random.default_rng(0)
    pauses = (random.random(30) * 0.003).tolist()

    def run(device, batch):
        time.sleep(pauses[batch])
        return device, batch * batch

    assert list(map_over_devices(run, range(30))) == [(n, (jax.local_devices()[0], n * n)) for n in range(30)]
    assert list(map_over_devices(run, [])) == []


def test_no_more_batches_run_at_once_than_there_are_workers(monkeypatch):
    set_workers(monkeypatch, 3)
    running, most, lock = 0, 0, threading.Lock()

    def run(device, batch):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    list(map_over_devices(run, range(20)))
    assert 1 < most <= 3


def test_batches_are_taken_as_they_are_needed(monkeypatch):
    """Memory stays flat: only a few batches per worker are drawn ahead, however slowly results are used."""
    set_workers(monkeypatch, 2)
    taken = []

    def batches():
        for number in range(100):
            taken.append(number)
            yield number

    results = map_over_devices(lambda _, batch: batch, batches())
    for number in range(10):
        assert next(results) == (number, number)
        assert len(taken) <= number + 2 + 2 * devices._IN_FLIGHT
    results.close()
    assert len(taken) < 20


def test_an_error_of_a_worker_is_raised_and_ends_the_others(monkeypatch):
    set_workers(monkeypatch, 2)
    done = []

    def run(device, batch):
        if batch == 3:
            raise ValueError("three")
        done.append(batch)

    with pytest.raises(ValueError, match="three"):
        list(map_over_devices(run, range(1000)))
    assert len(done) < 20


@pytest.mark.slow
def test_a_sweep_on_two_devices(all_devices, monkeypatch):
    study = study_of(problem_of("default", ("1d",)), space_of("default", (24,), strategies=("1d",)))
    rows, counts = swept([study], KeepTop(top=5), "float32", 500)
    set_workers(monkeypatch, 2)
    expected, same = swept([study], KeepTop(top=5), "float32", 500)
    assert counts == same
    assert_identical(rows, expected)
