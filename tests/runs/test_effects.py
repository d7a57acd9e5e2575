"""Effects of stacks and device generations: their deviations are found, and what few sources say is shrunk."""

import numpy as np
import pytest

from dsx.runs.fit import Sample, deviations, memberships, row_weights, solve
from dsx.runs.local_times import LocalTimes

ROWS = 4  # of a source
NO_FIELD = np.zeros(0)


def sources(stacks, generations, seed, of_stack, rest, of_generation=0.0):
    """Return a sample of sources whose mean log errors are sums of normal effects, and the effects of the stacks."""
    random = np.random.default_rng(seed)
    effect = dict(zip(sorted({*stacks}), random.normal(0, of_stack, len({*stacks})), strict=True))
    device = dict(zip(sorted({*generations}), random.normal(0, of_generation, len({*generations})), strict=True))
    means = [
        effect[stack] + device[generation] + random.normal(0, rest)
        for stack, generation in zip(stacks, generations, strict=True)
    ]
    source = np.repeat(np.arange(len(stacks)), ROWS)
    members = memberships(np.repeat(stacks, ROWS).tolist(), np.repeat(generations, ROWS).tolist())
    measured = np.exp(np.repeat(means, ROWS) + random.normal(0, 0.005, len(source)))
    weights = row_weights(source.tolist(), list(range(len(source))))
    return Sample(measured, source, weights, members), effect


def all_kernels(rows):
    """Return a prediction of one second for every row, all of it kernels, that depends on no field."""
    nothing = np.zeros((rows, 0))
    return LocalTimes((), NO_FIELD, np.zeros(rows), nothing, nothing, np.ones(rows))


def found_in(sample):
    return solve(sample, all_kernels(len(sample.measured_s)), NO_FIELD)


def test_deviations_are_those_of_the_effects():
    many = [
        sources([f"s{n % 8}" for n in range(96)], ["g"] * 96, seed, of_stack=0.12, rest=0.04)[0] for seed in range(12)
    ]
    found = [deviations(np.log(one.measured_s), np.ones(len(one.measured_s)), one) for one in many]
    assert np.median([one.stack for one in found]) == pytest.approx(0.12, rel=0.25)
    assert np.median([one.rest for one in found]) == pytest.approx(0.04, rel=0.1)
    assert np.median([one.generation for one in found]) < 0.04  # there is one generation, without effect


def test_two_stacks_of_many_sources_keep_their_effects():
    sample, truth = sources(["fast"] * 15 + ["slow"] * 15, ["g"] * 30, 3, of_stack=0.15, rest=0.03)
    solution = found_in(sample)
    by_name = dict(zip(sample.members.stacks, solution.of_stack, strict=True))
    apart = by_name["slow"] - by_name["fast"]
    assert apart == pytest.approx(truth["slow"] - truth["fast"], rel=0.1)
    assert np.sign(by_name["slow"]) == -np.sign(by_name["fast"])  # what both share may be the generation's


def test_a_stack_of_one_source_is_shrunk():
    """Posterior means of k sources of mean y are y k s^2 / (k s^2 + r^2), of effects s and rests r."""
    stacks = ["one"] + [f"s{n // 5}" for n in range(40)]
    sample, _ = sources(stacks, ["g"] * 41, 5, of_stack=0.06, rest=0.06)
    far = np.where(sample.source == 0, np.exp(0.2), sample.measured_s)
    solution = found_in(Sample(far, sample.source, sample.weights, sample.members))
    known = solution.deviations
    one = solution.of_stack[sample.members.stacks.index("one")]
    device = solution.of_generation[0]
    expected = (0.2 - device) * known.stack**2 / (known.stack**2 + known.rest**2)
    # The loss of a fit counts an error of 0.2 less than its square.
    assert 0 < one < 1.02 * expected < 0.8 * 0.2


def test_where_every_stack_has_one_source_nothing_is_left_to_stacks():
    stacks = [f"s{n}" for n in range(30)]
    sample, _ = sources(stacks, ["g"] * 30, 7, of_stack=0.0, rest=0.08)
    alone = found_in(sample)
    spread = np.std(np.log([sample.measured_s[sample.source == n].mean() for n in range(30)]))
    # Nothing tells the deviation of a stack from the rest; together they are the spread.
    assert np.hypot(alone.deviations.stack, alone.deviations.rest) == pytest.approx(spread, rel=0.1)
    assert np.std(alone.of_stack) < 0.8 * spread


def test_generations_have_effects_too():
    generations = [f"g{n % 4}" for n in range(80)]
    sample, _ = sources(["s"] * 80, generations, 11, of_stack=0.0, rest=0.03, of_generation=0.1)
    solution = found_in(sample)
    means = [
        np.log(sample.measured_s)[sample.members.generation == n].mean() for n in range(len(sample.members.generations))
    ]
    assert solution.of_generation + solution.of_stack[0] == pytest.approx(np.array(means), abs=0.015)


def test_rows_left_out_say_nothing():
    sample, _ = sources(["a"] * 6 + ["b"] * 6, ["g"] * 12, 13, of_stack=0.1, rest=0.02)
    of_b = np.array([sample.members.stacks[n] for n in sample.members.stack]) == "b"
    without = found_in(sample.without(of_b))
    assert without.of_stack[sample.members.stacks.index("b")] == pytest.approx(0, abs=1e-9)
    changed = Sample(np.where(of_b, 50.0, sample.measured_s), sample.source, sample.weights, sample.members)
    assert found_in(changed.without(of_b)).of_stack == pytest.approx(without.of_stack, abs=1e-9)


def test_one_source_and_none_are_no_error():
    sample, _ = sources(["a"], ["g"], 17, of_stack=0.1, rest=0.02)
    assert np.isfinite(found_in(sample).of_stack).all()
    assert found_in(sample.without(np.ones(ROWS, dtype=bool))).of_stack == pytest.approx([0.0])


def test_an_effect_scales_kernels_alone():
    sample, _ = sources(["a"] * 10 + ["b"] * 10, ["g"] * 20, 19, of_stack=0.1, rest=0.02)
    half = all_kernels(len(sample.measured_s))
    half = LocalTimes((), NO_FIELD, half.log_s, half.slope, half.curvature, 0.5 * half.kernels)
    whole, part = found_in(sample), solve(sample, half, NO_FIELD)
    # A stack must be twice as slow in kernels if these are half of the time.
    assert np.ptp(part.of_stack) == pytest.approx(2 * np.ptp(whole.of_stack), rel=0.15)


def test_weights_of_rows():
    source = ["a", "a", "a", "b", "b"]
    configuration = ["x", "x", "y", "x", "x"]
    assert row_weights(source, configuration).tolist() == [0.25, 0.25, 0.5, 0.5, 0.5]
    assert row_weights([], []).tolist() == []
