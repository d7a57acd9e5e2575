"""Graphs and steps from files, and measured times of their kernels.

The graph of a file.

The graph of a step of JAX with times measured on the local device, each kernel compiled and run by itself.

Kernels are those of `from_jax`. Equal ones, of the same operators on the same shapes, are timed once: 5 runs to warm
up, then the median of 45. A time has the host's dispatch of one call in it. Arguments are ones, so a branch is the
second one of `cond`; of a loop of unknown length one run of its body is timed.

Not modelled: that XLA fuses across kernels when it compiles a whole step, and what lies in caches then.

A step from a Python file: `FILE.py:NAME`, where NAME is a function that returns a step and its shapes.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from dsx.config.operator_files import OperatorGraphSpec
from dsx.errors import DsxError, InputError, did_you_mean
from dsx.measuring.program import timed
from dsx.placement.from_jax import FlatEquation, FlatJaxpr, traced
from dsx.placement.op_graph import OpGraph
from dsx.placement.traced import FusedKernel, FusedStep, fused, graph_of_kernels, named_after
from dsx.progress import Watch, progress, remark

_MICRO = 1e-6


def graph_of(spec: OperatorGraphSpec) -> OpGraph:
    """Return a graph; raises InputError, with the operators of a cycle, if it has one."""
    tensors: dict[tuple[int, object], int] = {}
    sizes: list[float] = []
    edges: dict[tuple[int, int], frozenset[int]] = {}
    for edge in spec.edges:
        carried: frozenset[int] = frozenset()
        if edge.num_bytes > 0:
            # Without names, edges of an operator with equally many bytes carry the same tensor.
            key = edge.source, (edge.num_bytes if edge.tensor is None else edge.tensor)
            if key not in tensors:
                tensors[key] = len(sizes)
                sizes.append(edge.num_bytes)
            sizes[tensors[key]] = max(sizes[tensors[key]], edge.num_bytes)
            carried = frozenset([tensors[key]])
        ends = edge.source, edge.target
        edges[ends] = edges.get(ends, frozenset()) | carried
    width = max(len(operator.compute_us) for operator in spec.operators)
    labels: dict[object, int] = {}
    keys = [("label", op.colocate) if op.colocate is not None else ("op", at) for at, op in enumerate(spec.operators)]
    graph = OpGraph(
        ids=tuple(operator.id for operator in spec.operators),
        kinds=tuple(operator.kind for operator in spec.operators),
        seconds=np.array(
            [np.broadcast_to(np.array(operator.compute_us) * _MICRO, (width,)) for operator in spec.operators]
        ),
        memory_bytes=np.array([operator.memory_bytes for operator in spec.operators]),
        edges=edges,
        tensor_bytes=np.array(sizes, dtype=float),
        together=np.array([labels.setdefault(key, len(labels)) for key in keys]),
    )
    try:
        _ = graph.order
    except InputError as error:
        raise InputError(f"{spec.file}: {error}") from None
    return graph


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


Step = tuple[Callable[..., Any], tuple[Any, ...]]  # a step, and its arguments as shapes


def load_step(text: str) -> Step:
    """Return the step that a function of a file returns, `FILE.py:NAME`, and the shapes of its arguments.

    The function is called without arguments and returns (step, shapes); shapes that are no tuple are one argument. Its
    folder can be imported from meanwhile. Raises InputError, which names file and function.
    """
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise InputError(f"{text!r} is no step: FILE.py:NAME is wanted, with a function that returns (step, shapes)")
    path = Path(file)
    if not path.is_file():
        near = did_you_mean(path.name, [one.name for one in path.parent.glob("*.py")])
        raise InputError(f"{text}: there is no file {file!r}{near}")
    remark(f"{file} is run as it is, with all that it does")
    with _importable(path.parent), _reported(f"{text}: "):
        module = _loaded(path)
        made = getattr(module, name, None)
        if not callable(made):
            near = did_you_mean(name, [one for one, value in vars(module).items() if callable(value)])
            raise InputError(f"{file} has no function {name!r}{near}")
        found = made()
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0])):
        returned = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"{type(found).__name__}"
        raise InputError(f"{text} returns no step but {returned}: (step, shapes) is wanted, a function and its shapes")
    step, shapes = found
    arguments = shapes if isinstance(shapes, tuple) else (shapes,)
    for path_of, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        if not isinstance(leaf, int | float | complex) and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            place = jax.tree_util.keystr(path_of)
            raise InputError(f"{text}: shapes{place} is {leaf!r:.60}; a jax.ShapeDtypeStruct or an array is wanted")
    return step, arguments


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported; they are forgotten afterwards, since other folders may have such names."""
    before = {*sys.modules}
    own = str(folder.resolve())
    sys.path.insert(0, own)
    try:
        yield
    finally:
        sys.path.remove(own)
        for name in {*sys.modules} - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().parent == Path(own):
                del sys.modules[name]


@contextmanager
def _reported(place: str) -> Iterator[None]:
    """Turn what a file raises into an InputError with its place."""
    try:
        yield
    except DsxError:
        raise
    except (Exception, SystemExit) as error:
        first = next(iter(str(error).splitlines()), "")
        raise InputError(f"{place}{type(error).__name__}: {first}") from None


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"step_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
