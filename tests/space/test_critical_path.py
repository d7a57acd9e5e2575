"""The closed forms of the schedules against a replay of their orders."""

import itertools
import random

import numpy as np
import pytest
from space.replay import replay

from dsx.space.critical_path import Passes, PipelineView, StageView
from dsx.space.schedules import SCHEDULES

BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}
ONE_F_ONE_B = BY_NAME["1f1b"]


def view(chunks, num_stages, num_microbatches, share, hidden_s):
    """A pipeline from the seconds of its chunks, of which `share` is the forward."""
    num_chunks = len(chunks) // num_stages

    def passes(seconds, hops=0):
        each = np.array([sum(seconds)])
        return Passes(share * each + hops * hidden_s, (1 - share) * each + hops * hidden_s)

    final = (num_chunks - 1) * num_stages
    stages = [
        StageView(
            position=np.array([float(stage)]),
            own=passes(chunks[stage::num_stages]),
            first=passes(chunks[stage : stage + 1]),
            last=passes(chunks[final + stage : final + stage + 1]),
            before=passes(chunks[:stage]),
            after=passes(chunks[final + stage + 1 :]),
        )
        for stage in range(num_stages)
    ]
    return PipelineView(
        stages,
        stages[0],
        stages[-1],
        passes(chunks, len(chunks) - 1),
        hop_s=hidden_s,
        weights_s=np.zeros(1),
        pp=np.array([float(num_stages)]),
        vpp=np.array([float(num_chunks)]),
        num_microbatches=np.array([float(num_microbatches)]),
        largest=lambda values: np.max(values, axis=0),
    )


def error(schedule, chunks, num_stages, num_microbatches, share=1 / 3, send_s=0.0):
    """Return how far the closed form is above the replay, relative to it."""
    num_chunks = len(chunks) // num_stages
    pipe = view(chunks, num_stages, num_microbatches, share, send_s)
    closed_form = schedule.step_s if num_chunks == 1 else schedule.interleaved_s
    (found,) = closed_form(pipe, np)
    shares = {"forward": share, "backward": 1 - share}
    orders = schedule.passes(num_stages, num_microbatches, num_chunks)
    return found / replay(orders, lambda kind, chunk: shares[kind] * chunks[chunk], send_s) - 1


def stages_of_a_cut(rng, num_stages):
    """Stages of 1 to 16 body layers, some with one more, with embedding and head of a part of a layer or of several."""
    layers = rng.choice([1, 2, 4, 8, 16])
    more = rng.sample(range(num_stages), rng.randint(0, num_stages - 1))
    chunks = [(layers + (stage in more)) / layers for stage in range(num_stages)]
    chunks[0] += rng.choice([0, 0.02, 0.1, 0.5])
    chunks[-1] += rng.choice([0, 0.1, 0.3, 0.8])
    return chunks


def chunks_of_an_even_cut(rng, num_stages, num_chunks):
    """Chunks of 1 to 8 layers; embedding and head are extra, or count as a layer."""
    layer = 1 / rng.choice([1, 2, 4, 8])
    chunks = [1.0] * (num_stages * num_chunks)
    counted = rng.choice([0, 1])
    chunks[0] += layer * (rng.choice([0, 0.02, 0.1, 0.5]) - counted * 0.9)
    chunks[-1] += layer * (rng.choice([0.1, 0.3, 0.9, 1.5]) - counted * 0.9)
    return chunks


MICROBATCHES = (1, 2, 3, 4, 5, 8, 12, 16, 17, 20, 32, 64, 100)


def errors(schedule, send_s, count=400, chunked=False):
    """Return the errors of random pipelines whose sends take up to `send_s`, where a mean chunk takes a second."""
    rng = random.Random(3)
    found = []
    for _ in range(count):
        num_stages, share = rng.randint(2, 16), rng.choice([1 / 3, 1 / 4])
        if chunked:
            chunks = chunks_of_an_even_cut(rng, num_stages, rng.choice([2, 3, 4, 8]))
            many = num_stages * rng.choice([1, 2, 3, 4, 8])
        else:
            chunks, many = stages_of_a_cut(rng, num_stages), rng.choice(MICROBATCHES)
        found.append(error(schedule, chunks, num_stages, many, share, rng.choice([0, 0.1, 0.5, 1]) * send_s))
    return np.array(found)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_equal_stages_are_exact(name):
    for num_stages, many in itertools.product((2, 3, 5, 16), MICROBATCHES):
        assert error(BY_NAME[name], [1.0] * num_stages, num_stages, many) == pytest.approx(0, abs=1e-12)


def test_equal_chunks_are_exact():
    for num_stages, groups, chunks in itertools.product((2, 3, 8, 16), (1, 2, 5), (2, 3, 8)):
        found = error(ONE_F_ONE_B, [1.0] * (num_stages * chunks), num_stages, groups * num_stages)
        assert found == pytest.approx(0, abs=1e-12)


def test_gpipe_of_unequal_stages_is_exact():
    assert np.abs(errors(BY_NAME["gpipe"], 0.2)).max() < 1e-12


@pytest.mark.parametrize("schedule", [one for one in SCHEDULES if not one.exact], ids=lambda one: one.name)
def test_a_schedule_that_is_not_exact_takes_longer_than_its_closed_form(schedule):
    """A third of the time each for forward, gradients of activations and of weights, four stages."""
    found = {}
    for many in (1, 8, 64):
        pipe = view([3.0] * 4, 4, many, 1 / 3, 0.0)._replace(weights_s=np.ones(1))
        (seconds,) = schedule.step_s(pipe, np)
        found[many] = replay(schedule.passes(4, many, 1), lambda *_: 1.0) / seconds
    assert found[1] >= 1.5 and found[8] > 1.01
    assert all(ratio >= 1 for ratio in found.values())


# The share of pipelines that may be off by 1 %, and the most that one may be off; docs/model/pipeline.md quotes them.
@pytest.mark.parametrize(
    ("send_s", "chunked", "share", "most"),
    [(0.0, False, 0.005, 0.03), (0.01, False, 0.005, 0.03), (0.0, True, 0.005, 0.06), (0.01, True, 0.01, 0.065)],
)
def test_unequal_stages_of_1f1b(send_s, chunked, share, most):
    found = np.abs(errors(ONE_F_ONE_B, send_s, chunked=chunked))
    assert (found > 0.01).mean() <= share
    assert found.max() <= most


def test_a_slow_first_stage_costs_less_than_a_slow_last_one():
    """It runs its forwards ahead while the others wait for it: 1F1B is not m times the slowest stage and the fill."""
    first, last = [1.5, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.5]
    shares = {"forward": 1 / 3, "backward": 2 / 3}
    of_first, of_last = (
        replay(ONE_F_ONE_B.passes(4, 8, 1), lambda kind, chunk, chunks=chunks: shares[kind] * chunks[chunk])
        for chunks in (first, last)
    )
    assert of_last == pytest.approx(8 * 1.5 + 3 * 1.0)
    assert of_first == pytest.approx(8 * 1.5 + 3 * 1.0 - 3 * 0.5)
    assert error(ONE_F_ONE_B, first, 4, 8) == pytest.approx(0, abs=1e-12)
    assert error(ONE_F_ONE_B, last, 4, 8) == pytest.approx(0, abs=1e-12)
