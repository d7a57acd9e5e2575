"""A timing is the median of samples, each of several calls, after a warm-up."""

import pytest

from dsx.measuring import array_library
from dsx.measuring.array_library import timed, timed_briefly


class Device:
    """A clock, and calls that take the seconds of a list, one after the other; the last one repeats."""

    def __init__(self, monkeypatch, *seconds):
        self.now, self.calls, self.waits, self.seconds = 0.0, 0, 0, seconds
        monkeypatch.setattr(array_library.time, "perf_counter", lambda: self.now)

    def call(self):
        self.now += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.calls += 1
        return self.calls

    def wait(self, result):
        assert result == self.calls
        self.waits += 1


def test_the_median_and_the_quartiles_of_samples(monkeypatch):
    device = Device(monkeypatch, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    found = timed(device.call, device.wait, warm_ups=1, samples=5)
    assert (found.median_s, found.spread, found.samples) == (3.0, pytest.approx((4 - 2) / 3), 5)


def test_a_sample_is_the_mean_of_its_calls_and_waits_once(monkeypatch):
    device = Device(monkeypatch, 1.0, 3.0)
    found = timed(device.call, device.wait, warm_ups=0, samples=2, calls=2)
    assert found.median_s == pytest.approx((2.0 + 3.0) / 2)
    assert (device.calls, device.waits) == (4, 2)


@pytest.mark.parametrize(("once", "least", "most"), [(1e-6, 1000, 60_000), (1e-2, 10, 60), (3.0, 4, 5)])
def test_a_brief_timing_runs_longer_calls_less_often(monkeypatch, once, least, most):
    device = Device(monkeypatch, 50.0, once)  # the first one compiles
    found = timed_briefly(device.call, device.wait)
    assert found.median_s == pytest.approx(once)
    assert least <= device.calls <= most
    assert device.now < 50.0 + max(1.0, 5 * once)


def test_a_clock_that_stands_still_gives_a_time_of_zero(monkeypatch):
    device = Device(monkeypatch, 0.0)
    found = timed_briefly(device.call, device.wait)
    assert (found.median_s, found.spread) == (0.0, 0.0)
