"""The cost of one layer for U shard keys: kernels by their roofline, collectives by their network.

Per kernel and direction, time = max(compute, memory) + communication. The collectives of a panelled
multiply run while it computes: with s the time of one panel's collectives and n panels, the exposed time
is s + max(n*s - max(compute, memory), 0) (arXiv 2410.00273, section 3, SUMMA; released code). A ring of n
members moves n - 1 blocks while its kernel works on one after the other of n: with T the time of its
collectives, max(T - (n-1)/n max(compute, memory), 0) is exposed (arXiv 2310.01889, section 3). Of any other gather,
scatter or exchange, as much runs beside its kernel, block by block, as the assumption set says of its axis (Wang et
al., ASPLOS 2023); an all-reduce ends before what needs it begins.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsx.cost.assumptions import FP8, Assumptions
from dsx.cost.collectives import collective
from dsx.cost.crowding import crosses, may_crowd
from dsx.cost.groups import Group, group
from dsx.cost.multiply import accumulated_bytes, cast_bytes, per_kernel, stretches
from dsx.cost.override import measured_or, unmeasured, weight_gradients_or
from dsx.cost.roofline import compute_time, exposed_memory_time, memory_time, sustained_flops
from dsx.cost.shapes import Column, PerKernel, PerKey, PerWork
from dsx.cost.work import LayerWork
from dsx.graph.derived import BACKWARD, FORWARD
from dsx.graph.match import ALL_REDUCE
from dsx.graph.notation import AXES
from dsx.hardware.cluster import Cluster
from dsx.records import Array, Float, record

# The result column that an axis' communication counts in; dp's is priced per step, not per layer.
COMM_COLUMN = {"tp": "tp_comm_s", "tp2": "tp_comm_s", "cp": "cp_comm_s", "ep": "ep_comm_s"}

# The belief about how much of a column's communication frameworks run beside the kernel that it belongs to.
OVERLAP = {"tp_comm_s": "tp_overlap", "cp_comm_s": "cp_overlap", "ep_comm_s": "ep_overlap"}

_COLUMNS = tuple(dict.fromkeys(COMM_COLUMN.values()))


@record
class KernelTimes:
    """Seconds per kernel and direction for one microbatch, communication by column."""

    compute_s: Float[Array, "2 kernels keys"]
    memory_s: Float[Array, "2 kernels keys"]
    comm_s: dict[str, Float[Array, "2 kernels keys"]]


_PerGroup = Float[Array, "_groups *#plans"]
_PerMode = Float[Array, "3 *#plans"] | tuple[Column, ...]  # a tuple where a search reads some of the modes alone


@record
class LayerCosts:
    """Cost of one layer for one microbatch.

    The modes are those of recomputation, in the order of `dsx.graph.recomputed.MODES`. A weight group is what is
    reduced over the same ranks: dp, and `group_size` members of other axes. That is a fraction where an expert's
    group spans more ranks than dp leaves of them. Kinds of layers differ in the number of their groups.
    """

    forward_s: Column
    backward_s: Column  # without recomputation
    weight_gradient_s: Column  # the part of it that only makes gradients of weights
    recompute_s: _PerMode  # forward that the backward runs again
    compute_s: Column  # forward and backward
    memory_s: Column
    tp_comm_s: Column
    cp_comm_s: Column
    ep_comm_s: Column
    replicated_gradient_s: Column  # once a step: reducing gradients of parameters replicated over tp
    stash_bytes: _PerMode  # saved for the backward
    working_bytes: _PerMode  # beside them, while the backward of the layer runs
    boundary_bytes: Column
    weight_bytes: _PerGroup
    group_size: _PerGroup
    group_share: _PerGroup  # members of it in one fast domain, likewise
    group_outer: tuple[_PerGroup, ...] = ()  # in a unit of each tier between the domain and the outermost one
    # Seconds in which an oversubscribed tier is taken: of the forward, and of the backward under each of the modes.
    crowded_s: tuple[Column, ...] = ()  # none where no tier can be oversubscribed


# Fields that are several arrays, or none where there are two tiers.
BY_TIER = ("group_outer", "crowded_s")


class WeightGroup(NamedTuple):
    """Which ranks hold the same parameters: those of dp and of some data axes, or one in ep of them."""

    axes: tuple[str, ...]
    over_ep: bool = False

    def members(self, along: Mapping[str, PerKey], one: PerKey) -> PerKey:
        """Return how many they are for each of dp, from what there are `along` each axis."""
        found = functools.reduce(jnp.multiply, [along[axis] for axis in self.axes], one)
        return found / along["ep"] if self.over_ep else found


def kernel_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> KernelTimes:
    """Price every kernel and its collectives."""
    compute, memory = measured_or(work, *busy_times(unmeasured(work), cluster, assumptions))
    exposed = _communication(work, compute + memory, _collective_times(work, cluster, assumptions), assumptions)
    nothing = jnp.zeros_like(work.per_key(work.boundary))

    def stacked(name: str) -> Float[Array, "2 kernels keys"]:
        directions = [
            jnp.stack([exposed.get((direction, kernel, name), nothing) for kernel in range(compute.shape[1])])
            for direction in (FORWARD, BACKWARD)
        ]
        return jnp.stack(directions)

    return KernelTimes(
        compute_s=work.per_key(compute),
        memory_s=work.per_key(memory),
        comm_s={name: stacked(name) for name in _COLUMNS},
    )


def layer_costs(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> LayerCosts:
    """Price a layer: the kernels' times added up, and what combines them over a step."""
    rest = unmeasured(work)
    modelled = busy_times(rest, cluster, assumptions)
    compute, memory = measured_or(work, *modelled)
    collective_s = _collective_times(work, cluster, assumptions)
    exposed = _communication(work, compute + memory, collective_s, assumptions)
    nothing = jnp.zeros_like(work.per_key(work.boundary))
    made_again = [kernel for kernel, again in enumerate(work.again) if again]

    def added(direction: int, *columns: str, kernels: Sequence[int] | None = None) -> PerKey:
        parts = [
            time
            for (where, kernel, name), time in exposed.items()
            if where == direction and name in columns and (kernels is None or kernel in kernels)
        ]
        return functools.reduce(jnp.add, parts, nothing)

    busy = work.per_key((compute + memory).sum(axis=1))
    busy_backward = busy[BACKWARD] + added(BACKWARD, *_COLUMNS)
    groups = weight_groups(work.reduced_over, work.over_ep)
    sizes = {axis: work.per_key(size) for axis, size in work.sizes.items()}
    one = jnp.ones_like(nothing)
    busy_forward = busy[FORWARD] + added(FORWARD, *_COLUMNS)
    of_regions = (compute + memory)[FORWARD, jnp.array(made_again, dtype=int)].sum(axis=0)
    selective_s = work.per_key(of_regions) + added(FORWARD, *_COLUMNS, kernels=made_again)
    # The host issues kernels one after the other; a GPU that is faster waits for it.
    forward_s = jnp.maximum(busy_forward, _issuing(work, FORWARD, range(len(work.again)), assumptions))
    backward_s = jnp.maximum(busy_backward, _issuing(work, BACKWARD, range(len(work.again)), assumptions))
    stall_s = (forward_s - busy_forward) + (backward_s - busy_backward)
    return LayerCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        weight_gradient_s=work.per_key(_weight_gradients(work, rest, modelled, cluster, assumptions)),
        recompute_s=jnp.stack(
            [nothing, jnp.maximum(selective_s, _issuing(work, FORWARD, made_again, assumptions)), forward_s]
        ),
        compute_s=work.per_key(compute.sum(axis=(0, 1))) + stall_s,
        memory_s=work.per_key(memory.sum(axis=(0, 1))),
        **{name: added(FORWARD, name) + added(BACKWARD, name) for name in _COLUMNS},
        replicated_gradient_s=_replicated_gradients(work, cluster, assumptions),
        stash_bytes=work.per_key(work.stash),
        working_bytes=work.per_key(work.working),
        boundary_bytes=work.per_key(work.boundary),
        weight_bytes=work.per_key(
            jnp.stack([work.weights[jnp.array(members, dtype=int)].sum(axis=0) for members in groups.values()])
        ),
        group_size=jnp.stack([ranks.members(sizes, one) for ranks in groups]),
        group_share=jnp.stack([ranks.members(work.shares, one) for ranks in groups]),
        group_outer=tuple(jnp.stack([ranks.members(shares, one) for ranks in groups]) for shares in work.outer),
        crowded_s=_crowded(work, collective_s, made_again, cluster) if may_crowd(cluster.network) else (),
    )


def busy_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> tuple[PerKernel, PerKernel]:
    """Return the compute time and the exposed memory time of every kernel by its roofline."""
    device, multiplies, shapes = cluster.device, work.multiplies, work.multiply_shapes
    slower = stretches(multiplies, shapes, device, assumptions) - 1.0
    matrix = work.matrix + per_kernel(multiplies.flops * slower, shapes, work.matrix.shape[1])
    compute = compute_time(matrix, work.vector, work.launches, device, assumptions)
    moved, added = traffic(work, assumptions)
    exposed = exposed_memory_time(moved, compute, work.launches, device, assumptions)
    return compute, exposed + memory_time(added, device, assumptions)


def traffic(work: LayerWork, assumptions: Assumptions) -> tuple[PerKernel, PerKernel]:
    """Return the bytes that every kernel moves, and those of adding up gradients behind it."""
    multiplies, shapes, kernels = work.multiplies, work.multiply_shapes, work.matrix.shape[1]
    moved = work.bytes + assumptions.unfused_share * work.unfused
    if assumptions.linear_dtype == FP8:
        moved = moved + per_kernel(cast_bytes(multiplies, shapes, assumptions), shapes, kernels)
    return moved, per_kernel(accumulated_bytes(multiplies, shapes, assumptions), shapes, kernels)


def _issuing(work: LayerWork, direction: int, kernels: Sequence[int], assumptions: Assumptions) -> PerKey:
    """Return the seconds that the host takes to issue the kernels and collectives of a pass.

    A collective over an axis of one rank is none.
    """
    issued = jnp.zeros_like(work.per_key(work.boundary))
    for axis in work.sizes:
        alike = [s for s in work.shapes if s.axis == axis and s.direction == direction and s.kernel in kernels]
        if alike:
            issued = issued + jnp.where(work.per_key(work.sizes[axis]) > 1, float(len(alike)), 0.0)
    launched = work.launches[direction, jnp.array([*kernels], dtype=int)].sum()
    return assumptions.dispatch_latency * (launched + issued)


def _weight_gradients(
    work: LayerWork, rest: LayerWork, modelled: tuple[PerKernel, PerKernel], cluster: Cluster, assumptions: Assumptions
) -> PerWork:
    """Return the seconds of multiplies that make gradients of weights.

    Of a kernel's exposed memory time they take the share that they have of its compute time; `modelled` are both,
    of what is left to the roofline.
    """
    compute, memory = modelled
    shapes = rest.multiply_shapes
    slower = stretches(rest.multiplies, shapes, cluster.device, assumptions)
    own = jnp.asarray([[float(shape.of_weight)] for shape in shapes]).reshape(-1, 1)
    flops = per_kernel(rest.multiplies.flops * slower * own, shapes, work.matrix.shape[1])[BACKWARD]
    seconds = flops / sustained_flops(cluster.device, assumptions)
    busy = compute[BACKWARD]
    gradients = seconds * (1.0 + memory[BACKWARD] / jnp.where(busy > 0, busy, jnp.ones_like(busy)))
    return weight_gradients_or(work, gradients, modelled).sum(axis=0)


def _communication(
    work: LayerWork, busy: PerKernel, collective_s: Sequence[PerKey], assumptions: Assumptions
) -> dict[tuple[int, int, str], PerKey]:
    """Return the exposed communication, seconds by (direction, kernel, column), where there is any."""
    plain: dict[tuple[int, int, str], PerKey] = {}
    panel: dict[tuple[int, int], dict[str, PerKey]] = {}
    ring: dict[tuple[int, int, str], PerKey] = {}
    left: dict[tuple[int, int], PerKey] = {}  # of a kernel's time, for its collectives to run beside
    for shape, time in zip(work.shapes, collective_s, strict=True):
        name = COMM_COLUMN[shape.axis]
        if shape.panelled:
            columns = panel.setdefault((shape.direction, shape.kernel), {})
            columns[name] = columns.get(name, 0.0) + time
        elif shape.ring:
            around = (shape.direction, shape.kernel, shape.axis)
            ring[around] = ring.get(around, 0.0) + time
        else:
            where = (shape.direction, shape.kernel, name)
            if shape.kind != ALL_REDUCE:
                # What one collective hides behind is not there for the next one of the kernel.
                at = (shape.direction, shape.kernel)
                beside = jnp.minimum(time, left.setdefault(at, work.per_key(busy[at])))
                left[at] = left[at] - beside
                time = time - getattr(assumptions, OVERLAP[name]) * beside
            plain[where] = plain.get(where, 0.0) + time
    for (direction, kernel, axis), time in ring.items():
        computing = work.per_key(busy[direction, kernel] * (1.0 - 1.0 / work.sizes[axis]))
        where = (direction, kernel, COMM_COLUMN[axis])
        plain[where] = plain.get(where, 0.0) + jnp.maximum(time - computing, jnp.zeros_like(time))
    for (direction, kernel), columns in panel.items():
        one_panel = functools.reduce(jnp.add, columns.values())
        computing = work.per_key(busy[direction, kernel])
        beyond = jnp.maximum(work.per_key(work.panels) * one_panel - computing, jnp.zeros_like(one_panel))
        # What sticks out is shared among the columns as the panel's time is.
        stretch = 1.0 + beyond / jnp.where(one_panel > 0, one_panel, jnp.ones_like(one_panel))
        for name, time in columns.items():
            where = (direction, kernel, name)
            plain[where] = plain.get(where, 0.0) + time * stretch
    return plain


def _collective_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> list[PerKey]:
    """Return the seconds of each collective; of one panel, where it runs in panels.

    Those of one kind over one axis are priced together, which leaves the compiler a fraction of the work.
    """
    alike: dict[tuple[str, str, bool], list[int]] = {}
    for index, shape in enumerate(work.shapes):
        alike.setdefault((shape.kind, shape.axis, shape.panelled), []).append(index)
    times: dict[int, PerKey] = {}
    for (kind, axis, panelled), indices in alike.items():
        members = jax.tree.map(lambda leaf: leaf[None], _members(work, axis))
        volumes = work.volumes[jnp.array(indices)]
        volumes = work.per_key(volumes / work.panels[None] if panelled else volumes)
        seconds = collective(kind, members, cluster.network, assumptions)(volumes)
        times |= {index: seconds[row] for row, index in enumerate(indices)}
    return [times[index] for index in range(len(work.shapes))]


def _members(work: LayerWork, axis: str) -> Group:
    """Return the groups of an axis, one for each key."""
    return group(work.per_key(work.sizes[axis]), work.shares[axis], *(shares[axis] for shares in work.outer))


def _crowded(
    work: LayerWork, collective_s: Sequence[PerKey], made_again: Sequence[int], cluster: Cluster
) -> tuple[PerKey, ...]:
    """Return the seconds of a forward and of backwards in which collectives take an oversubscribed tier."""
    nothing = jnp.zeros_like(work.per_key(work.boundary))
    crossing = {axis: crosses(_members(work, axis), cluster.network) for axis in work.sizes}

    def added(direction: int, kernels: Sequence[int]) -> PerKey:
        taken = nothing
        for shape, time in zip(work.shapes, collective_s, strict=True):
            if shape.direction == direction and shape.kernel in kernels:
                whole = work.per_key(work.panels) * time if shape.panelled else time
                taken = taken + crossing[shape.axis] * whole
        return taken

    kernels = range(len(work.again))
    forward, backward = added(FORWARD, kernels), added(BACKWARD, kernels)
    return forward, backward, backward + added(FORWARD, made_again), backward + forward


price_kernels = jax.jit(kernel_times)


def is_data_axis(axis: str) -> bool:
    """Return whether reducing a gradient over `axis` belongs to the data-parallel reduction."""
    return COMM_COLUMN[axis] != COMM_COLUMN["tp"]


def weight_groups(
    reduced_over: Sequence[tuple[str, ...]], over_ep: Sequence[bool] = ()
) -> dict[WeightGroup, list[int]]:
    """Return {who holds the same parameters: positions of the weights of which it does}.

    Experts are reduced over all their axes at once; of other weights those that are no data axes are left to a
    reduction of their own.
    """
    groups: dict[WeightGroup, list[int]] = {}
    for index, axes in enumerate(reduced_over):
        nested = bool(over_ep) and over_ep[index]
        data = axes if nested else tuple(axis for axis in axes if is_data_axis(axis))
        groups.setdefault(WeightGroup(data, nested), []).append(index)
    return groups or {WeightGroup(()): []}


def _replicated_gradients(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> PerKey:
    """Return the seconds of all-reducing, once a step, the layer's gradients that tensor parallel ranks share."""
    total = jnp.zeros_like(work.per_key(work.boundary))
    if not assumptions.charge_replicated_gradients:
        return total
    per_weight_byte = assumptions.gradient_bytes / assumptions.weight_bytes
    groups = weight_groups(work.reduced_over, work.over_ep)
    shared = [index for ranks, members in groups.items() if not ranks.over_ep for index in members]
    for axis in AXES:
        reduced = [i for i in sorted(shared) if axis in work.reduced_over[i] and not is_data_axis(axis)]
        if reduced:
            link = collective(ALL_REDUCE, _members(work, axis), cluster.network, assumptions)
            time = link(per_weight_byte * work.per_key(work.weights[jnp.array(reduced)].sum(axis=0)))
            total = total + time
    return total
