"""The graph of a step of JAX: its jaxpr, which is traced without memory, as kernels.

Calls (jit, custom_jvp and custom_vjp, checkpoint and the like) are inlined, and scans of known length unrolled. What an
unrolled scan stacks is handed on piece by piece to a scan that takes it apart again, such as that of the backward. A
loop of unknown length (while), a branch (cond), and a scan that would be too long stay one operator. Edges carry
tensors: two readers of a variable take the same one. Numbers in the program text, and arguments of one element, have no
edges. An operator has the name of its primitive and a number, behind the named scopes around it: "mlp/dot_general.12".

A multiply has 2 FLOPs for each pair of elements. A convolution is a multiply of its windows by its filters, without the
pairs that a padding or a dilation of the input leaves out, as XLA counts. A Fourier transform of n elements has
5 n log2 n FLOPs (Cooley and Tukey, 1965). Any other operator has one FLOP for each element that it makes, or that it
reduces. It moves its operands and its results once; a gather, a scatter or a slice only the elements concerned. A scan
that is not unrolled takes its body times its length, a branch the branch with most work, and a loop of unknown length
one run of its body.

Where a step returns a container of arrays like that of an argument, as in (params, batch) -> (params, loss), it is the
new value of the argument: each of its arrays shares the device of the one that it replaces.

Not modelled: what transcendental functions, random numbers, sorts and factorisations take more; multiplies that are
split along the sum.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2, prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from dsx.config.load import Given
from dsx.errors import DsxError, InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.traced import (
    DEFAULT_ASSUMPTIONS,
    DEFAULT_CLUSTER,
    Role,
    TracedKernel,
    TracedMultiply,
    TracedOperator,
    TracedStep,
    fused,
    graph_of_step,
    pricing_of,
    works_of,
)

_MOST_EQUATIONS = 20_000  # with which a scan is still unrolled
# Names of the calls that are inlined, and where they keep what they call.
_CALLS = {
    **dict.fromkeys(("jit", "pjit", "remat", "remat2", "checkpoint", "composite"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}

ROW, STACK = "row", "stack"  # kinds of what unrolling adds: an array taken apart along its first axis, and put together

Params = Mapping[str, Any]  # of a primitive, as JAX has them
Run = Callable[..., Sequence[Any]]  # of arrays, or of tracers of them
Value = jax.ShapeDtypeStruct
Operand = int | Literal  # a value, by its number, or a number in the program text


@dataclass(frozen=True, slots=True)
class FlatEquation:
    """An equation on numbered values; `run` computes its results from its operands."""

    kind: str  # the name of its primitive
    params: Params
    inputs: tuple[Operand, ...]
    outputs: tuple[int, ...]
    run: Run
    scope: str  # the named scopes and transformations around it


@dataclass(frozen=True, slots=True)
class FlatJaxpr:
    """The equations of a jaxpr, without those that no result needs."""

    equations: tuple[FlatEquation, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]  # the arguments
    constants: Mapping[int, object]  # arrays that the step has from outside, by their values
    outputs: tuple[Operand, ...]


def flattened(closed: ClosedJaxpr) -> FlatJaxpr:
    """Return the equations of a jaxpr."""
    flattening = _Flattening()
    inputs = [flattening.value(variable.aval) for variable in closed.jaxpr.invars]
    results = flattening.run(closed.jaxpr, [*map(flattening.constant, closed.consts), *inputs], "")
    outputs = tuple(map(flattening.whole, results))
    needed = {*numbers_in(outputs)}
    kept: list[FlatEquation] = []
    for equation in reversed(flattening.equations):
        if needed.intersection(equation.outputs):
            kept.append(equation)
            needed.update(numbers_in(equation.inputs))
    return FlatJaxpr(tuple(reversed(kept)), tuple(flattening.values), tuple(inputs), flattening.constants, outputs)


def numbers_in(operands: Iterable[Operand]) -> list[int]:
    """Return the operands that are values, without numbers in the program text."""
    return [operand for operand in operands if isinstance(operand, int)]


@dataclass(slots=True)
class _Stacked:
    """An array as its pieces along the first axis; a piece is without that axis."""

    aval: object
    pieces: tuple[Operand, ...]
    number: int | None = None  # of its value in one piece, once something needs that


_Held = Operand | _Stacked


class _Flattening:
    """Values and equations so far."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.equations: list[FlatEquation] = []
        self.rows: dict[tuple[int, int], int] = {}  # of each row of an array that is taken apart
        self.constants: dict[int, object] = {}

    def value(self, aval: object) -> int:
        """Return the number of a new value."""
        self.values.append(Value(getattr(aval, "shape", ()), getattr(aval, "dtype", np.dtype(bool))))
        return len(self.values) - 1

    def constant(self, array: object) -> int:
        """Return the number of an array from outside."""
        number = next((number for number, constant in self.constants.items() if constant is array), None)
        if number is None:
            number = self.value(array)
            self.constants[number] = array
        return number

    def run(self, jaxpr: Jaxpr, inputs: Iterable[_Held], scope: str) -> list[_Held]:
        """Add the equations of a jaxpr; return what it returns. `inputs` are its constants and its arguments."""
        values: dict[Var, _Held] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))

        def read(atom: Var | Literal) -> _Held:
            return atom if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            scopes = "/".join(filter(None, (scope, str(eqn.source_info.name_stack))))
            results = self._equation(eqn, [*map(read, eqn.invars)], scopes)
            values.update(zip(eqn.outvars, results, strict=True))
        return [*map(read, jaxpr.outvars)]

    def _equation(self, eqn: JaxprEqn, operands: Sequence[_Held], scope: str) -> Sequence[_Held]:
        name = eqn.primitive.name
        if name in _CALLS:
            inner, consts = _opened(eqn.params[_CALLS[name]])
            return self.run(inner, [*map(self.constant, consts), *operands], scope)
        if name == "scan" and 0 < _unrolled(eqn) <= _MOST_EQUATIONS - len(self.equations):
            return self._scan(eqn, operands, scope)
        results = [self.value(variable.aval) for variable in eqn.outvars]
        inputs = tuple(map(self.whole, operands))
        self.equations.append(FlatEquation(name, eqn.params, inputs, tuple(results), partial(_bound, eqn), scope))
        return results

    def _scan(self, eqn: JaxprEqn, operands: Sequence[_Held], scope: str) -> Sequence[_Held]:
        params = eqn.params
        length, num_consts, num_carry = params["length"], params["num_consts"], params["num_carry"]
        inner, consts = _opened(params["jaxpr"])
        fixed = [*map(self.constant, consts), *operands[:num_consts]]
        carry, rows = [*operands[num_consts : num_consts + num_carry]], operands[num_consts + num_carry :]
        stacked: list[dict[int, Operand]] = [{} for _ in eqn.outvars[num_carry:]]
        for at in reversed(range(length)) if params["reverse"] else range(length):
            results = self.run(inner, [*fixed, *carry, *(self._row(row, at, scope) for row in rows)], scope)
            carry = results[:num_carry]
            for pieces, piece in zip(stacked, results[num_carry:], strict=True):
                pieces[at] = self.whole(piece)
        arrays = zip(eqn.outvars[num_carry:], stacked, strict=True)
        return [*carry, *(_Stacked(out.aval, tuple(pieces[at] for at in range(length))) for out, pieces in arrays)]

    def _row(self, held: _Held, at: int, scope: str) -> Operand:
        """Return one piece of an array."""
        if isinstance(held, _Stacked):
            return held.pieces[at]
        if isinstance(held, Literal):
            return held  # has no axis, so no scan takes it apart
        if (held, at) not in self.rows:
            array = self.values[held]
            self.rows[held, at] = row = self.value(Value(array.shape[1:], array.dtype))
            run = partial(_row, at)
            self.equations.append(FlatEquation(ROW, {}, (held,), (row,), run, scope))
        return self.rows[held, at]

    def whole(self, held: _Held) -> Operand:
        """Return an array in one piece."""
        if not isinstance(held, _Stacked):
            return held
        if held.number is None:
            held.number = self.value(held.aval)
            self.equations.append(FlatEquation(STACK, {}, held.pieces, (held.number,), _stack, ""))
        return held.number


def _opened(called: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[object]]:
    return (called.jaxpr, called.consts) if isinstance(called, ClosedJaxpr) else (called, ())


def _unrolled(eqn: JaxprEqn) -> int:
    """Return the equations of a scan when it is unrolled."""
    return eqn.params["length"] * _count(eqn.params["jaxpr"].jaxpr)


def _count(jaxpr: Jaxpr) -> int:
    """Return the equations of a jaxpr when it is flattened."""
    total = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in _CALLS:
            total += _count(_opened(eqn.params[_CALLS[name]])[0])
        else:
            unrolled = _unrolled(eqn) if name == "scan" else 1
            total += unrolled if 0 < unrolled <= _MOST_EQUATIONS else 1
    return total


def _bound(eqn: JaxprEqn, *operands: object) -> Sequence[object]:
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _row(at: int, array: jax.Array) -> Sequence[jax.Array]:
    return [lax.index_in_dim(array, at, keepdims=False)]


def _stack(*pieces: jax.Array) -> Sequence[jax.Array]:
    return [lax.concatenate([lax.expand_dims(piece, (0,)) for piece in pieces], 0)]


_VIEWS = "reshape squeeze expand_dims optimization_barrier stop_gradient name pvary sharding_constraint".split()
_SPREADS = {"broadcast_in_dim", "iota"}
_REDUCTIONS = {f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor")} | {"argmax", "argmin"}
_MOVES = {"transpose", "slice", "dynamic_slice", "dynamic_update_slice", "split", "pad", "concatenate", "rev", STACK}
_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp conj
    convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag
    integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or population_count pow
    real reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sinh sqrt square sub tan tanh xor
"""
_ROLES: dict[str, Role] = {
    **dict.fromkeys((*_MOVES, *_ELEMENTWISE.split()), "elementwise"),
    **dict.fromkeys(_REDUCTIONS, "reduction"),
    **dict.fromkeys(_SPREADS, "spread"),
    **dict.fromkeys(_VIEWS, "view"),
    "transpose": "transpose",
    ROW: "part",
}
# Results with the elements that are read of the first operand, in place of all.
_PARTS = {"gather", "slice", "dynamic_slice", "split"}


def step_of(flat: FlatJaxpr, names: Sequence[str], updates: dict[int, int] | None = None) -> TracedStep:
    """Return the operators of a flattened jaxpr; `names` are those of its arguments.

    `updates` has the results, by position, that are new values of arguments, by position.
    """
    sizes = tuple(float(prod(value.shape) * _item_size(value)) for value in flat.values)
    counts: dict[str, int] = {}
    operators: list[TracedOperator] = []
    for equation in flat.equations:
        number = counts.get(equation.kind, 0)
        counts[equation.kind] = number + 1
        label = f"{equation.kind}.{number}"
        operators.append(_operator(equation, f"{equation.scope}/{label}" if equation.scope else label, flat, sizes))
    inputs = dict(zip(flat.inputs, names, strict=True))
    inputs |= {constant: f"constant.{number}" for number, constant in enumerate(flat.constants)}
    new_values = {
        flat.inputs[argument]: value
        for argument, result in (updates or {}).items()
        if isinstance(value := flat.outputs[result], int)
    }
    return TracedStep(
        operators=tuple(operators),
        tensor_bytes=sizes,
        inputs=inputs,
        outputs=frozenset(numbers_in(flat.outputs)),
        updates=new_values,
    )


def _operator(equation: FlatEquation, name: str, flat: FlatJaxpr, sizes: Sequence[float]) -> TracedOperator:
    inputs = numbers_in(equation.inputs)
    operands, results = [flat.values[number] for number in inputs], [flat.values[number] for number in equation.outputs]
    read = [sizes[number] for number in inputs]
    written = sum(sizes[number] for number in equation.outputs)
    elements = float(sum(prod(value.shape) for value in results))
    vector, multiplies, kind = elements, (), equation.kind
    if kind in _MULTIPLIES and len(inputs) == 2:
        vector, multiplies = 0.0, (_MULTIPLIES[kind](equation.params, operands[0], operands[1], results[0]),)
    elif kind in _REDUCTIONS or kind.startswith(("reduce_window", "select_and_scatter")):
        vector = float(max((prod(value.shape) for value in operands), default=0.0))
    elif kind == "fft":
        vector = 5.0 * elements * log2(max(prod(equation.params["fft_lengths"]), 2))
    elif kind in _PARTS and read:
        read[0] = written
        vector = 0.0
    elif kind == "dynamic_update_slice" or kind.startswith("scatter"):
        # In place: the elements of the update alone are read, and written.
        update = read[-1] if kind.startswith("scatter") else read[min(1, len(read) - 1)]
        read[0] = written = update
        vector = update / max(_item_size(results[0]), 1)
    return TracedOperator(
        id=name,
        kind=kind,
        role=_ROLES.get(kind, "alone"),
        inputs=tuple(inputs),
        outputs=equation.outputs,
        read_bytes=tuple(read),
        written_bytes=written,
        elements=float(max((prod(value.shape) for value in (*operands, *results)), default=0)),
        vector_flops=0.0 if kind in _MOVES else vector,
        multiplies=multiplies,
        inside=_inside(equation),
    )


def _inside(equation: FlatEquation) -> tuple[TracedKernel, ...]:
    """Return the kernels of a loop or of the branch with most work; none for an operator without jaxprs."""
    if equation.kind not in ("scan", "while", "cond"):
        return ()
    bodies: list[tuple[TracedKernel, ...]] = []
    for value in jax.tree.leaves([*equation.params.values()]):
        if isinstance(value, ClosedJaxpr) or (isinstance(value, Jaxpr) and not value.constvars):
            flat = flattened(value if isinstance(value, ClosedJaxpr) else ClosedJaxpr(value, ()))
            step = fused(step_of(flat, [""] * len(flat.inputs)))
            bodies.append(tuple(work for kernel in step.kernels for work in works_of(step, kernel)))
    if equation.kind == "cond":
        return max(bodies, key=_amount, default=())
    times = float(equation.params.get("length", 1))
    return tuple(replace(kernel, runs=kernel.runs * times) for body in bodies for kernel in body)


def _amount(kernels: Sequence[TracedKernel]) -> tuple[float, float]:
    flops = sum(kernel.runs * (kernel.vector_flops + sum(m.flops for m in kernel.multiplies)) for kernel in kernels)
    return flops, sum(kernel.runs * kernel.num_bytes for kernel in kernels)


def _dot(params: Params, lhs: Value, rhs: Value, result: Value) -> TracedMultiply:
    (contracted, _), (batched, _) = params["dimension_numbers"]
    inner = prod(lhs.shape[axis] for axis in contracted)
    batch = prod(lhs.shape[axis] for axis in batched)
    rows = prod(lhs.shape) / max(inner * batch, 1)
    columns = prod(result.shape) / max(rows * batch, 1)
    return TracedMultiply(rows, columns, inner, batch, 2.0 * prod(result.shape) * inner)


def _convolution(params: Params, lhs: Value, rhs: Value, result: Value) -> TracedMultiply:
    numbers = params["dimension_numbers"]
    batch_axis, _, *space = numbers.lhs_spec
    out_features, in_features, *windows = numbers.rhs_spec
    out_space = numbers.out_spec[2:]
    pairs = 1.0  # of elements of the window and of the input, for one pair of features
    for axis, (in_axis, window, out_axis) in enumerate(zip(space, windows, out_space, strict=True)):
        first = np.arange(result.shape[out_axis])[:, None] * params["window_strides"][axis]
        at = first + np.arange(rhs.shape[window])[None] * params["rhs_dilation"][axis] - params["padding"][axis][0]
        dilation = params["lhs_dilation"][axis]
        inside = (at >= 0) & (at <= (lhs.shape[in_axis] - 1) * dilation) & (at % dilation == 0)
        pairs *= int(inside.sum())
    images = lhs.shape[batch_axis] / params["batch_group_count"]
    groups = params["feature_group_count"] * params["batch_group_count"]
    columns, depth = rhs.shape[out_features] / groups, rhs.shape[in_features]
    rows = images * prod(result.shape[axis] for axis in out_space)
    flops = 2.0 * images * pairs * depth * rhs.shape[out_features]
    contracted = max(flops / max(2.0 * rows * columns * groups, 1.0), 1.0)
    return TracedMultiply(rows, columns, contracted, groups, flops)


_MULTIPLIES: dict[str, Callable[[Params, Value, Value, Value], TracedMultiply]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
}


def _item_size(value: Value) -> int:
    return int(getattr(value.dtype, "itemsize", 4))


def from_jax(
    step: Callable[..., object],
    *shapes: object,
    device: Given = DEFAULT_CLUSTER,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
) -> OpGraph:
    """Return the graph of a step; its seconds are those of the roofline.

        graph = dsx.place.from_jax(step, params, jax.ShapeDtypeStruct((32, 128), "int32"))

    Args:
        step: a function of arrays, which is traced and not run.
        shapes: its arguments: arrays or `jax.ShapeDtypeStruct`, and containers of these.
        device: the cluster whose device runs the operators, by its name, its file or its content.
        assumptions: the assumption set of the roofline.

    Raises InputError for what is no function, cannot be traced with these shapes, or computes nothing.
    """
    pricing = pricing_of(device, assumptions)
    return graph_of_step(traced(step, shapes)[0], pricing)


def traced(step: Callable[..., object], shapes: Sequence[object]) -> tuple[TracedStep, FlatJaxpr]:
    """Return the operators of a step, and the equations that they are; raises InputError."""
    name = getattr(step, "__name__", f"{step!r:.60}")
    if not callable(step):
        raise InputError(f"{name}: {type(step).__name__} is given, and a step, a function of arrays, is wanted")
    try:
        closed, results = jax.make_jaxpr(step, return_shape=True)(*shapes)
    except DsxError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"step {name} cannot be traced with the given shapes: {type(error).__name__}: {first}"
        ) from None
    flat = flattened(closed)
    if not flat.equations:
        raise InputError(f"step {name} computes nothing of its arguments")
    # An argument is named by its position, and the keys inside of it.
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tuple(shapes))[0]]
    names = [f"input.{jax.tree_util.keystr(path, simple=True, separator='/')}" for path in paths]
    free = _places(results if isinstance(results, tuple | list) else (results,))
    updates: dict[int, int] = {}
    for structure, places in _places(shapes):
        match = next((container for container in free if container[0] == structure), None)
        if match is not None:
            free.remove(match)
            updates |= dict(zip(places, match[1], strict=True))
    return step_of(flat, names, updates), flat


def _places(trees: Sequence[object]) -> list[tuple[object, range]]:
    """Return the structure of each container with the shapes in it, and the positions of its arrays."""
    containers: list[tuple[object, range]] = []
    first = 0
    for tree in trees:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        places = range(first, first + len(leaves))
        first += len(leaves)
        if leaves and not jax.tree_util.treedef_is_leaf(structure):
            shapes = tuple((jax.numpy.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
            containers.append(((structure, shapes), places))
    return containers
