"""Spaces small enough to be counted by hand."""

import math
from itertools import product

import numpy as np
import pytest
from plans.tables import everything, only
from plans.texts import DIVIDED, EXPERTS, MIXTURE, ONE_AXIS, PANELS, SPREAD, TINY, TWO_AXES, layer

from dsx.plans.blocks import Blocks
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.plans.enumerate import SearchedCodes, SpaceBounds, shard_keys
from dsx.plans.placement import divisors
from dsx.plans.rules import Limits, fill


def candidates(
    strategies,
    dims,
    num_gpus,
    batch,
    layers=1,
    nvs_size=1,
    length=16,
    text=TINY,
    ep=(),
    uneven=False,
    order=(0,),
    **filters,
):
    """Every candidate as a dict, in the order of the rows."""
    kinds = [layer(strategy, text) for strategy in strategies]
    bounds = SpaceBounds(
        num_gpus=tuple(num_gpus),
        global_batch_size=tuple(batch),
        sequence_length=length,
        limits=Limits(layers, nvs_size, uneven=uneven),
        searched=SearchedCodes(ep=ep, order=order),
        keep_keys=filters.get("keys", everything),
        keep_choices=filters.get("choices", everything),
        expert_axes=tuple(kind.expert_axes for kind in kinds),
    )
    keys = shard_keys([((kind,), dims) for kind in kinds], bounds)
    blocks = Blocks(keys, bounds)
    positions, choices = blocks.rows(0, blocks.size)
    columns = {name: column[positions] for name, column in keys.items()} | choices
    assert {len(column) for column in columns.values()} == {blocks.size}
    return [
        {name: int(columns[name][row]) for name in (*KEY_COLUMNS, *CHOICE_COLUMNS)} for row in range(len(positions))
    ]


def values(found, *columns):
    return sorted(tuple(one[column] for column in columns) for one in found)


DIMS = {"e": 8, "f": 16}


@pytest.mark.parametrize(
    ("number", "expected"), [(1, [1]), (2, [1, 2]), (12, [1, 2, 3, 4, 6, 12]), (49, [1, 7, 49]), (97, [1, 97])]
)
def test_divisors(number, expected):
    assert divisors(number).tolist() == expected


@pytest.mark.parametrize(
    ("num_gpus", "nvs_size", "filled"),
    [(16, 8, 8), (8, 8, 8), (4, 8, 4), (12, 8, 6), (7, 8, 7), (11, 8, 1), (1024, 72, 64), (1152, 72, 72), (5, 1, 1)],
)
def test_fill(num_gpus, nvs_size, filled):
    assert int(fill(num_gpus, nvs_size)) == filled
    assert fill(np.array([num_gpus, 1]), nvs_size).tolist() == [filled, 1]


def test_plans_of_few_degrees_by_hand():
    found = candidates([ONE_AXIS], DIMS, [1], [1])
    codes = ("strategy", "recompute", "schedule", "stored_layers", "offload", "order")
    assert found == [{name: 0 if name in codes else 1 for name in (*KEY_COLUMNS, *CHOICE_COLUMNS)}]
    # Degrees of one axis.
    found = candidates([ONE_AXIS], DIMS, [4], [1], layers=2)
    # f / tp >= 4 allows tp up to 4, two layers pp up to 2, and one sequence only dp = 1.
    assert values(found, "tp", "pp", "dp") == [(2, 2, 1), (4, 1, 1)]
    # A batch gives replicas and microbatches.
    found = candidates([ONE_AXIS], DIMS, [2], [4])
    assert values(found, "tp", "dp", "microbatch_size", "num_microbatches") == [
        (1, 2, 1, 2),
        (1, 2, 2, 1),
        (2, 1, 1, 4),
        (2, 1, 2, 2),
        (2, 1, 4, 1),
    ]
    # Tokens need to be divisible not the sequence.
    found = candidates([ONE_AXIS], DIMS, [4], [4], length=6)
    # b * s = 6, 12, 24: four ranks need two sequences in a microbatch.
    assert values([one for one in found if one["tp"] == 4], "microbatch_size") == [(2,), (4,)]
    # Two axes.
    found = candidates([TWO_AXES], DIMS, [4], [1], length=2)
    assert values(found, "tp", "cp", "dp") == [(2, 2, 1), (4, 1, 1)]  # two positions are not divided by four


def test_shares_of_domains_by_hand():
    found = candidates([TWO_AXES], DIMS, [4], [2], nvs_size=2, length=2)
    assert values(found, "tp", "cp", "dp", "microbatch_size", "tp_nvs", "cp_nvs", "dp_nvs") == [
        (1, 2, 2, 1, 1, 1, 2), (1, 2, 2, 1, 1, 2, 1),
        (2, 1, 2, 1, 1, 1, 2), (2, 1, 2, 1, 2, 1, 1),
        (2, 2, 1, 1, 1, 2, 1), (2, 2, 1, 1, 2, 1, 1), (2, 2, 1, 2, 1, 2, 1), (2, 2, 1, 2, 2, 1, 1),
        (4, 1, 1, 1, 2, 1, 1), (4, 1, 1, 2, 2, 1, 1),
    ]  # fmt: skip
    # A pipeline takes its share.
    found = candidates([ONE_AXIS], DIMS, [4], [1], layers=4, nvs_size=4)
    # Four GPUs are one domain, so every share is the whole degree.
    assert values(found, "tp", "pp", "tp_nvs", "pp_nvs") == [(1, 4, 1, 4), (2, 2, 2, 2), (4, 1, 4, 1)]
    found = candidates([ONE_AXIS], DIMS, [4], [1], layers=4, nvs_size=2)
    assert values(found, "tp", "pp", "tp_nvs", "pp_nvs") == [(1, 4, 1, 2), (2, 2, 1, 2), (2, 2, 2, 1), (4, 1, 2, 1)]
    # A domain of which a divisor has work.
    found = candidates([ONE_AXIS], DIMS, [4], [1], layers=4, nvs_size=3)
    assert {one["tp_nvs"] * one["pp_nvs"] for one in found} == {2}
    # Panels are the largest degree times powers of two.
    found = candidates([PANELS], DIMS, [2], [1])
    # Panels of at least two of the eight columns: 1, 2 and 4 undivided, 2 and 4 on two ranks.
    assert values(found, "tp", "panels") == [(2, 2), (2, 4)]
    assert values(candidates([PANELS], DIMS, [1], [1]), "tp", "panels") == [(1, 1), (1, 2), (1, 4)]
    # Six columns: four panels do not divide them.
    assert values(candidates([PANELS], DIMS | {"e": 6}, [2], [1]), "tp", "panels") == [(2, 2)]


def test_rules_and_filters_drop_rows():
    assert values(candidates([EXPERTS], DIMS, [8], [8]), "tp", "dp", "microbatch_size")[-1] == (8, 1, 8)
    with_experts = candidates([EXPERTS], DIMS | {"x": 2}, [8], [8])
    assert {one["tp"] for one in with_experts} == {1, 2}
    # Nothing is divided away.
    assert {one["tp"] for one in candidates([EXPERTS], DIMS, [64], [64])} == {1, 2, 4, 8, 16}  # f is 16
    # Filters drop the other rows.
    whole = candidates([TWO_AXES], DIMS, [4], [4], layers=4, nvs_size=2)
    found = candidates([TWO_AXES], DIMS, [4], [4], layers=4, nvs_size=2, keys=only(tp=[2, 4]), choices=only(pp=[1]))
    assert found == [one for one in whole if one["tp"] > 1 and one["pp"] == 1]
    assert 0 < len(found) < len(whole)
    # No candidate.
    assert candidates([ONE_AXIS], DIMS, [5], [1]) == []
    assert candidates([ONE_AXIS], DIMS, [4], [4], keys=only(tp=[8])) == []


def test_several_gpu_counts_batches_and_strategies():
    found = candidates([ONE_AXIS, TWO_AXES], DIMS, [2, 4], [2, 4], layers=2, nvs_size=2)
    for code, strategy in enumerate((ONE_AXIS, TWO_AXES)):
        for num_gpus in (2, 4):
            for batch in (2, 4):
                alone = candidates([strategy], DIMS, [num_gpus], [batch], layers=2, nvs_size=2)
                part = [
                    one | {"strategy": 0}
                    for one in found
                    if (one["strategy"], one["num_gpus"], one["global_batch_size"]) == (code, num_gpus, batch)
                ]
                columns = (*KEY_COLUMNS, *CHOICE_COLUMNS)
                assert values(part, *columns) == values(alone, *columns)
                assert part


def by_loops(strategy, num_gpus, batch, experts, nvs_size):
    """Every candidate of a layer of MIXTURE by the rules alone: s = 16, f = 16, one layer, no pipeline."""
    within = ("cp",) if strategy == DIVIDED else ("tp", "cp")
    domain = max(d for d in range(1, nvs_size + 1) if num_gpus % d == 0)
    found = []
    one_to = range(1, num_gpus + 1)
    for tp, cp, dp, ep, size in product(one_to, one_to, one_to, one_to, range(1, batch + 1)):
        degrees = {"tp": tp, "cp": cp, "dp": dp}
        if tp * cp * dp != num_gpus or experts % ep or batch % (dp * size):
            continue
        if math.prod(degrees[axis] for axis in (*within, "dp")) % ep:
            continue
        slots = 2 * size * 16 * ep // (experts * tp * cp)
        if 16 // cp // tp < 1 or slots // ep < 1:
            continue
        for shares in product(*([d for d in range(1, n + 1) if n % d == 0] for n in degrees.values())):
            if math.prod(shares) == domain:
                of = dict(zip(degrees, shares, strict=True))
                near = math.gcd(ep, math.prod(of[axis] for axis in (*within, "dp")))
                found.append((tp, cp, dp, ep, size, *shares, near))
    return sorted(found)


COLUMNS = ("tp", "cp", "dp", "ep", "microbatch_size", "tp_nvs", "cp_nvs", "dp_nvs", "ep_nvs")


@pytest.mark.parametrize("strategy", [SPREAD, DIVIDED])
@pytest.mark.parametrize(
    ("num_gpus", "experts", "nvs_size"),
    [(1, 8, 8), (8, 8, 8), (8, 8, 4), (8, 4, 2), (12, 6, 4), (12, 12, 8), (6, 3, 1)],
)
def test_experts_nest_inside_the_other_axes(strategy, num_gpus, experts, nvs_size):
    found = candidates([strategy], DIMS | {"x": experts}, [num_gpus], [12], nvs_size=nvs_size, text=MIXTURE)
    assert values(found, *COLUMNS) == by_loops(strategy, num_gpus, 12, experts, nvs_size)


def test_expert_degrees():
    found = candidates([SPREAD, DIVIDED], DIMS | {"x": 4}, [4, 8], [12, 24], nvs_size=4, text=MIXTURE)
    for code, strategy in enumerate((SPREAD, DIVIDED)):
        for num_gpus, batch in product((4, 8), (12, 24)):
            chosen = {"strategy": code, "num_gpus": num_gpus, "global_batch_size": batch}
            here = [one for one in found if chosen.items() <= one.items()]
            assert values(here, *COLUMNS) == by_loops(strategy, num_gpus, batch, 4, 4)
    # Fixed expert degrees.
    dims = DIMS | {"x": 4}
    every = candidates([SPREAD], dims, [8], [8], nvs_size=4, text=MIXTURE)
    assert {one["ep"] for one in every} == {1, 2, 4}
    for ep in ((1,), (4,), (1, 2)):
        fixed = candidates([SPREAD], dims, [8], [8], nvs_size=4, text=MIXTURE, ep=ep)
        assert values(fixed, *COLUMNS) == values([one for one in every if one["ep"] in ep], *COLUMNS)
    # A layer without experts has one degree.
    assert {one["ep"] for one in candidates([TWO_AXES], DIMS | {"x": 4}, [8], [8])} == {1}
