"""The graph of a step of torch: a graph of torch.fx with the shapes of its tensors, without importing torch.

torch.export makes one of a model, make_fx one of a training step. What works element by element is fused, as
torch.compile does (`elementwise_fusion`). Operators have the names of the graph's nodes. An operator that changes an
argument in place makes a new value of it, which shares its device.

Not modelled: views of a tensor that is changed in place, the strides of tensors, subgraphs of control flow.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dsx.errors import InputError
from dsx.operator_placement.graph_sources.fx_work import Shape, looks_up, multiplies_of, reads_nothing, role_of
from dsx.operator_placement.graph_sources.kernel_pricing import DEFAULT_ASSUMPTIONS, DEFAULT_CLUSTER, pricing_of
from dsx.operator_placement.graph_sources.traced_graph import graph_of_step
from dsx.operator_placement.graph_sources.traced_step import TracedOperator, TracedStep
from dsx.operator_placement.op_graph import OpGraph
from dsx.spec.load import Given

_CALLS = ("call_function", "call_method", "call_module")


def from_fx(graph_module: Any, *, device: Given = DEFAULT_CLUSTER, assumptions: Given = DEFAULT_ASSUMPTIONS) -> OpGraph:
    """Return the graph of a graph of torch; its seconds are those of the roofline.

        graph = dsx.place.from_fx(torch.export.export(model, (tokens,)))

    Args:
        graph_module: a GraphModule whose nodes have `meta["val"]`, or an ExportedProgram.
        device: the cluster whose device runs the operators, by its name, its file or its content.
        assumptions: the assumption set of the roofline.

    Raises InputError for what is no graph, a node without the shape of its result, or a graph without operators.
    """
    return graph_of_step(traced_fx(graph_module), pricing_of(device, assumptions))


def traced_fx(graph_module: Any) -> TracedStep:
    """Return the operators of a graph of torch; raises InputError."""
    nodes = getattr(getattr(getattr(graph_module, "graph_module", graph_module), "graph", None), "nodes", None)
    if nodes is None:
        kind = type(graph_module).__name__
        raise InputError(f"{kind} is given, and a graph of torch is wanted: of torch.export, or of make_fx of a step")
    reading = _Reading()
    for node in nodes:
        reading.add(node)
    return reading.step()


class _Reading:
    """The operators and tensors so far."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.operators: list[TracedOperator] = []
        self.inputs: dict[int, str] = {}
        self.outputs: set[int] = set()
        self.updates: dict[int, int] = {}
        self.results: dict[Any, tuple[int | None, ...]] = {}  # of each node, its tensors; None for what is none
        self.given: dict[Any, int] = {}  # nodes that are inputs

    def add(self, node: Any) -> None:
        """Add a node of a graph."""
        if node.op == "output":
            self.outputs.update(tensor for one in _nodes_in(node.args) for tensor in self._tensors(one))
        elif node.op in ("placeholder", "get_attr"):
            self.results[node] = tuple(map(self._tensor, _results_of(node)))
            for tensor in self._tensors(node):
                self.inputs[tensor] = node.name
                self.given[node] = tensor
        elif _name_of(node) == "getitem":
            source, at = self.results.get(node.args[0], ()), node.args[1]
            self.results[node] = (source[at],) if isinstance(at, int) and at < len(source) else source
        elif node.op in _CALLS:
            self._operator(node, _name_of(node))

    def _operator(self, node: Any, name: str) -> None:
        made = tuple(map(self._tensor, _results_of(node)))
        outputs = tuple(tensor for tensor in made if tensor is not None)
        taken = [] if reads_nothing(name) else [*_nodes_in((node.args, node.kwargs))]
        inputs = tuple(dict.fromkeys(tensor for one in taken for tensor in self._tensors(one)))
        self.results[node] = made
        if not outputs:  # an assertion, or a size
            return
        written = sum(self.shapes[tensor].num_bytes for tensor in outputs)
        read = [self.shapes[tensor].num_bytes for tensor in inputs]
        if looks_up(name) and read:
            read[0] = written
        arguments = [self._shape(argument) for argument in node.args]
        results = [None if one is None else self.shapes[one] for one in made]
        # Of all arguments of a convolution, whether it is transposed is the only flag.
        multiplies = multiplies_of(name, arguments, results, any(argument is True for argument in node.args))
        pointwise = any(str(tag).rpartition(".")[2] == "pointwise" for tag in getattr(node.target, "tags", ()))
        elements = max(self.shapes[tensor].elements for tensor in (*inputs, *outputs))
        role = role_of(name, pointwise)
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
                vector_flops=0.0 if multiplies or role == "spread" or looks_up(name) else elements,
                multiplies=multiplies,
            )
        )
        if name.endswith("_") and not name.endswith("__") and node.args and node.args[0] in self.results:
            self._changed(node.args[0], outputs[0])

    def _changed(self, node: Any, new: int) -> None:
        """Note that a tensor has a new value, which later operators read."""
        self.results[node] = (new,)
        self.outputs.add(new)
        if node in self.given:
            self.updates[self.given[node]] = new

    def _shape(self, argument: Any) -> Shape | None:
        found = self.results.get(argument, ()) if _is_node(argument) else ()
        return self.shapes[found[0]] if found and found[0] is not None else None

    def _tensors(self, node: Any) -> Iterator[int]:
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


def _name_of(node: Any) -> str:
    """Return the name of an operator: "addmm" of aten.addmm.default."""
    text = str(node.target)
    parts = text.split(".")
    if len(parts) > 1 and hasattr(node.target, "overloadpacket"):
        return parts[1]
    return str(getattr(node.target, "__name__", text))


def _results_of(node: Any) -> list[Shape | None]:
    """Return the shapes of what a node makes; raises InputError if its node has none."""
    if "val" not in node.meta:
        if node.op == "get_attr":
            return []  # a subgraph
        raise InputError(
            f"node {node.name} has no meta['val'], the shape of its result: make the graph by torch.export, or by "
            'make_fx with tracing_mode="fake"'
        )
    value = node.meta["val"]
    return [_shape_of(one, node.name) for one in (value if isinstance(value, list | tuple) else [value])]


def _shape_of(value: Any, name: str) -> Shape | None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    try:
        sizes = tuple(int(size) for size in shape)
    except Exception as error:  # of a symbolic size, that of torch
        first = next(iter(str(error).splitlines()), "")
        raise InputError(f"node {name} has no size in numbers: {tuple(shape)} ({first:.100})") from None
    return Shape(sizes, _element_bytes(dtype))


def _element_bytes(dtype: Any) -> int:
    size = getattr(dtype, "itemsize", None)
    if isinstance(size, int):
        return size
    bits = re.search(r"\d+", str(dtype))
    return max(int(bits[0]) // 8, 1) if bits else 1  # bool


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value, "meta")


def _nodes_in(value: Any) -> Iterator[Any]:
    """Yield the nodes in the arguments of a node."""
    if _is_node(value):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _nodes_in(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _nodes_in(one)
