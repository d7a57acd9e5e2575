"""Ranks one by one against the shares that are priced: how many members of each group share a domain and a unit."""

import itertools
import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from cost.records import choices, layer_costs, step_plans

from dsx.config.cluster_file import Network, Tier
from dsx.cost.shards import dp_groups, weight_shards
from dsx.errors import PlanError
from dsx.plans.enumerate import SearchedCodes
from dsx.plans.experts import nesting_ranks, share_of_shares, zero_replicas_nest
from dsx.plans.placement import (
    ORDERS,
    divisors,
    ep_ranks_adjacent,
    replicas_spanned,
    shares_on_tiers,
    straddling,
    units,
)
from dsx.plans.ranks import rank_grid, zero_groups
from dsx.schedules.order import MIRRORED
from dsx.schedules.schedules import SCHEDULES

AXES = ("tp", "tp2", "cp", "pp", "dp")
(DUAL,) = [code for code, schedule in enumerate(SCHEDULES) if schedule.holds is MIRRORED]


def divisor_of(rng, number):
    return rng.choice(divisors(int(number)).tolist())


def random_plan(rng):
    """A plan, the axes that shard its experts, and a network of four tiers."""
    while True:
        plan = {axis: rng.choice([1, 1, 2, 3, 4, 6, 8, 12]) for axis in AXES}
        if math.prod(plan.values()) > 1024:
            continue
        plan |= {f"{axis}_nvs": divisor_of(rng, plan[axis]) if rng.random() < 0.5 else 1 for axis in AXES}
        expert_axes = tuple(axis for axis in ("tp", "tp2", "cp") if rng.random() < 0.3)
        plan |= {"order": rng.choice([0, 1]), "ep": divisor_of(rng, nesting_ranks(plan, expert_axes) * plan["dp"])}
        plan["ep_nvs"] = int(share_of_shares(plan, expert_axes, plan["dp_nvs"]))
        if ep_ranks_adjacent(plan["order"], replicas_spanned(plan, expert_axes)):
            return plan, expert_axes, network(rng.choice([2, 3, 4, 6, 8, 12]), rng.choice([2, 3, 4]))


def network(leaf, pod):
    sizes = {"nvs": 8, "leaf": 8 * leaf, "pod": 8 * leaf * pod, "core": 0}
    return Network(tiers=tuple(Tier(1, 1, name, size) for name, size in sizes.items()))


class Placed:
    """The ranks of a plan on a network, and the members of each axis per domain and per unit that are priced."""

    def __init__(self, plan, expert_axes, network):
        self.plan, self.expert_axes = plan, expert_axes
        self.grid = rank_grid(plan, 8, expert_axes, units(network))
        by_tier = shares_on_tiers(plan, network, expert_axes)
        names = ["nvs", *(tier.name for tier in network.middle)]
        self.shares = [{axis: (plan | by_tier)[f"{axis}_{name}"] for axis in (*AXES, "ep")} for name in names]
        self.sizes = [self.grid.ranks_per_domain * unit for unit in (1, *units(network))]
        uneven = {tier for _, tier in straddling(plan, network)}
        self.exact = [name not in uneven for name in names]
        # A shard key does not know that the job fits into a unit, nor that the replicas of an ep group share it.
        spans = replicas_spanned(plan, expert_axes) > 1
        # Nor are all ep groups placed as the worst one, where domains cut them.
        self.exact_ep = [
            exact and not (spans and tier and self.grid.world <= size) and not self.grid.ep_in_a_row
            for tier, (exact, size) in enumerate(zip(self.exact, self.sizes, strict=True))
        ]

    def check(self, groups, shares, exact, apart=None):
        """Assert that groups have `shares` members in each domain and unit that they are in.

        Those of the second chain count apart where `apart`, of each tier, is true.
        """
        assert sorted(groups.ravel().tolist()) == [*range(self.grid.world)]
        chain = (self.grid.columns["pp"] * 2 >= self.plan["pp"]).astype(int)
        for size, share, known, by_chain in zip(self.sizes, shares, exact, apart or [False] * len(exact), strict=True):
            if known:
                assert share == round(share)
                at = np.sort(2 * (groups // size) + (chain[groups] if by_chain else 0), axis=1)
                assert not groups.shape[1] % round(share)
                by_unit = at.reshape(len(at), -1, round(share))
                assert (by_unit == by_unit[..., :1]).all() and (by_unit[:, 1:, 0] != by_unit[:, :-1, 0]).all()


def placed_plans(seed, count):
    rng = random.Random(seed)
    return [Placed(*random_plan(rng)) for _ in range(count)]


def test_groups_have_as_many_members_in_a_domain_and_a_unit_as_are_priced():
    compared = 0
    for placed in placed_plans(1, 400):
        for axis in (*AXES, "ep"):
            groups = placed.grid.groups((axis,))
            assert groups.shape[1] == placed.plan[axis]
            exact = placed.exact_ep if axis == "ep" else placed.exact
            compared += sum(exact[1:]) * (placed.plan[axis] > 1)
            placed.check(groups, [shares[axis] for shares in placed.shares], exact)
    assert compared > 500  # on outer tiers


def test_coordinates_and_groups_are_those_of_every_rank():
    for placed in placed_plans(2, 20):
        grid, num_stages = placed.grid, placed.plan["pp"]
        for axis in (*AXES, "ep"):
            groups, group_of = grid.groups((axis,)), grid.group_of((axis,))
            assert (group_of[groups] == np.arange(len(groups))[:, None]).all()
            assert (grid.columns[axis][groups] == np.arange(placed.plan[axis])).all()  # in order of the axis
        for rank in range(0, grid.world, 7):
            at = grid.coordinates(rank)
            del at["ep"]
            assert grid.rank(**at) == rank
            for stage in range(num_stages):
                assert grid.coordinates(grid.stage_peer(rank, stage)) | {"ep": 0} == at | {"pp": stage, "ep": 0}


def weight_groups(placed):
    """The data axes of weights, and whether ep divides them."""
    found = [((), False), (("cp",), False)]
    return found + ([(placed.grid.nesting[:-1], True)] if placed.plan["ep"] > 1 else [])


def priced(placed, axes, over_ep, zero_replicas, code):
    """The shard group and the replica group of dsx.cost.groups; None without replicas."""
    plan = placed.plan
    searched = SearchedCodes(
        zero_replicas=(1, 2) if zero_replicas > 1 else (1,),
        zero_stage=(1,),
        schedule=(code,),
        ep=() if over_ep else (1,),
    )
    numbers = {name: float(plan[name]) for name in ("pp", "pp_nvs", "dp", "dp_nvs")}
    made = choices(**numbers, zero_replicas=float(zero_replicas), schedule=float(code))
    outer_shares = {
        f"{axis}_outer": tuple(np.array([float(shares[axis])]) for shares in placed.shares[1:]) for axis in ("dp", "pp")
    }
    made = replace(made, **outer_shares)
    members = (float(math.prod(shares[axis] for axis in axes)) for shares in (plan, *placed.shares))
    size, share, *outer = (np.array([[number]]) for number in members)
    ep = [[float(plan["ep"]) if over_ep else 1.0]]
    layer = replace(layer_costs(group_size=size, group_share=share, group_ep=ep), group_outer=tuple(outer))
    plans = step_plans(made, searched)
    shards, replicas = weight_shards(layer, dp_groups(plans), plans)
    return shards[0], replicas[0] if replicas else None


def test_zero_groups_are_those_that_are_priced():
    hybrid = 0
    for placed in placed_plans(3, 250):
        plan = placed.plan
        for (axes, over_ep), replicas in itertools.product(weight_groups(placed), divisors(plan["dp"]).tolist()):
            if over_ep and not zero_replicas_nest({**plan, "zero_replicas": replicas}, placed.expert_axes):
                continue
            hybrid += replicas > 1 and over_ep
            for chains in (1, 2) if plan["pp"] % 2 == 0 else (1,):
                groups = zero_groups(placed.grid, ("dp", *axes), replicas, over_ep, chains)
                expected = priced(placed, axes, over_ep, replicas, DUAL if chains > 1 else 0)
                size = plan["dp"] * chains // replicas
                rows = [
                    (size, 2 * shares["dp"])
                    if chains > 1 and shares["pp"] >= plan["pp"]
                    else (math.gcd(size, plan["dp"]), shares["dp"])
                    for shares in placed.shares
                ]
                if any(math.gcd(size, share) < min(row, share) for row, share in rows):
                    continue  # units cut shard groups, and not all are placed as the worst one
                # The price takes stages i and p - 1 - i to share a domain or a unit if all stages do, else apart.
                apart = [chains > 1 and shares["pp"] < plan["pp"] for shares in placed.shares]
                for found, group in zip(groups, expected, strict=True):
                    assert found.shape[1] == (int(group.size[0]) if group else 1)
                    if group:
                        shares = [float(tier.share[0]) for tier in group.by_tier]
                        placed.check(found, shares, placed.exact_ep if over_ep else placed.exact, apart)
    assert hybrid > 100


def test_replicas_are_one_of_each_shard_group():
    for placed in placed_plans(4, 20):
        for axes, over_ep in weight_groups(placed):
            replicas = placed.plan["dp"] if not over_ep else 1
            shards, holders = zero_groups(placed.grid, ("dp", *axes), replicas, over_ep)
            whole = placed.grid.group_of(("dp", *axes), over_ep)
            row = np.empty(placed.grid.world, dtype=int)
            row[shards] = np.arange(len(shards))[:, None]
            assert len(shards) == len({*row[holders].ravel().tolist()})
            assert (np.sort(row[holders], axis=1)[:, 1:] != np.sort(row[holders], axis=1)[:, :-1]).all()
            for groups in (shards, holders):
                assert (whole[groups] == whole[groups][:, :1]).all()


def plan_of(order=0, ep=1, ep_nvs=1, **degrees):
    """Degrees as (degree, share)."""
    of_axes = {axis: degrees.get(axis, (1, 1)) for axis in AXES}
    shares = {f"{axis}_nvs": share for axis, (_, share) in of_axes.items()}
    return (
        {axis: degree for axis, (degree, _) in of_axes.items()} | shares | {"order": order, "ep": ep, "ep_nvs": ep_nvs}
    )


def test_ranks_by_hand():
    """Two domains of four: tp inside, then half of dp; stages last or before the replicas."""
    grid = rank_grid(plan_of(tp=(2, 2), dp=(4, 2), pp=(2, 1)), 8)
    assert grid.ranks_per_domain == 4 and grid.world == 16
    assert grid.groups(("tp",))[:2].tolist() == [[0, 1], [2, 3]]
    assert grid.groups(("dp",))[:2].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert grid.groups(("pp",))[0].tolist() == [0, 8]
    assert grid.coordinates(7) == {"tp": 1, "tp2": 0, "cp": 0, "dp": 3, "pp": 0, "ep": 0}
    other = rank_grid(plan_of(tp=(2, 2), dp=(4, 2), pp=(2, 1), order=ORDERS.index("tp-cp-ep-pp-dp")), 8)
    assert other.groups(("dp",))[0].tolist() == [0, 2, 8, 10]
    assert other.stage_peer(9, 1) == 13 and other.stage_peer(13, 1) == 13
    # An ep group takes both tp ranks and two replicas of a domain; dp and tp hold the same experts in both domains.
    grid = rank_grid(plan_of(tp=(2, 2), dp=(4, 2), ep=4, ep_nvs=4), 8)
    assert grid.groups(("ep",)).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grid.groups(("dp", "tp"), over_ep=True).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    sharded = rank_grid(plan_of(tp=(2, 2), dp=(4, 2), ep=4, ep_nvs=2), 8, expert_axes=("tp",))
    assert sharded.groups(("ep",)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # Six ranks in a domain and groups of four: the second one has two in each.
    grid = rank_grid(plan_of(dp=(12, 6), ep=4, ep_nvs=2), 8)
    rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert grid.groups(("ep",)).tolist() == rows
    shards, replicas = zero_groups(grid, ("dp",), 3)
    assert shards.tolist() == rows
    assert replicas.tolist() == [[place, place + 4, place + 8] for place in range(4)]
    # Two chains reduce together.
    grid = rank_grid(plan_of(dp=(2, 2), pp=(4, 1)), 8)
    assert grid.groups(("dp",), chains=2).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert zero_groups(grid, ("dp",), 2, chains=2).shards.tolist() == [[0, 1], [2, 3], [6, 7], [4, 5]]
    both = rank_grid(plan_of(dp=(4, 2), pp=(2, 2)), 4)
    assert zero_groups(both, ("dp",), 2, chains=2).shards.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]  # a domain each
    assert zero_groups(both, ("dp",), 4, chains=2).replicas.tolist() == [[0, 4, 2, 6], [1, 5, 3, 7]]
    alone = rank_grid(plan_of(dp=(2, 2)), 8)
    assert alone.groups(("dp",), chains=2).tolist() == [[0, 1]]


def test_what_is_no_group():
    grid = rank_grid(plan_of(tp=(2, 2), cp=(2, 2), dp=(4, 1), pp=(3, 1), ep=8, ep_nvs=4), 8)
    for fails, cause in (
        (lambda: grid.rank(ep=1), "ep=1 is no place of a rank"),
        (lambda: grid.rank(tp=2), "tp=2 is no place"),
        (lambda: grid.stage_peer(0, 3), "pp=3 is no place"),
        (lambda: grid.groups(("dp", "ep")), "no groups over dp, ep: ep"),
        (lambda: grid.groups(("dp", "cp"), over_ep=True), "span tp too"),
        (lambda: grid.groups(("dp",), chains=2), "3 stages do not pair up in 2 chains"),
        (lambda: zero_groups(grid, ("cp",)), "reduced over dp too, not over cp alone"),
        (lambda: zero_groups(grid, ("dp",), 3), "zero_replicas=3 does not divide 4 data-parallel ranks"),
        (lambda: zero_groups(grid, ("dp", "tp", "cp"), 4, over_ep=True), "does not divide the 2 ranks that hold"),
    ):
        with pytest.raises(ValueError, match=cause):
            fails()
    with pytest.raises(PlanError, match=r"nvs\.tp=3 does not divide tp=5"):
        rank_grid(plan_of(tp=(5, 3)), 8)
    with pytest.raises(PlanError, match="ep=3 does not divide the 4 ranks"):
        rank_grid(plan_of(dp=(4, 1), ep=3), 8)


def test_ranks_of_uneven_groups_follow_each_other():
    grid = rank_grid(plan_of(tp=(4, 4), dp=(5, 2)), 8)  # domains of 8, 8 and 4 ranks
    assert grid.ranks_per_domain == 8
    assert grid.groups(("dp",)).tolist() == [[first, *range(first + 4, 20, 4)] for first in range(4)]
    free = rank_grid(plan_of(tp=(16, 16), dp=(18, 4)), 72)  # 8 GPUs of each domain are left to others
    assert free.ranks_per_domain == 64
    straddling = rank_grid(plan_of(tp=(16, 8), dp=(18, 5)), 72)
    assert straddling.ranks_per_domain == 72
    assert straddling.groups(("tp",))[4].tolist() == [*range(64, 80)]
    experts = rank_grid(plan_of(dp=(10, 4), ep=5), 4)
    assert experts.groups(("ep",)).tolist() == [[*range(5)], [*range(5, 10)]]
    # The 24 ranks of cp=3 dp=8 hold halves of the experts in turn, and are two replicas of 12 consecutive ranks.
    grid = rank_grid(plan_of(cp=(3, 2), dp=(8, 3), ep=2, ep_nvs=2), 8)
    shards, replicas = zero_groups(grid, ("dp", "tp", "cp"), 2, over_ep=True)
    assert shards.tolist() == [[*range(first, first + 12, 2)] for first in (0, 1, 12, 13)]
    assert replicas.tolist() == [[first, first + 12] for first in range(12)]


def test_large_jobs_are_quick():
    start = time.process_time()
    plan = plan_of(tp=(8, 8), cp=(4, 1), dp=(64, 1), pp=(16, 1), ep=32)
    grid = rank_grid(plan, 8, ("tp",), (4, 32))
    assert grid.world == 32_768
    for axis in (*AXES, "ep"):
        grid.groups((axis,))
    zero_groups(grid, ("dp", "cp"), 2, over_ep=True, chains=2)
    assert time.process_time() - start < 0.3
