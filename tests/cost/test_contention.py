"""Axes that contend for an oversubscribed tier, by hand: overlap stops while the layer itself uses the tier."""

from dataclasses import replace

import numpy as np
import pytest
from cost.records import WORKLOAD, choices, layer_costs, machine, make_assumptions

from dsx.config.cluster_file import Network, Tier
from dsx.cost.groups import crosses, group, may_contend
from dsx.cost.step import step_costs

NVS, LEAF, SPINE = Tier(8e11, 1e-6, "nvs", 8), Tier(1e11, 1e-5, "leaf", 32), Tier(2.5e10, 1e-5, "spine", 0)
TREE, FULL = (Network(tiers=(NVS, LEAF, replace(SPINE, bandwidth=bandwidth))) for bandwidth in (2.5e10, 1e11))
CONTENDED = (0.004, 0.006, 0.007, 0.010)  # s, of the forward, and of the backward for each mode of recomputation
NONE = (0.0, 0.0, 0.0, 0.0)


def members(size, *shares):
    return group(*(np.asarray([float(count)]) for count in (size, *shares)))


@pytest.mark.parametrize(
    ("network", "size", "shares", "found"),
    [
        (TREE, 8, (8, 8), 0.0),  # in a domain
        (TREE, 32, (8, 32), 0.0),  # in a leaf
        (TREE, 64, (8, 32), 1.0),
        (TREE, 4, (1, 1), 1.0),
        (FULL, 64, (8, 32), 0.0),
    ],
)
def test_which_groups_cross_an_oversubscribed_tier(network, size, shares, found):
    assert may_contend(network)
    assert float(crosses(members(size, *shares), network)[0]) == found


def test_two_tiers_have_no_contention():
    assert not may_contend(machine().network)


def cost(network, contended=CONTENDED, **made):
    """A reduction of 4 GB over eight replicas, each alone in its leaf, during layers of 10 and 20 ms."""
    placement = {"pp_outer": (np.asarray([1.0]),), "dp_outer": (np.asarray([made.pop("dp_leaf", 1.0)]),)}
    taken = tuple(np.asarray([seconds]) for seconds in contended)
    layer = replace(layer_costs(), contended_s=taken, group_outer=(np.asarray([[1.0]]),))
    plan = replace(choices(**made), **placement)
    cluster = replace(machine(), network=network)
    return step_costs((layer,), plan, WORKLOAD, cluster, make_assumptions(pp_overlap=1.0, protocols=("bulk",)))


def test_a_reduction_and_sends_overlap_with_the_rest_of_a_pass():
    # Two of three layers on a stage overlap; each loses the time of its own collectives in forward and backward.
    found, alone = cost(TREE), cost(TREE, NONE)
    assert float(found.dp_comm_s[0] - alone.dp_comm_s[0]) == pytest.approx(2 * (0.004 + 0.006), rel=1e-9)
    # A reduction that crosses no such tier loses nothing.
    for network, dp_leaf in ((FULL, 1.0), (TREE, 8.0)):
        found, alone = (cost(network, contended, pp=1.0, dp_leaf=dp_leaf) for contended in (CONTENDED, NONE))
        assert float(found.dp_comm_s[0]) == float(alone.dp_comm_s[0])
    # A pass loses at most its own time.
    endless = (1.0, 1.0, 1.0, 1.0)
    gather = 7 * 1e-5 + 7 / 8 * 4e9 / 1.25e10  # at half of the spine's share, by the assumptions
    assert float(cost(TREE, endless).dp_comm_s[0]) == pytest.approx(3 * 2 * gather, rel=1e-9)
    # Sends overlap with the rest of a microbatch.
    # 100 MB forward and backward overlap with 90 ms of three layers, less the time of their collectives.
    send = 2 * (1e-5 + 1e8 / 1.25e10)
    long = (0.014, 0.014, 0.014, 0.014)
    assert send < 0.030
    assert float(cost(TREE, NONE).pp_comm_s[0]) == 0.0
    left = 3 * (0.030 - 2 * 0.014)
    assert float(cost(TREE, long).pp_comm_s[0]) == pytest.approx(6 * (send - left), rel=1e-9)
