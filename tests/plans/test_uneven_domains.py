"""Groups that lie unevenly on fast domains, against ranks numbered one by one and against plain loops."""

import math
import random
from itertools import product

import numpy as np
import pytest
from laws.spaces import DIMENSIONS, problem_with
from plans.test_enumerate import DIMS, candidates, values
from plans.texts import ONE_AXIS, TWO_AXES

from dsx.config.cluster_file import Network, Tier
from dsx.cost.context import StepCosts
from dsx.plans.enumerate import take
from dsx.plans.placement import (
    even_shares,
    expert_share,
    laid_share,
    rank_order_shares,
    shares_on_tiers,
    units_spanned,
)
from dsx.plans.ranks import rank_grid
from dsx.plans.rules import RULES, Limits, fills
from dsx.pricing.keys import price_keys
from dsx.pricing.row_costs import Rows, price_rows
from dsx.records import leaves
from dsx.search.spaces import Space

AXES = ("tp", "cp", "dp", "pp")


def placed_one_by_one(degree, stride, unit, groups):
    """The most units of any of so many groups in a row, and the fewest members in a unit of any."""
    spanned, least = 0, degree
    for group in range(groups):
        for first in range(stride):
            at = [(group * degree * stride + first + member * stride) // unit for member in range(degree)]
            counts = [at.count(one) for one in {*at}]
            spanned, least = max(spanned, len(counts)), min(least, *counts)
    return spanned, least


def test_a_laid_group_is_priced_no_better_than_it_lies():
    rng, exact = random.Random(1), 0
    for _ in range(1500):
        degree, stride, groups = rng.randint(1, 20), rng.choice([1, 1, 2, 3, 4, 8, 16]), rng.choice([1, 1, 2, 3, 9])
        unit = rng.choice([2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 72])
        share = laid_share(degree, stride, unit, groups)
        priced = tuple(int(one) for one in units_spanned(np.int64(degree), np.int64(share)))
        lies = placed_one_by_one(degree, stride, unit, groups)
        assert priced[0] >= lies[0], (degree, stride, unit, groups)
        assert priced[1] <= lies[1], (degree, stride, unit, groups)
        exact += priced == lies
        if groups == 1 and not unit % stride:  # as the outermost axis of whole groups
            assert priced == lies
    assert exact > 1000


@pytest.mark.parametrize(
    ("degrees", "size", "shares"),
    [
        ((4, 1, 5, 1), 8, (4, 1, 2, 1)),  # 8, 8 and 4 GPUs: members 2, 2 and 1
        ((4, 1, 3, 1), 8, (4, 1, 2, 1)),
        ((1, 1, 6, 1), 4, (1, 1, 4, 1)),
        ((8, 1, 32, 1), 72, (8, 1, 9, 1)),
        ((8, 1, 8, 1), 72, (8, 1, 8, 1)),  # 64 GPUs in one domain of 72
        ((16, 1, 18, 1), 72, (8, 1, 5, 1)),  # a group of 16 straddles two domains of 72
        ((4, 1, 5, 2), 8, (4, 1, 2, 1)),  # the second stage begins within a domain
        ((2, 1, 8, 1), 8, (2, 1, 4, 1)),
        ((8, 4, 2, 1), 8, (8, 1, 1, 1)),
    ],
)
def test_ranks_fill_domain_after_domain(degrees, size, shares):
    found = rank_order_shares(dict(zip(AXES, degrees, strict=True)), size, math.prod(degrees))
    assert tuple(int(one) for one in found.values()) == shares


@pytest.mark.parametrize(
    ("degrees", "ep", "size", "share"),
    [
        ((1, 1, 256, 2), 8, 72, 8),  # the share of dp is 62, but racks have 72 ranks in a row
        ((1, 1, 256, 2), 64, 72, 8),
        ((1, 1, 112, 2), 8, 72, 8),
        ((1, 1, 288, 1), 32, 72, 8),
        ((8, 1, 3, 6), 4, 18, 2),  # tp is cut: ep groups begin at multiples of 4 of 18 ranks
        ((1, 3, 8, 3), 24, 16, 8),
        ((4, 1, 5, 1), 10, 8, 2),
        ((4, 1, 5, 1), 4, 8, 4),
    ],
)
def test_a_domain_has_the_fewest_ranks_of_any_ep_group(degrees, ep, size, share):
    plan = dict(zip(AXES, degrees, strict=True)) | {"tp2": 1, "order": 0, "ep": ep}
    in_order = {axis: plan[axis] for axis in ("tp", "tp2", "cp", "dp", "pp")}
    plan |= {f"{axis}_nvs": int(own) for axis, own in rank_order_shares(in_order, size, math.prod(degrees)).items()}
    assert expert_share(plan, (), size) == share


def test_shares_of_ranks_in_order_multiply_to_at_most_a_domain():
    rng = random.Random(2)
    for _ in range(500):
        degrees = {axis: rng.choice([1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16]) for axis in AXES}
        size = rng.randint(1, 72)
        shares = rank_order_shares(degrees, size, math.prod(degrees.values()))
        assert math.prod(int(one) for one in shares.values()) <= size
        assert all(1 <= shares[axis] <= degree for axis, degree in degrees.items())


@pytest.mark.parametrize(
    ("num_gpus", "size", "filled"),
    [(24, 8, (8, 6)), (20, 8, (5, 4)), (1024, 72, (64,)), (288, 72, (72, 48, 32)), (11, 8, (1,)), (16, 8, (8,))],
)
def test_domains_that_no_multiple_fills_better(num_gpus, size, filled):
    assert fills(num_gpus, Limits(1, size)) == filled
    assert fills(num_gpus, Limits(1, size, uneven=False)) == filled[:1]


def lies_in_order(degrees, shares, alone):
    """Whether consecutive ranks, as many as the shares multiply to, have these shares; `alone` by axis."""
    whole = True
    for axis, degree in degrees.items():
        if not whole and shares[axis] > 1:
            return False
        left = degree % shares[axis]
        if left and not alone[axis] and left != math.gcd(degree, shares[axis]):
            return False
        whole = whole and shares[axis] == degree
    return True


def by_loops(num_gpus, layers, size, axes, codes):
    """Every placement of a layer without other limits: degrees, shares and rank order, by the rules in words."""
    found, divisors = set(), [one for one in range(1, num_gpus + 1) if num_gpus % one == 0]
    for degrees in product(divisors, repeat=4):
        sizes = dict(zip(AXES, degrees, strict=True))
        if math.prod(degrees) != num_gpus or layers % sizes["pp"] or not axes(sizes):
            continue
        orders = [(AXES, ("tp", "cp", "pp", "dp"))[one] for one in codes]
        in_order = []
        for order in orders:
            shares = rank_order_shares({axis: sizes[axis] for axis in order}, size, num_gpus)
            in_order.append({axis: int(share) for axis, share in shares.items()})
        every = [
            dict(zip(AXES, shares, strict=True))
            for shares in product(*(range(1, min(degree, size) + 1) for degree in degrees))
            if math.prod(shares) <= size
        ]
        even = [one for one in every if all(sizes[axis] % one[axis] == 0 for axis in AXES)]
        for shares in even:
            if math.prod(shares.values()) in fills(num_gpus, Limits(layers, size)):
                found.add((*degrees, *shares.values()))
        for order, ranked in zip(orders, in_order, strict=True):
            found.add((*degrees, *(ranked[axis] for axis in AXES)))
            alone = {axis: axis in order[2:] and math.prod(sizes[a] for a in order[at + 1 :]) == 1
                     for at, axis in enumerate(order)}  # fmt: skip
            here = {axis: sizes[axis] for axis in order}
            laid = [one for one in every if lies_in_order(here, one, alone)]
            for shares in (one for one in laid if one not in even):
                cut = next(axis for axis in order if sizes[axis] % shares[axis])
                others = [one for one in laid if all(one[a] == shares[a] for a in order[: order.index(cut)])]
                others = [one for one in others if all(one[a] == 1 for a in order[order.index(cut) + 1 :])]
                better = [one for one in others if one != shares and dominates(one[cut], shares[cut], sizes[cut])]
                if not better:
                    found.add((*degrees, *shares.values()))
    return found


def dominates(share, other, degree):
    (spanned, least), (of_other, least_other) = (
        units_spanned(np.int64(degree), np.int64(share)),
        units_spanned(np.int64(degree), np.int64(other)),
    )
    return spanned <= of_other and least >= least_other


COLUMNS = (*AXES, *(f"{axis}_nvs" for axis in AXES))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    ("num_gpus", "size"), [(12, 8), (20, 8), (24, 8), (24, 5), (48, 20), (18, 4), (15, 8), (8, 8), (16, 8), (6, 8)]
)
def test_a_search_has_every_placement_that_may_be_the_fastest(num_gpus, size, order):
    # With a length and a width of 5,040, nothing limits the degrees.
    found = candidates(
        [TWO_AXES], {"e": 5040, "f": 5040}, [num_gpus], [num_gpus], layers=4, nvs_size=size, length=5040, uneven=True,
        order=order, keys=lambda table: table["microbatch_size"] == 1,
    )  # fmt: skip
    assert len({values([one], *COLUMNS)[0] for one in found}) == len(found)
    degrees = {values([one], *AXES)[0] for one in found}
    expected = by_loops(num_gpus, 4, size, lambda sizes: tuple(sizes[axis] for axis in AXES) in degrees, order)
    assert {values([one], *COLUMNS)[0] for one in found} == expected


@pytest.mark.parametrize(("num_gpus", "size"), [(24, 8), (20, 8), (48, 20)])
def test_every_placement_of_a_search_obeys_the_rules(num_gpus, size):
    found = candidates([ONE_AXIS], DIMS, [num_gpus], [num_gpus], layers=4, nvs_size=size, length=16, uneven=True)
    limits = Limits(4, size)
    table = {name: np.array([one[name] for one in found]) for name in found[0]}
    for rule in RULES:
        assert np.all(rule.holds(table | {"sequence_length": 16}, limits)), rule.name


@pytest.mark.parametrize("num_gpus", [8, 16, 64, 12, 24])
def test_plans_of_the_same_price_need_no_ranks(num_gpus):
    """Unless shares may not divide their degrees, they all do, and no group is counted by ranks."""
    problem = problem_with([{"kind": "transformer", "count": 12}], DIMENSIONS, ["2d"])
    space = Space(problem, [num_gpus], [24, 32], {"microbatch_size": [1], "schedule": ["1f1b"], "recompute": ["full"]})
    positions, choices = space.blocks.rows(0, space.size)
    columns = {name: column[positions] for name, column in space.keys.items()} | choices
    even = even_shares(columns, AXES)
    assert space.bounds.uneven != even.all()
    few = take(columns, np.random.default_rng(0).permutation(np.flatnonzero(even))[:500])
    of_ranks, otherwise = (
        price_rows(problem, price_keys(problem, few, uneven), Rows(np.zeros(500, np.int64), np.arange(500), few))
        for uneven in (True, False)
    )
    for name in leaves(StepCosts):
        np.testing.assert_array_equal(getattr(of_ranks, name), getattr(otherwise, name), err_msg=name)


@pytest.mark.slow
def test_uneven_groups_on_outer_tiers_are_priced_no_better_than_they_lie():
    rng, compared = random.Random(3), 0
    for _ in range(300):
        degrees = {axis: rng.choice([1, 1, 2, 3, 4, 5, 6, 9]) for axis in AXES}
        world, size, unit = math.prod(degrees.values()), rng.choice([4, 8, 9]), rng.choice([2, 3, 4])
        if not size < world < 1000:
            continue
        order = rng.choice([0, 1])
        ordered = {axis: degrees[axis] for axis in (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))[order]}
        shares = {axis: int(share) for axis, share in rank_order_shares(ordered, size, world).items()}
        if not any(degrees[axis] % share for axis, share in shares.items()):
            continue
        plan = {**degrees, "tp2": 1, "tp2_nvs": 1, "ep": 1, "ep_nvs": 1, "order": order}
        plan |= {f"{axis}_nvs": share for axis, share in shares.items()}
        grid = rank_grid(plan, size, (), (unit,))
        network = Network(tiers=(Tier(1, 1, "nvs", size), Tier(1, 1, "leaf", size * unit), Tier(1, 1, "spine", 0)))
        on_tiers = shares_on_tiers(plan, network, ())
        for axis, degree in degrees.items():
            for share, ranks in ((shares[axis], 1), (on_tiers[f"{axis}_leaf"], unit)):
                spanned, least = units_spanned(np.int64(degree), np.int64(share))
                for group in grid.groups((axis,)).tolist():
                    at = [rank // (grid.ranks_per_domain * ranks) for rank in group]
                    counts = [at.count(one) for one in {*at}]
                    assert spanned >= len(counts), (plan, axis, ranks)
                    assert least <= min(counts), (plan, axis, ranks)
            compared += degree > 1
    assert compared > 200
