"""Collectives over local devices do what they are called, and a device has rates."""

import jax
import numpy as np
import pytest

from dsx.measuring import device as collectives
from dsx.measuring import device as device_rates
from dsx.measuring.array_library import Timing
from dsx.measuring.device import collective_times, groups
from dsx.measuring.jax_library import JaxLibrary
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER


def test_groups_are_powers_of_two_and_all_devices(monkeypatch):
    assert groups() == [2]
    for count, expected in ((1, []), (6, [2, 4, 6]), (8, [2, 4, 8])):
        monkeypatch.setattr(jax, "local_device_count", lambda count=count: count)
        assert groups() == expected


def test_each_collective_moves_the_whole_tensor(monkeypatch):
    made = []

    def timed(call, wait):
        made.append(np.asarray(call()))
        return Timing(1e-3, 0.0, 3)

    monkeypatch.setattr(collectives, "timed_briefly", timed)
    found = [*collective_times(2, (64,))]
    assert [(one.kind, one.num_devices, one.num_bytes) for one in found] == [
        (kind, 2, 64) for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL)
    ]
    # Sixteen elements on each of two devices, except what a scatter leaves: half of them, each the sum of two ones.
    assert [one.size for one in made] == [32, 16, 32, 32]
    assert [float(one.max()) for one in made] == [1.0, 2.0, 2.0, 1.0]


def test_a_device_has_rates(monkeypatch):
    def timed(call, wait):
        wait(call())
        return Timing(2.0, 0.0, 3)

    monkeypatch.setattr(device_rates, "_ELEMENTS", 1000)
    monkeypatch.setattr(device_rates, "timed_briefly", timed)
    found = device_rates.device_rates(JaxLibrary(), "fp32")
    # One multiply, after which a larger one would take too long.
    assert found.matrix_flops == pytest.approx(2 * 1024**3 / 2.0)
    assert found.bandwidth == pytest.approx(3 * 4 * 1000 / 2.0)
    assert found.vector_flops == pytest.approx(2 * 64 * 1000 / 2.0)
