"""Hybrid sharding by hand: ZeRO divides over a part of the data-parallel ranks; replicas of a shard are reduced."""

import itertools
import math
import random
from dataclasses import replace

import jax
import numpy as np
import pytest
from cost.records import WORKLOAD, choices, layer_costs, step_plans
from cost.test_step import GATHER, close, cost

from dsx.config.cluster_file import Network, Tier
from dsx.cost.shards import dp_groups, weight_shards
from dsx.plans.enumerate import SearchedCodes
from dsx.plans.placement import (
    divisors,
    expert_share,
    nearest_share,
    rank_order_shares,
    rank_placement,
    replicas_spanned,
    units_spanned,
    used_of_domain,
)
from dsx.plans.ranks import rank_grid, zero_groups
from dsx.schedules.schedules import SCHEDULES


def sharded(replicas, stage=1, layer=None, **changes):
    """Eight data-parallel ranks, `replicas` of what ZeRO divides."""
    made = choices(**{"zero_replicas": float(replicas), "zero_stage": float(stage), **changes})
    searched = SearchedCodes(zero_replicas=(1, 2, 4, 8), zero_stage=(stage,))
    return cost(layer, made, replace(WORKLOAD, searched=searched))


def of_all(stage, layer=None, **changes):
    """The same without replicas of shards, in a search that has none."""
    made = choices(zero_stage=float(stage), **changes)
    return cost(layer, made, replace(WORKLOAD, searched=SearchedCodes(zero_stage=(stage,))))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_replica_is_plain_zero(stage):
    assert sharded(1, stage) == pytest.approx(of_all(stage), rel=1e-12, nan_ok=True)


# Of eight data-parallel ranks, each alone in its domain, two hold each shard of 1 GB of the 4 GB.
SCATTER = 3 * 10e-6 + 3 / 4 * 4e9 / 50e9  # over four ranks: 60.03 ms
AMONG_REPLICAS = 2 * (10e-6 + 1 / 2 * 1e9 / 50e9)  # all-reduce of 1 GB over two: 20.02 ms


def test_scatters_in_the_shard_group_and_reductions_among_replicas():
    # Three layers; the last one overlaps with nothing; 10 ms forward, 20 ms backward.
    last = SCATTER + AMONG_REPLICAS
    assert sharded(2)["dp_comm_s"] == close(SCATTER + 2 * (SCATTER - 0.010) + last + 2 * (last - 0.020))
    # In stage 2 every microbatch scatters, in stage 3 it gathers too; only the last one reduces among replicas.
    found = sharded(2, 2)["dp_comm_s"]
    assert found == close(SCATTER + 2 * (SCATTER - 0.010) + 0.020 + 5 * 3 * (SCATTER - 0.020) + 3 * (last - 0.020))
    found = sharded(2, 3)["dp_comm_s"]
    gathers = 0.010 + 6 * 3 * (SCATTER - 0.010)
    assert found == close(gathers + 0.020 + 5 * 3 * (2 * SCATTER - 0.020) + 3 * (SCATTER + last - 0.020))
    # Overlapped collectives are not counted.
    layer = layer_costs(forward_s=[1.0], backward_s=[1.0])
    assert sharded(2, layer=layer)["dp_comm_s"] == close(2 * SCATTER + AMONG_REPLICAS)
    # Memory and update of a shard group.
    found = sharded(2)
    assert found["optimizer_bytes"] == close(3 * 2e9 * 12 / 4)
    assert found["weight_bytes"] == close(3 * 4e9)
    found = sharded(4, 3)
    assert found["weight_bytes"] == close(3 * 4e9 / 2 + 2 * 4e9)
    assert found["gradient_bytes"] == close(3 * 4e9 / 2)


@pytest.mark.parametrize("dp_nvs", [1.0, 2.0, 8.0])
def test_as_many_replicas_as_ranks_reduce_as_without_zero(dp_nvs):
    """Nothing is divided, so stage 1 all-reduces and has the memory of stage 0."""
    whole, replicated = of_all(0, dp_nvs=dp_nvs), sharded(8, 1, dp_nvs=dp_nvs)
    assert replicated == pytest.approx(whole, rel=1e-12, nan_ok=True)


def test_weights_that_see_a_part_of_the_sequence_are_still_divided_over_its_ranks():
    layer = layer_costs(group_size=[[4.0]], group_share=[[4.0]])
    whole, replicated = of_all(0, layer), sharded(8, 1, layer)
    assert replicated["optimizer_bytes"] == close(whole["optimizer_bytes"] / 4)
    assert replicated["dp_comm_s"] != pytest.approx(whole["dp_comm_s"], rel=1e-3)


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_memory_never_grows_with_the_stage(replicas):
    """On a stage of twelve layers: with few layers, two gathered ones would need more."""
    peaks = [sharded(replicas, stage, pp=1.0)["peak_bytes"] for stage in ((0, 1, 2, 3) if replicas == 1 else (1, 2))]
    assert peaks == sorted(peaks, reverse=True)


def test_more_replicas_never_need_less_memory_and_stage_zero_has_none():
    for stage in (1, 2, 3):
        peaks = [sharded(replicas, stage)["peak_bytes"] for replicas in (1, 2, 4, 8)]
        assert peaks == sorted(peaks)
    # A plan that breaks the rule is priced as an all-reduce of all gradients.
    assert sharded(4, 0) == pytest.approx(of_all(0), rel=1e-12, nan_ok=True)
    # Without replicas the shard group is all of dp.
    found = dp_groups(step_plans(choices(), SearchedCodes()))
    assert found.replicas is None
    assert np.array_equal(found.shard.size, choices().dp)
    assert GATHER > SCATTER


@pytest.mark.parametrize(
    ("dp", "dp_nvs", "replicas", "shard", "among"),
    [
        (8, 1, 2, (4, 1), (2, 1)),
        (8, 4, 2, (4, 4), (2, 1)),  # a shard group fills a domain
        (8, 4, 4, (2, 2), (4, 2)),  # two shard groups in a domain
        (8, 8, 8, (1, 1), (8, 8)),
        (12, 4, 2, (6, 2), (2, 1)),  # six ranks in a row: four and two, then two and four
    ],
)
def test_groups_fill_fast_domains_first(dp, dp_nvs, replicas, shard, among):
    made = choices(dp=float(dp), dp_nvs=float(dp_nvs), zero_replicas=float(replicas))
    found = dp_groups(step_plans(made, SearchedCodes(zero_replicas=(replicas, 1))))
    for group, (size, share) in zip((found.shard, found.replicas), (shard, among), strict=True):
        assert group is not None
        assert (float(group.size[0]), float(group.share[0])) == (size, share)


@pytest.mark.parametrize(
    ("cp", "cp_nvs", "ep", "ep_nvs", "dp_nvs", "replicas", "shard", "among"),
    [
        (1, 1, 8, 8, 8, 2, (1, 1), (2, 1)),  # the two holders are replicas, one in each domain
        (1, 1, 2, 2, 8, 2, (4, 4), (2, 1)),
        (1, 1, 2, 2, 8, 4, (2, 2), (4, 2)),
        (2, 2, 4, 4, 4, 2, (4, 2), (2, 1)),
        (2, 1, 8, 8, 8, 4, (1, 1), (4, 1)),  # an ep group fills the domain of four shards
        (2, 2, 1, 1, 4, 8, (4, 4), (8, 2)),
    ],
)
def test_experts_are_divided_over_the_ranks_that_hold_them(cp, cp_nvs, ep, ep_nvs, dp_nvs, replicas, shard, among):
    """Sixteen data-parallel replicas of cp ranks; ep ranks hold different experts."""
    made = choices(dp=16.0, dp_nvs=float(dp_nvs), zero_replicas=float(replicas))
    searched = SearchedCodes(zero_replicas=(replicas, 1), ep=())
    layer = layer_costs(group_size=[[float(cp)]], group_share=[[float(cp_nvs)]], group_ep=[[float(ep)]])
    plans = step_plans(made, searched)
    shards, replica_groups = weight_shards(layer, dp_groups(plans), plans)
    assert (float(shards[0].size[0]), float(shards[0].share[0])) == shard
    assert (float(replica_groups[0].size[0]), float(replica_groups[0].share[0])) == among
    assert float(shards[0].per_gpu[0]) == 1 / shard[0]


DEGREES = [*itertools.product((1, 2, 3), (2, 3, 5, 6, 12), (2, 3, 4, 5, 7), (1, 2))]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", [4, 6, 8])
@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("order", [0, 1])
def test_ranks_over_dp_and_cp_lie_as_they_are_numbered(size, chains, order):
    """Counted rank by rank: no group spans more domains than the priced one, or has fewer members in one."""
    exact = joint = 0
    for tp, cp, dp, pp in DEGREES:
        world = tp * cp * dp * pp
        degrees = {"tp": tp, "tp2": 1, "cp": cp} | ({"dp": dp, "pp": pp} if order == 0 else {"pp": pp, "dp": dp})
        shares = {axis: int(share) for axis, share in rank_order_shares(degrees, size, world).items()}
        used = used_of_domain(degrees, shares, size)
        if world <= size or used is None or pp % chains:
            continue
        columns = columns_of(degrees, shares)
        if all(degrees[axis] % shares[axis] == 0 for axis in degrees):
            continue
        grid = rank_grid(columns | {"order": order, "ep": 1, "ep_nvs": 1}, size)
        for replicas in divisors(dp).tolist():
            members = zero_groups(grid, ("dp", "cp"), replicas, chains=chains)
            for found, groups in zip(of_cp_and_dp(columns, size, order, replicas, chains), members, strict=True):
                counts = [np.unique(group // used, return_counts=True)[1] for group in groups]
                crossed, least = max(map(len, counts)), min(each.min() for each in counts)
                assert found.size == groups.shape[1]
                assert found.domains >= crossed
                assert found.share <= least
                if replicas == 1 or (pp == 1 and replicas <= 4):
                    most = min(max(each.max() for each in counts), found.size - (crossed - 1) * least)
                    share = nearest_share(*map(np.array, (found.size, crossed, least, most)))
                    over, rest = units_spanned(found.size, share)
                    assert found.share == rest
                    assert pp > chains or found.domains == over
                    exact += 1
                    joint += shares["cp"] < cp and shares["dp"] < dp
    assert exact > 20
    assert joint > 10


@pytest.mark.parametrize(
    ("dp", "dp_nvs", "pp", "replicas", "shard", "among"),
    [
        (4, 3, 1, 1, (12, 2, 4), (1, 1, 1)),  # eight ranks in one domain, four in the other
        (4, 3, 1, 2, (6, 2, 2), (2, 2, 1)),  # ranks 0 to 5, and 6 to 11 of which two are in the first domain
        (4, 3, 2, 1, (24, 3, 8), (1, 1, 1)),  # two chains: both stages
        (4, 3, 2, 2, (12, 2, 4), (2, 2, 1)),  # each chain is a shard group
    ],
)
def test_a_domain_that_cuts_groups_of_cp(dp, dp_nvs, pp, replicas, shard, among):
    """Domains of eight, cp=3 inside dp=4."""
    degrees = {"tp": 1, "tp2": 1, "cp": 3, "dp": dp, "pp": pp}
    columns = columns_of(degrees, {"tp": 1, "tp2": 1, "cp": 2, "dp": dp_nvs, "pp": 1})
    found = of_cp_and_dp(columns, 8, 0, replicas, chains=pp)
    assert [(float(each.size), float(each.domains), float(each.share)) for each in found] == [shard, among]


def test_chains_and_experts_that_domains_cut():
    """Domains of eight, four stages of three replicas: 0 3 4 7 and 8 11, or 1 2 5 6 and 9 10."""
    degrees = {"tp": 1, "tp2": 1, "cp": 1, "pp": 4, "dp": 3}
    columns = columns_of(degrees, {"tp": 1, "tp2": 1, "cp": 1, "pp": 4, "dp": 2})
    found, _ = of_cp_and_dp(columns, 8, 1, chains=2)
    assert (found.size, found.domains, found.share) == (6, 2, 2)
    # Domains of eight, cp=3 dp=8 ep=2: half of 24 ranks hold the same experts, six of each half of the replicas.
    columns = columns_of({"tp": 1, "tp2": 1, "cp": 3, "dp": 8, "pp": 1}, {"tp": 1, "tp2": 1, "cp": 2, "dp": 3, "pp": 1})
    found = of_cp_and_dp(columns, 8, 0, replicas=2, ep=2)
    assert [(float(each.size), float(each.domains), float(each.share)) for each in found] == [(6, 2, 2), (2, 2, 1)]


@pytest.mark.parametrize("chains", [1, 2])
def test_weights_of_the_end_stages_are_reduced_where_these_lie(chains):
    """Domains of eight cut no cp groups of the first and of the last of four stages, but those of the others."""
    degrees = {"tp": 1, "tp2": 1, "cp": 3, "pp": 4, "dp": 4}
    columns = columns_of(degrees, {"tp": 1, "tp2": 1, "cp": 2, "pp": 3, "dp": 1})
    whole, _ = of_cp_and_dp(columns, 8, 1, chains=chains, at_ends=True)
    anywhere, _ = of_cp_and_dp(columns, 8, 1, chains=chains)
    assert (whole.size, whole.domains, whole.share) == (12 * chains, 4 if chains == 1 else 8, 3)
    assert anywhere.share == chains


@pytest.mark.parametrize(("tp", "dp", "size"), [(1, 20, 72), (1, 8, 18), (4, 8, 72)])
def test_a_group_of_all_replicas_lies_the_same_in_any_search(tp, dp, size):
    """Whether the search has replicas of shards too, so that ranks are counted, or not."""
    degrees = {"tp": tp, "tp2": 1, "cp": 1, "dp": dp, "pp": 6}
    shares = {axis: int(share) for axis, share in rank_order_shares(degrees, size, tp * dp * 6).items()}
    columns = columns_of(degrees, shares)
    counted, *_ = of_cp_and_dp(columns, size, 0, replicas=1)
    made = choices(dp=float(dp), dp_nvs=float(shares["dp"]))
    alone = dp_groups(step_plans(made, SearchedCodes())).shard
    assert (counted.domains, counted.share) == (alone.domains.item(), alone.share.item())


def drawn_layouts(rng, count):
    """Degrees, shares, and the GPUs of a domain and how many of them are used: ranks in order, or any even shares."""
    found = []
    while len(found) < count:
        degrees = {"tp": rng.choice([1, 2, 4]), "tp2": 1, "cp": rng.choice([1, 1, 2, 3])}
        degrees |= {"dp": rng.choice([4, 6, 8, 9, 12, 16, 20, 24, 36, 48, 128]), "pp": rng.choice([1, 2, 3, 4])}
        size, world = rng.choice([4, 6, 8, 18, 72]), math.prod(degrees.values())
        shares = {axis: int(share) for axis, share in rank_order_shares(degrees, size, world).items()}
        if rng.random() < 0.5:
            shares = {axis: rng.choice(divisors(degree).tolist()) for axis, degree in degrees.items()}
        used = used_of_domain(degrees, shares, size)
        if used is not None and math.prod(shares.values()) <= size < world:
            found.append((columns_of(degrees, shares), size, used))
    return found


@pytest.mark.slow
def test_experts_lie_as_they_are_numbered():
    """Counted rank by rank, where domains cut ep groups, shard groups or neither: none is priced as placed better."""
    rng, straddling, hybrid = random.Random(1), 0, 0
    for columns, size, used in drawn_layouts(rng, 300):
        nested = columns["cp"] * columns["dp"]
        columns |= {"order": 0, "ep": rng.choice(divisors(nested).tolist()[1:])}
        columns["ep_nvs"] = int(expert_share(columns, ("tp",), size))
        grid = rank_grid(columns, size, ("tp",))
        in_domains = [np.unique(group // used, return_counts=True)[1] for group in grid.groups(("ep",))]
        assert columns["ep_nvs"] <= min(counts.min() for counts in in_domains)
        replicas, chains = rng.choice(divisors(columns["dp"]).tolist()), rng.choice([1, 2])
        if columns["dp"] % (replicas_spanned(columns, ("tp",)) * replicas) or columns["pp"] % chains:
            continue
        straddling += grid.ep_in_a_row
        hybrid += replicas > 1
        members = zero_groups(grid, ("dp", "cp"), replicas, True, chains)
        priced = of_cp_and_dp(columns, size, 0, replicas, chains, columns["ep"])
        for found, groups in zip(priced, members, strict=True):
            in_domains = [np.unique(group // used, return_counts=True)[1] for group in groups]
            assert found.size == groups.shape[1]
            assert found.domains >= max(map(len, in_domains)), (columns, size, replicas, chains)
            assert found.share <= min(counts.min() for counts in in_domains), (columns, size, replicas, chains)
    assert straddling > 30
    assert hybrid > 50


def columns_of(degrees, shares):
    return {**degrees, **{f"{axis}_nvs": share for axis, share in shares.items()}}


def of_cp_and_dp(columns, size, order, replicas=1, chains=1, ep=1, at_ends=False):
    """The shard group and the replica group of the weights of a layer that cp does not divide.

    Of experts, if ep is above 1.
    """
    numbers = {name: float(columns[name]) for name in ("pp", "pp_nvs", "dp", "dp_nvs")}
    (schedule, *_) = [code for code, one in enumerate(SCHEDULES) if one.holds.num_chains == chains]
    world = math.prod(columns[axis] for axis in ("tp", "tp2", "cp", "dp", "pp"))
    made = choices(
        **numbers, num_gpus=float(world), order=float(order), zero_replicas=float(replicas), schedule=float(schedule)
    )
    searched = SearchedCodes(zero_replicas=(1, replicas), schedule=(schedule,), zero_stage=(1,), ep=(ep,))
    keys = {name: np.array([value]) for name, value in columns.items()}
    layer = layer_costs(
        group_size=[[float(columns["cp"])]], group_share=[[float(columns["cp_nvs"])]], group_ep=[[float(ep)]]
    )
    layer = replace(layer, rank_placement=rank_placement(keys, network(size)))
    plans = step_plans(made, searched)
    found = weight_shards(layer, dp_groups(plans), plans, at_ends)
    return [jax.tree.map(lambda leaf: leaf.item(), groups[0]) for groups in found]


def network(size):
    return Network((Tier(1e11, 1e-6, "nvs", size), Tier(1e9, 1e-6, "net", 0)))
