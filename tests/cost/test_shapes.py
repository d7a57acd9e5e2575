"""Shapes that annotations state are checked in the calls of these tests, also where arrays would broadcast."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from cost.records import WORKLOAD, choices, layer_costs, machine, make_assumptions
from jaxtyping import TypeCheckError
from shapes import check_of, checked

from dsx.cost.groups import group
from dsx.cost.layer import busy_times
from dsx.cost.layer_work import LayerWork, Multiplies, MultiplyShape
from dsx.cost.roofline import per_kernel
from dsx.cost.step import step_costs
from dsx.records import Array, ArrayLike, Float, Int, Over

NO_MULTIPLY = Multiplies(*[np.zeros((0, 3))] * 5)


def work(**changes):
    """Two kernels for three works and as many keys."""
    fields = dict.fromkeys(("matrix", "vector", "bytes", "unfused"), np.ones((2, 2, 3)))
    fields |= dict.fromkeys(("stash", "working", "scattered"), np.ones((3, 3)))
    fields |= dict.fromkeys(("boundary", "panels"), np.ones(3))
    fields |= dict.fromkeys(("volumes", "weights"), np.zeros((0, 3)))
    fields |= {"launches": np.ones((2, 2, 1)), "sizes": {"tp": np.ones(3)}, "shares": {"tp": np.ones(3)}}
    structure = {"shapes": (), "reduced_over": (), "multiply_shapes": (), "modes": ()}
    return replace(LayerWork(multiplies=NO_MULTIPLY, which=None, **fields, **structure), **changes)


def test_a_record_has_one_size_for_an_axis():
    assert busy_times(work(), machine(), make_assumptions())[0].shape == (2, 2, 3)
    # JAX would broadcast it.
    with pytest.raises(TypeCheckError) as caught:
        busy_times(work(unfused=np.ones((2, 2, 1))), machine(), make_assumptions())
    assert str(caught.value).startswith(
        "parameter 'work' of dsx.cost.layer.busy_times: unfused: "
        "the size of dimension works is 1 which does not equal the existing value of 3"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"matrix": np.ones((2, 3))},
        {"matrix": np.ones((2, 2, 3), dtype=int)},
        {"multiplies": replace(NO_MULTIPLY, rows=np.ones((1, 3)))},
        {"sizes": {"tp": np.ones(3), "cp": np.ones(2)}},
        {"outer": ({"tp": np.ones(3)}, {"tp": np.ones(2)})},
        {"which": np.zeros(3)},
    ],
)
def test_all_leaves_of_a_record_count(changes):
    with pytest.raises(TypeCheckError):
        busy_times(work(**changes), machine(), make_assumptions())


def test_arguments_have_one_size_for_an_axis_and_numbers_none():
    shapes = (MultiplyShape(0, 0, True, False, False, False),)
    assert per_kernel(jnp.ones((1, 5)), shapes, 4).shape == (2, 4, 5)
    with pytest.raises(TypeCheckError, match="parameter 'values'"):
        per_kernel(jnp.ones(5), shapes, 4)
    # A step has one shape to which all broadcasts.
    kinds, assumptions = (layer_costs(forward_s=[0.010, 0.020]),), make_assumptions()
    found = step_costs(kinds, choices(), WORKLOAD, machine(), assumptions)
    assert found.step_time_s.shape == (2,)
    three = replace(choices(), num_microbatches=jnp.asarray([6.0, 7.0, 8.0]))
    with pytest.raises(TypeCheckError, match="parameter 'choices'"):
        step_costs(kinds, three, WORKLOAD, machine(), assumptions)
    # One number has no shape.
    assert float(group(8.0, 4.0).domains) == 2.0
    assert float(group(np.float64(8.0), jnp.asarray(4.0)).domains) == 2.0
    with pytest.raises(TypeCheckError, match="parameter 'share'"):
        group(jnp.ones(3), np.ones(2))


class Named(NamedTuple):
    """A record of arrays, and of others of its kind."""

    of_plans: Float[ArrayLike, "*#plans"]
    inner: "tuple[Named, ...]" = ()


@checked
def last(named: Named, pair: tuple[Float[Array, "*plans"], str], *more: Sequence[Float[Array, "*plans"]]):
    """Has annotations of all forms."""
    del named, pair
    return more[-1][-1]


@checked
def doubled(values: Float[Array, "plans"]) -> Float[Array, "plans"]:
    """Does not return what it states."""
    return jnp.concatenate([values, values])


TWO, THREE = np.ones(2), np.ones(3)


def test_every_item_and_result_counts():
    assert last(Named(1.0, (Named(TWO),)), (TWO, ""), [TWO], [TWO, TWO]).shape == (2,)
    for wrong in [
        (Named(THREE), (TWO, ""), [TWO]),
        (Named(1.0, (Named(TWO), Named(THREE))), (TWO, ""), [TWO]),
        (Named(TWO), (THREE, ""), [TWO]),
        (Named(TWO), (TWO, "", ""), [TWO]),
        (Named(TWO), (TWO, ""), [TWO], [TWO, TWO, THREE]),
        (TWO, (TWO, ""), [TWO]),
    ]:
        with pytest.raises(TypeCheckError):
            last(*wrong)
    # Results are checked.
    with pytest.raises(TypeCheckError, match=r"return value of .*doubled"):
        doubled(TWO)
    # What states no shape is not looked at.
    assert check_of(int) is check_of(str | None) is check_of(tuple[int, ...]) is check_of(MultiplyShape) is None
    assert check_of(Int[Array, "keys"] | None)(None) == ""


Plain = Over[Named, "points ... keys"]


@checked
def over(
    table: tuple[Plain, ...], plans: Named, apart: list[Over[Named, "..."]], also: Over[Named, "... plans=points"]
) -> Float[Array, "points keys"]:
    """Has records over other axes than they state."""
    del plans, apart, also
    return table[0].of_plans


def test_records_over_other_axes():
    table = (Named(np.ones((2, 3))),)
    assert over((*table, *table), Named(np.ones(4)), [Named(THREE), Named(TWO)], Named(TWO)).shape == (2, 3)
    for wrong in [
        ((*table, Named(np.ones((2, 2)))), Named(TWO), [], Named(TWO)),
        ((Named(THREE),), Named(TWO), [], Named(TWO)),
        (table, Named(TWO, (Named(THREE),)), [], Named(TWO)),
        (table, Named(TWO), [Named(TWO, (Named(THREE),))], Named(TWO)),
        (table, Named(TWO), [], Named(THREE)),
    ]:
        with pytest.raises(TypeCheckError):
            over(*wrong)
