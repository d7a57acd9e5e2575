"""The graph of a step of JAX with times measured on the local device, each kernel compiled and run by itself.

Kernels are those of `from_jax`. Equal ones, of the same operators on the same shapes, are timed once: 5 runs to warm
up, then the median of 45. A time has the host's dispatch of one call in it. Arguments are ones, so a branch is the
second one of `cond`; of a loop of unknown length one run of its body is timed.

Not modelled: that XLA fuses across kernels when it compiles a whole step, and what lies in caches then.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from dsx.errors import InputError
from dsx.measuring.timing import timed
from dsx.operator_placement.graph_sources.elementwise_fusion import FusedKernel, FusedStep, fused
from dsx.operator_placement.graph_sources.from_jax import traced
from dsx.operator_placement.graph_sources.jaxpr_flattening import FlatEquation, FlatJaxpr
from dsx.operator_placement.graph_sources.traced_graph import graph_of_kernels, named_after
from dsx.operator_placement.op_graph import OpGraph
from dsx.progress import Watch, progress

WARM_UPS, RUNS = 5, 45
_Run = Callable[..., Sequence[Any]]


def measure(step: Callable[..., Any], *shapes: Any, watch: Watch | None = None) -> OpGraph:
    """Return the graph of a step whose operators have the seconds that they take on the first local device of JAX.

        graph = dsx.place.measure(step, params, jax.ShapeDtypeStruct((32, 128), "int32"))

    Args:
        step: as of `from_jax`.
        shapes: as of `from_jax`.
        watch: told of progress, with the kernels measured, their number, and a word.

    Raises InputError as `from_jax` does, and for an operator that the device cannot run.
    """
    operators, flat = traced(step, shapes)
    kernels = fused(operators)
    runs = [run_of(kernels, flat, kernel) for kernel in kernels.kernels]
    taken = [[flat.values[tensor] for tensor in kernel.reads] for kernel in kernels.kernels]
    texts = [str(jax.make_jaxpr(run)(*values)) for run, values in zip(runs, taken, strict=True)]
    first = {text: at for at, text in reversed([*enumerate(texts)])}
    seconds: dict[str, float] = {}
    with progress(len(first), "operators", watch) as advance:
        for text, at in first.items():
            try:
                seconds[text] = seconds_of(runs[at], taken[at])
            except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
                name = named_after(operators, kernels.kernels[at]).id
                cause = next(iter(str(error).splitlines()), "")
                raise InputError(f"operator {name} cannot be run on {jax.local_devices()[0]}: {cause}") from None
            advance(1)
    return graph_of_kernels(kernels, np.array([seconds[text] for text in texts]))


def run_of(step: FusedStep, flat: FlatJaxpr, kernel: FusedKernel) -> _Run:
    """Return the function of what a kernel reads to what it writes."""
    makers = {made: equation for equation in flat.equations for made in equation.outputs}

    def run(*arrays: Any) -> Sequence[Any]:
        known: dict[int, Any] = dict(zip(kernel.reads, arrays, strict=True))
        return [_value(tensor, known, makers) for tensor in kernel.writes]

    return run


def _value(tensor: int, known: dict[int, Any], makers: Mapping[int, FlatEquation]) -> Any:
    """Return a value, with those that it is computed of; a loop keeps the depth of the stack small."""
    pending = [tensor]
    while pending:
        equation = makers.get(pending[-1])
        if pending[-1] in known or equation is None:
            pending.pop()
            continue
        missing = [one for one in equation.inputs if isinstance(one, int) and one not in known]
        if missing:
            pending += missing
            continue
        operands = [known[one] if isinstance(one, int) else one.val for one in equation.inputs]
        known.update(zip(equation.outputs, _once(equation)(*operands), strict=True))
    return known[tensor]


def _once(equation: FlatEquation) -> _Run:
    """Return what an equation runs; of a loop of unknown length, its body."""
    if equation.kind != "while":
        return equation.run
    body = jaxpr_as_fun(equation.params["body_jaxpr"])
    return lambda *operands: body(*operands[equation.params["cond_nconsts"] :])


def seconds_of(run: _Run, values: Sequence[jax.ShapeDtypeStruct]) -> float:
    """Return the median seconds of a function of arrays of some shapes, once it is compiled and warm."""
    arrays = [_ones(value) for value in values]
    compiled = jax.jit(run).lower(*arrays).compile()
    return timed(partial(compiled, *arrays), jax.block_until_ready, WARM_UPS, RUNS).median_s


def _ones(value: jax.ShapeDtypeStruct) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), prod(value.shape)).reshape(value.shape)
    return jnp.ones(value.shape, value.dtype)
