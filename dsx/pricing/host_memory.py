"""Why a plan offloads too much: its bytes beside those of a node, and the nearest change that fits."""

import math
from collections.abc import Callable, Mapping

from dsx.cost.columns import StepCosts
from dsx.cost.offload import ACTIVATIONS, OPTIMIZER, of_node, usable_host_bytes
from dsx.pricing.problem import Problem
from dsx.space.choices import CODES
from dsx.units import format_quantity

_OFFLOAD = CODES["offload"]


def host_memory_detail(
    problem: Problem, codes: Mapping[str, int], costs: Mapping[str, float], with_offload: Callable[[int], StepCosts]
) -> str:
    """Return how much too much a plan keeps on its hosts; empty if it fits.

    `costs` are those of the plan by column, `with_offload` returns its costs [1] with another code of `offload`.
    """
    cluster, assumptions = problem.at_point(0)
    usable = float(usable_host_bytes(float(codes["num_gpus"]), cluster.node, assumptions))
    if costs["host_bytes"] <= usable:
        return ""
    gpus = float(of_node(float(codes["num_gpus"]), cluster.node))
    node, share = float(cluster.node.host_memory), float(assumptions.host_memory_share)
    alone = {name: with_offload(_OFFLOAD.index(name)) for name in _OFFLOAD if name != _OFFLOAD[codes["offload"]]}
    parts = {name: float(alone[name].host_bytes[0]) if name in alone else costs["host_bytes"] for name in _PARTS}
    largest = max(parts, key=lambda name: parts[name])
    fitting = [name for name, other in alone.items() if _fits(other, usable, float(cluster.device.hbm_capacity))]
    enough = f"{math.ceil(costs['host_bytes'] * gpus / share / 1e9)} GB"
    nearest = " or ".join([*(f"offload={name}" for name in fitting[-1:]), f"cluster.node.host_memory={enough!r}"])
    return (
        f"the {gpus:.0f} GPUs of a node keep {_bytes(costs['host_bytes'] * gpus)} on its host, "
        f"{_bytes((costs['host_bytes'] - usable) * gpus)} more than the {_bytes(usable * gpus)} that a job has of its "
        f"{_bytes(node)}; the largest part is {_PARTS[largest]} with {_bytes(parts[largest] * gpus)}; "
        f"nearest: {nearest}"
    )


_PARTS = {OPTIMIZER: "the state of the optimizer and its gradients", ACTIVATIONS: "the activations"}


def _fits(costs: StepCosts, usable: float, capacity: float) -> bool:
    return bool(costs.host_bytes[0] <= usable and costs.peak_bytes[0] <= capacity)


def _bytes(value: float) -> str:
    return format_quantity(value, "bytes")
