"""Shares of a fast domain, against ranks numbered one by one and against every product of shares."""

import itertools
import math

import pytest

from dsx.plans.placement import exact_fill, fill_in_order, fills_nodes, laid_share, numbered_shares, partly_filled

DEGREES = [dict(zip("abc", degrees, strict=True)) for degrees in itertools.product((1, 2, 3, 4, 6, 9), repeat=3)]


def filled(*degrees, size):
    return tuple(fill_in_order(dict(enumerate(degrees)), size).values())


@pytest.mark.parametrize(
    ("degrees", "size", "shares"),
    [
        ((8, 4, 2), 8, (8, 1, 1)),
        ((2, 4, 2), 8, (2, 4, 1)),
        ((2, 1, 4), 8, (2, 1, 4)),
        ((16, 4), 8, (8, 1)),
        ((6, 16), 8, (6, 1)),  # two GPUs are left, and the domain is not filled
        ((6, 16), 72, (6, 8)),
        ((11, 6), 72, (11, 6)),
        ((256, 2), 72, (64, 1)),
        ((2, 2), 1, (1, 1)),
        ((2, 2), 0, (1, 1)),  # the named shares leave no GPU
    ],
)
def test_the_innermost_axis_takes_its_largest_divisor_that_fits(degrees, size, shares):
    assert filled(*degrees, size=size) == shares


def test_numbered_shares_are_those_of_ranks_numbered_one_by_one():
    none = 0
    for degrees, size in itertools.product(DEGREES, (1, 2, 3, 4, 6, 8, 12)):
        ranks = math.prod(degrees.values())
        if size > ranks or ranks % size:
            continue
        numbers = list(itertools.product(*(range(degree) for degree in reversed(degrees.values()))))
        shares = {}
        for place, axis in enumerate(reversed(degrees)):
            counts = set()
            for first in range(0, ranks, size):
                groups = {}
                for number in numbers[first : first + size]:
                    group = number[:place] + number[place + 1 :]
                    groups[group] = groups.get(group, 0) + 1
                counts |= {*groups.values()}
            shares[axis] = counts
        even = all(len(counts) == 1 for counts in shares.values())
        none += not even
        expected = {axis: max(shares[axis]) for axis in degrees} if even else None
        assert numbered_shares(degrees, size) == expected, (degrees, size)
    assert none > 100


def test_exact_fills_and_placements_that_fill_nodes():
    for degrees in DEGREES:
        for size in (size for size in range(1, 25) if math.prod(degrees.values()) % size == 0):
            whole = [
                shares
                for shares in itertools.product(*(range(1, degree + 1) for degree in degrees.values()))
                if math.prod(shares) == size
                and all(degree % share == 0 for degree, share in zip(degrees.values(), shares, strict=True))
            ]
            assert tuple(exact_fill(degrees, size).values()) == max(whole)
    # Placements that fill nodes need no more nodes counted one by one.
    for num_gpus, used, node in itertools.product(range(1, 60), range(1, 25), (1, 2, 4, 8)):
        domains = [used] * (num_gpus // used) + [num_gpus % used]
        nodes = [node] * sum(load // node for load in domains) + [load % node for load in domains if load % node]
        in_order = [node] * (num_gpus // node) + [num_gpus % node] * (num_gpus % node > 0)
        fills = sorted(nodes) == sorted(in_order)
        for size in {node * -(-used // node), 24}:
            few = sum(load > 0 for load in domains) == math.ceil(num_gpus / size)
            assert fills_nodes(num_gpus, used, node, size) == (fills and few), (num_gpus, used, node, size)


@pytest.mark.parametrize(
    ("degree", "stride", "share"),
    [
        (6, 1, 4),  # ranks 6 to 11 lie as 2 + 4 in domains of 8
        (5, 1, 4),  # 1 + 4
        (3, 3, 2),  # ranks 2, 5 and 8
        (2, 12, 1),
    ],
)
def test_a_group_counts_as_the_nearest_that_is_no_better(degree, stride, share):
    assert laid_share(degree, stride, 8) == share


@pytest.mark.parametrize(
    ("degrees", "shares", "size", "node", "part"),
    [
        ((20, 1), (8, 1), 8, 8, None),  # 8 + 8 + 4
        ((20, 1), (7, 1), 8, 8, (7, 6, 3, 8, 4)),
        ((20, 1), (5, 1), 8, 8, (5, 5, 4, 8, 12)),
        ((4, 5), (4, 2), 8, 8, None),
        ((6, 4), (6, 1), 8, 8, (6, 6, 4, 8, 8)),
        ((6, 4), (2, 4), 8, 8, None),
        ((16, 36), (16, 4), 72, 4, (64, 64, 9, 72, 72)),  # 16 nodes in each of nine domains, where eight hold all
        ((16, 16), (16, 4), 72, 4, None),  # four domains either way
        ((22, 24), (22, 3), 72, 4, (66, 66, 136, 4, 16)),
        ((2, 2), (2, 1), 8, 8, (2, 2, 2, 8, 12)),  # two nodes, where one would do
    ],
)
def test_nodes_that_a_placement_fills_in_part(degrees, shares, size, node, part):
    found = partly_filled(dict(enumerate(degrees)), dict(enumerate(shares)), size, node)
    assert found == part
