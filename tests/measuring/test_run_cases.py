"""Kernels are timed as far as time, memory and functions go; every other one has a reason."""

import pytest
from measuring.layers import cases

from dsx.measuring import cases as run_cases
from dsx.measuring.array_library import Timing
from dsx.measuring.cases import OUT_OF_TIME, outcomes


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


def test_all_are_timed_where_there_is_time(monkeypatch):
    wanted = cases("gated")
    found = [*outcomes(wanted, Library(monkeypatch), 1e9)]
    assert [one.case for one in found] == wanted
    assert all(one.timing and not one.why_not for one in found)


def test_nothing_is_begun_after_the_limit(monkeypatch):
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
