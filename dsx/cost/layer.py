"""The cost of one layer for U shard keys: kernels by their roofline, collectives by their rings.

Per kernel and direction, time = max(compute, memory) + communication. The collectives of a panelled
multiply run while it computes: with s the time of one panel's collectives and n panels, the exposed time
is s + max(n*s - max(compute, memory), 0) (arXiv 2410.00273, section 3, SUMMA; released code).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dsx.cost.assumptions import Assumptions
from dsx.cost.collectives import passes, ring, sends_all
from dsx.cost.roofline import compute_time, exposed_memory_time
from dsx.cost.work import LayerWork
from dsx.graph.derived import BACKWARD, FORWARD
from dsx.graph.match import ALL_REDUCE
from dsx.graph.notation import AXES
from dsx.hardware.cluster import Cluster
from dsx.records import record

# The result column that an axis' communication counts in; dp's is priced per step, not per layer.
COMM_COLUMN = {"tp": "tp_comm_s", "tp2": "tp_comm_s", "cp": "cp_comm_s", "ep": "ep_comm_s"}


@record
class KernelTimes:
    """Seconds per kernel and direction for one microbatch: [2, K, U] each, communication by column."""

    compute_s: Any
    memory_s: Any
    comm_s: Any  # {column: [2, K, U]}


@record
class LayerCosts:
    """Cost of one layer for one microbatch; [U] each, but for the J weight groups, [J, U].

    A weight group is what is reduced over the same ranks: dp, and `group_size` members of other axes.
    """

    forward_s: Any
    backward_s: Any
    compute_s: Any  # forward and backward
    memory_s: Any
    tp_comm_s: Any
    cp_comm_s: Any
    ep_comm_s: Any
    replicated_gradient_s: Any  # once a step: reducing gradients of parameters replicated over tp
    stash_bytes: Any
    boundary_bytes: Any
    weight_bytes: Any  # [J, U]
    group_size: Any  # [J, U]
    group_share: Any  # [J, U] members of it in one fast domain


def kernel_times(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> KernelTimes:
    """Price every kernel and its collectives."""
    compute = compute_time(work.matrix, work.vector, work.launches[None], cluster.device, assumptions)
    memory = exposed_memory_time(work.bytes, compute, cluster.device, assumptions)
    plain = {name: jnp.zeros_like(compute) for name in dict.fromkeys(COMM_COLUMN.values())}
    panelled = dict(plain)
    for index, shape in enumerate(work.shapes):
        link = ring(
            work.sizes[shape.axis],
            work.shares[shape.axis],
            cluster.network,
            assumptions,
            passes(shape.kind),
            sends_all(shape.kind),
        )
        volume = work.volumes[index] / work.panels if shape.panelled else work.volumes[index]
        into = panelled if shape.panelled else plain
        name = COMM_COLUMN[shape.axis]
        into[name] = into[name].at[shape.direction, shape.kernel].add(link(volume))
    if not any(shape.panelled for shape in work.shapes):
        return KernelTimes(compute_s=compute, memory_s=memory, comm_s=plain)
    one_panel = functools.reduce(jnp.add, panelled.values())
    hidden = jnp.maximum(work.panels * one_panel - (compute + memory), jnp.zeros_like(one_panel))
    nonzero = jnp.where(one_panel > 0, one_panel, jnp.ones_like(one_panel))
    comm = {name: plain[name] + panelled[name] * (1.0 + hidden / nonzero) for name in plain}
    return KernelTimes(compute_s=compute, memory_s=memory, comm_s=comm)


def layer_costs(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> LayerCosts:
    """Price a layer: the kernels' times added up, and what combines them over a step."""
    times = kernel_times(work, cluster, assumptions)
    comm = {name: value.sum(axis=1) for name, value in times.comm_s.items()}
    busy = (times.compute_s + times.memory_s).sum(axis=1)
    each = functools.reduce(jnp.add, comm.values(), busy)
    groups = weight_groups(work.reduced_over)
    one = jnp.ones_like(work.boundary)
    return LayerCosts(
        forward_s=each[FORWARD],
        backward_s=each[BACKWARD],
        compute_s=times.compute_s.sum(axis=(0, 1)),
        memory_s=times.memory_s.sum(axis=(0, 1)),
        tp_comm_s=comm["tp_comm_s"].sum(axis=0),
        cp_comm_s=comm["cp_comm_s"].sum(axis=0),
        ep_comm_s=comm["ep_comm_s"].sum(axis=0),
        replicated_gradient_s=_replicated_gradients(work, cluster, assumptions),
        stash_bytes=work.stash,
        boundary_bytes=work.boundary,
        weight_bytes=jnp.stack([work.weights[jnp.array(members)].sum(axis=0) for members in groups.values()]),
        group_size=jnp.stack([functools.reduce(jnp.multiply, [work.sizes[a] for a in axes], one) for axes in groups]),
        group_share=jnp.stack([functools.reduce(jnp.multiply, [work.shares[a] for a in axes], one) for axes in groups]),
    )


price_layer = jax.jit(layer_costs)
price_kernels = jax.jit(kernel_times)


def is_data_axis(axis: str) -> bool:
    """Return whether reducing a gradient over `axis` belongs to the data-parallel reduction."""
    return COMM_COLUMN[axis] != COMM_COLUMN["tp"]


def weight_groups(reduced_over: tuple[tuple[str, ...], ...]) -> dict[tuple[str, ...], list[int]]:
    """Return {data axes beside dp: positions of the weights that are reduced over them}."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, axes in enumerate(reduced_over):
        groups.setdefault(tuple(axis for axis in axes if is_data_axis(axis)), []).append(index)
    return groups or {(): []}


def _replicated_gradients(work: LayerWork, cluster: Cluster, assumptions: Assumptions) -> Any:
    """Return the seconds of all-reducing, once a step, gradients that tensor parallel ranks share."""
    total = jnp.zeros_like(work.boundary)
    if not assumptions.charge_replicated_gradients:
        return total
    per_weight_byte = assumptions.gradient_bytes / assumptions.weight_bytes
    for axis in AXES:
        members = [i for i, axes in enumerate(work.reduced_over) if axis in axes and not is_data_axis(axis)]
        if members:
            link = ring(work.sizes[axis], work.shares[axis], cluster.network, assumptions, passes(ALL_REDUCE))
            time = link(per_weight_byte * work.weights[jnp.array(members)].sum(axis=0))
            total = total + time
    return total
