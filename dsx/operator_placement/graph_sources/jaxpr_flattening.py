"""A jaxpr as one list of equations: calls are inlined, and scans of known length unrolled.

Calls are those of jit, custom_jvp and custom_vjp, checkpoint and the like. What an unrolled scan stacks is handed on
piece by piece to a scan that takes it apart again, such as that of the backward. A loop of unknown length (while), a
branch (cond), and a scan that would be too long stay one equation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

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
