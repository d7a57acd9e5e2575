"""Kernels and their collectives by hand, on a made-up layer of two kernels."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cost.records import machine, make_assumptions

from dsx.cost.layer import WeightGroup, kernel_times, layer_costs, weight_groups
from dsx.cost.layer_work import PER_WORK, CollectiveShape, LayerWork, Multiplies, MultiplyShape
from dsx.cost.recomputation import Mode
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER

FORWARD, BACKWARD = 0, 1


def work(shapes=(), volumes=(), panels=1.0, num_bytes=0.0, weights=((), ()), **changes):
    """Two kernels of 10 and 20 ms forward, 20 and 40 backward; tp and cp of 4 in one domain."""
    matrix = np.asarray([[[5e12], [1e13]], [[1e13], [2e13]]])
    held, reduced = weights
    fields = {
        "matrix": matrix - 5e9,  # a launch less, so that the times are round
        "vector": np.zeros_like(matrix),
        "bytes": np.full_like(matrix, num_bytes),
        "unfused": np.zeros_like(matrix),
        "multiplies": Multiplies(*[np.zeros((0, 1))] * 5),
        "launches": np.ones((2, 2, 1)),
        "volumes": np.asarray(np.array(volumes, dtype=float).reshape(len(volumes), 1)),
        "weights": np.asarray(np.array(held, dtype=float).reshape(len(held), 1)),
        "stash": np.asarray([[7.0], [5.0], [1.0]]),
        "working": np.asarray([[2.0], [3.0], [8.0]]),
        "scattered": np.asarray([[0.0], [1.0], [0.0]]),
        "boundary": np.asarray([5.0]),
        "panels": np.asarray([panels]),
        "sizes": {"tp": np.asarray([4.0]), "cp": np.asarray([4.0]), "tp2": np.asarray([2.0])},
        "shares": {"tp": np.asarray([4.0]), "cp": np.asarray([4.0]), "tp2": np.asarray([2.0])},
        "which": None,
    }
    structure = {"shapes": tuple(shapes), "reduced_over": tuple(reduced), "multiply_shapes": ()}
    structure["modes"] = (Mode((0,), ()), Mode((1,), (1,)), Mode((2,), (0, 1)))
    return LayerWork(**fields | changes, **structure)


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-15)


def test_kernels_add_up_each_with_its_own_roofline():
    found = layer_costs(work(), machine(), make_assumptions())
    assert float(found.forward_s[0]) == close(0.030)
    assert float(found.backward_s[0]) == close(0.060)
    assert float(found.compute_s[0]) == close(0.090)
    assert found.stash_bytes[:, 0].tolist() == [7.0, 5.0, 1.0]
    assert found.working_bytes[:, 0].tolist() == [2.0, 3.0, 8.0]
    assert float(found.boundary_bytes[0]) == 5.0
    # Each kernel has its own roofline.
    # 15 GB at 1 TB/s outlast only the first kernel's forward; the others hide them.
    found = layer_costs(work(num_bytes=15e9), machine(), make_assumptions())
    assert float(found.memory_s[0]) == close(0.005)
    assert float(found.forward_s[0]) == close(0.035)
    # Traffic if operators run as several kernels.
    # Half of 30 GB at 1 TB/s outlast only the first kernel's forward.
    made = work(unfused=np.full((2, 2, 1), 30e9))
    assert float(layer_costs(made, machine(), make_assumptions(unfused_share=0.5)).memory_s[0]) == close(0.005)
    assert float(layer_costs(made, machine(), make_assumptions()).memory_s[0]) == 0.0


def test_kernels_that_are_all_slower():
    """Compute and traffic take twice as long, collectives and launches as long as before."""
    shapes = [CollectiveShape(0, FORWARD, ALL_GATHER, "tp", False)]
    one = work(shapes, [4e9], num_bytes=1e10)
    plain, slow, launched = (
        layer_costs(one, machine(), make_assumptions(kernel_slowdown=factor, launch_latency=launch))
        for factor, launch in ((1.0, 0.0), (2.0, 0.0), (2.0, 1e-3))
    )
    assert float(plain.tp_comm_s[0]) == close(GATHER)
    assert float(slow.tp_comm_s[0]) == close(GATHER)
    for name in ("compute_s", "memory_s", "weight_gradient_s"):
        assert float(getattr(slow, name)[0]) == close(2 * float(getattr(plain, name)[0])), name
    assert float(slow.forward_s[0]) - GATHER == close(2 * (float(plain.forward_s[0]) - GATHER))
    assert float(launched.compute_s[0] - slow.compute_s[0]) == close(4 * 1e-3)


def test_recomputation_repeats_the_forward_of_regions_or_of_the_layer():
    shapes = [CollectiveShape(k, FORWARD, ALL_GATHER, "tp", False) for k in (0, 1)]
    found = layer_costs(work(shapes, [8e9, 4e9]), machine(), make_assumptions())
    none, selective, full = found.recompute_s[:, 0].tolist()
    assert none == 0.0
    assert selective == close(0.020 + GATHER)  # the second kernel is in a region
    assert full == close(float(found.forward_s[0]))
    plain = layer_costs(replace(work(), modes=(Mode((0, 1), ()), Mode((2,), (0, 1)))), machine(), make_assumptions())
    assert plain.recompute_s[:1, 0].tolist() == [0.0]


@pytest.mark.parametrize(("num_bytes", "seconds"), [(0.0, 0.018), (8e10, 0.018 * 80 / 40)])
def test_gradients_of_weights_are_a_part_of_the_backward(num_bytes, seconds):
    """45 % of the FLOPs of the second kernel's backward; they have the same share of the exposed memory time."""
    made = MultiplyShape(1, BACKWARD, linear=True, fused=False, of_weight=True, grouped=False)
    other = replace(made, of_weight=False)
    sizes = [np.ones((2, 1))] * 4
    given = work(num_bytes=num_bytes)
    multiplies = Multiplies(*sizes, flops=np.outer([0.45, 0.05], given.matrix[BACKWARD, 1]))
    given = replace(given, multiplies=multiplies, multiply_shapes=(made, other))
    found = layer_costs(given, machine(), make_assumptions())
    assert float(found.weight_gradient_s[0]) == close(seconds)
    # On a slow host, that share of the issuing of the kernel's launch.
    slow = layer_costs(given, machine(), make_assumptions(dispatch_latency=1.0))
    assert float(slow.weight_gradient_s[0]) == close(0.45)


def test_gradients_of_weights_wait_and_accumulate():
    """A gather of 60 ms beside 40 ms: both gradients of the kernel, alike, end so much later."""
    made = MultiplyShape(1, BACKWARD, linear=True, fused=False, of_weight=True, grouped=False)
    given = work([CollectiveShape(0, BACKWARD, ALL_GATHER, "tp", False, beside=1)], [0.06 / GATHER * 4e9])
    multiplies = Multiplies(*[np.ones((1, 1))] * 4, flops=0.45 * given.matrix[BACKWARD, 1:])
    given = replace(given, multiplies=multiplies, multiply_shapes=(made,))
    found = layer_costs(given, machine(), make_assumptions(tp_overlap=1.0))
    late = float(found.tp_comm_s[0])
    assert late == pytest.approx(0.020, rel=1e-2)
    assert float(found.weight_gradient_s[0]) == close(0.45 * (0.040 + late))
    # A million by two thousand of them, 10 bytes each, at 1 TB/s: nothing hides them.
    found = multiplied(True, BACKWARD, 1e6, 2e3, 1.0, accumulation_traffic_per_parameter=10.0)
    assert float(found.memory_s[0]) == close(0.020)
    assert float(found.backward_s[0]) == close(0.060 + 0.020)
    assert float(multiplied(False, BACKWARD, 1e6, 2e3, 1.0, accumulation_traffic_per_parameter=10.0).memory_s[0]) == 0.0


def multiplied(of_weight, direction, rows, columns, contracted, **changes):
    """Price the two kernels, the second of which has one multiply of a weight."""
    shape = MultiplyShape(1, direction, linear=True, fused=False, of_weight=of_weight, grouped=False)
    sizes = (np.asarray([[size]]) for size in (rows, columns, contracted, 1.0, 0.0))
    given = replace(work(num_bytes=1e10), multiplies=Multiplies(*sizes), multiply_shapes=(shape,))
    return layer_costs(given, machine(), make_assumptions(**changes))


@pytest.mark.parametrize(
    ("dtype", "of_weight", "seconds"), [("fp8", False, 0.005), ("fp8", True, 0.0), ("bf16", False, 0.0)]
)
def test_operands_are_cast_to_8_bits_in_memory(dtype, of_weight, seconds):
    """A million by 2500 of them, 6 bytes each, with 10 GB: 25 ms, less the 20 ms of the second kernel's forward."""
    found = multiplied(of_weight, FORWARD, 1e6, 1.0, 2500.0, cast_traffic=6.0, linear_dtype=dtype)
    assert float(found.memory_s[0]) == close(seconds)


@pytest.mark.parametrize(("kind", "passes", "hidden"), [(ALL_GATHER, 1, 0.5), (ALL_REDUCE, 2, 0.0)])
def test_gathers_overlap_with_their_kernel_and_all_reduces_do_not(kind, passes, hidden):
    # The kernel of 10 ms is longer than the collective.
    made = work([CollectiveShape(0, FORWARD, kind, "tp", False, beside=None if kind == ALL_REDUCE else 0)], [1e9])
    found = layer_costs(made, machine(), make_assumptions(tp_overlap=0.5))
    assert float(found.tp_comm_s[0]) == close(passes * (3e-6 + 3 / 4 * 1e9 / 400e9) * (1 - hidden))


def test_collectives_hide_behind_the_kernel_beside_them_alone():
    made = work([CollectiveShape(0, FORWARD, ALL_GATHER, "cp", False, beside=0)], [40e9])
    alone = 3e-6 + 3 / 4 * 40e9 / 400e9
    found = layer_costs(made, machine(), make_assumptions(cp_overlap=1.0, tp_overlap=0.0))
    assert float(found.cp_comm_s[0]) == close(alone - 0.010)
    # The second kernel, of 20 ms, only waits for a scatter of what the first one, of 10 ms, makes.
    made = work([CollectiveShape(1, FORWARD, REDUCE_SCATTER, "tp", False, beside=0)], [40e9])
    times = kernel_times(made, machine(), make_assumptions(tp_overlap=1.0))
    assert np.asarray(times.comm_s["tp_comm_s"])[FORWARD, :, 0].tolist() == [0.0, close(alone - 0.010)]


GATHER = 3e-6 + 3 / 4 * 4e9 / 400e9  # 4 GB over four GPUs of one domain


def test_collectives_are_exposed_and_go_to_the_column_of_their_axis():
    shapes = [
        CollectiveShape(0, FORWARD, ALL_GATHER, "tp", False),
        CollectiveShape(1, FORWARD, ALL_GATHER, "tp", False),
        CollectiveShape(1, BACKWARD, ALL_REDUCE, "cp", False),
    ]
    made = work(shapes, [4e9, 4e9, 4e9])
    found = layer_costs(made, machine(), make_assumptions())
    assert float(found.tp_comm_s[0]) == close(2 * GATHER)
    assert float(found.cp_comm_s[0]) == close(2 * GATHER)  # two passes
    assert float(found.forward_s[0]) == close(0.030 + 2 * GATHER)
    assert float(found.backward_s[0]) == close(0.060 + 2 * GATHER)
    times = kernel_times(made, machine(), make_assumptions())
    assert np.asarray(times.comm_s["tp_comm_s"])[:, :, 0].tolist() == [close([GATHER, GATHER]), close([0.0, 0.0])]
    assert np.asarray(times.comm_s["cp_comm_s"])[:, :, 0].tolist() == [close([0.0, 0.0]), close([0.0, 2 * GATHER])]


def test_the_host_issues_collectives_that_happen():
    """Of an axis of one rank nothing is issued, key by key; a pass lasts at least as long as the host takes."""
    shapes = [
        CollectiveShape(0, FORWARD, ALL_GATHER, "tp", False),
        CollectiveShape(1, FORWARD, ALL_GATHER, "cp", False),
    ]
    shapes += [CollectiveShape(1, BACKWARD, ALL_GATHER, "tp", False)]
    # Three works of one key each: neither axis divides, one does, both do.
    sizes = {"tp": np.asarray([1.0, 4.0, 4.0]), "cp": np.asarray([1.0, 1.0, 4.0])}
    made = replace(work(shapes, [0.0, 0.0, 0.0]), sizes=sizes, shares=sizes)
    three = {
        name: np.repeat(getattr(made, name), 3, axis=-1) for name in ("matrix", "vector", "bytes", "unfused", "volumes")
    }
    ends = {
        name: np.repeat(getattr(made, name), 3, axis=-1)
        for name in ("stash", "working", "scattered", "boundary", "panels")
    }
    empty = {"weights": np.zeros((0, 3)), "multiplies": Multiplies(*[np.zeros((0, 3))] * 5)}
    found = layer_costs(replace(made, **three, **ends, **empty), machine(), make_assumptions(dispatch_latency=1.0))
    assert np.asarray(found.forward_s).tolist() == [2.0, 3.0, 4.0]
    assert np.asarray(found.backward_s).tolist() == [2.0, 3.0, 3.0]
    assert np.asarray(found.recompute_s)[1].tolist() == [1.0, 1.0, 2.0]  # of the second kernel alone


@pytest.mark.parametrize(
    ("panels", "volume", "num_bytes"),
    [
        (4.0, 4e9, 0.0),  # four panels of 2.5 ms each: just hidden
        (4.0, 8e9, 0.0),  # they stick out
        (1.0, 4e9, 0.0),  # one panel: nothing to hide behind
        (4.0, 8e9, 15e9),  # memory time is cover too
        (4.0, 1e9, 0.0),
    ],
)
def test_panels_run_while_the_kernel_computes(panels, volume, num_bytes):
    made = work([CollectiveShape(0, FORWARD, BROADCAST, "tp", True)], [volume], panels, num_bytes)
    one = 3e-6 + volume / panels / 400e9  # of all of its volume, latency in each
    busy = max(0.010, num_bytes / 1e12)
    found = layer_costs(made, machine(), make_assumptions())
    assert float(found.tp_comm_s[0]) == close(one + max(panels * one - busy, 0.0))
    assert float(found.forward_s[0]) == close(busy + max(0.020, num_bytes / 1e12) + float(found.tp_comm_s[0]))


def test_panels_of_two_axes_hide_together_and_share_what_sticks_out():
    shapes = [CollectiveShape(0, FORWARD, BROADCAST, axis, True) for axis in ("tp", "tp2")]
    found = layer_costs(work(shapes, [8e9, 4e9], panels=4.0), machine(), make_assumptions())
    one = 3e-6 + 2e9 / 400e9 + 1e-6 + 1e9 / 400e9
    assert float(found.tp_comm_s[0]) == close(one + 4 * one - 0.010)
    # What sticks out is shared as the panels are.
    shapes = [CollectiveShape(0, FORWARD, BROADCAST, axis, True) for axis in ("tp", "cp")]
    found = layer_costs(work(shapes, [8e9, 4e9], panels=4.0), machine(), make_assumptions())
    tp, cp = 3e-6 + 2e9 / 400e9, 3e-6 + 1e9 / 400e9
    exposed = (tp + cp) + 4 * (tp + cp) - 0.010
    assert float(found.tp_comm_s[0]) == close(exposed * tp / (tp + cp))
    assert float(found.cp_comm_s[0]) == close(exposed * cp / (tp + cp))
    # A plain collective of a panelled kernel is exposed.
    shapes = [CollectiveShape(0, FORWARD, BROADCAST, "tp", True), CollectiveShape(0, FORWARD, ALL_GATHER, "tp", False)]
    found = layer_costs(work(shapes, [4e8, 4e9], panels=4.0), machine(), make_assumptions())
    assert float(found.tp_comm_s[0]) == close(3e-6 + 1e8 / 400e9 + GATHER)


def test_weights_by_the_axes_that_reduce_them():
    cp, nothing = WeightGroup(("cp",)), WeightGroup(())
    assert weight_groups((("cp",), ("tp", "cp"), (), ("tp2",))) == {cp: [0, 1], nothing: [2, 3]}
    assert weight_groups(()) == {nothing: []}
    # Experts are a group of their own over all axes that hold the same.
    found = weight_groups((("cp",), ("tp", "cp"), ("tp", "cp")), (False, True, False))
    assert found == {WeightGroup(("cp",)): [0, 2], WeightGroup(("tp", "cp"), over_ep=True): [1]}
    # Weights by group.
    made = work(weights=([2e9, 1e9, 5e8], [("cp",), ("tp", "cp"), ()]))
    found = layer_costs(made, machine(), make_assumptions())
    assert np.asarray(found.weight_bytes)[:, 0].tolist() == [3e9, 5e8]
    assert np.asarray(found.group_size)[:, 0].tolist() == [4.0, 1.0]
    assert np.asarray(found.group_share)[:, 0].tolist() == [4.0, 1.0]
    # Gradients of parameters that tensor parallel ranks share.
    made = work(weights=([2e9, 4e9, 5e8], [("cp",), ("tp", "cp"), ()]))
    assert float(layer_costs(made, machine(), make_assumptions()).replicated_gradient_s[0]) == 0.0
    charged = layer_costs(made, machine(), make_assumptions(charge_replicated_gradients=True))
    assert float(charged.replicated_gradient_s[0]) == close(2 * GATHER)
    wide = layer_costs(made, machine(), make_assumptions(charge_replicated_gradients=True, gradient_bytes=4.0))
    assert float(wide.replicated_gradient_s[0]) == close(2 * (3e-6 + 3 / 4 * 8e9 / 400e9))


def test_every_rank_of_an_ep_group_holds_other_experts():
    made = work(weights=([2e9, 1e9], [("tp", "cp"), ("tp", "cp")]), over_ep=(False, True))
    sizes, shares = made.sizes | {"ep": np.asarray([64.0])}, made.shares | {"ep": np.asarray([16.0])}
    charged = make_assumptions(charge_replicated_gradients=True)
    found = layer_costs(replace(made, sizes=sizes, shares=shares), machine(), charged)
    assert np.asarray(found.weight_bytes)[:, 0].tolist() == [2e9, 1e9]
    assert np.asarray(found.group_size)[:, 0].tolist() == [4.0, 16.0]
    assert np.asarray(found.group_share)[:, 0].tolist() == [4.0, 16.0]
    assert np.asarray(found.group_ep)[:, 0].tolist() == [1.0, 64.0]
    # Experts are not reduced over tp a second time.
    assert float(found.replicated_gradient_s[0]) == close(2 * (3e-6 + 3 / 4 * 2e9 / 400e9))


WORK_SHAPES = [
    CollectiveShape(0, FORWARD, BROADCAST, "tp", True),
    CollectiveShape(0, FORWARD, ALL_GATHER, "cp", False),
    CollectiveShape(1, BACKWARD, ALL_REDUCE, "tp", False),
]
# Two works, and the keys that have them: one of three shares, the other of two.
WHICH = [0, 0, 0, 1, 1]
SHARES = {"tp": [1.0, 2.0, 4.0, 4.0, 2.0], "cp": [4.0, 1.0, 2.0, 2.0, 4.0], "tp2": [2.0, 1.0, 2.0, 1.0, 2.0]}


def two_works(works, shares, which):
    """Some of two works that differ in everything, for keys with some shares."""
    one = work(WORK_SHAPES, [8e9, 4e9, 2e9], 4.0, 15e9, ([2e9, 4e9, 5e8], [("cp",), ("tp", "cp"), ()]))
    factor = np.array([1.0, 2.0])[works]
    return replace(
        one,
        **{name: np.asarray(np.asarray(getattr(one, name)) * factor) for name in PER_WORK},
        multiplies=Multiplies(*[np.zeros((0, len(works)))] * 5),
        sizes={axis: np.asarray(np.asarray(size) * factor) for axis, size in one.sizes.items()},
        shares={axis: np.asarray(column) for axis, column in shares.items()},
        which=which,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("price", [layer_costs, kernel_times])
def test_keys_that_share_a_work_are_priced_as_keys_of_their_own(price):
    """Keys that differ in their shares of a fast domain alone have one work; what depends on the shares does not."""
    arguments = (machine(), make_assumptions(charge_replicated_gradients=True))
    shared = price(two_works([0, 1], SHARES, np.asarray(WHICH)), *arguments)
    own = price(two_works(WHICH, SHARES, None), *arguments)
    for key, number in enumerate(WHICH):
        alone = price(two_works([number], {axis: [column[key]] for axis, column in SHARES.items()}, None), *arguments)
        for found in (shared, own):
            here = jax.tree.map(lambda leaf, key=key: np.asarray(leaf)[..., key : key + 1], found)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), here, jax.tree.map(np.asarray, alone)
            )
    made = layer_costs(two_works([0, 1], SHARES, np.asarray(WHICH)), *arguments)
    assert len(set(np.asarray(made.forward_s).tolist())) == len(WHICH)
    assert len(set(np.asarray(made.compute_s).tolist())) == 2
    assert np.asarray(made.group_share)[0].tolist() == SHARES["cp"]
    assert np.asarray(made.group_size)[0].tolist() == [4.0, 4.0, 4.0, 8.0, 8.0]


def test_values_of_works_for_their_keys():
    made = two_works([0, 1], SHARES, np.asarray(WHICH))
    assert made.per_key(np.asarray([5.0, 7.0])).tolist() == [5.0, 5.0, 5.0, 7.0, 7.0]
    assert made.per_key(np.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1.0] * 3 + [2.0] * 2, [3.0] * 3 + [4.0] * 2]
    own = two_works([0], {axis: column[:1] for axis, column in SHARES.items()}, None)
    assert own.per_key(np.asarray([5.0])).tolist() == [5.0]


HOP = 1e-6 + 1 / 400  # of 1 GB inside a domain; a part of the backward of the first kernel takes 5 ms


@pytest.mark.parametrize(
    ("kinds", "gigabytes", "seconds"),
    [
        ([ALL_GATHER], 1, 0.0),
        ([ALL_GATHER], 3, 3 * (3 / 400 + 1e-6 - 0.005)),  # beside three of four parts
        ([REDUCE_SCATTER], 3, 3 * (3 / 400 + 1e-6 - 0.005)),
        ([ALL_GATHER, ALL_GATHER], 1, 3 * max(2 * HOP - 0.005, 0.0)),  # keys and values, one after the other
        # Blocks and sums pass beside the two parts in the middle, and one of them beside the first and the last part.
        ([ALL_GATHER, REDUCE_SCATTER], 1.5, 2 * (2 * (1.5 / 400 + 1e-6) - 0.005)),
        ([ALL_GATHER, REDUCE_SCATTER], 3, 2 * (6 / 400 + 2e-6 - 0.005) + 2 * (3 / 400 + 1e-6 - 0.005)),
    ],
)
def test_a_hop_of_a_ring_is_exposed_where_it_outlasts_the_part_beside_it(kinds, gigabytes, seconds):
    shapes = [CollectiveShape(0, BACKWARD, kind, "cp", False, True) for kind in kinds]
    volumes = [4e9 * gigabytes] * len(kinds)
    assert float(layer_costs(work(shapes, volumes), machine(), make_assumptions()).cp_comm_s[0]) == close(seconds)


@pytest.mark.parametrize("share", [1.0, 2.0])
def test_a_ring_over_several_domains_is_as_slow_as_one_nic(share):
    """A gather has the NICs of both members in a domain; a ring sends each block on one of them."""
    shares = {"tp": np.asarray([4.0]), "cp": np.asarray([share]), "tp2": np.asarray([2.0])}
    ring = replace(work([CollectiveShape(0, FORWARD, ALL_GATHER, "cp", False, True)], [4e9]), shares=shares)
    found = layer_costs(ring, machine(), make_assumptions(call_latency=1e-4))
    assert float(found.cp_comm_s[0]) == close(3 * (1e-4 + 1e-5 + 1 / 50 - 0.0025))


def test_a_ring_of_one_has_no_hops_and_the_host_issues_those_of_others():
    alone = {"tp": np.asarray([4.0]), "cp": np.asarray([1.0]), "tp2": np.asarray([2.0])}
    shape = CollectiveShape(0, FORWARD, ALL_GATHER, "cp", False, True)
    ring = replace(work([shape], [4e9]), sizes=alone, shares=alone)
    found = layer_costs(ring, machine(), make_assumptions(call_latency=1.0, dispatch_latency=1e-3))
    assert float(found.cp_comm_s[0]) == 0.0
    assert float(found.forward_s[0]) == close(0.030)
    # Two launches, and a send in each of three hops.
    ring = work([CollectiveShape(0, FORWARD, ALL_GATHER, "cp", False, True)], [4e6])
    found = layer_costs(ring, machine(), make_assumptions(dispatch_latency=0.1))
    assert float(found.forward_s[0]) == close(0.1 * (2 + 3))
