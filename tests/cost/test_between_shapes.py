"""Laws of interpolation between measured shapes."""

import numpy as np
import pytest
from cost.records import machine
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.cost.measured_kernels import Amounts, Samples, interpolated

DEVICE = machine().device
SIZES = st.integers(1, 1 << 16)
SHAPES = st.tuples(SIZES, SIZES, SIZES, st.integers(1, 64))


def multiplies(*shapes):
    """Multiplies of 2-byte elements at their shapes."""
    m, n, k, batch = sizes = np.array(shapes, dtype=float).T
    flops = 2 * m * n * k * batch
    return Amounts(sizes, flops, 0 * flops, 2 * batch * (m * k + k * n + m * n), inner=False)


def samples(shapes, seconds):
    return Samples(np.arange(len(shapes)), np.array(shapes, dtype=float).T, np.array(seconds, dtype=float))


def efficiency(seconds, *shapes):
    return multiplies(*shapes).roofline(DEVICE) / seconds


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(SHAPES, st.floats(1e-6, 1e3), min_size=1, max_size=12))
def test_a_measured_shape_has_its_measured_time(times):
    found = interpolated(samples([*times], [*times.values()]), multiplies(*times), DEVICE)
    assert np.allclose(found, [*times.values()], rtol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(SHAPES, st.floats(1e-6, 1e3), min_size=1, max_size=12), SHAPES)
def test_an_efficiency_is_within_those_that_were_measured(times, shape):
    there = efficiency(np.array([*times.values()]), *times)
    found = efficiency(interpolated(samples([*times], [*times.values()]), multiplies(shape), DEVICE), shape)
    assert there.min() * (1 - 1e-9) <= found <= there.max() * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(SIZES, min_size=2, max_size=8, unique=True), SIZES, st.randoms(use_true_random=False))
def test_along_one_size_it_is_linear_between_neighbours(rows, at, random):
    shapes = [(m, 512, 512, 1) for m in sorted(rows)]
    logs = np.array([random.uniform(-2, 2) for _ in shapes])
    seconds = multiplies(*shapes).roofline(DEVICE) * np.exp(logs)
    (found,) = interpolated(samples(shapes, seconds), multiplies((at, 512, 512, 1)), DEVICE)
    (roofline,) = multiplies((at, 512, 512, 1)).roofline(DEVICE)
    # np.interp holds the values at either end beyond it, as extrapolation does.
    assert np.log(found / roofline) == pytest.approx(np.interp(np.log(at), np.log(sorted(rows)), logs), abs=1e-6)


def test_equal_efficiencies_are_that_everywhere_and_beyond_is_outside_of_the_measured_sizes():
    shapes = [(256, 256, 256, 1), (4096, 256, 1024, 1), (512, 8192, 512, 4)]
    times = multiplies(*shapes).roofline(DEVICE) / 0.6
    others = [(1000, 1000, 1000, 2), (1, 1, 1, 1), (1 << 20, 1 << 20, 1 << 20, 1)]
    assert np.allclose(efficiency(interpolated(samples(shapes, times), multiplies(*others), DEVICE), *others), 0.6)
    # Beyond is outside of the measured sizes.
    measured = samples([(256, 256, 256, 1), (4096, 1024, 256, 1)], [1.0, 1.0])
    shapes = np.array([(256, 1024, 256, 1), (300, 300, 256, 1), (255, 512, 256, 1), (300, 300, 256, 2)], dtype=float).T
    assert measured.beyond(shapes).tolist() == [False, False, True, True]


def test_rooflines_at_other_shapes():
    norm = Amounts(np.array([[2048.0], [4096], [0], [0]]), np.zeros(1), np.zeros(1), np.array([1e8]), inner=False)
    (times,) = norm.rooflines_at(np.array([[2048.0, 1024], [4096, 4096], [0, 0], [0, 0]]), DEVICE)
    assert times.tolist() == [1e8 / DEVICE.hbm_bandwidth, 0.5e8 / DEVICE.hbm_bandwidth]
    # Scores that stay inside a kernel are no traffic.
    sizes = np.array([[1024.0], [2048], [128], [32]])
    attention = Amounts(sizes, np.zeros(1), np.zeros(1), np.array([1e9]), inner=True)
    (times,) = attention.rooflines_at(2 * sizes * [[1], [1], [0.5], [1]], DEVICE)
    # Twice the batch of queries and keys that are twice as many.
    assert times.tolist() == [4e9 / DEVICE.hbm_bandwidth]
