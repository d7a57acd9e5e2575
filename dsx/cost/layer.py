"""The cost of one layer for U shard keys: kernels by their roofline, collectives by their network.

Per kernel and direction, time = max(compute, memory) + exposed communication. The collectives of a panelled multiply
overlap with it: with s the time of one panel's collectives, n panels and T = max(compute, memory), the exposed time is
max(s, n s - (n-1)/n T), as each panel runs beside the collectives of the next one; or, as the assumption set states,
s + max(n s - T, 0) (arXiv 2410.00273, section 3, SUMMA; released code), which counts the first panel twice where
communication takes longer. A ring of n members passes
its blocks on in n - 1 hops while its kernel computes n blocks in turn. All members pass one at the same time, so a hop
takes the time h of its slowest link, and the next block is there when both are over: beside a block that takes c, a hop
exposes max(h - c, 0). Blocks of a gather arrive beside all parts of the kernel but the last one, sums of a scatter
beside all but the first one (arXiv 2310.01889, section 3). Any other gather, scatter or exchange overlaps
with the kernel beside it (`DerivedLayer.beside`), block by block, by the fraction that the assumption set states for
its axis (Wang et al., ASPLOS 2023).
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Column, PerGroup, PerKernel, PerKey, PerWork
from dsx.config.cluster_file import Cluster
from dsx.cost.collectives import collective, hop
from dsx.cost.context import BF16, Assumptions, Fields, of_keys, without
from dsx.cost.groups import crosses, may_contend
from dsx.cost.layer_work import LayerWork
from dsx.cost.measured_kernels import measured_or, of_weight_gradients, unmeasured, weight_gradients_or
from dsx.cost.muon import matrix_costs
from dsx.cost.recomputation import MAIN_MODES, Codes, Mode
from dsx.cost.roofline import (
    accumulated_bytes,
    cast_bytes,
    compute_time,
    exposed_memory_time,
    memory_time,
    per_kernel,
    slowdowns,
)
from dsx.notation.model import OF_REPLICATED
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.notation.syntax import AXES
from dsx.notation.work import BACKWARD, FORWARD
from dsx.records import Array, Bool, Float, record, static, tree_map

# The result column of an axis' communication; that of dp is priced per step, not per layer.
COMM_COLUMN = {"tp": "tp_comm_s", "tp2": "tp_comm_s", "cp": "cp_comm_s", "ep": "ep_comm_s"}

# The parameter of each column: the fraction of its communication that overlaps with the kernel that it belongs to.
OVERLAP = {"tp_comm_s": "tp_overlap", "cp_comm_s": "cp_overlap", "ep_comm_s": "ep_overlap"}

_COLUMNS = tuple(dict.fromkeys(COMM_COLUMN.values()))

PIPELINED = "pipelined"  # of `panel_overlap`

_Place = tuple[int, int]  # of a kernel: its direction, and its position in the layer


@record
class KernelTimes:
    """Seconds per kernel and direction for one microbatch, communication by column."""

    compute_s: Float[Array, "2 kernels keys"]
    memory_s: Float[Array, "2 kernels keys"]
    comm_s: dict[str, Float[Array, "2 kernels keys"]]


_PerMode = Float[Array, "modes *#plans"] | tuple[Column, ...]  # a tuple where a search has an array for each mode


@record
class PassCosts:
    """The seconds of a layer for one microbatch that depend on the effects of a plan (`dsx.cost.context`)."""

    forward_s: Column
    backward_s: Column  # without recomputation
    recompute_s: _PerMode  # the recomputed forward
    weight_gradient_s: Column  # the part of the backward that only computes weight gradients
    split_s: Column  # what the backward takes longer where this part is a pass of its own
    compute_s: Column  # forward and backward
    tp_comm_s: Column
    cp_comm_s: Column
    ep_comm_s: Column


PASSES = tuple(PassCosts.__dataclass_fields__)


@record
class LayerCosts(PassCosts):
    """Cost of one layer for one microbatch.

    `modes` are those of recomputation: the values of `recompute` that do the same to the layer are one. A weight group
    is the weights that are reduced over the same ranks: dp, and `group_size` members of other axes. `group_size` is
    below 1 where an ep group spans several data-parallel ranks. Kinds of layers differ in the number of their weight
    groups.
    """

    memory_s: Column
    replicated_gradient_s: Column  # once a step: reducing gradients of parameters replicated over tp
    stash_bytes: _PerMode  # saved for the backward
    working_bytes: _PerMode  # transient of the layer's backward, besides the stash
    scattered_bytes: _PerMode  # the same where the gradients of all weights wait until the layer has run
    boundary_bytes: Column
    weight_bytes: PerGroup
    group_size: PerGroup
    group_share: PerGroup  # members in one fast domain
    group_ep: PerGroup  # ranks in a row of which each holds other parameters: ep for experts, else 1
    group_outer: tuple[PerGroup, ...] = ()  # members in a unit of each tier between the domain and the outermost one
    # Of ranks on the units of tiers (`dsx.plans.placement.rank_placement`); empty if no groups are counted by them.
    rank_placement: tuple[Column, ...] = ()
    tied_bytes: tuple[PerGroup, ...] = ()  # of weights shared with another layer of the model; empty if there are none
    frozen_bytes: tuple[PerGroup, ...] = ()  # of weights that are not trained; empty if all are
    # Of the matrices that Muon updates: their weights; once a step, the Newton-Schulz steps of all, with gathers
    # over tp; the FLOPs of these, and of the largest matrix. Empty with Adam for all weights.
    matrix_bytes: tuple[PerGroup, ...] = ()
    orthogonal_s: tuple[PerGroup, ...] = ()
    orthogonal_flops: tuple[Column, ...] = ()
    largest_matrix_flops: tuple[Column, ...] = ()
    # Seconds of collectives on an oversubscribed tier: in the forward, and in the backward under each of the modes.
    contended_s: tuple[Column, ...] = ()  # empty if no tier can be oversubscribed
    without: tuple[PassCosts, ...] = ()  # the passes of plans without the effects of each of `lacked`
    lacked: tuple[Fields, ...] = static(default=())
    modes: tuple[Codes, ...] = static(default=MAIN_MODES)  # of the fields with a value per mode

    def of_effects(self, choose: Callable[[Sequence[Column]], Column]) -> "LayerCosts":
        """Return the costs with the passes that plans have; `choose` takes a value with all effects and the others."""
        if not self.without:
            return self

        def chosen(name: str) -> _PerMode:
            values = [getattr(passes, name) for passes in (self, *self.without)]
            if name not in BY_MODE:
                return choose(values)
            return tuple(choose(of_mode) for of_mode in zip(*values, strict=True))

        return replace(self, **{name: chosen(name) for name in PASSES}, without=(), lacked=())

    def split(self, plans: Bool[Array, "*#plans"]) -> "LayerCosts":
        """Return the costs where the backward of `plans` is two passes."""
        longer_s = xp.where(plans, self.split_s, xp.zeros_like(self.split_s))
        names = ("backward_s", "weight_gradient_s", "compute_s")
        return replace(self, **{name: getattr(self, name) + longer_s for name in names})

    def unsplit(self) -> "LayerCosts":
        """Return the costs of a layer whose backward is one pass under every schedule."""
        return replace(self, weight_gradient_s=xp.zeros_like(self.backward_s), split_s=xp.zeros_like(self.backward_s))

    def under(self, field: str, code: int) -> Column:
        """Return a field with a value per mode under a value of `recompute`, by its code."""
        return getattr(self, field)[self._row(code)]

    def contended_backward_s(self, code: int) -> Column:
        """Return the contended seconds of the backward under a value of `recompute`."""
        return self.contended_s[1 + self._row(code)]

    def _row(self, code: int) -> int:
        return next(row for row, codes in enumerate(self.modes) if code in codes)


# Fields with a value for each mode of recomputation.
BY_MODE = ("recompute_s", "stash_bytes", "working_bytes", "scattered_bytes")
# Fields that are tuples of arrays, some of them empty: on a network of two tiers, without a tied or a frozen weight,
# without Muon.
TUPLES = ("group_outer", "rank_placement", "contended_s", "tied_bytes", "frozen_bytes", "matrix_bytes", "orthogonal_s")
TUPLES += ("orthogonal_flops", "largest_matrix_flops")


class WeightGroup(NamedTuple):
    """The ranks that hold the same parameters: those along dp and some data axes, divided by ep for experts.

    Frozen weights are groups of their own.
    """

    axes: tuple[str, ...]
    over_ep: bool = False
    frozen: bool = False

    def members(self, sizes: Mapping[str, PerKey], ones: PerKey) -> PerKey:
        """Return the number of ranks along the data axes, from the sizes of the axes."""
        return functools.reduce(xp.multiply, [sizes[axis] for axis in self.axes], ones)


@xp.unchecked
def kernel_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> KernelTimes:
    """Price every kernel and its collectives."""
    assumptions = _of_keys(work, assumptions)
    compute, memory = measured_or(work, *busy_times(unmeasured(work), cluster, assumptions), cluster, assumptions)
    exposed, _ = _communication(work, compute + memory, _collective_times(work, cluster, assumptions), assumptions)
    zero = work.zero

    def stacked(name: str) -> Float[Array, "2 kernels keys"]:
        directions = [
            xp.stack([exposed.get((direction, kernel, name), zero) for kernel in range(work.num_kernels)])
            for direction in (FORWARD, BACKWARD)
        ]
        return xp.stack(directions)

    return KernelTimes(
        compute_s=work.per_key(compute),
        memory_s=work.per_key(memory),
        comm_s={name: stacked(name) for name in _COLUMNS},
    )


@xp.unchecked
def layer_costs(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> LayerCosts:
    """Price a layer: the sums over its kernels, and its bytes and weight groups, which a step needs."""
    assumptions = _of_keys(work, assumptions)
    modelled_work = unmeasured(work)
    modelled = busy_times(modelled_work, cluster, assumptions)
    times = measured_or(work, *modelled, cluster, assumptions)
    collective_s = _collective_times(work, cluster, assumptions)
    of_weights = _of_weights(work, modelled_work, modelled)
    passes, *lacking = (
        _passes(work, times, of_weights, collective_s, without(assumptions, fields)) for fields in ((), *work.lacked)
    )
    groups = weight_groups(work.reduced_over, work.over_ep, work.frozen)
    frozen = [members if ranks.frozen else [] for ranks, members in groups.items()]
    tied = [[index for index in members if work.tied and work.tied[index]] for members in groups.values()]

    def group_bytes(of_groups: Iterable[Sequence[int]]) -> PerGroup:
        sums = [work.weights[np.array(members, dtype=int)].sum(axis=0) for members in of_groups]
        return work.per_key(xp.stack(sums))

    sizes = {axis: work.per_key(size) for axis, size in work.sizes.items()}
    ones = xp.ones_like(work.per_key(work.boundary))
    return LayerCosts(
        **{name: getattr(passes, name) for name in PASSES},
        memory_s=work.per_key(times[1].sum(axis=(0, 1))),
        replicated_gradient_s=_replicated_gradients(work, cluster, assumptions),
        stash_bytes=work.per_key(work.stash),
        working_bytes=work.per_key(work.working),
        scattered_bytes=work.per_key(work.scattered),
        boundary_bytes=work.per_key(work.boundary),
        weight_bytes=group_bytes(groups.values()),
        group_size=xp.stack([ranks.members(sizes, ones) for ranks in groups]),
        group_share=xp.stack([ranks.members(work.shares, ones) for ranks in groups]),
        group_ep=xp.stack([sizes["ep"] * ones if ranks.over_ep else ones for ranks in groups]),
        group_outer=tuple(xp.stack([ranks.members(shares, ones) for ranks in groups]) for shares in work.outer),
        rank_placement=work.rank_placement,
        tied_bytes=(group_bytes(tied),) if any(tied) else (),
        frozen_bytes=(group_bytes(frozen),) if any(frozen) else (),
        **matrix_costs(work, groups.values(), cluster, assumptions),
        contended_s=_contended_s(work, collective_s, cluster) if may_contend(cluster.network) else (),
        without=tuple(lacking),
        lacked=work.lacked,
        modes=tuple(mode.codes for mode in work.modes),
    )


def _of_keys(work: LayerWork, assumptions: Assumptions) -> Assumptions:
    """Return the parameters with the effects of each key."""
    if not any(condition.of_keys for condition in assumptions.conditions):
        return assumptions
    sizes = {axis: work.per_key(size) for axis, size in work.sizes.items()}
    shares = {f"{axis}_nvs": share for axis, share in work.shares.items()}
    return of_keys(assumptions, {**sizes, **shares}, xp.ones_like(work.per_key(work.boundary)))


def _passes(
    work: LayerWork,
    times: tuple[PerKernel, PerKernel],
    of_weights: tuple[Float[Array, "kernels works"], PerWork],
    collective_s: Sequence[PerKey],
    assumptions: Assumptions,
) -> PassCosts:
    """Return the seconds of forward, backward and recomputation, from compute and memory times of the kernels."""
    compute, memory = times
    exposed, late = _communication(work, compute + memory, collective_s, assumptions)
    zero, every = work.zero, range(work.num_kernels)

    def added(direction: int, *columns: str, kernels: Sequence[int] | None = None) -> PerKey:
        parts = [
            time
            for (where, kernel, name), time in exposed.items()
            if where == direction and name in columns and (kernels is None or kernel in kernels)
        ]
        return functools.reduce(xp.add, parts, zero)

    busy = work.per_key((compute + memory).sum(axis=1))
    busy_backward = busy[BACKWARD] + added(BACKWARD, *_COLUMNS)
    busy_forward = busy[FORWARD] + added(FORWARD, *_COLUMNS)
    # The host issues kernels one after the other; a faster GPU stalls.
    forward_s = xp.maximum(busy_forward, _issue_s(work, FORWARD, every, every, assumptions))
    issued_s = _issue_s(work, BACKWARD, every, every, assumptions)
    backward_s = xp.maximum(busy_backward, issued_s)
    # The gradients of inputs alone: their part of the kernels and of the issuing, and all exposed collectives.
    weights_of_kernels_s, launches = of_weights
    launched_s = assumptions.dispatch_latency * work.per_key(launches)
    weights_s = work.per_key(weights_of_kernels_s.sum(axis=0))
    for (direction, kernel), seconds in late.items():
        if direction == BACKWARD:
            of_kernel_s = work.per_key(weights_of_kernels_s[kernel])
            kernel_s = work.per_key((compute + memory)[BACKWARD][kernel])
            weights_s = weights_s + seconds * of_kernel_s / xp.where(kernel_s > 0, kernel_s, xp.ones_like(kernel_s))
    inputs_s = xp.maximum(busy_backward - weights_s, issued_s - launched_s)
    # By how much each part runs longer than the host issues it. In one pass, a part that runs longer makes good the
    # stall of the other one; in two passes it does not.
    inputs_over_s, weights_over_s = busy_backward - weights_s - (issued_s - launched_s), weights_s - launched_s
    made_good_s = xp.maximum(xp.minimum(inputs_over_s, -weights_over_s), xp.minimum(-inputs_over_s, weights_over_s))
    stall_s = (forward_s - busy_forward) + (backward_s - busy_backward)

    def recomputed(mode: Mode) -> PerKey:
        if len(mode.repeated) in (0, len(every)):
            return forward_s if mode.repeated else zero
        communicating = (*mode.repeated, *mode.completed)
        busy_again = (compute + memory)[FORWARD, np.array(mode.repeated, dtype=int)].sum(axis=0)
        seconds = work.per_key(busy_again) + added(FORWARD, *_COLUMNS, kernels=communicating)
        return xp.maximum(seconds, _issue_s(work, FORWARD, mode.repeated, communicating, assumptions))

    return PassCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        recompute_s=xp.stack([recomputed(mode) for mode in work.modes]),
        weight_gradient_s=backward_s - inputs_s,
        split_s=xp.maximum(made_good_s, zero),
        compute_s=work.per_key(compute.sum(axis=(0, 1))) + stall_s,
        **{name: added(FORWARD, name) + added(BACKWARD, name) for name in _COLUMNS},
    )


def busy_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> tuple[PerKernel, PerKernel]:
    """Return the compute time and the exposed memory time of every kernel by its roofline."""
    device, multiplies, shapes = cluster.device, work.multiplies, work.multiply_shapes
    excess = slowdowns(multiplies, shapes, device, assumptions) - 1.0
    matrix = work.matrix + per_kernel(multiplies.flops * excess, shapes, work.num_kernels)
    compute = compute_time(matrix, work.vector, work.launches, device, assumptions)
    num_bytes, accumulated = traffic(work, assumptions)
    exposed = exposed_memory_time(num_bytes, compute, work.launches, device, assumptions)
    return compute, exposed + memory_time(accumulated, device, assumptions)


def traffic(work: LayerWork, assumptions: Assumptions) -> tuple[PerKernel, PerKernel]:
    """Return the HBM traffic of every kernel, and that of the gradient accumulation after it, bytes."""
    multiplies, shapes, kernels = work.multiplies, work.multiply_shapes, work.num_kernels
    num_bytes = work.bytes + assumptions.unfused_share * work.unfused
    if assumptions.linear_dtype != BF16:
        num_bytes = num_bytes + per_kernel(cast_bytes(multiplies, shapes, assumptions), shapes, kernels)
    return num_bytes, per_kernel(accumulated_bytes(multiplies, shapes, assumptions), shapes, kernels)


def _issue_s(
    work: LayerWork, direction: int, kernels: Sequence[int], communicating: Sequence[int], assumptions: Assumptions
) -> PerKey:
    """Return the seconds that the host takes to issue kernels, and the collectives of those that are `communicating`.

    An axis of one rank has no collectives. A ring has a send in each hop.
    """
    issued = work.zero
    for axis in work.sizes:
        on_axis = [s for s in work.shapes if s.axis == axis and s.direction == direction and s.kernel in communicating]
        size, rings = work.per_key(work.sizes[axis]), sum(shape.ring for shape in on_axis)
        if on_axis:
            issued = issued + xp.where(size > 1, float(len(on_axis) - rings), 0.0) + rings * (size - 1.0)
    launched = work.launches[direction, np.array([*kernels], dtype=int)].sum()
    return assumptions.dispatch_latency * (launched + issued)


def _of_weights(
    work: LayerWork, modelled_work: LayerWork, modelled: tuple[PerKernel, PerKernel]
) -> tuple[Float[Array, "kernels works"], PerWork]:
    """Return the seconds and the launches of the multiplies of a backward that compute weight gradients.

    They have the same share of a kernel's time as of its matrix FLOPs. A share that followed compute time would leave
    more of the memory time to the gradients of inputs on a device with more FLOP/s. `modelled` has compute and memory
    times, for the multiplies without a measured time.
    """
    of_weight = of_weight_gradients(work)

    def shares(part: LayerWork) -> Float[Array, "kernels works"]:
        flops = per_kernel(part.multiplies.flops * of_weight, work.multiply_shapes, work.num_kernels)[BACKWARD]
        matrix = part.matrix[BACKWARD]
        return flops / xp.where(matrix > 0, matrix, xp.ones_like(matrix))

    compute, memory = modelled
    kernels_s = weight_gradients_or(work, shares(modelled_work) * (compute + memory)[BACKWARD], modelled)
    return kernels_s, (shares(work) * work.launches[BACKWARD]).sum(axis=0)


def _communication(
    work: LayerWork, busy: PerKernel, collective_s: Sequence[PerKey], assumptions: Assumptions
) -> tuple[dict[tuple[int, int, str], PerKey], dict[_Place, PerKey]]:
    """Return the seconds of exposed communication by (direction, kernel, column), and those late for each kernel.

    What is late could overlap with the kernel beside it, but takes longer; what rings expose is not counted.
    Both are without entries for none.
    """
    plain: dict[tuple[int, int, str], PerKey] = {}
    panel: dict[tuple[int, int], dict[str, PerKey]] = {}
    hops: dict[tuple[int, int, str], dict[bool, PerKey]] = {}  # by whether blocks are gathered
    free: dict[_Place, PerKey] = {}  # of a kernel's time, not yet overlapped
    late: dict[_Place, PerKey] = {}
    for shape, time in zip(work.shapes, collective_s, strict=True):
        name = COMM_COLUMN[shape.axis]
        if shape.panelled:
            columns = panel.setdefault((shape.direction, shape.kernel), {})
            columns[name] = columns.get(name, 0.0) + time
        elif shape.ring:
            around = hops.setdefault((shape.direction, shape.kernel, shape.axis), {})
            gathers = shape.kind == ALL_GATHER
            around[gathers] = around.get(gathers, 0.0) + time
        else:
            where = (shape.direction, shape.kernel, name)
            if shape.beside is not None:
                # Collectives beside one kernel do not overlap with the same part of it.
                at = (shape.direction, shape.beside)
                free_s = free.get(at, work.per_key(busy[at]))
                overlapped = xp.minimum(time, free_s)
                free[at] = free_s - overlapped
                share = getattr(assumptions, OVERLAP[name])
                late[at] = late.get(at, 0.0) + share * (time - overlapped)
                time = time - share * overlapped
            plain[where] = plain.get(where, 0.0) + time
    for (direction, kernel, axis), of_kinds in hops.items():
        part = work.per_key(busy[direction, kernel] / work.sizes[axis])
        zero: PerKey = xp.zeros_like(part)
        gathered: PerKey = of_kinds.get(True, zero)
        scattered: PerKey = of_kinds.get(False, zero)
        # Beside the first part, beside the last one, and beside each between them.
        first, last, between = (xp.maximum(hop - part, zero) for hop in (gathered, scattered, gathered + scattered))
        where = (direction, kernel, COMM_COLUMN[axis])
        num_between = xp.maximum(work.per_key(work.sizes[axis]) - 2.0, zero)
        plain[where] = plain.get(where, 0.0) + first + last + num_between * between
    for (direction, kernel), columns in panel.items():
        one_panel = functools.reduce(xp.add, columns.values())
        computing = work.per_key(busy[direction, kernel])
        panels = work.per_key(work.panels)
        if assumptions.panel_overlap == PIPELINED:
            # The collectives of all panels but the first, less the kernel's time beside them.
            late_s = xp.maximum((panels - 1.0) * (one_panel - computing / panels), xp.zeros_like(one_panel))
        else:
            late_s = xp.maximum(panels * one_panel - computing, xp.zeros_like(one_panel))
        late[direction, kernel] = late.get((direction, kernel), 0.0) + late_s
        # The columns share the exposed time in proportion to their time for one panel.
        scale = 1.0 + late_s / xp.where(one_panel > 0, one_panel, xp.ones_like(one_panel))
        for name, time in columns.items():
            where = (direction, kernel, name)
            plain[where] = plain.get(where, 0.0) + time * scale
    return plain, late


def _collective_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> list[PerKey]:
    """Return the seconds of each collective; for one panel, if it runs in panels, and for one hop of a ring.

    Collectives of one kind over one axis are priced together, which shortens compilation.
    """
    by_shape: dict[tuple[str, str, bool, bool, int | None], list[int]] = {}
    for index, shape in enumerate(work.shapes):
        by_shape.setdefault((shape.kind, shape.axis, shape.panelled, shape.ring, shape.routing), []).append(index)
    times: dict[int, PerKey] = {}
    for (kind, axis, panelled, ring, routing), indices in by_shape.items():
        members = tree_map(lambda leaf: leaf[None], work.members(axis))
        volumes = work.volumes[np.array(indices)]
        if ring:
            seconds = hop(members, cluster.network, assumptions)(work.per_key(volumes / work.sizes[axis][None]))
        else:
            volumes = work.per_key(volumes / work.panels[None] if panelled else volumes)
            routed = None if routing is None else tree_map(lambda leaf: leaf[None], work.routing(routing))
            seconds = collective(kind, members, cluster.network, assumptions, routed)(volumes)
        times |= {index: seconds[row] for row, index in enumerate(indices)}
    return [times[index] for index in range(len(work.shapes))]


def _contended_s(work: LayerWork, collective_s: Sequence[PerKey], cluster: Cluster) -> tuple[PerKey, ...]:
    """Return the seconds of collectives on an oversubscribed tier: in the forward, and in the backward of each mode."""
    crossing = {axis: crosses(work.members(axis), cluster.network) for axis in work.sizes}

    def added(direction: int, kernels: Sequence[int]) -> PerKey:
        total = work.zero
        for shape, time in zip(work.shapes, collective_s, strict=True):
            if shape.direction == direction and shape.kernel in kernels:
                if shape.panelled or shape.ring:
                    time = work.per_key(work.panels if shape.panelled else work.sizes[shape.axis] - 1.0) * time
                total = total + crossing[shape.axis] * time
        return total

    every = range(work.num_kernels)
    forward, backward = added(FORWARD, every), added(BACKWARD, every)
    repeated = [added(FORWARD, (*mode.repeated, *mode.completed)) for mode in work.modes]
    return forward, *(backward + seconds for seconds in repeated)


def is_data_axis(axis: str) -> bool:
    """Return whether reducing a gradient over `axis` belongs to the data-parallel reduction."""
    return COMM_COLUMN[axis] != COMM_COLUMN["tp"]


def weight_groups(
    reduced_over: Sequence[tuple[str, ...]], over_ep: Sequence[bool] = (), frozen: Sequence[bool] = ()
) -> dict[WeightGroup, list[int]]:
    """Return {ranks that hold the same parameters: positions of their weights}.

    Experts are reduced over all their axes at once. Other weights are reduced over their data axes here, and over the
    other axes in a reduction of its own (`_replicated_gradients`).
    """
    groups: dict[WeightGroup, list[int]] = {}
    for index, axes in enumerate(reduced_over):
        expert = bool(over_ep) and over_ep[index]
        data = axes if expert else tuple(axis for axis in axes if is_data_axis(axis))
        groups.setdefault(WeightGroup(data, expert, bool(frozen) and frozen[index]), []).append(index)
    return groups or {WeightGroup(()): []}


def _replicated_gradients(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> PerKey:
    """Return the seconds of all-reducing, once a step, gradients of parameters replicated over tp ranks."""
    total = work.zero
    if not assumptions.charge_replicated_gradients:
        return total
    per_weight_byte = assumptions.gradient_bytes / assumptions.weight_bytes
    groups = weight_groups(work.reduced_over, work.over_ep, work.frozen)
    shared = [i for ranks, members in groups.items() if not (ranks.over_ep or ranks.frozen) for i in members]
    for axis in AXES:
        reduced = [i for i in sorted(shared) if axis in work.reduced_over[i] and not is_data_axis(axis)]
        if reduced:
            link = collective(OF_REPLICATED.kind, work.members(axis), cluster.network, assumptions)
            time = link(per_weight_byte * work.per_key(work.weights[np.array(reduced)].sum(axis=0)))
            total = total + time
    return total
