"""Measured times replace the roofline: those of the same shape exactly, others by interpolation."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cost.records import machine, make_assumptions

from dsx.config.assumption_set import load_assumptions
from dsx.config.operator_files import OperatorTime, OperatorTimes
from dsx.cost.layer import busy_times, layer_costs
from dsx.cost.layer_work import MeasuredTimes, layer_work
from dsx.cost.measured_kernels import (
    EXACT,
    EXTRAPOLATED,
    INTERPOLATED,
    UNKNOWN,
    known_times,
    measurable,
    measured_or,
    multiply_times,
    times_table,
    unmeasured,
)
from dsx.errors import OperatorTimesError
from dsx.notation.library import kernel_names, load_layer, load_operators
from dsx.notation.syntax import Settings
from dsx.notation.work import BACKWARD, FORWARD, derive

SPEC = load_assumptions("default", [])
OPERATORS = load_operators(SPEC.operators)
LAYER = derive(load_layer("transformer", "1d", OPERATORS), SPEC.fused_backward_reads, SPEC.uncounted)
SIZES = {"e": 4096, "h": 32, "g": 32, "k": 128, "f": 16384}
KEYS = {"microbatch_size": np.array([1, 4]), "panels": np.array([1, 1]), "tp": np.array([1, 8])}
KEYS |= {"tp_nvs": np.array([1, 8])}
KERNELS = [kernel.name for kernel in LAYER.priced_kernels]
QKV = (2048, 12288, 4096, 1)  # under the first key; no gradient has this shape
ATTENTION = (2048, 2048, 128, 32)


def row(operator, shape, time_s=1e-3, directions=(0, 1), dtype="", line=2):
    return OperatorTime(line, operator, directions, shape, dtype, time_s)


def table(*rows):
    return times_table(OperatorTimes("times.csv", rows), OPERATORS, kernel_names())


def known(*rows, layer=LAYER, spec=SPEC):
    """The kernels of the layer under both keys, and what the rows say of them."""
    given = layer, SIZES, spec, 2048, KEYS
    found = measurable(*given)
    return list(zip(found, known_times(table(*rows), found, layer_work(*given), machine().device), strict=True))


def measured(*rows, layer=LAYER, spec=SPEC):
    """The times of shapes that are measured themselves; NaN elsewhere."""
    made = layer_work(layer, SIZES, spec, 2048, KEYS)
    kernels, multiplies = np.full(made.matrix.shape, np.nan), np.full(made.multiplies.flops.shape, np.nan)
    for one, own in known(*rows, layer=layer, spec=spec):
        seconds = np.where(own.how == EXACT, own.seconds, np.nan)
        if one.multiply is None:
            kernels[one.direction, one.kernel] = seconds
        else:
            multiplies[one.multiply] = seconds
    return MeasuredTimes(kernels, multiplies)


def work(times=None):
    return replace(layer_work(LAYER, SIZES, SPEC, 2048, KEYS), measured=times)


def nothing():
    made = work()
    return np.full((2, len(KERNELS), 2), np.nan), np.full((len(made.multiply_shapes), 2), np.nan)


def test_rows_of_a_shape_a_direction_and_a_type():
    found = measured(row("einsum", QKV))
    assert np.isnan(found.kernels).all()
    (place,) = np.argwhere(~np.isnan(found.multiplies)).tolist()
    multiply, key = place
    shape = work().multiply_shapes[multiply]
    assert (KERNELS[shape.kernel], shape.direction, key) == ("self-attention.qkv", FORWARD, 0)
    assert found.multiplies[multiply, key] == 1e-3
    for other in ((2049, 12288, 4096, 1), (2048, 12288, 4096, 2), (12288, 2048, 4096, 1)):
        assert np.isnan(measured(row("einsum", other)).multiplies).all()
    # A direction and a type narrow a row.
    assert np.isnan(measured(row("einsum", QKV, directions=(1,))).multiplies).all()
    assert np.isnan(measured(row("einsum", QKV, dtype="fp8")).multiplies).all()
    assert not np.isnan(measured(row("einsum", QKV, dtype="fp16")).multiplies).all()
    eight = SPEC.model_copy(update={"linear_dtype": "fp8"})
    assert not np.isnan(measured(row("einsum", QKV, dtype="fp8"), spec=eight).multiplies).all()
    assert np.isnan(measured(row("einsum", QKV, dtype="bf16"), spec=eight).multiplies).all()
    # A row of a type comes before one of any.
    both = measured(row("einsum", QKV, 1e-3, dtype="bf16"), row("einsum", QKV, 1e-3))
    assert np.nansum(both.multiplies) == 1e-3


def test_rows_of_kernels():
    found = measured(row("attention", ATTENTION, 2e-3, (BACKWARD,)), row("einsum", ATTENTION))
    assert np.isnan(found.multiplies).all()
    assert np.argwhere(~np.isnan(found.kernels)).tolist() == [[BACKWARD, KERNELS.index("self-attention.attention"), 0]]
    # A kernel without multiplies has the extent of what it takes.
    found = measured(row("gelu", (2048, 16384, 0, 0), directions=(FORWARD,)))
    assert np.argwhere(~np.isnan(found.kernels)).tolist() == [[FORWARD, KERNELS.index("feed-forward.u"), 0]]
    # Under the second key sequence parallelism leaves an eighth of four sequences to a norm.
    found = measured(row("norm", (1024, 4096, 0, 0), directions=(BACKWARD,)))
    assert {(direction, key) for direction, _, key in np.argwhere(~np.isnan(found.kernels))} == {(BACKWARD, 1)}
    # What does no work in a direction has no time.
    assert np.isnan(measured(row("add", (2048, 4096, 0, 0), directions=(BACKWARD,))).kernels).all()
    # Kernels of other layers are known.
    assert table(row("scan", (8, 8, 8, 1), directions=(FORWARD,))).rows


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row("einsun", QKV, line=7), "times.csv:7: operator: unknown operator 'einsun'; did you mean 'einsum'?"),
        (row("einsum", (8, 8, 0, 0)), "times.csv:2: k: is blank"),
        (row("norm", (8, 8, 0, 0)), "times.csv:2: direction: is blank; the two directions of norm"),
        (row("attention", ATTENTION), "times.csv:2: direction: is blank"),
    ],
)
def test_a_row_of_nothing_is_refused(wrong, said):
    with pytest.raises(OperatorTimesError) as error:
        table(wrong)
    assert said in str(error.value)


def test_no_measured_time_changes_nothing_and_compiles_nothing():
    plain = layer_costs(work(), machine(), make_assumptions())
    same = layer_costs(work(MeasuredTimes(*nothing())), machine(), make_assumptions())
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(same), strict=True):
        assert np.allclose(a, b, rtol=1e-12, atol=0)
    # Without times nothing of them is compiled.
    text = str(jax.make_jaxpr(layer_costs)(work(), machine(), make_assumptions()))
    with_times = str(jax.make_jaxpr(layer_costs)(work(MeasuredTimes(*nothing())), machine(), make_assumptions()))
    assert "= ne " not in text  # how a NaN is looked for
    assert "= ne " in with_times


def test_measured_kernels_and_multiplies_leave_nothing_of_their_rooflines():
    kernels, multiplies = nothing()
    attention = KERNELS.index("self-attention.attention")
    kernels[FORWARD, attention] = 0.5
    plain, changed = work(), work(MeasuredTimes(kernels, multiplies))
    before = sum(busy_times(plain, machine(), make_assumptions()))[FORWARD, attention]
    costs, other = (layer_costs(w, machine(), make_assumptions()) for w in (plain, changed))
    assert np.allclose(other.forward_s - costs.forward_s, 0.5 - before, rtol=1e-12)
    assert np.allclose(other.backward_s, costs.backward_s, rtol=1e-12)
    # Nothing is left of a kernel whose multiplies are measured.
    device, assumptions = machine(hbm_bandwidth=1e10), make_assumptions(linear_dtype="fp8", cast_traffic=3.0)
    kernels, multiplies = nothing()
    z = KERNELS.index("feed-forward.z")
    multiplies[[s.kernel == z for s in work().multiply_shapes]] = 0.25
    made = work(MeasuredTimes(kernels, multiplies))
    compute, memory = measured_or(made, *busy_times(unmeasured(made), device, assumptions), device, assumptions)
    assert np.allclose(compute[:, z], [[0.25, 0.25], [0.5, 0.5]], rtol=1e-12)
    assert np.all(memory[:, z] == 0)


@pytest.mark.parametrize("bandwidth", [2e12, 1e10])  # bound by compute, and by memory
def test_a_measured_multiply_replaces_itself_and_not_the_other_of_its_kernel(bandwidth):
    device, assumptions = machine(hbm_bandwidth=bandwidth), make_assumptions()
    plain = work()
    of_kernel = (BACKWARD, KERNELS.index("feed-forward.z"))
    inside = [i for i, s in enumerate(plain.multiply_shapes) if (s.direction, s.kernel) == of_kernel]
    assert len(inside) == 2
    rooflines = np.asarray(multiply_times(plain, device, assumptions))
    before = layer_costs(plain, device, assumptions)
    for chosen in (inside[:1], inside[1:], inside):
        kernels, multiplies = nothing()
        multiplies[chosen] = 0.25
        after = layer_costs(work(MeasuredTimes(kernels, multiplies)), device, assumptions)
        expected = (0.25 - rooflines[chosen]).sum(axis=0)
        assert np.allclose(after.backward_s - before.backward_s, expected, rtol=1e-9)
        of_weight = [i for i in chosen if plain.multiply_shapes[i].of_weight]
        grown = (0.25 - rooflines[of_weight]).sum(axis=0)
        if bandwidth == 2e12:
            # What a launch and traffic add to a kernel is no work of a multiply.
            assert np.allclose(after.weight_gradient_s - before.weight_gradient_s, grown, atol=2e-5)


def test_the_gradients_of_weights_are_accumulated_besides_their_measured_time():
    device, assumptions = machine(), make_assumptions(accumulation_traffic_per_parameter=6.0)
    plain = work()
    _, before = busy_times(plain, device, make_assumptions())
    _, after = busy_times(plain, device, assumptions)
    accumulation = (after - before)[BACKWARD]
    assert accumulation.any()
    kernels, multiplies = nothing()
    for made in (MeasuredTimes(kernels, np.full_like(multiplies, 0.25)), MeasuredTimes(0.25 + 0.0 * after, multiplies)):
        changed = work(made)
        _, memory = measured_or(changed, *busy_times(unmeasured(changed), device, assumptions), device, assumptions)
        of_weights = [shape.kernel for shape in plain.multiply_shapes if shape.of_weight]
        assert np.allclose(memory[BACKWARD, of_weights], accumulation[of_weights], rtol=1e-9)


def test_another_shape_of_the_name_is_interpolated_or_extrapolated():
    small, large = (8, 8, 8, 1), (65536, 65536, 65536, 1)
    within = [own for one, own in known(row("einsum", small), row("einsum", large)) if one.multiply is not None]
    beyond = [own for one, own in known(row("einsum", small)) if one.multiply is not None]
    for found, how in ((within, INTERPOLATED), (beyond, EXTRAPOLATED)):
        assert found
        assert all((own.how == how).all() and (own.rows == -1).all() for own in found)
        assert all((own.seconds > 0).all() for own in found)
    others = [own for one, own in known(row("einsum", small)) if one.multiply is None]
    assert all((own.how == UNKNOWN).all() and np.isnan(own.seconds).all() for own in others)


def test_a_single_multiply_that_is_measured_comes_before_its_kernel_at_another_shape():
    options = "layernorm qkv_bias out_bias ff_bias ff_out_bias dropout residual_dropout".split()
    made = load_layer("transformer", "1d", OPERATORS, chosen=Settings(frozenset(options)))
    layer = derive(made, SPEC.fused_backward_reads, SPEC.uncounted)
    elsewhere = row("qkv", (64, 64, 64, 1), 3e-3, (FORWARD,))
    by_name = {
        (one.name, one.multiply is None): own
        for one, own in known(elsewhere, row("einsum", QKV), layer=layer)
        if one.direction == FORWARD and one.shapes[:, 0].tolist() == [*QKV]
    }
    # Under the first key the multiply has a time of its own; under the second both are beyond the rows.
    assert by_name["qkv", True].how.tolist() == [UNKNOWN, EXTRAPOLATED]
    assert by_name["einsum", False].how.tolist() == [EXACT, UNKNOWN]


def test_the_weight_gradients_of_a_measured_kernel_are_a_share_of_it():
    kernels, multiplies = nothing()
    z = KERNELS.index("feed-forward.z")
    plain = work()
    before = layer_costs(plain, machine(), make_assumptions()).weight_gradient_s
    roofline = sum(busy_times(plain, machine(), make_assumptions()))[BACKWARD, z]
    kernels[BACKWARD, z] = 2 * roofline
    after = layer_costs(work(MeasuredTimes(kernels, multiplies)), machine(), make_assumptions()).weight_gradient_s
    own = [i for i, s in enumerate(plain.multiply_shapes) if s.of_weight and s.kernel == z]
    share = plain.multiplies.flops[own].sum(axis=0) / plain.matrix[BACKWARD, z]
    assert np.allclose(after - before, share * roofline, rtol=1e-6)


def test_a_kernel_measured_as_a_whole_covers_its_multiplies():
    options = "layernorm qkv_bias out_bias ff_bias ff_out_bias dropout residual_dropout".split()
    made = load_layer("transformer", "1d", OPERATORS, chosen=Settings(frozenset(options)))
    layer = derive(made, SPEC.fused_backward_reads, SPEC.uncounted)
    rows = row("qkv", QKV, 3e-3, (FORWARD,)), row("einsum", QKV, 1e-3)
    found = measured(*rows, layer=layer)
    assert np.nansum(found.kernels) == 3e-3
    qkv = [i for i, shape in enumerate(layer_work(layer, SIZES, SPEC, 2048, KEYS).multiply_shapes) if not shape.kernel]
    assert np.isnan(found.multiplies[qkv]).all()
    names = {one.name for one in measurable(layer, SIZES, SPEC, 2048, KEYS)}
    assert {"einsum", "qkv", "attention", "layernorm", "activation"} <= names
