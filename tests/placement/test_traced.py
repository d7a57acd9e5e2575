"""Traced steps and microbatches of models as graphs of operators."""

import random

import numpy as np
import pytest
from placement.graphs import without_cycle

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.cost.collectives import send
from dsx.errors import InputError
from dsx.placement.servers import devices_of
from dsx.placement.steps import from_layers
from dsx.placement.traced import TracedMultiply, TracedOperator, TracedStep, fused, graph_of_step, pricing_of

PRICING = pricing_of("h100-nvs8", "default")


def traced(*operators, elements=1000, outputs=()):
    """A step of (role, inputs), each with one result: that of operator n has number n + 1; tensor 0 is given."""
    made = [
        TracedOperator(
            id=f"{role}.{at}",
            kind=role,
            role="alone" if role == "multiply" else role,
            inputs=tuple(inputs),
            outputs=(at + 1,),
            read_bytes=(4000.0,) * len(inputs),
            written_bytes=4000.0,
            elements=elements,
            multiplies=(TracedMultiply(10, 10, 10, 1, 2000.0),) if role == "multiply" else (),
        )
        for at, (role, inputs) in enumerate(operators)
    ]
    return TracedStep(tuple(made), (4000.0,) * (len(made) + 1), {0: "input"}, frozenset(outputs or [len(made)]))


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        # A chain is one kernel, which ends with a reduction.
        ([("elementwise", [0]), ("elementwise", [1]), ("reduction", [2]), ("elementwise", [3])], [(0, 1, 2), (3,)]),
        # A kernel of its own stays alone.
        ([("elementwise", [0]), ("alone", [1]), ("elementwise", [2])], [(0,), (1,), (2,)]),
        # The transpose of a product is part of the multiply, unless something else reads the product.
        ([("multiply", [0]), ("transpose", [1]), ("elementwise", [2])], [(0, 1), (2,)]),
        ([("multiply", [0]), ("transpose", [1]), ("elementwise", [1, 2])], [(0,), (1, 2)]),
        # A path around keeps operators apart: 0 -> 2 and 0 -> 1 -> 2, where 1 is a kernel of its own.
        ([("elementwise", [0]), ("alone", [1]), ("elementwise", [1, 2])], [(0,), (1,), (2,)]),
        # A spread that a kernel of its own reads is in memory.
        ([("spread", [0]), ("view", [1]), ("alone", [2]), ("elementwise", [2, 3])], [(0,), (2,), (3,)]),
    ],
)
def test_what_is_fused(operators, expected):
    assert [kernel.members for kernel in fused(traced(*operators)).kernels] == expected


def test_kernels_names_readers_and_views():
    graph = graph_of_step(traced(("multiply", [0]), ("transpose", [1]), ("elementwise", [2])), PRICING)
    assert graph.ids == ("input", "multiply.0", "elementwise.2") and graph.kinds[1] == "multiply"
    # Readers of one tensor are one kernel with several results.
    step = traced(("elementwise", [0]), ("elementwise", [1]), ("reduction", [1]), outputs=[2, 3])
    (kernel,) = fused(step).kernels
    assert kernel.members == (0, 1, 2) and kernel.reads == (0,) and kernel.writes == (2, 3)
    # Views and spreads are read through.
    step = traced(("view", [0]), ("spread", [1]), ("spread", []), ("elementwise", [2, 3]))
    (kernel,) = fused(step).kernels
    assert kernel.members == (3,) and kernel.reads == (0,)


@pytest.mark.parametrize("seed", range(20))
def test_drawn_steps_have_every_operator_once_and_no_cycle(seed):
    rng = random.Random(seed)
    roles = ["view", "part", "spread", "elementwise", "elementwise", "elementwise", "reduction", "alone"]
    operators = [
        (rng.choice(roles), sorted({rng.randrange(at + 1) for _ in range(rng.choice([1, 1, 2, 3]))})[: at + 1])
        for at in range(60)
    ]
    operators = [(role, inputs[:1] if role in ("view", "part", "spread") else inputs) for role, inputs in operators]
    step = traced(*operators, outputs=range(1, 61))
    found = fused(step)
    run = [op for kernel in found.kernels for op in kernel.members]
    assert sorted(run) == [at for at, (role, _) in enumerate(operators) if role not in ("view", "part")]
    assert without_cycle(graph_of_step(step, PRICING))
    made = {0}
    for kernel in found.kernels:
        assert made.issuperset(found.part_of.get(tensor, tensor) for tensor in kernel.reads)
        made.update(kernel.writes)
    assert fused(step) == found


CLUSTER = load_cluster("h100-nvs8")


def evaluated(model, assumptions, **more):
    return dsx.evaluate(dsx.Job(model, "h100-nvs8", 1, 1, assumptions=assumptions, **more), tp=1).costs


@pytest.mark.parametrize(
    ("model", "assumptions"), [("llama-3-8b", "default"), ("mixtral-8x7b", "default"), ("gpt3-5b", "paper-2410.00273")]
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


def test_links_and_transfers_are_those_of_the_cluster():
    assumptions = load_assumptions("default")
    one = devices_of(CLUSTER, assumptions, 8)
    assert one.units == () and len(one.links) == 1 and one.memory_bytes == CLUSTER.device.hbm_capacity
    several = devices_of(CLUSTER, assumptions, 16)
    assert several.units == (8,) and several.links[0] == one.links[0]
    assert several.level[0, 7] == 0 and several.level[7, 8] == 1
    assert several.links[0].bandwidth == pytest.approx(0.78 * 450e9) and several.links[0].latency_s > 0
    assert several.links[1].bandwidth == pytest.approx(0.8 * 50e9)
    # A large transfer takes what the cost model says.
    from dsx.config.cluster_file import cluster_from_spec
    from dsx.cost.context import assumptions_from_spec

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
