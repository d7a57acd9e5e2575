"""The work of the equations of a jaxpr: FLOPs, bytes, the sizes of multiplies, and how each may be fused.

A multiply has 2 FLOPs for each pair of elements. A convolution is a multiply of its windows by its filters, without the
pairs that a padding or a dilation of the input leaves out, as XLA counts. A Fourier transform of n elements has
5 n log2 n FLOPs (Cooley and Tukey, 1965). Any other operator has one FLOP for each element that it makes, or that it
reduces. It moves its operands and its results once; a gather, a scatter or a slice only the elements concerned. A scan
that is not unrolled takes its body times its length, a branch (cond) the branch with most work, and a loop of unknown
length (while) one run of its body.

Not modelled: what transcendental functions, random numbers, sorts and factorisations take more; multiplies that are
split along the sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log2, prod
from typing import Any

import numpy as np

from dsx.operator_placement.graph_sources.elementwise_fusion import fused
from dsx.operator_placement.graph_sources.jaxpr_flattening import (
    ROW,
    STACK,
    FlatEquation,
    FlatJaxpr,
    flattened,
    sub_jaxprs,
)
from dsx.operator_placement.graph_sources.traced_graph import works_of
from dsx.operator_placement.graph_sources.traced_step import Kernel, Multiply, Role, TracedOperator, TracedStep

_VIEWS = {"reshape", "squeeze", "expand_dims", "optimization_barrier", "stop_gradient", "name", "pvary"}
_VIEWS |= {"sharding_constraint"}
_SPREADS = {"broadcast_in_dim", "iota"}
_REDUCTIONS = {f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor")} | {"argmax", "argmin"}
_MOVES = {"transpose", "slice", "dynamic_slice", "dynamic_update_slice", "split", "pad", "concatenate", "rev", STACK}
_ELEMENTWISE = _MOVES | {
    *("abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh"),
    *("bitcast_convert_type", "cbrt", "ceil", "clamp", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh"),
    *("digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag"),
    *("integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg"),
    *("nextafter", "not", "or", "population_count", "pow", "real", "reduce_precision", "rem", "round", "rsqrt"),
    *("select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt"),
    *("square", "sub", "tan", "tanh", "xor"),
}
# Results with the elements that are read of the first operand, in place of all.
_PARTS = {"gather", "slice", "dynamic_slice", "split"}


def step_of(flat: FlatJaxpr, names: Sequence[str], updates: dict[int, int] | None = None) -> TracedStep:
    """Return the operators of a flattened jaxpr; `names` are those of its arguments.

    `updates` has the results, by position, that are new values of arguments, by position.
    """
    sizes = tuple(_num_bytes(value) for value in flat.values)
    counts: dict[str, int] = {}
    operators: list[TracedOperator] = []
    for equation in flat.equations:
        number = counts.get(equation.kind, 0)
        counts[equation.kind] = number + 1
        label = f"{equation.kind}.{number}"
        operators.append(_operator(equation, f"{equation.scope}/{label}" if equation.scope else label, flat, sizes))
    given = dict(zip(flat.inputs, names, strict=True))
    given |= {constant: f"constant.{number}" for number, constant in enumerate(flat.constants)}
    new = {
        flat.inputs[argument]: made
        for argument, result in (updates or {}).items()
        if isinstance(made := flat.outputs[result], int)
    }
    return TracedStep(
        operators=tuple(operators),
        tensor_bytes=sizes,
        inputs=given,
        outputs=frozenset(one for one in flat.outputs if isinstance(one, int)),
        updates=new,
    )


def _operator(equation: FlatEquation, name: str, flat: FlatJaxpr, sizes: Sequence[float]) -> TracedOperator:
    inputs = [one for one in equation.inputs if isinstance(one, int)]
    taken, made = [flat.values[one] for one in inputs], [flat.values[one] for one in equation.outputs]
    read = [sizes[one] for one in inputs]
    written = sum(sizes[one] for one in equation.outputs)
    elements = float(sum(prod(value.shape) for value in made))
    vector, multiplies, kind = elements, (), equation.kind
    if kind in _MULTIPLIES and len(inputs) == 2:
        vector, multiplies = 0.0, (_MULTIPLIES[kind](equation.params, taken[0], taken[1], made[0]),)
    elif kind in _REDUCTIONS or kind.startswith(("reduce_window", "select_and_scatter")):
        vector = float(max((prod(value.shape) for value in taken), default=0.0))
    elif kind == "fft":
        vector = 5.0 * elements * log2(max(prod(equation.params["fft_lengths"]), 2))
    elif kind in _PARTS and read:
        read[0] = written
        vector = 0.0
    elif kind == "dynamic_update_slice" or kind.startswith("scatter"):
        # In place: the elements of the update alone are read, and written.
        update = read[-1] if kind.startswith("scatter") else read[min(1, len(read) - 1)]
        read[0] = written = update
        vector = update / max(_item_size(made[0]), 1)
    return TracedOperator(
        id=name,
        kind=kind,
        role=_role(kind),
        inputs=tuple(inputs),
        outputs=equation.outputs,
        read_bytes=tuple(read),
        written_bytes=written,
        elements=float(max((prod(value.shape) for value in (*taken, *made)), default=0)),
        vector_flops=0.0 if kind in _MOVES else vector,
        multiplies=multiplies,
        inside=_inside(equation),
    )


def _role(kind: str) -> Role:
    if kind in _VIEWS:
        return "view"
    if kind == ROW:
        return "part"
    if kind in _SPREADS:
        return "spread"
    if kind in _REDUCTIONS:
        return "reduction"
    if kind == "transpose":
        return "transpose"
    return "elementwise" if kind in _ELEMENTWISE else "alone"


def _inside(equation: FlatEquation) -> tuple[Kernel, ...]:
    """Return the kernels of a loop or of the branch with most work; none for an operator without jaxprs."""
    if equation.kind not in ("scan", "while", "cond"):
        return ()
    found = [_kernels(one) for one in map(flattened, sub_jaxprs(equation))]
    if equation.kind == "cond":
        return max(found, key=_amount, default=())
    times = float(equation.params.get("length", 1))
    return tuple(replace(kernel, runs=kernel.runs * times) for each in found for kernel in each)


def _kernels(flat: FlatJaxpr) -> tuple[Kernel, ...]:
    step = fused(step_of(flat, [""] * len(flat.inputs)))
    return tuple(work for kernel in step.kernels for work in works_of(step, kernel))


def _amount(kernels: Sequence[Kernel]) -> tuple[float, float]:
    flops = sum(kernel.runs * (kernel.vector_flops + sum(m.flops for m in kernel.multiplies)) for kernel in kernels)
    return flops, sum(kernel.runs * kernel.num_bytes for kernel in kernels)


def _dot(params: Any, left: Any, right: Any, made: Any) -> Multiply:
    (contracted, _), (batched, _) = params["dimension_numbers"]
    inner = prod(left.shape[axis] for axis in contracted)
    batch = prod(left.shape[axis] for axis in batched)
    rows = prod(left.shape) / max(inner * batch, 1)
    columns = prod(made.shape) / max(rows * batch, 1)
    return Multiply(rows, columns, inner, batch, 2.0 * prod(made.shape) * inner)


def _convolution(params: Any, left: Any, right: Any, made: Any) -> Multiply:
    numbers = params["dimension_numbers"]
    batch_axis, _, *space = numbers.lhs_spec
    out_features, in_features, *window = numbers.rhs_spec
    out_space = numbers.out_spec[2:]
    pairs = 1.0  # of elements of the window and of the input, for one pair of features
    for axis in range(len(space)):
        pairs *= _pairs(
            left.shape[space[axis]],
            right.shape[window[axis]],
            made.shape[out_space[axis]],
            params["window_strides"][axis],
            params["padding"][axis][0],
            params["lhs_dilation"][axis],
            params["rhs_dilation"][axis],
        )
    images = left.shape[batch_axis] / params["batch_group_count"]
    groups = params["feature_group_count"] * params["batch_group_count"]
    columns, depth = right.shape[out_features] / groups, right.shape[in_features]
    rows = images * prod(made.shape[axis] for axis in out_space)
    flops = 2.0 * images * pairs * depth * right.shape[out_features]
    contracted = max(flops / max(2.0 * rows * columns * groups, 1.0), 1.0)
    return Multiply(rows, columns, contracted, groups, flops)


def _pairs(size: int, window: int, made: int, stride: int, padding: int, dilation: int, window_dilation: int) -> int:
    """Return how many (result, element of the window) read an element of the input, along one axis."""
    at = np.arange(made)[:, None] * stride + np.arange(window)[None] * window_dilation - padding
    return int(((at >= 0) & (at <= (size - 1) * dilation) & (at % dilation == 0)).sum())


_MULTIPLIES: dict[str, Callable[[Any, Any, Any, Any], Multiply]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
}


def _item_size(value: Any) -> int:
    return int(getattr(value.dtype, "itemsize", 4))


def _num_bytes(value: Any) -> float:
    return float(prod(value.shape) * _item_size(value))
