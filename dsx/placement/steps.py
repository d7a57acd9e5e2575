"""Steps that no graph file has: a step of JAX from a Python file, with measured times too, and a microbatch of layers.

A step of a file is `FILE.py:NAME`. Its times are measured on the local device, each kernel of `from_jax` compiled and
run by itself. Equal kernels, of the same operators on the same shapes, are timed once: 5 runs to warm up, then the
median of 45. A time has the host's dispatch of one call in it. Arguments are ones, so a branch is the second one of
`cond`; of a loop of unknown length one run of its body is timed. Not modelled: that XLA fuses across kernels when it
compiles a whole step, and caches then.

A microbatch of dsx's own layers is on one device: all layers forward, then all of them back. Its operators are the
launches of the layers' graphs (`dsx.notation.graph`), of which traces are written too, without collectives: one device
has all ranks. Each kernel takes what the cost model prices it at, divided among its launches by their own work, so they
add up to the price of the layers. A weight is an operator without time. It holds its bytes, those of its gradient and
of its optimizer state, and shares the device of what computes its gradient. A launch holds the tensors of its forward
that the backward reads. Not modelled: the update of the weights, tensors that live for a launch or two, recomputation,
the host that issues.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from dsx import arrays as xp
from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import ClusterSpec, cluster_from_spec
from dsx.config.model_file import ModelSpec
from dsx.cost.context import assumptions_from_spec
from dsx.cost.layer import busy_times
from dsx.cost.layer_work import layer_values, layer_work
from dsx.errors import DsxError, InputError, did_you_mean
from dsx.measuring.array_library import timed
from dsx.notation.expressions import Expression, evaluate
from dsx.notation.graph import Launch, LayerGraph, Value
from dsx.notation.model import build_model
from dsx.notation.syntax import AXES
from dsx.notation.work import BACKWARD, FORWARD, DerivedLayer
from dsx.placement.jaxpr import FlatJaxpr, Run, numbers_in, traced
from dsx.placement.op_graph import OpGraph, Tensors
from dsx.placement.traced import (
    FusedKernel,
    FusedStep,
    Pricing,
    TracedKernel,
    TracedMultiply,
    fused,
    graph_of_kernels,
    kernel_seconds,
    named_after,
)
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


_Key = tuple[int, str]  # layer, name of a tensor in its graph


def from_layers(
    model: ModelSpec,
    cluster: ClusterSpec,
    assumptions: AssumptionsSpec,
    sequence_length: int | None = None,
    microbatch_size: int = 1,
    near: Path | None = None,
) -> OpGraph:
    """Return the graph of a microbatch of a model on a cluster's device.

    Args:
        model: the model.
        cluster: the cluster, whose device runs the operators.
        assumptions: the assumption set, under whose default strategy the layers are built.
        sequence_length: in tokens; that of the model by default.
        microbatch_size: in sequences.
        near: a file whose folder may have layer definitions.

    Raises InputError where the layers cannot be built.
    """
    built = build_model(model, assumptions, assumptions.default_strategy, near)
    length = sequence_length or model.default_sequence_length
    sizes = {"microbatch_size": microbatch_size, "panels": 1, **dict.fromkeys(AXES, 1)}
    priced = {
        layer: _priced(layer, built.dimensions, cluster, assumptions, length, sizes) for layer in dict(built.layers)
    }
    layers = [priced[layer] for layer, count in built.layers for _ in range(count)]
    assembly = _Assembly(assumptions)
    for position, layer in enumerate(layers):
        assembly.forward(position, layer, layers[position - 1] if position else None)
    for position, layer in reversed([*enumerate(layers)]):
        assembly.backward(position, layer, layers[position + 1] if position + 1 < len(layers) else None)
    return assembly.graph()


@dataclass(frozen=True, slots=True)
class _PricedLayer:
    """A layer with the seconds of its launches, by direction and name, and its numbers."""

    name: str
    graph: LayerGraph
    seconds: Mapping[tuple[int, str], float]
    sizes: Mapping[str, float]  # bytes by the name of a tensor
    kinds: tuple[str, ...]  # of the operators of each kernel


def _priced(
    layer: DerivedLayer,
    dimensions: Mapping[str, int],
    cluster: ClusterSpec,
    assumptions: AssumptionsSpec,
    sequence_length: int,
    sizes: Mapping[str, int],
) -> _PricedLayer:
    machine, numbers = cluster_from_spec(cluster), assumptions_from_spec(assumptions, cluster.device.family)
    keys = {name: np.array([float(size)]) for name, size in sizes.items()}
    keys |= {f"{axis}_nvs": np.ones(1) for axis in AXES}
    work = layer_work(layer, dimensions, assumptions, sequence_length, keys)
    values = layer_values(layer, dimensions, assumptions, sequence_length, keys)
    compute, memory = xp.unchecked(busy_times)(work, machine, numbers)
    kernel_s = np.asarray(compute + memory)[:, :, 0]
    seconds: dict[tuple[int, str], float] = {}

    def number(expression: Expression) -> float:
        return float(np.asarray(evaluate(expression, values)).reshape(-1)[0])

    for place, kernel in enumerate(layer.priced_kernels):
        index = next(at for at, other in enumerate(layer.kernels) if other is kernel)
        for direction in (FORWARD, BACKWARD):
            price_s = float(kernel_s[direction, place])
            # A set may price a launch where an operator has no work: it belongs to its forward.
            ways = [[node for node in layer.graph.nodes(way) if node.kernel == index] for way in (direction, FORWARD)]
            of_kernel, forward = ([node for node in nodes if isinstance(node, Launch)] for nodes in ways)
            launches = of_kernel or forward
            work = [_kernel_of(node, kernel.fused, number) for node in launches]
            launch_s = kernel_seconds(work, Pricing(machine.device, numbers))
            for node, share in zip(launches, launch_s / launch_s.sum(), strict=True):
                key = node.direction, node.name
                seconds[key] = seconds.get(key, 0.0) + price_s * float(share)
    tensors = [
        *layer.graph.weights,
        *(value for way in (FORWARD, BACKWARD) for node in layer.graph.nodes(way) for value in node.writes),
    ]
    named = {value.name: number(value.bytes) for value in tensors}
    kinds = tuple("+".join(kind for kind in kernel.kinds if kind != "view") for kernel in layer.kernels)
    return _PricedLayer(layer.name.partition("[")[0], layer.graph, seconds, named, kinds)


def _kernel_of(node: Launch, is_fused: bool, number: Callable[[Expression], float]) -> TracedKernel:
    """Return a launch as a kernel of its own."""
    multiplies = tuple(
        TracedMultiply(
            *(number(getattr(multiply, name)) for name in ("rows", "columns", "contracted", "batch", "flops")),
            attention=is_fused and not multiply.linear,
            backward=node.direction == BACKWARD,
        )
        for multiply in node.work.multiplies
    )
    return TracedKernel(number(node.work.vector), number(node.work.bytes), multiplies)


class _Assembly:
    """The operators so far; tensors by layer and name."""

    def __init__(self, assumptions: AssumptionsSpec) -> None:
        state = assumptions.gradient_bytes + assumptions.optimizer_bytes_per_parameter
        self.held_per_weight_byte = 1.0 + state / assumptions.weight_bytes
        self.operators: list[tuple[str, str, float, float]] = []  # id, kind, seconds, bytes besides those of tensors
        self.label: list[int] = []
        self.edges: dict[tuple[int, int], Tensors] = {}
        self.size: dict[_Key, float] = {}  # bytes
        self.number: dict[_Key, int] = {}  # of the tensors, in the order in which they are made
        self.maker: dict[_Key, int] = {}
        self.replaced: dict[_Key, tuple[_Key, ...]] = {}  # what is read in place of a tensor that no launch makes
        self.saved: dict[_Key, None] = {}  # what a launch of the forward may hold until the backward
        self.held: dict[_Key, None] = {}  # what it does hold

    def forward(self, position: int, layer: _PricedLayer, previous: _PricedLayer | None) -> None:
        """Add the weights and the forward of a layer."""
        self.size |= {(position, name): size for name, size in layer.sizes.items()}
        for weight in layer.graph.weights:
            held = layer.sizes[weight.name] * self.held_per_weight_byte
            self._operator(f"{layer.name}.{position}/{weight.name}", "weight", 0.0, held, (), [(position, weight.name)])
        begins = self._keys(position - 1, previous.graph.outputs) if previous else ()
        self.replaced |= {(position, value.name): begins for value in layer.graph.inputs}
        self._run(position, layer, FORWARD)

    def backward(self, position: int, layer: _PricedLayer, following: _PricedLayer | None) -> None:
        """Add the backward of a layer: it begins with the gradients of the next one, or with the loss."""
        graph = layer.graph
        begins = self._keys(position, graph.outputs)
        if following:
            begins = self._keys(position + 1, following.graph.input_gradients)
        self.replaced |= {(position, value.name): begins for value in graph.output_gradients}
        self._run(position, layer, BACKWARD)
        for weight in graph.weights:
            shared = self.label[self.maker[position, weight.name]]
            joined = {self.label[self.maker[key]] for key in self._keys(position, graph.weight_gradients[weight.name])}
            self.label = [shared if label in joined else label for label in self.label]

    def _run(self, position: int, layer: _PricedLayer, direction: int) -> None:
        for node in layer.graph.nodes(direction):
            reads = self._keys(position, node.reads)
            if not isinstance(node, Launch):  # a collective of one rank moves nothing
                self.replaced |= {(position, value.name): reads for value in node.writes}
                continue
            writes = [(position, value.name) for value in node.writes]
            if direction == FORWARD:
                self.saved |= dict.fromkeys(writes)
            else:
                self.held |= dict.fromkeys(key for key in reads if key in self.saved)
            name, seconds = f"{layer.name}.{position}/{node.name}", layer.seconds.get((direction, node.name), 0.0)
            self._operator(name, layer.kinds[node.kernel], seconds, 0.0, reads, writes)

    def _keys(self, position: int, values: Iterable[Value]) -> tuple[_Key, ...]:
        """Return the tensors that are read for some values."""
        keys = ((position, value.name) for value in values)
        return tuple(dict.fromkeys(read for key in keys for read in self.replaced.get(key, (key,))))

    def _operator(
        self, name: str, kind: str, seconds: float, memory: float, reads: Iterable[_Key], writes: Iterable[_Key]
    ) -> None:
        op = len(self.operators)
        for key in reads:
            ends = self.maker[key], op
            self.edges[ends] = self.edges.get(ends, frozenset()) | {self.number[key]}
        for key in writes:
            self.maker[key], self.number[key] = op, len(self.number)
        self.operators.append((name, kind, seconds, memory))
        self.label.append(op)

    def graph(self) -> OpGraph:
        """Return the graph."""
        ids, kinds, seconds, memory = zip(*self.operators, strict=True)
        memory_bytes = np.array(memory)
        for key in self.held:
            memory_bytes[self.maker[key]] += self.size[key]
        return OpGraph(
            ids=ids,
            kinds=kinds,
            seconds=np.array(seconds)[:, None],
            memory_bytes=memory_bytes,
            edges=self.edges,
            tensor_bytes=np.array([self.size[key] for key in self.number]),
            together=np.unique(self.label, return_inverse=True)[1],
        )
