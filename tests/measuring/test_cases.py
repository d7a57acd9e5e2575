"""Kernels that are timed: which, for how long, and how."""

import numpy as np
import pytest
from measuring.layers import ASSUMED, cases, keys, model

from dsx.cost.measured_kernels import measurable
from dsx.measuring import array_library
from dsx.measuring import cases as run_cases
from dsx.measuring.array_library import Timing, attention_of, timed, timed_briefly
from dsx.measuring.cases import OUT_OF_TIME, in_turn, outcomes


def test_cases_are_kernels_of_plans_with_their_sizes():
    table = keys((1, 2), microbatch_size=(1, 3))
    wanted = {
        (one.name, one.direction if one.multiply is None else None, tuple(map(int, sizes)), one.element_bytes)
        for layer in model("rotary", "gated").kinds
        for one in measurable(layer, model("rotary", "gated").dimensions, ASSUMED, 16, table)
        for sizes in one.shapes.T
    }
    found = cases("rotary", "gated", tp=(1, 2), microbatch_size=(1, 3))
    assert {case.key for case in found} == wanted
    assert len(found) == len(wanted)
    # A program has the local sizes of its plan.
    (attention,) = (case for case in cases(tp=(2,)) if (case.operator, case.direction) == ("attention", 0))
    program = attention.program
    # b, s, g, j, k: one of two key-value heads, with two query heads each.
    assert {operand.shape for operand in program.inputs} == {(1, 16, 1, 2, 8), (1, 16, 1, 8)}
    assert attention.shape == (32, 16, 8, 1)
    assert [program.values[position].shape for position in program.outputs] == [(1, 16, 1, 2, 8)]
    assert attention_of(program).causal
    assert attention.fault == ""
    # The flops of a multiply are those of its sizes.
    found = [case for case in cases() if case.direction is None]
    for case in found:
        m, n, k, batch = case.shape
        assert case.flops == 2 * m * n * k * batch
        assert case.program is None and case.dtype == "bf16"
    assert (16, 64, 32, 1) in {case.shape for case in found}


@pytest.mark.parametrize(("cp", "fault"), [(2, "a causal mask of a part of the positions"), (1, "")])
def test_a_mask_that_a_rank_has_a_part_of_is_left_out(cp, fault):
    found = cases(strategy="2d", cp=(cp,))
    assert {case.fault for case in found if case.operator == "attention"} == {fault}


def test_cases_come_in_turn_without_other_masks():
    found = cases("window", sizes={"window": 4})
    assert {case.fault for case in found if case.operator == "attention"} == {"a mask of the kind 'window'"}
    # They come in turn and the heavier ones of an operator first.
    ordered = in_turn(cases("gated", microbatch_size=(1, 2, 4)))
    by_operator = {}
    for place, case in enumerate(ordered):
        by_operator.setdefault((case.operator, case.direction), []).append((place, case))
    for queue in by_operator.values():
        assert all(np.diff([case.flops for _, case in queue]) <= 0)
        assert all(np.diff([case.num_bytes for _, case in queue if not case.flops]) <= 0)
    # Each operator has begun before any is half done.
    first = max(queue[0][0] for queue in by_operator.values())
    assert all(first <= queue[len(queue) // 2][0] for queue in by_operator.values() if len(queue) > 3)


class Library:
    """A device whose multiplies take 1 s for 1 TFLOP, on a clock of its own; everything else takes 1 s."""

    device, software, name, accelerated, memory_bytes = "a device", "a library", "none", False, 1e9

    def __init__(self, monkeypatch, missing=(), broken=()):
        self.now, self.missing, self.broken = 0.0, missing, broken
        monkeypatch.setattr(run_cases, "monotonic", lambda: self.now)
        monkeypatch.setattr(run_cases, "timed_briefly", self.timed)

    def timed(self, call, wait):
        taken = call()
        self.now += 5 * taken
        return Timing(taken, 0.0, 3)

    def wait(self, result):
        return result

    def multiply(self, rows, columns, contracted, batch, dtype):
        return lambda: 2e-12 * rows * columns * contracted * batch

    def forward(self, program, dtype):
        if any(step.kind in self.broken for step in program.steps):
            raise NotImplementedError("no such kernel\nmore")
        return lambda: 1.0

    backward = forward

    def runs(self, kind):
        return kind not in self.missing


def test_cases_are_timed_within_the_limit(monkeypatch):
    wanted = cases("gated")
    found = [*outcomes(wanted, Library(monkeypatch), 1e9)]
    assert [one.case for one in found] == wanted
    assert all(one.timing and not one.why_not for one in found)
    # Nothing is begun after the limit.
    wanted = cases("gated")
    found = [*outcomes(wanted, Library(monkeypatch), 20.0)]
    timed = [one for one in found if one.timing]
    assert 0 < len(timed) < len(found) == len(wanted)
    assert {one.why_not for one in found if not one.timing} == {OUT_OF_TIME}


def test_a_multiply_that_would_take_too_long_is_not_begun(monkeypatch):
    library = Library(monkeypatch)
    large, *_ = sorted(cases(sizes={"f": 1 << 20}), key=lambda case: -case.flops)
    library.memory_bytes = 1e12
    (found,) = outcomes([large], library, 1e-6 * large.flops / 1e6)
    assert found.why_not == OUT_OF_TIME


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"missing": ("norm",)}, "no function for norm"),
        ({"broken": ("norm",)}, "a device cannot run it: no such kernel"),
    ],
)
def test_what_a_library_does_not_have_has_a_reason(monkeypatch, given, said):
    found = [one for one in outcomes(cases(), Library(monkeypatch, **given), 1e9) if one.case.operator == "norm"]
    assert found and {one.why_not for one in found} == {said}


def test_what_does_not_fit_in_memory_is_not_tried(monkeypatch):
    library = Library(monkeypatch)
    library.memory_bytes = 1e4
    found = {one.case.operator: one.why_not for one in outcomes(cases(length=64), library, 1e9)}
    # Scores stay in memory where no fused kernel of an accelerator keeps them inside.
    assert found["attention"].startswith("needs ") and found["attention"].endswith(" GB of memory")


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


def test_medians_means_and_clocks_of_samples(monkeypatch):
    device = Device(monkeypatch, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    found = timed(device.call, device.wait, warm_ups=1, samples=5)
    assert (found.median_s, found.spread, found.samples) == (3.0, pytest.approx((4 - 2) / 3), 5)
    # A sample is the mean of its calls and waits once.
    device = Device(monkeypatch, 1.0, 3.0)
    found = timed(device.call, device.wait, warm_ups=0, samples=2, calls=2)
    assert found.median_s == pytest.approx((2.0 + 3.0) / 2)
    assert (device.calls, device.waits) == (4, 2)
    # A clock that stands still gives a time of zero.
    device = Device(monkeypatch, 0.0)
    found = timed_briefly(device.call, device.wait)
    assert (found.median_s, found.spread) == (0.0, 0.0)


@pytest.mark.parametrize(("once", "least", "most"), [(1e-6, 1000, 60_000), (1e-2, 10, 60), (3.0, 4, 5)])
def test_a_brief_timing_runs_longer_calls_less_often(monkeypatch, once, least, most):
    device = Device(monkeypatch, 50.0, once)  # the first one compiles
    found = timed_briefly(device.call, device.wait)
    assert found.median_s == pytest.approx(once)
    assert least <= device.calls <= most
    assert device.now < 50.0 + max(1.0, 5 * once)
