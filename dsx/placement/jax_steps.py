"""Steps of JAX from Python files, `FILE.py:NAME`, and graphs of steps with measured times.

Times are measured on the local device, each kernel of `from_jax` compiled and run by itself. Equal kernels, of the
same operators on the same shapes, are timed once: 5 runs to warm up, then the median of 45. A time has the host's
dispatch of one call in it. Arguments are ones, so a branch is the second one of `cond`; of a loop of unknown length one
run of its body is timed. Not modelled: that XLA fuses across kernels when it compiles a whole step, and caches then.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from dsx.errors import DsxError, InputError, did_you_mean
from dsx.measuring.array_library import timed
from dsx.placement.jaxpr import FlatJaxpr, Run, numbers_in, traced
from dsx.placement.op_graph import OpGraph
from dsx.placement.traced import FusedKernel, FusedStep, fused, graph_of_kernels, named_after
from dsx.progress import Watch, progress, remark

WARM_UPS, RUNS = 5, 45


def measure(step: Callable[..., object], *shapes: object, watch: Watch | None = None) -> OpGraph:
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
    reads = [[flat.values[tensor] for tensor in kernel.reads] for kernel in kernels.kernels]
    texts = [str(jax.make_jaxpr(run)(*values)) for run, values in zip(runs, reads, strict=True)]
    first = {text: at for at, text in reversed([*enumerate(texts)])}
    seconds: dict[str, float] = {}
    with progress(len(first), "operators", watch) as advance:
        for text, at in first.items():
            try:
                seconds[text] = seconds_of(runs[at], reads[at])
            except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
                name = named_after(operators, kernels.kernels[at]).id
                cause = next(iter(str(error).splitlines()), "")
                raise InputError(f"operator {name} cannot be run on {jax.local_devices()[0]}: {cause}") from None
            advance(1)
    return graph_of_kernels(kernels, np.array([seconds[text] for text in texts]))


def run_of(step: FusedStep, flat: FlatJaxpr, kernel: FusedKernel) -> Run:
    """Return the function of what a kernel reads to what it writes."""
    makers = {output: equation for equation in flat.equations for output in equation.outputs}

    def run(*arrays: jax.Array) -> Sequence[jax.Array]:
        values: dict[int, jax.Array] = dict(zip(kernel.reads, arrays, strict=True))
        pending = [*reversed(kernel.writes)]  # a loop keeps the depth of Python's stack small
        while pending:
            equation = makers.get(pending[-1])
            if pending[-1] in values or equation is None:
                pending.pop()
                continue
            missing = [number for number in numbers_in(equation.inputs) if number not in values]
            if missing:
                pending += missing
                continue
            operands = [values[operand] if isinstance(operand, int) else operand.val for operand in equation.inputs]
            compute = equation.run
            if equation.kind == "while":  # of unknown length: its body
                compute = jaxpr_as_fun(equation.params["body_jaxpr"])
                operands = operands[equation.params["cond_nconsts"] :]
            values.update(zip(equation.outputs, compute(*operands), strict=True))
        return [values[tensor] for tensor in kernel.writes]

    return run


def seconds_of(run: Run, values: Sequence[jax.ShapeDtypeStruct]) -> float:
    """Return the median seconds of a function of arrays of some shapes, once it is compiled and warm."""
    arrays = [
        jax.random.split(jax.random.key(0), prod(value.shape)).reshape(value.shape)
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        else jnp.ones(value.shape, value.dtype)
        for value in values
    ]
    compiled = jax.jit(run).lower(*arrays).compile()
    return timed(partial(compiled, *arrays), jax.block_until_ready, WARM_UPS, RUNS).median_s


Step = tuple[Callable[..., object], tuple[object, ...]]  # a step, and its arguments as shapes


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
        near = did_you_mean(path.name, [file.name for file in path.parent.glob("*.py")])
        raise InputError(f"{text}: there is no file {file!r}{near}")
    remark(f"{file} is run as it is, with all that it does")
    with _importable(path.parent), _reported(f"{text}: "):
        spec = importlib.util.spec_from_file_location(f"step_of_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise InputError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look for it
        spec.loader.exec_module(module)
        maker = getattr(module, name, None)
        if not callable(maker):
            near = did_you_mean(name, [word for word, value in vars(module).items() if callable(value)])
            raise InputError(f"{file} has no function {name!r}{near}")
        pair = maker()
    if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0])):
        returned = f"a tuple of {len(pair)}" if isinstance(pair, tuple) else f"{type(pair).__name__}"
        raise InputError(f"{text} returns no step but {returned}: (step, shapes) is wanted, a function and its shapes")
    step, shapes = pair
    arguments = shapes if isinstance(shapes, tuple) else (shapes,)
    for path_of, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        if not isinstance(leaf, int | float | complex) and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            place = jax.tree_util.keystr(path_of)
            raise InputError(f"{text}: shapes{place} is {leaf!r:.60}; a jax.ShapeDtypeStruct or an array is wanted")
    return step, arguments


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported; they are forgotten afterwards, since other folders may have such names."""
    loaded = {*sys.modules}
    resolved = folder.resolve()
    sys.path.insert(0, str(resolved))
    try:
        yield
    finally:
        sys.path.remove(str(resolved))
        for name in {*sys.modules} - loaded:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().parent == resolved:
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
