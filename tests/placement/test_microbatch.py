"""Graphs of dsx's own layers add up to what the cost model prices, and devices have its links."""

import numpy as np
import pytest
from placement.graphs import without_cycle

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.cost.collectives import send
from dsx.errors import InputError
from dsx.placement.microbatch import from_layers
from dsx.placement.servers import devices_of

CLUSTER = load_cluster("h100-nvs8")


def evaluated(model, assumptions, **more):
    return dsx.evaluate(dsx.Job(model, "h100-nvs8", 1, 1, assumptions=assumptions, **more), tp=1).costs


@pytest.mark.parametrize(
    ("model", "assumptions"),
    [("llama-3-8b", "default"), ("mixtral-8x7b", "default"), ("gpt3-5b", "paper-2410.00273")],
)
def test_operators_add_up_to_the_price_of_the_layers(model, assumptions):
    """The last set prices a launch of operators without work too; the time of the host is left out."""
    # A plan that names no framework is of that of the set, which may have fields of its own.
    spec = dsx.Job(model, "h100-nvs8", 1, 1, assumptions=load_assumptions(assumptions, [("dispatch_latency", "0 us")]))
    spec = spec.run_by(None).assumptions
    graph = from_layers(load_model(model), CLUSTER, spec)
    costs = evaluated(model, spec)
    assert graph.seconds.sum() == pytest.approx(costs["compute_s"] + costs["memory_s"], rel=1e-6)
    assert len({*graph.ids}) == graph.num_ops and without_cycle(graph)
    weights = [op for op, kind in enumerate(graph.kinds) if kind == "weight"]
    state = costs["weight_bytes"] + costs["gradient_bytes"] + costs["optimizer_bytes"]
    assert graph.memory_bytes[weights].sum() == pytest.approx(state, rel=1e-6)
    saved = graph.memory_bytes.sum() - graph.memory_bytes[weights].sum()
    assert 0.8 * costs["activation_bytes"] < saved <= costs["activation_bytes"]


def test_layers_follow_each_other_forward_and_back():
    graph = from_layers(load_model("llama-3-8b"), CLUSTER, load_assumptions("default"), sequence_length=1024)
    at = {name: op for op, name in enumerate(graph.ids)}
    assert (at["embedding.0/x"], at["transformer.1/n1"]) in graph.edges
    assert (at["transformer.1/output"], at["transformer.2/n1"]) in graph.edges
    assert (at["transformer.2/n1 inputs"], at["transformer.1/feed-forward.output inputs"]) in graph.edges
    assert (at["head.33/output"], at["head.33/output inputs"]) in graph.edges
    assert graph.kinds[at["transformer.1/self-attention.attention"]] == "einsum+softmax+einsum"
    # The two gradients of a multiply may run at once, and the second one stays with its weight.
    inputs, weights = (at[f"transformer.1/feed-forward.z {part}"] for part in ("inputs", "weights"))
    assert (inputs, weights) not in graph.edges
    assert graph.together[weights] == graph.together[at["transformer.1/feed-forward.w1"]] != graph.together[inputs]
    longer = from_layers(load_model("llama-3-8b"), CLUSTER, load_assumptions("default"), 1024, microbatch_size=2)
    assert longer.ids == graph.ids and longer.edge_bytes[inputs, at["transformer.1/n2 inputs"]] == (
        2 * graph.edge_bytes[inputs, at["transformer.1/n2 inputs"]]
    )


def test_devices_have_the_links_of_the_cluster():
    assumptions = load_assumptions("default")
    one = devices_of(CLUSTER, assumptions, 8)
    assert one.units == () and len(one.links) == 1 and one.memory_bytes == CLUSTER.device.hbm_capacity
    several = devices_of(CLUSTER, assumptions, 16)
    assert several.units == (8,) and several.links[0] == one.links[0]
    assert several.level[0, 7] == 0 and several.level[7, 8] == 1
    assert several.links[0].bandwidth == pytest.approx(0.78 * 450e9) and several.links[0].latency_s > 0
    assert several.links[1].bandwidth == pytest.approx(0.8 * 50e9)


def test_a_large_transfer_takes_what_the_cost_model_says():
    from dsx.cost.context import assumptions_from_spec
    from dsx.hardware.cluster import cluster_from_spec

    cluster, assumptions = load_cluster("dgx-a100-superpod"), load_assumptions("default")
    network, size = cluster_from_spec(cluster).network, np.array([1e9])
    links = devices_of(cluster, assumptions, network.tiers[-2].size + 1).links
    assert len(links) == len(network.tiers) == 3
    for level, link in enumerate(links):
        shares = [np.array([2.0 if tier >= level else 1.0]) for tier in range(2)]
        expected = send(np.array([2.0]), shares[0], network, assumptions_from_spec(assumptions), shares[1:])(size)
        assert link.seconds(1e9) == pytest.approx(expected[0], rel=0.02)


@pytest.mark.parametrize(("cluster", "count"), [("h100-nvs8", 0), ("h100-spine-leaf", 1025)])
def test_devices_that_a_cluster_has_not(cluster, count):
    with pytest.raises(InputError, match=f"{count} devices of cluster '{cluster}'"):
        devices_of(load_cluster(cluster), load_assumptions("default"), count)
