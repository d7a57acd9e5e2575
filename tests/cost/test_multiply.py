"""Slowdowns of multiplies by hand: contracted size, tiles, waves, attention, 8 bits; and the roofline."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cost.records import machine, make_assumptions
from notation.definitions import build

from dsx.config.assumption_set import load_assumptions
from dsx.cost.layer import layer_costs
from dsx.cost.layer_work import Multiplies, MultiplyShape, layer_work
from dsx.cost.roofline import compute_time, exposed_memory_time, per_kernel, slowdowns, sustained_flops
from dsx.notation.library import load_layer, load_operators
from dsx.notation.work import BACKWARD, FORWARD, derive

LINEAR = MultiplyShape(kernel=0, direction=FORWARD, linear=True, fused=False, of_weight=False, grouped=False)
ATTENTION = MultiplyShape(kernel=0, direction=FORWARD, linear=False, fused=True, of_weight=False, grouped=False)


def slowdown(rows, columns, contracted, batch=1.0, shape=LINEAR, facts=None, **changes):
    sizes = (np.asarray([[float(size)]]) for size in (rows, columns, contracted, batch, 0.0))
    found = slowdowns(Multiplies(*sizes), (shape,), machine(**facts or {}).device, make_assumptions(**changes))
    return float(found[0, 0])


@pytest.mark.parametrize("shape", [LINEAR, ATTENTION])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4096, 4096, 4096), (100, 77, 3), (0, 0, 0)])
def test_with_neutral_parameters_a_multiply_runs_at_the_ceiling_exactly(shape, sizes):
    assert slowdown(*sizes, shape=shape) == 1.0
    assert slowdown(*sizes, shape=shape, tiles=((128, 128), (64, 64))) == 1.0


# As long as a multiprocessor that reaches 5 of 10 TFLOP/s computes a tile of 128 x 128 with 128 contracted elements.
FILLED = {"tiles": ((128, 128),), "tile_latency": 2 * 128**3 / 5e12}


def test_waits_of_tiles():
    assert slowdown(4096, 4096, 128, **FILLED) == pytest.approx(2.0)
    assert slowdown(4096, 4096, 1024, **FILLED) == pytest.approx(1.125)
    # A tile of another shape computes for longer; the first of the list counts.
    assert slowdown(4096, 4096, 128, **FILLED | {"tiles": ((256, 128), (128, 128))}) == pytest.approx(1.5)
    # A faster device waits relatively longer.
    assert slowdown(4096, 4096, 256, facts={"matrix_flops": 2e15, "fp8_flops": 4e15}, **FILLED) == pytest.approx(2.0)
    # In 8 bits the tile computes for half as long, and waits as long as in 16.
    assert slowdown(4096, 4096, 256, linear_dtype="fp8", **FILLED) == pytest.approx(0.5 * 2.0)
    # A slower multiply waits as long.
    # At half the ceiling, and with kernels half as fast, a tile computes four times as long; its wait is a time.
    changes = {"matrix_efficiency": 0.25, "kernel_slowdown": 2.0}
    assert slowdown(4096, 4096, 128, **FILLED | changes) == pytest.approx(1.25)
    # Without multiprocessors or tiles no tile waits.
    assert slowdown(4096, 4096, 128, facts={"num_sms": 1.0}, **FILLED) == 1.0  # the device does not state them
    assert slowdown(4096, 4096, 128, **FILLED | {"tiles": ()}) == 1.0


def test_the_best_tile_and_the_busiest_expert_count():
    of_experts = replace(LINEAR, grouped=True)
    assert slowdown(4096, 4096, 4096, batch=8.0, shape=of_experts, grouped_efficiency=0.8) == 1.25
    assert slowdown(4096, 4096, 4096, batch=8.0, grouped_efficiency=0.8) == 1.0
    # The best tile counts.
    changes = {"tile_quantisation": 1.0, "tile_half": 64.0}
    load = {side: 1 + 64 * 2 / side for side in (128, 64)}
    both = {"tiles": ((128, 128), (64, 64)), **changes}
    assert slowdown(1280, 1280, 64, **both) == 1.0
    assert slowdown(64, 64, 64, **both) == pytest.approx(load[64] / load[128])
    assert slowdown(64, 64, 64, tiles=((128, 128),), **changes) == pytest.approx(4.0)


@pytest.mark.parametrize(("weight", "waste"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_tile_waste_beyond_the_edges_of_the_result(weight, waste):
    # 64 x 128 fill half of a tile.
    assert slowdown(64, 128, 64, tiles=((128, 128),), tile_quantisation=weight) == pytest.approx(1.0 + waste)


@pytest.mark.parametrize(("batch", "waste"), [(100, 0.0), (101, 200 / 101 - 1), (50, 1.0), (1000, 0.0), (950, 1 / 19)])
def test_wave_waste_of_idle_multiprocessors(batch, waste):
    # One tile each, on 100 multiprocessors.
    changes = {"tiles": ((128, 128),), "wave_quantisation": 0.5}
    assert slowdown(128, 128, 64, batch, **changes) == pytest.approx(1.0 + 0.5 * waste)


def test_attention_has_an_efficiency_of_its_own_in_either_direction():
    changes = {"attention_efficiency": 0.8, "attention_gradient_efficiency": 0.5, "attention_half": 32.0}
    changes |= {"tile_latency": 1.0, "tiles": ((4096, 4096),), "tile_quantisation": 1.0}
    back = MultiplyShape(0, BACKWARD, linear=False, fused=True, of_weight=False, grouped=False)
    for sizes in ((2048, 2048, 64), (2048, 64, 2048)):  # the head dimension is the smallest side
        assert slowdown(*sizes, shape=ATTENTION, **changes) == pytest.approx(1.5 / 0.8)
        assert slowdown(*sizes, shape=back, **changes) == pytest.approx(1.5 / 0.5)
    unfused = MultiplyShape(0, FORWARD, linear=False, fused=False, of_weight=False, grouped=False)
    assert slowdown(2048, 2048, 64, shape=unfused, **changes | FILLED | {"tile_quantisation": 0.0}) == pytest.approx(
        3.0
    )


def test_fewer_bits_are_for_multiplies_with_a_weight():
    changes = {"linear_dtype": "fp8", "fp8_efficiency": 0.8}
    assert slowdown(4096, 4096, 4096, **changes) == pytest.approx(1 / (2 * 0.8))
    assert slowdown(4096, 4096, 4096, shape=ATTENTION, **changes) == 1.0
    # Fewer bits lose what their own multiplies do not sustain.
    facts = {"sustained_share": 0.8, "fp8_sustained_share": 0.6}
    ceiling = {"linear_dtype": "fp8", "matrix_ceiling": "sustained"}
    # 0.8 of 1 PFLOP/s against 0.6 of 2; in 4 bits the share is that of 16.
    assert slowdown(4096, 4096, 4096, facts=facts, **ceiling) == pytest.approx(0.8 / 1.2)
    assert slowdown(4096, 4096, 4096, facts=facts, **ceiling | {"linear_dtype": "fp4"}) == pytest.approx(0.25)
    # Without a peak in 8 bits they run as in 16.
    assert slowdown(4096, 4096, 4096, facts=facts | {"fp8_flops": 0.0}, **ceiling) == 1.0


def test_launches_values_and_ceilings_of_multiplies():
    shapes = tuple(MultiplyShape(k, d, True, False, False, False) for d, k in ((0, 0), (0, 2), (1, 2), (1, 2)))
    found = per_kernel(np.asarray([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]), shapes, 3)
    assert found.tolist() == [[[1, 5], [0, 0], [2, 6]], [[0, 0], [0, 0], [7, 15]]]
    assert per_kernel(np.zeros((0, 2)), (), 3).shape == (2, 3, 2)
    # Launches are those of operators or of kernels.
    by_operator, by_kernel = (layer(name) for name in ("paper-2410.00273", "default"))
    assert set(by_operator.launches.ravel().tolist()) == {0.0, 1.0}
    forward, backward = by_kernel.launches[..., 0]
    assert forward.tolist() == [1.0] * 10  # two norms, four multiplies, attention, gelu, two additions
    assert backward.tolist() == [1.0, 2.0, 1.0, 2.0, 0.0, 1.0, 2.0, 1.0, 2.0, 0.0]
    # A ceiling is a share of what the device sustains.
    device = machine(sustained_share=0.75).device
    of_sheet = make_assumptions(matrix_efficiency=0.5)
    sustained = replace(of_sheet, matrix_ceiling="sustained", sustained_share=0.5)
    assert sustained_flops(device, of_sheet) == 0.5e15
    assert sustained_flops(device, sustained) == 0.375e15
    assert sustained_flops(machine().device, sustained) == 0.25e15  # it states none
    # An eighth of the power runs at half of the clock.
    assumptions = make_assumptions(clock_exponent=1 / 3)
    full, half = (float(sustained_flops(machine(power_share=share).device, assumptions)) for share in (1.0, 0.125))
    assert full == 5e14
    assert half == pytest.approx(full / 2, rel=1e-12)


def layer(assumptions, **changes):
    spec = load_assumptions(assumptions, [])
    table = load_operators(spec.operators)
    made = derive(load_layer("transformer", "1d", table), spec.fused_backward_reads, spec.uncounted)
    keys = {"microbatch_size": np.array([1, 4]), "panels": np.array([1, 1]), "tp": np.array([1, 8])}
    keys |= {"tp_nvs": np.array([1, 8])}
    sizes = {"e": 4096, "h": 32, "g": 32, "k": 128, "f": 16384} | changes
    return layer_work(made, sizes, spec, 2048, keys)


def test_a_layer_without_work_takes_no_time():
    made = derive(build("layer nothing\ninput x[b, s, e]\noutput[b, s, e] = add(x, x)"), uncounted=["add"])
    keys = {"microbatch_size": np.array([1, 4]), "panels": np.array([1, 1])}
    work = layer_work(made, {"e": 4096}, load_assumptions("default", []), 2048, keys)
    costs = layer_costs(work, machine(), make_assumptions())
    assert costs.forward_s.tolist() == costs.backward_s.tolist() == [0.0, 0.0]


@pytest.mark.slow
def test_every_parameter_of_multiplies_can_be_fitted():
    work = layer("default")
    assumptions = make_assumptions(
        tiles=((256, 128), (128, 128)), linear_dtype="fp8", launch_hidden=0.5,
        tile_latency=1e-6, tile_half=32.0, tile_quantisation=0.5, wave_quantisation=0.5,
        attention_half=24.0, attention_efficiency=0.8, attention_gradient_efficiency=0.6, fp8_efficiency=0.7,
    )  # fmt: skip

    def seconds(assumptions):
        costs = layer_costs(jax.tree.map(np.asarray, work), machine(), assumptions)
        return (costs.forward_s + costs.backward_s).sum()

    slopes = jax.jit(jax.grad(seconds))(jax.tree.map(np.asarray, assumptions))
    names = ("attention_efficiency", "attention_gradient_efficiency", "fp8_efficiency", "matrix_efficiency")
    assert all(float(getattr(slopes, name)) < 0 for name in names)
    names = ("tile_latency", "attention_half", "wave_quantisation", "launch_latency")
    assert all(float(getattr(slopes, name)) > 0 for name in names)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize(("dtype", "ratio"), [("bf16", 1.0), ("fp8", 0.5), ("fp4", 0.25), ("int8", 0.5)])
def test_fewer_bits_multiply_at_their_peak(dtype, ratio):
    assert slowdown(4096, 4096, 4096, linear_dtype=dtype) == ratio
    assert slowdown(4096, 4096, 4096, shape=ATTENTION, linear_dtype=dtype) == 1.0


KERNELS = {"attention_forward": (0.2, 0.4, 0.8, 0.0), "attention_backward": (0.1, 0.2, 0.4, 0.0)}


@pytest.mark.parametrize(("newest", "reached"), [(1, 0.2), (2, 0.4), (3, 0.8), (4, 0.8)])
def test_the_fastest_kernel_that_software_and_device_have(newest, reached):
    # Half of the peak is the ceiling; a kernel's share is of the peak, whatever the ceiling.
    given = {"attention_kernels": float(newest), "attention_efficiency": 0.9}
    assert slowdown(4096, 4096, 128, shape=ATTENTION, facts=KERNELS, **given) == pytest.approx(0.5 / reached)
    backward = replace(ATTENTION, direction=BACKWARD)
    assert slowdown(4096, 4096, 128, shape=backward, facts=KERNELS, **given) == pytest.approx(1.0 / reached)


def test_efficiencies_of_attention_beside_its_kernels():
    for ceiling in (0.3, 0.9):
        given = make_assumptions(matrix_efficiency=ceiling, attention_kernels=2.0)
        device = machine(**KERNELS).device
        slow = slowdown(
            4096, 4096, 128, shape=ATTENTION, facts=KERNELS, matrix_efficiency=ceiling, attention_kernels=2.0
        )
        assert slow / sustained_flops(device, given) == pytest.approx(1 / 0.4e15)
    # A head dimension counts relative to that of the measurement.
    given = {"attention_kernels": 2.0, "attention_half": 64.0, "facts": KERNELS}
    at_128, at_64 = (slowdown(4096, 4096, d, shape=ATTENTION, **given) for d in (128, 64))
    assert at_128 == pytest.approx(0.5 / 0.4)
    assert at_64 / at_128 == pytest.approx(2.0 / 1.5)
    # Without a kernel that both have the efficiency of the set counts.
    given = {"attention_efficiency": 0.5, "shape": ATTENTION}
    assert slowdown(4096, 4096, 128, facts=KERNELS, **given) == 2.0  # the software has none
    assert slowdown(4096, 4096, 128, attention_kernels=3.0, **given) == 2.0  # the device has none
    newer = {"attention_forward": (0.0, 0.0, 0.0, 0.9)}
    assert slowdown(4096, 4096, 128, attention_kernels=3.0, facts=newer, **given) == 2.0


@pytest.mark.parametrize(
    ("matrix", "vector", "launches", "seconds"),
    [
        (5e12, 0.0, 1.0, 0.010_01),
        (0.0, 5e11, 1.0, 0.010_01),
        (5e12, 5e11, 1.0, 0.020_01),  # one after the other
        (0.0, 0.0, 1.0, 10e-6),
        (0.0, 0.0, 0.0, 0.0),  # what does not run costs nothing
    ],
)
def test_compute_time(matrix, vector, launches, seconds):
    found = compute_time(
        jnp.asarray(matrix), jnp.asarray(vector), jnp.asarray(launches), machine().device, make_assumptions()
    )
    assert float(found) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("num_bytes", "compute_s", "seconds"),
    [(3e10, 0.010, 0.020), (3e10, 0.030, 0.0), (3e10, 0.050, 0.0), (0.0, 0.010, 0.0), (3e10, 0.0, 0.030)],
)
def test_memory_time_that_compute_does_not_hide(num_bytes, compute_s, seconds):
    arguments = jnp.asarray(num_bytes), jnp.asarray(compute_s), jnp.asarray(1.0)
    found = exposed_memory_time(*arguments, machine().device, make_assumptions())
    assert float(found) == pytest.approx(seconds, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("hidden", "seconds"), [(1.0, 0.030), (0.5, 0.030_005), (0.0, 0.030_01)])
def test_a_launch_comes_once_before_traffic_unless_traffic_hides_it(hidden, seconds):
    assumptions, launches = make_assumptions(launch_hidden=hidden), jnp.asarray(1.0)
    zero = jnp.asarray(0.0)
    compute_s = compute_time(zero, zero, launches, machine().device, assumptions)
    found = compute_s + exposed_memory_time(jnp.asarray(3e10), compute_s, launches, machine().device, assumptions)
    assert float(found) == pytest.approx(seconds, rel=1e-12)
    # Where compute is longer than traffic there is one launch, whatever traffic hides.
    compute_s = compute_time(jnp.asarray(5e13), zero, launches, machine().device, assumptions)
    found = compute_s + exposed_memory_time(jnp.asarray(3e10), compute_s, launches, machine().device, assumptions)
    assert float(found) == pytest.approx(0.100_01, rel=1e-12)
