"""The graph of a layer: its launches and collectives in both directions, and the tensors that they read and write.

A value is a tensor on one rank, written by one node. A view writes nothing: who reads its result reads the values of
its source. A value that a view splits into several tensors is these tensors from the start, since they may live for
different times.

A collective that brings an argument into its distribution runs before the first kernel that needs it, and serves all
that do; in the backward it is repeated where the forward did not keep its result. The collective of a gradient runs
after the last kernel that contributes to its sum; each kernel that contributes adds to what is there. An operator
without work writes nothing: its result is its input, and the gradient of its input that of its result.

A collective may run beside the kernel that works on its tensor. A kernel that needs a gathered tensor can begin with
the blocks that are there, and one that makes a tensor which is scattered can hand over each block when it is done
(Wang et al., ASPLOS 2023): so a gather or an exchange is beside the kernel that needs its result, a reduce-scatter
beside the kernel that makes what it moves. The kernel that a forward reduce-scatter serves, an addition mostly, only
waits for it.

A running backward holds, besides what is saved, the gradients that it reads, or that kernels before it wait for; those
that it makes, of its arguments; and the tensors that it gathers a second time: its transient memory. In a layer without
a backward, a running forward holds what it reads and makes, and what later kernels read.
"""

from collections.abc import Container
from dataclasses import dataclass, replace

from dsx.notation.backward import (
    GRADIENT_BYTES,
    Backward,
    GradientSum,
    axes_between,
    element_bytes,
    is_copy,
    tensor_bytes,
)
from dsx.notation.expressions import Expression, Name, combine, product, total
from dsx.notation.kernels import (
    Kernel,
    LaunchWork,
    Part,
    TokenCopies,
    Work,
    backward_launches,
    forward_launch,
    token_copies,
)
from dsx.notation.sharded_layer import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    PANELS,
    REDUCE,
    REDUCE_SCATTER,
    RING,
    Distribution,
    Layer,
    Operator,
    elements,
    match,
)

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one microbatch; `bytes` is its volume on one GPU."""

    kind: str
    axis: str
    bytes: Expression
    tensor: str
    panelled: bool
    ring: bool = False  # block by block, while the kernel works on the previous block
    copies: TokenCopies | None = None  # of an all-to-all that moves several copies of each token
    # Position of the kernel that works on the same tensor, and could do so block by block beside the collective: the
    # one that makes what a reduce-scatter moves, else the one that needs the result. None if no kernel does.
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor on one rank; the name is unique in a graph."""

    name: str
    bytes: Expression
    element_bytes: Expression = 1  # of its data type; 1 for the state of a kernel, such as a mask
    distribution: Distribution | None = None  # None for the state of a kernel
    saved_as: tuple[str, str] | None = None  # its key among the saved tensors of a layer
    weight: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel, or a part of its backward."""

    name: str
    kernel: int  # position among the kernels of the layer
    direction: int
    part: Part
    work: Work
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Transferred:
    """A collective in its place, which belongs to a kernel and a direction."""

    name: str
    kernel: int
    direction: int
    collective: Collective
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    after_kernel: bool  # whether it moves what the kernel makes; else what it needs


Node = Launch | Transferred


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The graph of a layer for one microbatch: the nodes of both directions, in the order in which they run."""

    forward: tuple[Node, ...]
    backward: tuple[Node, ...]  # without recomputation
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_gradients: tuple[Value, ...]  # what the backward begins with
    input_gradients: tuple[Value, ...]  # whose sum is the gradient of the input
    weights: tuple[Value, ...]
    weight_gradients: dict[str, tuple[Value, ...]]  # weight -> values whose sum is its gradient

    def nodes(self, direction: int) -> tuple[Node, ...]:
        """Return the nodes of a direction."""
        return self.backward if direction == BACKWARD else self.forward


_IN_PANELS = {ALL_GATHER: BROADCAST, REDUCE_SCATTER: REDUCE}


def layer_graph(
    layer: Layer, kernels: list[Kernel], backward: Backward, fused_backward_reads: str, uncounted: frozenset[str]
) -> LayerGraph:
    """Return the graph of a layer; see `dsx.notation.work.derive` for the last two arguments."""
    builder = _GraphBuilder(layer, kernels, uncounted)
    for index in range(len(kernels)):
        builder.run_forward(index)
    output_gradients = builder.begin_backward(backward)
    for index in reversed(range(len(kernels))):
        builder.run_backward(index, fused_backward_reads)
    values, gradients = builder.values, builder.gradients
    weights = [name for name, tensor in layer.tensors.items() if tensor.weight]
    return LayerGraph(
        forward=tuple(builder.nodes[FORWARD]),
        backward=tuple(builder.nodes[BACKWARD]),
        inputs=tuple(value for name in layer.inputs for value in values[name]),
        outputs=tuple(value for name in layer.outputs for value in values[name]),
        output_gradients=output_gradients,
        input_gradients=tuple(value for name in layer.inputs for value in gradients.get(name, ())),
        weights=tuple(values[name][0] for name in weights),
        weight_gradients={name: tuple(gradients.get(name, ())) for name in weights},
    )


class _GraphBuilder:
    """Walks the kernels in order, and then in reverse."""

    def __init__(self, layer: Layer, kernels: list[Kernel], uncounted: frozenset[str]) -> None:
        self.layer, self.kernels, self.uncounted, self.direction = layer, kernels, uncounted, FORWARD
        self.nodes: tuple[list[Node], list[Node]] = [], []
        self.names: set[str] = set()
        self.token_copies = token_copies(layer)
        self.kernel_of = {name: at for at, kernel in enumerate(kernels) for name in kernel.makes}
        self.values: dict[str, tuple[Value, ...]] = {}  # of each tensor, as it is produced
        # Of each tensor in another distribution: as the forward made it, and as the backward makes it once more.
        self.copies: tuple[dict[tuple[str, str], tuple[Value, ...]], ...] = {}, {}
        self.states: dict[int, tuple[Value, ...]] = {}  # of each kernel, what it keeps besides tensors
        self.gradients: dict[str, list[Value]] = {}  # of each tensor, as its producer needs it
        # Sums by the kernel that contributes last; what each still lacks, and what it has.
        self.open: dict[int, list[GradientSum]] = {}
        self.contributed: dict[tuple[str, Distribution], list[Value]] = {}
        for name, tensor in layer.tensors.items():
            if tensor.weight or name in layer.inputs:
                self.values[name] = (self.produced(name),)

    def value(
        self, name: str, size: Expression, element: Expression, distribution: Distribution | None = None
    ) -> Value:
        """Return a new value, under a name that no other one has."""
        unique, number = name, 2
        while unique in self.names:
            unique, number = f"{name}.{number}", number + 1
        self.names.add(unique)
        return Value(unique, size, element, distribution)

    def produced(self, name: str) -> Value:
        tensor = self.layer.tensors[name]
        value = self.value(name, tensor_bytes(self.layer, name), element_bytes(self.layer, name), tensor.distribution)
        return replace(value, saved_as=(name, ""), weight=tensor.weight)

    def counted(self, index: int) -> bool:
        """Return whether a kernel does any work in either direction."""
        operators = self.kernels[index].operators
        return any(op.kind.name not in self.uncounted and not op.costs_nothing for op in operators)

    def maker(self, tensor: str) -> int | None:
        """Return the kernel that makes a tensor, or of which it is a view; None if no kernel does."""
        operator = self.layer.producer(tensor)
        if operator is None or operator.fuse or not operator.costs_nothing:
            return self.kernel_of.get(tensor)
        return self.maker(operator.arguments[0].tensor)

    def transfer(
        self, index: int, operator: Operator | None, tensor: str, copy: Distribution, moved: GradientSum | None = None
    ) -> tuple[Value, ...]:
        """Add the collectives that bring a tensor into a distribution for a kernel; return what the last one writes.

        With `moved` they bring this sum of gradients, which the kernel completes, into that distribution.
        """
        if moved is None:
            transfers = match(self.layer.tensors[tensor].distribution, copy)
            label, values, element = tensor, self.values[tensor], element_bytes(self.layer, tensor)
            makes, needs = self.maker(tensor), index
        else:
            values = tuple(self.contributed.pop((tensor, moved.distribution), ()))
            transfers, label, element = moved.transfers, f"d {tensor}", self.gradient_element(tensor)
            makes, needs = index, self.maker(tensor)
        for transfer in transfers:
            size = transfer.elements
            if transfer.kind == REDUCE_SCATTER:
                size = combine("/", size, Name(transfer.axis))
            copied = self.value(f"{label}:{transfer.axis}", product((element, size)), element, copy)
            if self.direction == FORWARD:
                copied = replace(copied, saved_as=(tensor, str(copy)))
            # A kernel may take a gathered tensor, or give a scattered one, in panels or in the blocks of a ring.
            by_parts = operator if transfer.kind in _IN_PANELS else None
            in_panels = by_parts is not None and by_parts.panelled
            collective = Collective(
                kind=_IN_PANELS[transfer.kind] if in_panels else transfer.kind,
                axis=transfer.axis,
                bytes=product((element, transfer.elements)),
                tensor=label,
                panelled=in_panels,
                ring=by_parts is not None and by_parts.modifier == RING,
                copies=self.token_copies.get(tensor) if transfer.kind == ALL_TO_ALL else None,
                beside=makes if transfer.kind == REDUCE_SCATTER else needs,
            )
            self.add_collective(index, collective, values, copied, moved is not None)
            values = (copied,)
        return values

    def add_collective(
        self, index: int, collective: Collective, values: tuple[Value, ...], result: Value, after_kernel: bool = False
    ) -> None:
        name = f"{collective.tensor} {collective.kind} {collective.axis}"
        node = Transferred(name, index, self.direction, collective, values, (result,), after_kernel)
        self.nodes[self.direction].append(node)

    def statistics(self, index: int, op: Operator, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Add the all-reduces of row statistics, which a divided normalised dimension needs; return the last ones."""
        if not op.kind.statistics:
            return ()
        argument = op.arguments[0]
        *rows, last = argument.distribution.dims
        of_rows = Distribution(tuple(rows))
        size = product((tensor_bytes(self.layer, argument.tensor, of_rows), op.kind.statistics))
        reduced_rows: tuple[Value, ...] = ()
        for axis in last.axes:
            label = f"statistics of {op.name}"
            reduced = self.value(f"{label}:{axis}", size, element_bytes(self.layer, argument.tensor), of_rows)
            collective = Collective(ALL_REDUCE, axis, size, label, False)
            self.add_collective(index, collective, reduced_rows or values, reduced)
            reduced_rows = (reduced,)
        return reduced_rows

    def run_forward(self, index: int) -> None:
        """Add the forward nodes of a kernel."""
        kernel = self.kernels[index]
        inside = {*kernel.makes}
        reads: list[Value] = []
        for op in kernel.operators:
            # Statistics are of the first argument, which the kernel may make of what it has read.
            rows = tuple(reads)
            for number, argument in enumerate(op.arguments):
                if argument.tensor not in inside:
                    copies = self.copies[FORWARD]
                    if argument.key not in copies or op.panelled:
                        copies[argument.key] = self.transfer(index, op, argument.tensor, argument.distribution)
                    reads += copies[argument.key]
                    rows = rows if number else copies[argument.key]
            reads += self.statistics(index, op, rows)
        reads = [*dict.fromkeys(reads)]
        if not self.counted(index):
            for name in inside:
                self.values.setdefault(name, tuple(value for value in reads if not value.weight))
            return
        writes: list[Value] = []
        for name in kernel.leaving:
            leaves = self.leaves(name)
            self.values |= {leaf: (self.produced(leaf),) for leaf in leaves}
            self.values[name] = tuple(value for leaf in leaves for value in self.values[leaf])
            writes += self.values[name]
        self.states[index] = tuple(
            replace(self.value(" ".join(saved.key), saved.bytes, 1), saved_as=saved.key)
            for saved in kernel.saved
            if saved.key[1].startswith("state ")
        )
        work = forward_launch(self.layer, kernel, self.uncounted)
        results = (*writes, *self.states[index])
        self.nodes[FORWARD].append(Launch(kernel.name, index, FORWARD, "forward", work, tuple(reads), results))

    def leaves(self, name: str) -> list[str]:
        """Return the tensors that views split a tensor into; itself if none does."""
        for op in self.layer.operators:
            source = op.arguments[0]
            if op.fuse or not op.costs_nothing or source.tensor != name:
                continue
            if not match(self.layer.tensors[name].distribution, source.distribution):
                leaves = [leaf for output in op.outputs for leaf in self.leaves(output)]
                if len(leaves) > 1:
                    return leaves
        return [name]

    def begin_backward(self, backward: Backward) -> tuple[Value, ...]:
        """Turn to the backward; return the gradients that it begins with."""
        self.direction = BACKWARD
        for gradient_sum in backward.sums:
            last = gradient_sum.operators[-1]
            at = len(self.kernels) if last is None else self.kernel_of[last.name]
            self.open.setdefault(at, []).append(gradient_sum)
        output_gradients: list[Value] = []
        for name in self.layer.outputs:
            if self.layer.tensors[name].constant:
                continue
            completed = self.layer.tensors[name].distribution.without_partial()
            output_gradients.append(self.gradient(name, completed))
            self.contributed[name, completed] = output_gradients[-1:]
        self.settle(len(self.kernels))
        return tuple(output_gradients)

    def run_backward(self, index: int, fused_backward_reads: str) -> None:
        """Add the nodes of a kernel's backward, and the collectives of gradients that it completes."""
        kernel = self.kernels[index]
        incoming = tuple(value for name in kernel.leaving for value in self.gradients.get(name, ()))
        counted = self.counted(index)
        operators = [op for op in kernel.operators if counted and not self.layer.tensors[op.name].constant]
        statistics = tuple(value for op in operators for value in self.statistics(index, op, incoming))
        for op, regather in kernel.regathers:
            key = regather.tensor, str(regather.consumed)
            if key not in self.copies[BACKWARD] or op.panelled:
                self.copies[BACKWARD][key] = self.transfer(index, op, regather.tensor, regather.consumed)
        launches = ()
        if counted:
            launches = backward_launches(self.layer, kernel, fused_backward_reads, self.uncounted)
        if not launches:  # the gradients of its results are those of its arguments
            for argument in kernel.entering:
                for gradient_sum in self.sums(index, argument.tensor, argument.distribution)[:1]:
                    into = self.contributed.setdefault((argument.tensor, gradient_sum.distribution), [])
                    into += [value for value in incoming if value not in into]
        for number, launch in enumerate(launches):
            self.launch(index, launch, (*incoming, *statistics))
            later = {argument.tensor for other in launches[number + 1 :] for argument in other.gradients_of}
            self.settle(index, {argument.tensor for argument in launch.gradients_of} - later)
        self.settle(index)

    def launch(self, index: int, launch: LaunchWork, incoming: tuple[Value, ...]) -> None:
        kernel = self.kernels[index]
        regathered = {(regather.tensor, str(regather.consumed)) for _, regather in kernel.regathers}
        reads = [*incoming]
        for argument in launch.reads:
            copies = self.copies[BACKWARD if argument.key in regathered else FORWARD]
            reads += copies.get(argument.key) or self.values.get(argument.tensor, ())
        if launch.keeps:
            reads += self.states[index]
        writes: list[Value] = []
        for tensor, consumed in dict.fromkeys((arg.tensor, arg.distribution) for arg in launch.gradients_of):
            writes.append(self.gradient(tensor, consumed))
            for gradient_sum in self.sums(index, tensor, consumed)[:1]:
                # It adds to what earlier kernels contribute, so the sum is one tensor.
                reads += self.contributed.pop((tensor, gradient_sum.distribution), ())
                self.contributed[tensor, gradient_sum.distribution] = writes[-1:]
        name, taken_once = f"{kernel.name} {launch.part}", tuple(dict.fromkeys(reads))
        node = Launch(name, index, BACKWARD, launch.part, launch.work, taken_once, tuple(writes))
        self.nodes[BACKWARD].append(node)

    def sums(self, index: int, tensor: str, consumed: Distribution) -> list[GradientSum]:
        """Return the sums that the gradient of an argument of a kernel belongs to."""
        operators = {op.name for op in self.kernels[index].operators}
        return [
            gradient_sum
            for totals in self.open.values()
            for gradient_sum in totals
            if gradient_sum.tensor == tensor
            and gradient_sum.distribution.dims == consumed.dims
            and any(op is not None and op.name in operators for op in gradient_sum.operators)
        ]

    def settle(self, index: int, tensors: set[str] | None = None) -> None:
        """Add the collectives of the sums that are complete with a kernel: those of some tensors, or all."""
        totals = self.open.pop(index, [])
        place = min(index, len(self.kernels) - 1)
        for gradient_sum in totals:
            tensor = gradient_sum.tensor
            if tensors is not None and tensor not in tensors:
                self.open.setdefault(index, []).append(gradient_sum)
                continue
            copy = self.layer.tensors[tensor].distribution
            moved = self.transfer(place, gradient_sum.operators[-1], tensor, copy, gradient_sum)
            into = self.gradients.setdefault(tensor, [])
            into += [value for value in moved if value not in into]

    def gradient_element(self, tensor: str) -> Name:
        return GRADIENT_BYTES if self.layer.tensors[tensor].weight else element_bytes(self.layer, tensor)

    def gradient(self, tensor: str, distribution: Distribution) -> Value:
        element = self.gradient_element(tensor)
        return self.value(f"d {tensor}", product((element, elements(distribution.dims))), element, distribution)


def transient_bytes(layer: Layer, graph: LayerGraph, index: int, kernel: Kernel) -> Expression:
    """Return the local bytes of the transient tensors of the backward of a kernel, by its position in the layer.

    0 for one that has no backward of its own: the gradient of its result is that of its arguments. In a layer without a
    backward they are those of the forward.
    """
    if not graph.backward:
        return _forward_bytes(graph, index)
    launches = [at for at, node in enumerate(graph.backward) if node.kernel == index and isinstance(node, Launch)]
    if not launches:
        return 0
    inside = {*kernel.makes}
    # Gradients that exist before the backward of the kernel, and are read by it or later. By gradient, the one that it
    # is a copy of, and the axes that it was redistributed over: the first of copies counts, and others where the axes
    # between have several ranks.
    read = {value for node in graph.backward[launches[0] :] for value in node.reads} | {*graph.input_gradients}
    sources: dict[Value, tuple[Value, tuple[str, ...]]] = {value: (value, ()) for value in graph.output_gradients}
    for node in graph.backward[: launches[0]]:
        if isinstance(node, Launch):
            sources |= {value: (value, ()) for value in node.writes}
        elif node.after_kernel:
            source, axes = sources[node.reads[0]] if len(node.reads) == 1 else (node.writes[0], ())
            sources |= {value: (source, (*axes, node.collective.axis)) for value in node.writes}
    counted: dict[Value, tuple[str, ...]] = {}
    sizes: list[Expression] = []
    for value, (source, axes) in sources.items():
        if value in read:
            first = source not in counted
            between = {*axes} ^ {*counted.setdefault(source, axes)}
            sizes.append(value.bytes if first else product((value.bytes, is_copy(sorted(between)))))
    seen: set[tuple[str, str]] = set()
    for op, argument in [(operator, argument) for operator in kernel.operators for argument in operator.arguments]:
        if argument.tensor in inside or argument.key in seen:
            continue
        seen.add(argument.key)
        tensor = layer.tensors[argument.tensor]
        size = tensor_bytes(layer, argument.tensor, argument.distribution)
        redistributed = argument.distribution != tensor.distribution
        if redistributed and op.panelled:
            sizes.append(combine("/", size, Name(PANELS)))
        elif redistributed and argument.regathered:
            sizes.append(product((size, is_copy(axes_between(tensor.distribution, argument.distribution)))))
        if tensor.constant:
            continue
        if not tensor.weight:
            sizes.append(size)
        elif redistributed and not op.panelled:
            sizes.append(product((GRADIENT_BYTES, elements(argument.distribution.dims))))
    return total(sizes)


def _forward_bytes(graph: LayerGraph, index: int) -> Expression:
    """Return the most local bytes that exist while the forward of a kernel runs, without weights."""
    first = dict.fromkeys(graph.inputs, 0)
    first |= {value: at for at, node in enumerate(graph.forward) for value in node.writes}
    last = {value: at for at, node in enumerate(graph.forward) for value in (*node.writes, *node.reads)}
    last |= dict.fromkeys(graph.outputs, len(graph.forward))
    # What a collective over one rank writes is what it reads.
    sources = {
        node.writes[0]: (node.reads[0], node.collective)
        for node in graph.forward
        if isinstance(node, Transferred) and len(node.reads) == len(node.writes) == 1
    }

    def size(value: Value, alive: Container[Value]) -> Expression:
        if value not in sources:
            return value.bytes
        source, collective = sources[value]
        num_bytes = value.bytes
        if collective.panelled:
            num_bytes = combine("/", num_bytes, Name(PANELS))
        elif collective.ring and collective.kind == ALL_GATHER:  # the block that is worked on, and the next one
            num_bytes = combine("/", product((2, num_bytes)), Name(collective.axis))
        return product((num_bytes, is_copy([collective.axis]))) if source in alive else num_bytes

    most: Expression = 0
    for at in (at for at, node in enumerate(graph.forward) if node.kernel == index):
        alive = [value for value in first if first[value] <= at <= last.get(value, -1) and not value.weight]
        most = combine("max", most, total(size(value, alive) for value in alive))
    return most
