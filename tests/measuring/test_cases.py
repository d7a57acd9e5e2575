"""Kernels to time: those that a file of operator times can hold, with the sizes that a GPU has."""

import numpy as np
import pytest
from measuring.layers import ASSUMED, cases, keys, model

from dsx.cost.measured_kernels import measurable
from dsx.measuring.cases import in_turn
from dsx.measuring.program import attention_of


def test_they_are_the_kernels_that_can_be_looked_up():
    table = keys((1, 2), microbatch_size=(1, 3))
    wanted = {
        (one.name, one.direction if one.multiply is None else None, tuple(map(int, sizes)), one.element_bytes)
        for layer in model("rotary", "gated").kinds
        for one in measurable(layer, model("rotary", "gated").dimensions, ASSUMED, 16, table)
        for sizes in one.shapes.T
    }
    found = cases("rotary", "gated", tp=(1, 2), microbatch_size=(1, 3))
    assert {case.key for case in found} == wanted
    assert len(found) == len(wanted)


def test_a_program_has_the_local_sizes_of_its_plan():
    (attention,) = (case for case in cases(tp=(2,)) if (case.operator, case.direction) == ("attention", 0))
    program = attention.program
    # b, s, g, j, k: one of two key-value heads, with two query heads each.
    assert {operand.shape for operand in program.inputs} == {(1, 16, 1, 2, 8), (1, 16, 1, 8)}
    assert attention.shape == (32, 16, 8, 1)
    assert [program.values[position].shape for position in program.outputs] == [(1, 16, 1, 2, 8)]
    assert attention_of(program).causal
    assert attention.fault == ""


def test_the_flops_of_a_multiply_are_those_of_its_sizes():
    found = [case for case in cases() if case.direction is None]
    for case in found:
        m, n, k, batch = case.shape
        assert case.flops == 2 * m * n * k * batch
        assert case.program is None and case.dtype == "bf16"
    assert (16, 64, 32, 1) in {case.shape for case in found}


@pytest.mark.parametrize(("cp", "fault"), [(2, "a causal mask of a part of the positions"), (1, "")])
def test_a_mask_that_a_rank_has_a_part_of_is_left_out(cp, fault):
    found = cases(strategy="2d", cp=(cp,))
    assert {case.fault for case in found if case.operator == "attention"} == {fault}


def test_a_mask_of_another_kind_is_left_out():
    found = cases("window", sizes={"window": 4})
    assert {case.fault for case in found if case.operator == "attention"} == {"a mask of the kind 'window'"}


def test_they_come_in_turn_and_the_heavier_ones_of_an_operator_first():
    ordered = in_turn(cases("gated", microbatch_size=(1, 2, 4)))
    by_operator = {}
    for place, case in enumerate(ordered):
        by_operator.setdefault((case.operator, case.direction), []).append((place, case))
    for queue in by_operator.values():
        assert all(np.diff([case.flops for _, case in queue]) <= 0)
        assert all(np.diff([case.num_bytes for _, case in queue if not case.flops]) <= 0)
    # Each operator has begun before any is half done.
    first = max(queue[0][0] for queue in by_operator.values())
    assert all(first <= queue[len(queue) // 2][0] for queue in by_operator.values() if len(queue) > 3)
