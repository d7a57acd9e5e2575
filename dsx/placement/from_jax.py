"""The graph of a step of JAX: its jaxpr as kernels.

A jaxpr as one list of equations: calls are inlined, and scans of known length unrolled.

Calls are those of jit, custom_jvp and custom_vjp, checkpoint and the like. What an unrolled scan stacks is handed on
piece by piece to a scan that takes it apart again, such as that of the backward. A loop of unknown length (while), a
branch (cond), and a scan that would be too long stay one equation.

The work of the equations of a jaxpr: FLOPs, bytes, the sizes of multiplies, and how each may be fused.

A multiply has 2 FLOPs for each pair of elements. A convolution is a multiply of its windows by its filters, without the
pairs that a padding or a dilation of the input leaves out, as XLA counts. A Fourier transform of n elements has
5 n log2 n FLOPs (Cooley and Tukey, 1965). Any other operator has one FLOP for each element that it makes, or that it
reduces. It moves its operands and its results once; a gather, a scatter or a slice only the elements concerned. A scan
that is not unrolled takes its body times its length, a branch (cond) the branch with most work, and a loop of unknown
length (while) one run of its body.

Not modelled: what transcendental functions, random numbers, sorts and factorisations take more; multiplies that are
split along the sum.

The graph of a step of JAX: its jaxpr, which is traced without memory, as kernels.

Calls are flattened, scans of known length are unrolled, and operators that work element by element are fused as XLA
does (`elementwise_fusion`). A loop of unknown length (while) and a branch (cond) are one operator each. Edges carry
tensors: two readers of a variable take the same one. Numbers in the program text, and arguments of one element, have no
edges. An operator has the name of its primitive and a number, behind the named scopes around it: "mlp/dot_general.12".

Where a step returns a container of arrays like that of an argument, as in (params, batch) -> (params, loss), it is the
new value of the argument: each of its arrays shares the device of the one that it replaces.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "composite": "jaxpr",
}

ROW, STACK = "row", "stack"  # kinds of what unrolling adds: an array taken apart along its first axis, and put together

Operand = int | Literal  # a value, by its number, or a number in the program text


@dataclass(frozen=True, slots=True)
class FlatEquation:
    """An equation on numbered values; `run` computes its results from its operands."""

    kind: str  # the name of its primitive
    params: Mapping[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[int, ...]
    run: Callable[..., Sequence[Any]]
    scope: str  # the named scopes and transformations around it


@dataclass(frozen=True, slots=True)
class FlatJaxpr:
    """The equations of a jaxpr, without those that no result needs."""

    equations: tuple[FlatEquation, ...]
    values: tuple[jax.ShapeDtypeStruct, ...]
    inputs: tuple[int, ...]  # the arguments
    constants: Mapping[int, Any]  # arrays that the step has from outside, by their values
    outputs: tuple[Operand, ...]


def flattened(closed: ClosedJaxpr) -> FlatJaxpr:
    """Return the equations of a jaxpr."""
    flattening = _Flattening()
    jaxpr = closed.jaxpr
    inputs = [flattening.value(variable.aval) for variable in jaxpr.invars]
    made = flattening.run(jaxpr, [*map(flattening.constant, closed.consts), *inputs], "")
    outputs = tuple(flattening.whole(one) for one in made)
    needed = {one for one in outputs if isinstance(one, int)}
    kept: list[FlatEquation] = []
    for equation in reversed(flattening.equations):
        if needed.intersection(equation.outputs):
            kept.append(equation)
            needed.update(one for one in equation.inputs if isinstance(one, int))
    return FlatJaxpr(tuple(reversed(kept)), tuple(flattening.values), tuple(inputs), flattening.constants, outputs)


@dataclass(slots=True)
class _Stacked:
    """An array as its pieces along the first axis; a piece is without that axis."""

    aval: Any
    pieces: tuple[Operand, ...]
    number: int | None = None  # of its value in one piece, once something needs that


_Held = Operand | _Stacked


class _Flattening:
    """Values and equations so far."""

    def __init__(self) -> None:
        self.values: list[jax.ShapeDtypeStruct] = []
        self.equations: list[FlatEquation] = []
        self.rows: dict[tuple[int, int], int] = {}  # of each row of an array that is taken apart
        self.constants: dict[int, Any] = {}
        self.constant_numbers: dict[int, int] = {}  # by identity

    def value(self, aval: Any) -> int:
        """Return the number of a new value."""
        self.values.append(jax.ShapeDtypeStruct(getattr(aval, "shape", ()), getattr(aval, "dtype", np.dtype(bool))))
        return len(self.values) - 1

    def constant(self, array: Any) -> int:
        """Return the number of an array from outside."""
        if id(array) not in self.constant_numbers:
            self.constant_numbers[id(array)] = made = self.value(array)
            self.constants[made] = array
        return self.constant_numbers[id(array)]

    def run(self, jaxpr: Jaxpr, inputs: Iterable[_Held], scope: str) -> list[_Held]:
        """Add the equations of a jaxpr; return what it returns. `inputs` are its constants and its arguments."""
        known: dict[Var, _Held] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))

        def read(atom: Var | Literal) -> _Held:
            return atom if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            own = _joined(scope, str(eqn.source_info.name_stack))
            taken = [read(atom) for atom in eqn.invars]
            known.update(zip(eqn.outvars, self._equation(eqn, taken, own), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: JaxprEqn, taken: Sequence[_Held], scope: str) -> Sequence[_Held]:
        name = eqn.primitive.name
        if name in _CALLS:
            inner, consts = _opened(eqn.params[_CALLS[name]])
            return self.run(inner, [*map(self.constant, consts), *taken], scope)
        if name == "scan" and 0 < _unrolled(eqn) <= _MOST_EQUATIONS - len(self.equations):
            return self._scan(eqn, taken, scope)
        made = [self.value(variable.aval) for variable in eqn.outvars]
        inputs = tuple(self.whole(one) for one in taken)
        self.equations.append(FlatEquation(name, eqn.params, inputs, tuple(made), _run_of(eqn), scope))
        return made

    def _scan(self, eqn: JaxprEqn, taken: Sequence[_Held], scope: str) -> Sequence[_Held]:
        params = eqn.params
        length, num_consts, num_carry = params["length"], params["num_consts"], params["num_carry"]
        inner, consts = _opened(params["jaxpr"])
        fixed = [*map(self.constant, consts), *taken[:num_consts]]
        carry, rows = [*taken[num_consts : num_consts + num_carry]], taken[num_consts + num_carry :]
        stacked: list[dict[int, Operand]] = [{} for _ in eqn.outvars[num_carry:]]
        for at in reversed(range(length)) if params["reverse"] else range(length):
            made = self.run(inner, [*fixed, *carry, *(self._row(row, at, scope) for row in rows)], scope)
            carry = made[:num_carry]
            for pieces, one in zip(stacked, made[num_carry:], strict=True):
                pieces[at] = self.whole(one)
        rows_out = [
            _Stacked(variable.aval, tuple(pieces[at] for at in range(length)))
            for variable, pieces in zip(eqn.outvars[num_carry:], stacked, strict=True)
        ]
        return [*carry, *rows_out]

    def _row(self, held: _Held, at: int, scope: str) -> Operand:
        """Return one piece of an array."""
        if isinstance(held, _Stacked):
            return held.pieces[at]
        if isinstance(held, Literal):
            return held  # has no axis, so no scan takes it apart
        if (held, at) not in self.rows:
            whole = self.values[held]
            self.rows[held, at] = made = self.value(jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype))
            self.equations.append(FlatEquation(ROW, {}, (held,), (made,), _row_at(at), scope))
        return self.rows[held, at]

    def whole(self, held: _Held) -> Operand:
        """Return an array in one piece."""
        if not isinstance(held, _Stacked):
            return held
        if held.number is None:
            held.number = self.value(held.aval)
            self.equations.append(FlatEquation(STACK, {}, held.pieces, (held.number,), _stack, ""))
        return held.number


def sub_jaxprs(eqn: FlatEquation) -> list[ClosedJaxpr]:
    """Return the jaxprs of a loop or of the branches of an equation that is not inlined."""
    found = [one for value in eqn.params.values() for one in (value if isinstance(value, list | tuple) else [value])]
    return [
        one if isinstance(one, ClosedJaxpr) else ClosedJaxpr(one, ())
        for one in found
        if isinstance(one, ClosedJaxpr) or (isinstance(one, Jaxpr) and not one.constvars)
    ]


def _opened(called: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[Any]]:
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
        elif name == "scan":
            whole = _unrolled(eqn)
            total += whole if 0 < whole <= _MOST_EQUATIONS else 1
        else:
            total += 1
    return total


def _joined(*scopes: str) -> str:
    return "/".join(filter(None, scopes))


def _run_of(eqn: JaxprEqn) -> Callable[..., Sequence[Any]]:
    def run(*operands: Any) -> Sequence[Any]:
        made = eqn.primitive.bind(*operands, **eqn.params)
        return made if eqn.primitive.multiple_results else [made]

    return run


def _row_at(at: int) -> Callable[..., Sequence[Any]]:
    return lambda array: [lax.index_in_dim(array, at, keepdims=False)]


def _stack(*pieces: Any) -> Sequence[Any]:
    return [lax.concatenate([lax.expand_dims(piece, (0,)) for piece in pieces], 0)]


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


def _inside(equation: FlatEquation) -> tuple[TracedKernel, ...]:
    """Return the kernels of a loop or of the branch with most work; none for an operator without jaxprs."""
    if equation.kind not in ("scan", "while", "cond"):
        return ()
    found = [_kernels(one) for one in map(flattened, sub_jaxprs(equation))]
    if equation.kind == "cond":
        return max(found, key=_amount, default=())
    times = float(equation.params.get("length", 1))
    return tuple(replace(kernel, runs=kernel.runs * times) for each in found for kernel in each)


def _kernels(flat: FlatJaxpr) -> tuple[TracedKernel, ...]:
    step = fused(step_of(flat, [""] * len(flat.inputs)))
    return tuple(work for kernel in step.kernels for work in works_of(step, kernel))


def _amount(kernels: Sequence[TracedKernel]) -> tuple[float, float]:
    flops = sum(kernel.runs * (kernel.vector_flops + sum(m.flops for m in kernel.multiplies)) for kernel in kernels)
    return flops, sum(kernel.runs * kernel.num_bytes for kernel in kernels)


def _dot(params: Any, left: Any, right: Any, made: Any) -> TracedMultiply:
    (contracted, _), (batched, _) = params["dimension_numbers"]
    inner = prod(left.shape[axis] for axis in contracted)
    batch = prod(left.shape[axis] for axis in batched)
    rows = prod(left.shape) / max(inner * batch, 1)
    columns = prod(made.shape) / max(rows * batch, 1)
    return TracedMultiply(rows, columns, inner, batch, 2.0 * prod(made.shape) * inner)


def _convolution(params: Any, left: Any, right: Any, made: Any) -> TracedMultiply:
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
    return TracedMultiply(rows, columns, contracted, groups, flops)


def _pairs(size: int, window: int, made: int, stride: int, padding: int, dilation: int, window_dilation: int) -> int:
    """Return how many (result, element of the window) read an element of the input, along one axis."""
    at = np.arange(made)[:, None] * stride + np.arange(window)[None] * window_dilation - padding
    return int(((at >= 0) & (at <= (size - 1) * dilation) & (at % dilation == 0)).sum())


_MULTIPLIES: dict[str, Callable[[Any, Any, Any, Any], TracedMultiply]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
}


def _item_size(value: Any) -> int:
    return int(getattr(value.dtype, "itemsize", 4))


def _num_bytes(value: Any) -> float:
    return float(prod(value.shape) * _item_size(value))


def from_jax(
    step: Callable[..., Any],
    *shapes: Any,
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


def traced(step: Callable[..., Any], shapes: Sequence[Any]) -> tuple[TracedStep, FlatJaxpr]:
    """Return the operators of a step, and the equations that they are; raises InputError."""
    name = getattr(step, "__name__", f"{step!r:.60}")
    if not callable(step):
        raise InputError(f"{name}: {type(step).__name__} is given, and a step, a function of arrays, is wanted")
    try:
        closed, made = jax.make_jaxpr(step, return_shape=True)(*shapes)
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
    return step_of(flat, _names(shapes), _updates(shapes, made)), flat


def _names(shapes: Sequence[Any]) -> list[str]:
    """Return the names of the arguments: the position, and the keys inside of it."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tuple(shapes))[0]]
    return [f"input.{jax.tree_util.keystr(path, simple=True, separator='/')}" for path in paths]


def _updates(shapes: Sequence[Any], made: Any) -> dict[int, int]:
    """Return results by the arguments that they are new values of, both by the positions of their arrays."""
    results = made if isinstance(made, tuple | list) else (made,)
    free = _places(results)
    found: dict[int, int] = {}
    for structure, places in _places(shapes):
        match = next((each for each in free if each[0] == structure), None)
        if match is not None:
            free.remove(match)
            found |= dict(zip(places, match[1], strict=True))
    return found


def _places(trees: Sequence[Any]) -> list[tuple[Any, range]]:
    """Return the structure of each container with the shapes in it, and the positions of its arrays."""
    found: list[tuple[Any, range]] = []
    first = 0
    for tree in trees:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        places = range(first, first + len(leaves))
        first += len(leaves)
        if leaves and not jax.tree_util.treedef_is_leaf(structure):
            shapes = tuple((jax.numpy.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
            found.append(((structure, shapes), places))
    return found
