"""Orders that are replayed for many plans at once against the event-driven replay of each plan."""

import random

import numpy as np
import pytest

from dsx.plans.pass_times import replay
from dsx.schedules.schedules import SCHEDULES, replayed_s

(INTERLEAVED,) = (schedule for schedule in SCHEDULES if schedule.interleaved)
FORWARD, HOP = 1 / 3, 0.01


def drawn(rng):
    """Stages, chunks per stage, groups, and the seconds of the chunks: layers of one or two, up to twice a layer."""
    pp, vpp = rng.choice([2, 3, 4, 8]), rng.choice([2, 3, 5])
    more = rng.random()
    return pp, vpp, rng.choice([1, 2, 5, 9]), [1.0 + (rng.random() < more) * rng.random() for _ in range(pp * vpp)]


def referee_s(pp, vpp, groups, chunks):
    orders = INTERLEAVED.passes(pp, groups * pp, vpp)
    shares = {"forward": FORWARD, "backward": 1 - FORWARD}
    return replay(orders, lambda kind, chunk: shares[kind] * chunks[chunk], HOP, INTERLEAVED.holds).end


def at_once_s(plans):
    """The seconds of all plans, padded to the most stages and chunks."""
    pp, vpp, groups = (np.array(column) for column in list(zip(*plans, strict=True))[:3])
    seconds = np.zeros((vpp.max(), pp.max(), len(plans)))
    for number, (stages, rounds, _, chunks) in enumerate(plans):
        seconds[:rounds, :stages, number] = np.reshape(chunks, (rounds, stages))
    hops = np.full((2 * pp.max(), len(plans)), HOP)
    return replayed_s(INTERLEAVED, FORWARD * seconds, (1 - FORWARD) * seconds, hops, np.stack([pp, vpp, groups * pp]))


def test_plans_replayed_at_once_take_as_long_as_each_alone():
    rng = random.Random(0)
    plans = [drawn(rng) for _ in range(40)]
    assert at_once_s(plans) == pytest.approx([referee_s(*plan) for plan in plans], rel=3e-3)


def test_a_step_of_few_groups_is_exact():
    rng = random.Random(1)
    plans = [plan for plan in (drawn(rng) for _ in range(40)) if plan[2] <= 5]
    assert at_once_s(plans) == pytest.approx([referee_s(*plan) for plan in plans], rel=1e-12)


def test_microbatches_that_are_no_groups_are_left_out():
    seconds = np.ones((2, 3, 1))
    found = replayed_s(INTERLEAVED, seconds, seconds, np.zeros((6, 1)), np.array([[3], [2], [4]]))
    assert found == [-np.inf]
