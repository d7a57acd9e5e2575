"""The time of a function on a device: warm-up, repetitions, median and spread.

A sample is the time of some calls one after the other, divided by their number: the device works on one while the host
issues the next, as in a training step. Not modelled: caches that a step would have filled with something else, and a
device that grows warm over minutes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

Call = Callable[[], Any]  # begins one run and returns its result, which may not be there yet
Wait = Callable[[Any], object]  # returns when a result is there

_SAMPLE_S = 1e-3  # of calls in one sample: far above the resolution of a clock and the wait for a device
_WARM_S, _SAMPLES_S = 0.05, 0.4  # of warming up, and of all samples
_FEWEST, _MOST = 3, 25  # samples
_MOST_CALLS, _MOST_WARM_UPS = 200, 1000  # calls in a sample, and before the samples


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call."""

    median_s: float
    spread: float  # distance between the quartiles of the samples, over the median
    samples: int


def timed(call: Call, wait: Wait, warm_ups: int, samples: int, calls: int = 1) -> Timing:
    """Return the time of a call: `samples` samples of `calls` calls, after `warm_ups` calls.

    `wait` returns when the result of a call is there.
    """
    for _ in range(warm_ups):
        wait(call())
    seconds = np.array([_seconds(call, wait, calls) for _ in range(samples)]) / calls
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return Timing(float(median), float((high - low) / median) if median else 0.0, samples)


def timed_briefly(call: Call, wait: Wait) -> Timing:
    """Return the time of a call within half a second, or of four calls where these take longer.

    The first call, which may compile, does not count.
    """
    wait(call())
    once = max(_seconds(call, wait, 1), 1e-9)
    calls = min(ceil(_SAMPLE_S / once), _MOST_CALLS)
    samples = min(max(int(_SAMPLES_S / (once * calls)), _FEWEST), _MOST)
    return timed(call, wait, min(int(_WARM_S / once), _MOST_WARM_UPS), samples, calls)


def _seconds(call: Call, wait: Wait, calls: int) -> float:
    begin = time.perf_counter()
    result = None
    for _ in range(calls):
        result = call()
    wait(result)
    return time.perf_counter() - begin
