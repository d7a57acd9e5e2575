"""Kernels of traced operators: every operator once, no cycles, and what XLA would fuse."""

import random

import pytest
from placement.graphs import without_cycle

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


def test_a_kernel_is_named_after_its_multiply():
    graph = graph_of_step(traced(("multiply", [0]), ("transpose", [1]), ("elementwise", [2])), PRICING)
    assert graph.ids == ("input", "multiply.0", "elementwise.2") and graph.kinds[1] == "multiply"


def test_readers_of_one_tensor_are_one_kernel_with_several_results():
    step = traced(("elementwise", [0]), ("elementwise", [1]), ("reduction", [1]), outputs=[2, 3])
    (kernel,) = fused(step).kernels
    assert kernel.members == (0, 1, 2) and kernel.reads == (0,) and kernel.writes == (2, 3)


def test_views_and_spreads_are_read_through():
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
