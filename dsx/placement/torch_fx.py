"""The graph of a step of torch: a graph of torch.fx with the shapes of its tensors, without importing torch.

torch.export makes such a graph of a model, make_fx one of a training step. What works element by element is fused, as
torch.compile does (`traced`). Operators have the names of the graph's nodes. An operator that changes an argument in
place makes a new value of it, which shares its device.

The work of the operators of torch (ATen) follows from their names. A convolution is a multiply of its windows by its
filters, padding included. Attention is one fused kernel. What torch tags as pointwise is elementwise; what changes
strides alone, such as a transpose, is a view.

Not modelled: views of a tensor that is changed in place, the strides of tensors, subgraphs of control flow.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, TypeGuard

from dsx.config.load import Given
from dsx.errors import InputError
from dsx.placement.op_graph import OpGraph
from dsx.placement.traced import (
    DEFAULT_ASSUMPTIONS,
    DEFAULT_CLUSTER,
    Role,
    TracedMultiply,
    TracedOperator,
    TracedStep,
    graph_of_step,
    pricing_of,
)

_VIEWS = {
    *("view", "_unsafe_view", "_reshape_alias", "reshape", "t", "transpose", "permute", "squeeze", "unsqueeze"),
    *("alias", "detach", "flatten", "unflatten", "view_as", "as_strided", "lift_fresh_copy", "numpy_T"),
}
_PARTS = {"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind", "diagonal"}
# What these make depends on no element of their arguments, but for an expansion.
_FILLS = {"full", "zeros", "ones", "empty", "arange", "scalar_tensor", "new_zeros", "new_ones", "new_full", "new_empty"}
_FILLS |= {"full_like", "zeros_like", "ones_like", "empty_like"}
_REDUCTIONS = {"sum", "mean", "amax", "amin", "max", "min", "prod", "argmax", "argmin", "all", "any", "var", "std"}
_REDUCTIONS |= {"var_mean", "logsumexp", "linalg_vector_norm"}
_COPIES = {"clone", "_to_copy", "copy", "copy_", "cat", "stack", "constant_pad_nd", "contiguous", "flip"}
_CONVOLUTIONS = {"convolution", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}
# Results with the elements that are read of the first argument, in place of all.
_LOOKED_UP = {"embedding", "index", "gather", "index_select"}
_ROLES: dict[str, Role] = {
    **dict.fromkeys(_COPIES, "elementwise"),
    **dict.fromkeys(_REDUCTIONS, "reduction"),
    **dict.fromkeys({"expand", *_FILLS}, "spread"),
    **dict.fromkeys(_PARTS, "part"),
    **dict.fromkeys(_VIEWS, "view"),
}
_CALLS = ("call_function", "call_method", "call_module")


class FxNode(Protocol):
    """What is read of a node of torch.fx."""

    op: str
    name: str
    target: object
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    meta: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor of a graph of torch."""

    sizes: tuple[int, ...]
    element_bytes: int

    @property
    def elements(self) -> float:
        """The number of its elements."""
        return float(prod(self.sizes))

    @property
    def num_bytes(self) -> float:
        """Its bytes."""
        return self.elements * self.element_bytes


def multiplies_of(
    name: str, arguments: Sequence[Shape | None], results: Sequence[Shape | None], transposed: bool = False
) -> tuple[TracedMultiply, ...]:
    """Return the multiplies of an operator; `arguments` has None for what is no tensor.

    `transposed` says that a convolution is one, by an argument.
    """
    sizes = [argument.sizes for argument in arguments if argument is not None]
    outputs = [None if result is None else result.sizes for result in results]
    try:
        if name in ("mm", "bmm", "matmul", "_scaled_mm", "_int_mm"):
            return (_product(sizes[0], sizes[1]),)
        if name in ("addmm", "baddbmm"):
            return (_product(sizes[1], sizes[2]),)
        if name == "linear":
            return (_product(sizes[0], sizes[1][::-1]),)
        if name in _CONVOLUTIONS and outputs[0]:
            transposed = transposed or "transpose" in name
            small, large = (sizes[0], outputs[0]) if transposed else (outputs[0], sizes[0])
            return (_convolution(small, large, sizes[1], transposed),)
        if name == "convolution_backward":
            gradient, taken, weight = sizes[:3]
            small, large = (taken, gradient) if transposed else (gradient, taken)
            pixels, groups = small[0] * prod(small[2:]), large[1] // weight[1]
            of_input = _convolution(small, large, weight, not transposed)
            of_weights = _multiply(prod(weight[1:]), weight[0] / groups, pixels, groups)
            # Of the gradients of the input and of the weights, those that there are.
            return tuple(work for work, size in zip((of_input, of_weights), outputs, strict=False) if size is not None)
        if "dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
            return _attention(*sizes[1:4], gradient=sizes[0]) if "backward" in name else _attention(*sizes[:3])
    except (IndexError, TypeError, ValueError):  # an operator of that name with other arguments
        return ()
    return ()


def _multiply(rows: float, columns: float, contracted: float, batch: float, kind: str = "") -> TracedMultiply:
    flops = 2.0 * rows * columns * contracted * batch
    return TracedMultiply(rows, columns, contracted, batch, flops, bool(kind), kind == "backward")


def _product(lhs: Sequence[int], rhs: Sequence[int]) -> TracedMultiply:
    """Return a multiply of stacks of matrices; a stack by one matrix is one multiply of more rows."""
    columns = rhs[-1] if len(rhs) > 1 else 1
    if len(rhs) <= 2:
        return _multiply(prod(lhs[:-1]), columns, lhs[-1], 1)
    stack = max(prod(lhs[:-2]), prod(rhs[:-2]))
    return _multiply(lhs[-2] if len(lhs) > 1 else 1, columns, lhs[-1], stack)


def _convolution(small: Sequence[int], large: Sequence[int], weight: Sequence[int], transposed: bool) -> TracedMultiply:
    """Return the multiply of a convolution of `large` to `small`; a transposed one makes `large` of `small`.

    Weights are (channels of `small`, channels of `large` in a group, window).
    """
    pixels, groups = small[0] * prod(small[2:]), large[1] // weight[1]
    inside, outside = prod(weight[1:]), weight[0] / groups
    return _multiply(pixels, inside, outside, groups) if transposed else _multiply(pixels, outside, inside, groups)


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], gradient: Sequence[int] | None = None
) -> tuple[TracedMultiply, ...]:
    """Return the multiplies forward, or, with the gradient of the result, back: the scores are computed once more."""
    heads, queries, width, keys = prod(query[:-2]), query[-2], query[-1], key[-2]
    if gradient is None:
        sizes = ((queries, keys, width), (queries, value[-1], keys))
    else:
        sizes = ((queries, keys, width), (queries, keys, gradient[-1]), (keys, value[-1], queries))
        sizes += ((queries, width, keys), (keys, width, queries))
    return tuple(_multiply(*of_each, heads, "forward" if gradient is None else "backward") for of_each in sizes)


def from_fx(
    graph_module: object, *, device: Given = DEFAULT_CLUSTER, assumptions: Given = DEFAULT_ASSUMPTIONS
) -> OpGraph:
    """Return the graph of a graph of torch; its seconds are those of the roofline.

        graph = dsx.place.from_fx(torch.export.export(model, (tokens,)))

    Args:
        graph_module: a GraphModule whose nodes have `meta["val"]`, or an ExportedProgram.
        device: the cluster whose device runs the operators, by its name, its file or its content.
        assumptions: the assumption set of the roofline.

    Raises InputError for what is no graph, a node without the shape of its result, or a graph without operators.
    """
    return graph_of_step(traced_fx(graph_module), pricing_of(device, assumptions))


def traced_fx(graph_module: object) -> TracedStep:
    """Return the operators of a graph of torch; raises InputError."""
    nodes = getattr(getattr(getattr(graph_module, "graph_module", graph_module), "graph", None), "nodes", None)
    if nodes is None:
        kind = type(graph_module).__name__
        raise InputError(f"{kind} is given, and a graph of torch is wanted: of torch.export, or of make_fx of a step")
    reading = _TracedFx()
    for node in nodes:
        reading.add(node)
    return reading.step()


@dataclass
class _TracedFx:
    """The operators and tensors so far."""

    shapes: list[Shape] = field(default_factory=list)
    operators: list[TracedOperator] = field(default_factory=list)
    inputs: dict[int, str] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)
    updates: dict[int, int] = field(default_factory=dict)
    results: dict[object, tuple[int | None, ...]] = field(default_factory=dict)  # tensors of nodes; None for no tensor
    input_of: dict[object, int] = field(default_factory=dict)  # nodes that are inputs

    def add(self, node: FxNode) -> None:
        """Add a node of a graph."""
        if node.op == "output":
            self.outputs.update(tensor for output in _nodes_in(node.args) for tensor in self._tensors(output))
        elif node.op in ("placeholder", "get_attr"):
            self.results[node] = tuple(map(self._tensor, _results_of(node)))
            for tensor in self._tensors(node):
                self.inputs[tensor] = node.name
                self.input_of[node] = tensor
        elif _name_of(node) == "getitem":
            source, at = self.results.get(node.args[0], ()), node.args[1]
            self.results[node] = (source[at],) if isinstance(at, int) and at < len(source) else source
        elif node.op in _CALLS:
            self._operator(node, _name_of(node))

    def _operator(self, node: FxNode, name: str) -> None:
        results = tuple(map(self._tensor, _results_of(node)))
        outputs = tuple(tensor for tensor in results if tensor is not None)
        operands = [] if name in _FILLS else [*_nodes_in((node.args, node.kwargs))]
        inputs = tuple(dict.fromkeys(tensor for operand in operands for tensor in self._tensors(operand)))
        self.results[node] = results
        if not outputs:  # an assertion, or a size
            return
        written = sum(self.shapes[tensor].num_bytes for tensor in outputs)
        read = [self.shapes[tensor].num_bytes for tensor in inputs]
        if name in _LOOKED_UP and read:
            read[0] = written
        arguments = [self._shape(argument) for argument in node.args]
        shapes = [None if tensor is None else self.shapes[tensor] for tensor in results]
        # Of all arguments of a convolution, whether it is transposed is the only flag.
        multiplies = multiplies_of(name, arguments, shapes, any(argument is True for argument in node.args))
        pointwise = any(str(tag).rpartition(".")[2] == "pointwise" for tag in getattr(node.target, "tags", ()))
        elements = max(self.shapes[tensor].elements for tensor in (*inputs, *outputs))
        role = _ROLES.get(name, "elementwise" if pointwise else "alone")
        self.operators.append(
            TracedOperator(
                id=node.name,
                kind=name,
                role=role,
                inputs=inputs,
                outputs=outputs,
                read_bytes=tuple(read),
                written_bytes=written,
                elements=elements,
                vector_flops=0.0 if multiplies or role == "spread" or name in _LOOKED_UP else elements,
                multiplies=multiplies,
            )
        )
        # In place: the tensor has a new value, which later operators read.
        if name.endswith("_") and not name.endswith("__") and node.args and node.args[0] in self.results:
            changed = node.args[0]
            self.results[changed] = outputs[:1]
            self.outputs.add(outputs[0])
            if changed in self.input_of:
                self.updates[self.input_of[changed]] = outputs[0]

    def _shape(self, argument: object) -> Shape | None:
        tensors = self.results.get(argument, ()) if _is_node(argument) else ()
        return self.shapes[tensors[0]] if tensors and tensors[0] is not None else None

    def _tensors(self, node: object) -> Iterator[int]:
        return (tensor for tensor in self.results.get(node, ()) if tensor is not None)

    def _tensor(self, shape: Shape | None) -> int | None:
        if shape is None:
            return None
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def step(self) -> TracedStep:
        """Return the step, without operators that no result needs."""
        needed = {*self.outputs}
        kept: list[TracedOperator] = []
        for op in reversed(self.operators):
            if needed.intersection(op.outputs):
                kept.append(op)
                needed.update(op.inputs)
        return TracedStep(
            operators=tuple(reversed(kept)),
            tensor_bytes=tuple(shape.num_bytes for shape in self.shapes),
            inputs=self.inputs,
            outputs=frozenset(self.outputs),
            updates=self.updates,
        )


def _name_of(node: FxNode) -> str:
    """Return the name of an operator: "addmm" of aten.addmm.default."""
    text = str(node.target)
    parts = text.split(".")
    if len(parts) > 1 and hasattr(node.target, "overloadpacket"):
        return parts[1]
    return str(getattr(node.target, "__name__", text))


def _results_of(node: FxNode) -> list[Shape | None]:
    """Return the shapes of what a node makes; raises InputError if its node has none."""
    if "val" not in node.meta:
        if node.op == "get_attr":
            return []  # a subgraph
        raise InputError(
            f"node {node.name} has no meta['val'], the shape of its result: make the graph by torch.export, or by "
            'make_fx with tracing_mode="fake"'
        )
    value = node.meta["val"]
    return [_shape_of(tensor, node.name) for tensor in (value if isinstance(value, list | tuple) else [value])]


def _shape_of(value: object, name: str) -> Shape | None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    try:
        sizes = tuple(int(size) for size in shape)
    except Exception as error:  # of a symbolic size, that of torch
        first = next(iter(str(error).splitlines()), "")
        raise InputError(f"node {name} has no size in numbers: {tuple(shape)} ({first:.100})") from None
    element_bytes = getattr(dtype, "itemsize", None)
    if not isinstance(element_bytes, int):
        bits = re.search(r"\d+", str(dtype))
        element_bytes = max(int(bits[0]) // 8, 1) if bits else 1  # bool
    return Shape(sizes, element_bytes)


def _is_node(value: object) -> TypeGuard[FxNode]:
    return hasattr(value, "op") and hasattr(value, "meta")


def _nodes_in(value: object) -> Iterator[FxNode]:
    """Yield the nodes in the arguments of a node."""
    if _is_node(value):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _nodes_in(item)
