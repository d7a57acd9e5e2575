"""The work of a layer as numbers: its expressions evaluated for U shard keys.

This does not depend on hardware, so it is done once with NumPy, in float64; pricing it is JAX.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsx.graph.derived import BACKWARD, FORWARD, DerivedLayer, KernelCosts
from dsx.graph.expressions import evaluate, total
from dsx.graph.model import define
from dsx.graph.notation import AXES
from dsx.records import record, static
from dsx.spec.assumptions import AssumptionsSpec


@dataclass(frozen=True, slots=True)
class CollectiveShape:
    """What a collective is, whatever its volume: the structure that pricing is compiled for."""

    kernel: int  # position among the layer's priced kernels
    direction: int
    kind: str
    axis: str
    panelled: bool
    ring: bool = False


@dataclass(frozen=True, slots=True)
class MultiplyShape:
    """What a matrix multiply is, whatever its size."""

    kernel: int  # position among the layer's priced kernels
    direction: int
    linear: bool  # of an operator with a weight
    fused: bool  # part of a kernel of several operators
    of_weight: bool  # makes the gradient of a weight
    grouped: bool  # one for each of several weights, those of experts


@record
class Multiplies:
    """Local sizes of the matrix multiplies of a layer, in the order of their shapes; [M, V] each."""

    rows: Any
    columns: Any
    contracted: Any
    batch: Any  # multiplies of that size
    flops: Any  # of all of them; part of `LayerWork.matrix`


@record
class MeasuredTimes:
    """Seconds that were measured, NaN where nothing was; what a kernel is in place of its roofline."""

    kernels: Any  # [2, K, V] whole kernels
    multiplies: Any  # [M, V] single multiplies, in the order of `Multiplies`


_PER_WORK = ("matrix", "vector", "bytes", "unfused", "volumes", "weights", "stash", "working", "boundary", "panels")
_SIZES = ("rows", "columns", "contracted", "batch", "flops")


@record
class LayerWork:
    """Work of one layer on one GPU for one microbatch; K kernels, M multiplies, C collectives, W weights.

    There are U keys and V <= U works: keys that differ in their shares of a fast domain alone have the same work.
    """

    matrix: Any  # [2, K, V] FLOPs, forward and backward
    vector: Any  # [2, K, V] FLOPs
    bytes: Any  # [2, K, V] bytes
    unfused: Any  # [2, K, V] bytes beside them where operators run as several kernels
    multiplies: Multiplies
    launches: Any  # [2, K, 1]
    volumes: Any  # [C, V] bytes
    weights: Any  # [W, V] bytes
    stash: Any  # [3, V] bytes saved for the backward under each recompute mode
    working: Any  # [3, V] bytes beside them while the layer's backward runs
    boundary: Any  # [V] bytes handed to the next stage
    panels: Any  # [V]
    sizes: Any  # {axis: [V]} degrees of the axes
    shares: Any  # {axis: [U]} members of a group in one fast domain
    which: Any  # [U] the work of each key, or None where every key has its own
    shapes: tuple[CollectiveShape, ...] = static()
    reduced_over: tuple[tuple[str, ...], ...] = static()  # per weight: axes of its reduction, without dp
    multiply_shapes: tuple[MultiplyShape, ...] = static()
    again: tuple[bool, ...] = static()  # per kernel: whether selective recomputation makes it again
    over_ep: tuple[bool, ...] = static(default=())  # per weight: whether ep divides it; none where it divides no weight
    measured: MeasuredTimes | None = None  # None where no times were given
    wider: tuple[Any, ...] = ()  # {axis: [U]} each: members in a unit of each tier between domain and outermost

    def of_keys(self, works: Any, which: Any, shares: Any, wider: tuple[Any, ...] = ()) -> "LayerWork":
        """Return some of the works, and the keys that have them: `which` of them, with `shares` and `wider`."""
        picked = {name: getattr(self, name)[..., works] for name in _PER_WORK}
        sizes = {axis: size[works] for axis, size in self.sizes.items()}
        multiplies = Multiplies(**{name: getattr(self.multiplies, name)[..., works] for name in _SIZES})
        measured = self.measured and MeasuredTimes(
            self.measured.kernels[..., works], self.measured.multiplies[..., works]
        )
        return replace(
            self,
            **picked,
            multiplies=multiplies,
            sizes=sizes,
            which=which,
            shares=shares,
            measured=measured,
            wider=wider,
        )

    def per_key(self, leaf: Any) -> Any:
        """Return [..., U] values of the keys for [..., V] values of their works."""
        return leaf if self.which is None else leaf[..., self.which]


def collective_shapes(layer: DerivedLayer) -> tuple[CollectiveShape, ...]:
    """Return the structure of a layer's collectives, in the order of `LayerWork.volumes`."""
    return tuple(
        CollectiveShape(index, direction, collective.kind, collective.axis, collective.panelled, collective.ring)
        for direction in (FORWARD, BACKWARD)
        for index, kernel in enumerate(layer.priced_kernels)
        for collective in kernel.collectives[direction]
    )


def launches(kernel: KernelCosts, direction: int, assumptions: AssumptionsSpec) -> int:
    """Return how often a kernel of the layer text is launched in one direction."""
    if assumptions.launches == "operators" or not kernel.runs:
        return int(kernel.runs)
    work = kernel.work[direction]
    has_work = any(amount != 0 for amount in (work.matrix, work.vector, work.bytes))
    # The gradients of an operator's arguments are kernels of their own, unless they are fused.
    return int(has_work) if kernel.fused else max(int(has_work), len(work.multiplies))


def multiply_shapes(layer: DerivedLayer) -> tuple[MultiplyShape, ...]:
    """Return the structure of a layer's matrix multiplies, in the order of `LayerWork.multiplies`."""
    return tuple(
        MultiplyShape(
            index, direction, multiply.linear, kernel.fused, multiply.of_weight, multiply.linear and multiply.batch != 1
        )
        for direction in (FORWARD, BACKWARD)
        for index, kernel in enumerate(layer.priced_kernels)
        for multiply in kernel.work[direction].multiplies
    )


def layer_values(
    layer: DerivedLayer,
    dimensions: Mapping[str, Any],
    assumptions: AssumptionsSpec,
    sequence_length: Any,
    keys: Mapping[str, Any],
    xp: Any = np,
) -> dict[str, Any]:
    """Return the values of all names in a layer's expressions; `xp` as in `layer_work`.

    `keys` gives [U] arrays for microbatch_size, panels and every axis. Floats hold integers exactly up to
    2^53, far beyond any size, and FLOP counts do not overflow.
    """
    values: dict[str, Any] = {name: xp.asarray(size, dtype=float) for name, size in dimensions.items()}
    values["s"] = xp.asarray(sequence_length, dtype=float)
    values["b"] = xp.asarray(keys["microbatch_size"], dtype=float)
    values["panels"] = xp.asarray(keys["panels"], dtype=float)
    values |= {axis: xp.asarray(keys[axis], dtype=float) for axis in AXES if axis in keys}
    values["activation_bytes"] = float(assumptions.activation_bytes)
    values["weight_bytes"] = float(assumptions.weight_bytes)
    values["gradient_bytes"] = float(assumptions.gradient_bytes)
    return define(layer, values)


def layer_work(
    layer: DerivedLayer,
    dimensions: Mapping[str, Any],
    assumptions: AssumptionsSpec,
    sequence_length: Any,
    keys: Mapping[str, Any],
    xp: Any = np,
) -> LayerWork:
    """Evaluate a derived layer for U keys (microbatch_size, panels, axes and their ``_nvs`` shares).

    `xp` is the array module: NumPy, or jax.numpy inside a compiled function.
    """
    values = layer_values(layer, dimensions, assumptions, sequence_length, keys, xp)
    count = len(values["b"])
    kernels = layer.priced_kernels
    memo: dict[int, Any] = {}
    alive: list[Any] = []  # what the memo has seen, so that no other expression takes its identity

    def floor_divide(left: Any, right: Any) -> Any:
        # Exact below 2^53, and ten times faster than NumPy's own on floats.
        return xp.floor(left / right)

    def number(expr: Any) -> Any:
        alive.append(expr)
        return xp.broadcast_to(xp.asarray(evaluate(expr, values, memo, floor_divide), dtype=float), (count,))

    def stack(expressions: list[Any]) -> Any:
        return xp.stack([number(expr) for expr in expressions]) if expressions else xp.zeros((0, count))

    def per_direction(field: str) -> Any:
        return xp.stack([stack([getattr(k.work[d], field) for k in kernels]) for d in (FORWARD, BACKWARD)])

    multiplies = [m for direction in (FORWARD, BACKWARD) for k in kernels for m in k.work[direction].multiplies]
    saved = (
        stack([kernel.saved_bytes for kernel in layer.kernels]).sum(axis=0),
        stack([total(saved.bytes for saved in kernel.kept) for kernel in layer.kernels]).sum(axis=0),
        number(layer.input_bytes),
    )
    stash = xp.stack(saved)
    collectives = [*layer.collectives(FORWARD), *layer.collectives(BACKWARD)]
    return LayerWork(
        matrix=per_direction("matrix"),
        vector=per_direction("vector"),
        bytes=per_direction("bytes"),
        unfused=per_direction("unfused"),
        multiplies=Multiplies(**{name: stack([getattr(m, name) for m in multiplies]) for name in _SIZES}),
        launches=xp.asarray(
            [[[float(launches(k, direction, assumptions))] for k in kernels] for direction in (FORWARD, BACKWARD)]
        ),
        volumes=stack([collective.bytes for collective in collectives]),
        weights=stack([weight.bytes for weight in layer.weights]),
        stash=stash,
        working=_working(layer, stash, stack, xp) if assumptions.charge_transients else xp.zeros_like(stash),
        boundary=number(layer.boundary_bytes),
        panels=values["panels"],
        sizes={axis: xp.asarray(keys[axis], dtype=float) for axis in layer.axes},
        shares={axis: xp.asarray(keys[f"{axis}_nvs"], dtype=float) for axis in layer.axes},
        which=None,
        shapes=collective_shapes(layer),
        reduced_over=tuple(weight.reduced_over for weight in layer.weights),
        multiply_shapes=multiply_shapes(layer),
        again=tuple(kernel.recompute_region is not None for kernel in kernels),
        over_ep=tuple(weight.over_ep for weight in layer.weights),
    )


def _working(layer: DerivedLayer, stash: Any, stack: Callable[[list[Any]], Any], xp: Any) -> Any:
    """Return [3, V] bytes beside the stash: of the kernel that needs most, with what has been made again by then.

    In full recomputation all that the backward reads has been made again; in selective, that of one region.
    """
    transient = stack([kernel.transient_bytes for kernel in layer.kernels])
    most = transient.max(axis=0)
    selective = most
    held = {saved.key for kernel in layer.kernels for saved in kernel.kept}
    for region in {kernel.recompute_region: None for kernel in layer.kernels if kernel.recompute_region}:
        inside = [index for index, kernel in enumerate(layer.kernels) if kernel.recompute_region == region]
        made = [saved.bytes for index in inside for saved in layer.kernels[index].saved if saved.key not in held]
        selective = xp.maximum(selective, stack(made).sum(axis=0) + transient[xp.asarray(inside)].max(axis=0))
    return xp.stack([most, selective, xp.maximum(stash[0] - stash[2], 0.0) + most])
