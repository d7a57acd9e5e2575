"""Arrays of schedules and prices: operations on NumPy or in JAX, whichever the arguments are of; and shapes.

A search prices millions of plans inside compiled code. For a few plans the same functions run on NumPy, which takes
milliseconds, where compilation would take seconds. Both give the same numbers up to rounding. Nothing here loads JAX.

Shapes have names of axes that recur in the cost model. Layers are priced for `keys`; keys that differ only in their
shares of a fast domain share one of the `works` (`dsx.cost.layer_work.LayerWork`). Axes of kernels, multiplies,
collectives and weights are those of the layer. These shapes match exactly. A leading 2 is forward and backward, `modes`
those of recomputation.

A step has one shape, `plans`, to which all of its arguments broadcast: layer costs of [U, 1] keys with [1, G] choices,
[N] plans, or plain numbers, for one plan or for values that all plans share.

What prices and searches batches of plans has arrays of exactly `plans`, of the hardware `points`, of the `keys` of a
table, and of those that are `chosen` or `kept` of them.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from dsx.records import Array, ArrayLike, Bool, Float, Int, Real

# NumPy warns of a division by zero in a branch that `where` does not take; JAX does not.
unchecked = np.errstate(divide="ignore", invalid="ignore", over="ignore")

State = TypeVar("State")


_NOT_JAX = frozenset({np.ndarray, np.float64, np.float32, float, int})


def _operation(name: str) -> Callable[..., Any]:
    """Return the operation `name` of JAX if an argument is a JAX array, traced or not, and else that of NumPy."""
    on_numpy = getattr(np, name)

    @functools.wraps(on_numpy)
    def operation(*args: object, **kwargs: object) -> Any:
        if "jax" not in sys.modules:
            return on_numpy(*args, **kwargs)
        for value in args:
            if type(value) not in _NOT_JAX:  # most calls have plain arrays alone, and another call would double theirs
                return (getattr(_jax().numpy, name) if _has_jax(args) else on_numpy)(*args, **kwargs)
        return on_numpy(*args, **kwargs)

    return operation


def _jax() -> Any:
    """Return the module JAX; only who has loaded it has arrays of it."""
    return sys.modules["jax"]


def _has_jax(values: Iterable[object]) -> bool:
    for value in values:
        # A lookup of the type takes a tenth of an `isinstance` of a class that is abstract, as that of JAX.
        if type(value) in _NOT_JAX:
            continue
        if isinstance(value, list | tuple):
            if _has_jax(value):
                return True
        elif "jax" in sys.modules and isinstance(value, _jax().Array):
            return True
    return False


abs = _operation("abs")
add = _operation("add")
argmax = _operation("argmax")
asarray = _operation("asarray")
broadcast_arrays = _operation("broadcast_arrays")
broadcast_to = _operation("broadcast_to")
ceil = _operation("ceil")
clip = _operation("clip")
concatenate = _operation("concatenate")
exp = _operation("exp")
expm1 = _operation("expm1")
floor = _operation("floor")
full_like = _operation("full_like")
gcd = _operation("gcd")
isnan = _operation("isnan")
log2 = _operation("log2")
logical_not = _operation("logical_not")
maximum = _operation("maximum")
minimum = _operation("minimum")
multiply = _operation("multiply")
nan_to_num = _operation("nan_to_num")
ones_like = _operation("ones_like")
round = _operation("round")
stack = _operation("stack")
take = _operation("take")
take_along_axis = _operation("take_along_axis")
tensordot = _operation("tensordot")
where = _operation("where")


_zeros_like = _operation("zeros_like")


def zeros_like(values: Any) -> Any:
    """Return zeros of the shape and the type of some values; of plain arrays in a fifth of the time of NumPy's own."""
    return np.zeros(values.shape, values.dtype) if type(values) is np.ndarray else _zeros_like(values)


def rows(values: Sequence[Any], length: int) -> Any:
    """Return values [length], or that all share, as the rows of an array of floats [number of values, length]."""
    if _has_jax(values):
        jnp = _jax().numpy
        return jnp.stack([jnp.broadcast_to(jnp.asarray(value, dtype=float), (length,)) for value in values])
    table = np.empty((len(values), length))
    for row, value in zip(table, values, strict=True):
        row[:] = value
    return table


def may_hold(values: ArrayLike) -> bool:
    """Return whether some of the values may be other than zero: of traced ones nobody knows."""
    return _has_jax([values]) or bool(np.any(values))


def running_maximum(values: Any) -> Any:
    """Return the largest of the values so far, along the first axis."""
    return _jax().lax.cummax(values, axis=0) if _has_jax([values]) else np.maximum.accumulate(values, axis=0)


def while_loop(more: Callable[[State], Any], step: Callable[[State], State], state: State) -> State:
    """Return the first of `state`, `step(state)`, ... for which `more` does not hold; leaves keep their shapes."""
    if _has_jax([state]):
        return _jax().lax.while_loop(more, step, state)
    while more(state):
        state = step(state)
    return state


def with_row(table: Any, index: Any, row: Any) -> Any:
    """Return a table with another row."""
    if _has_jax([table, index, row]):
        return _jax().lax.dynamic_update_slice(table, row[None], (index, _jax().numpy.zeros_like(index)))
    table = table.copy()
    table[index] = row
    return table


PerKernel = Float[Array, "2 kernels works"]
PerMultiply = Float[Array, "multiplies works"]
PerMode = Float[Array, "modes works"]
PerWork = Float[Array, "works"]
PerKey = Float[Array, "keys"]
Size = Real[ArrayLike, "*#works"]  # of a dimension or a sequence: one for all works, or one per work

PerPlan = Float[ArrayLike, "*#plans"]
Column = Float[Array, "*#plans"]  # an array even for one plan
Mask = Bool[Array, "*#plans"]
PerGroup = Float[Array, "_groups *#plans"]  # per weight group of a layer

PlanFloats = Float[np.ndarray, "plans"]
PlanInts = Int[np.ndarray, "plans"]
PlanBools = Bool[np.ndarray, "plans"]
KeyFloats = Float[np.ndarray, "keys"]
Chosen = Int[np.ndarray, "chosen"]  # positions of some of the plans, or of the keys
Cuts = Int[np.ndarray, "plans chunk_boundaries"]  # in a chain of layers; after the last chunk its number of layers
ChunkLayers = Int[np.ndarray, "plans chunks"]  # the layers of each chunk of a cut; after the last chunk 0
# Boundaries of rounds of chunks, one for each stage (`dsx.cost.stages`).
Rounds = Real[Array, "rounds boundaries plans"]
