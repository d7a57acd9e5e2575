"""The graph of a layer: launches and collectives, forward and backward, and the tensors between them.

The nodes of a layer's graph: launches and collectives, and the tensors that they read and write.

A value is a tensor on one rank, written by one node. A view writes nothing: who reads its result reads the values of
its source. A value that a view splits into several tensors is these tensors from the start, since they may live for
different times.

Builds the graph of a layer: its forward in order, and the backward that `dsx.notation.backward` derives.

A collective that brings an argument into its distribution runs before the first kernel that needs it, and serves all
that do; in the backward it is repeated where the forward did not keep its result. The collective of a gradient runs
after the last kernel that contributes to its sum; each kernel that contributes adds to what is there. An operator
without work writes nothing: its result is its input, and the gradient of its input that of its result.

A collective may run beside the kernel that works on its tensor. A kernel that needs a gathered tensor can begin with
the blocks that are there, and one that makes a tensor which is scattered can hand over each block when it is done
(Wang et al., ASPLOS 2023): so a gather or an exchange is beside the kernel that needs its result, a reduce-scatter
beside the kernel that makes what it moves. The kernel that a forward reduce-scatter serves, an addition mostly, only
waits for it.

The transient memory of a kernel's backward, besides what is saved.

A running backward holds the gradients that it reads, or that kernels before it wait for; those that it makes, of its
arguments; and the tensors that it gathers a second time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dsx.notation.backward import (
    GRADIENT_BYTES,
    Backward,
    GradientSum,
    Regather,
    axes_between,
    element_bytes,
    is_copy,
    tensor_bytes,
)
from dsx.notation.expressions import Name, combine, product, total
from dsx.notation.kernels import (
    Kernel,
    LaunchWork,
    Part,
    TokenCopies,
    Work,
    backward_launches,
    crossing,
    entering_arguments,
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
    Argument,
    Distribution,
    Layer,
    Operator,
    Transfer,
    elements,
    match,
)

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one microbatch; `bytes` is its volume on one GPU."""

    kind: str
    axis: str
    bytes: Any
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
    bytes: Any
    element_bytes: Any = 1  # of its data type; 1 for the state of a kernel, such as a mask
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
_Key = tuple[str, str]  # tensor, distribution


def layer_graph(
    layer: Layer, kernels: list[Kernel], backward: Backward, fused_backward_reads: str, uncounted: frozenset[str]
) -> LayerGraph:
    """Return the graph of a layer; see `dsx.notation.work.derive` for the last two arguments."""
    forward = _Forward(layer, kernels, uncounted)
    for index in range(len(kernels)):
        forward.run(index)
    back = _Backward(forward, backward, fused_backward_reads)
    for index in reversed(range(len(kernels))):
        back.run(index)
    return LayerGraph(
        forward=tuple(forward.nodes),
        backward=tuple(back.nodes),
        inputs=tuple(value for name in layer.inputs for value in forward.values[name]),
        outputs=tuple(value for name in layer.outputs for value in forward.values[name]),
        output_gradients=tuple(back.of_outputs),
        input_gradients=tuple(value for name in layer.inputs for value in back.gradients.get(name, ())),
        weights=tuple(forward.values[name][0] for name, tensor in layer.tensors.items() if tensor.weight),
        weight_gradients={
            name: tuple(back.gradients.get(name, ())) for name, tensor in layer.tensors.items() if tensor.weight
        },
    )


def collective_of(
    transfer: Transfer,
    size: Any,
    tensor: str,
    operator: Operator | None,
    copies: TokenCopies | None = None,
    beside: int | None = None,
) -> Collective:
    """Return a transfer of the matcher as the collective that runs for an operator.

    `size` is bytes per element; `copies` is of the tensor, if it has several copies of each token; `beside` is the
    kernel that it may run beside.
    """
    panelled = operator is not None and operator.panelled
    kind = _IN_PANELS.get(transfer.kind, transfer.kind) if panelled else transfer.kind
    in_panels = panelled and kind in (BROADCAST, REDUCE)
    ring = operator is not None and operator.modifier == RING and kind in (ALL_GATHER, REDUCE_SCATTER)
    volume = product((size, transfer.elements))
    moved = copies if kind == ALL_TO_ALL else None
    return Collective(kind, transfer.axis, volume, tensor, in_panels, ring, moved, beside)


def _gradient_of(tensor: str) -> str:
    return f"d {tensor}"


class _GraphBuilder:
    """What both directions share: the nodes so far, and how a chain of collectives becomes some."""

    def __init__(self, layer: Layer, kernels: list[Kernel], uncounted: frozenset[str], direction: int) -> None:
        self.layer, self.kernels, self.uncounted, self.direction = layer, kernels, uncounted, direction
        self.nodes: list[Node] = []
        self.names: set[str] = set()
        of_tensor = token_copies(layer)
        self.token_copies = of_tensor | {_gradient_of(tensor): copies for tensor, copies in of_tensor.items()}
        made = [(name, at) for at, kernel in enumerate(kernels) for op in kernel.operators for name in op.outputs]
        self.kernel_of = dict(made)

    def value(self, name: str, size: Any, element: Any, distribution: Distribution | None, **more: Any) -> Value:
        """Return a new value, under a name that no other one has."""
        unique, number = name, 2
        while unique in self.names:
            unique, number = f"{name}.{number}", number + 1
        self.names.add(unique)
        return Value(unique, size, element, distribution, **more)

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
        self,
        index: int,
        operator: Operator | None,
        transfers: Iterable[Transfer],
        label: str,
        element: Any,
        taken: tuple[Value, ...],
        wanted: Distribution,
        makes: int | None,
        needs: int | None,
        saved_as: _Key | None = None,
        after_kernel: bool = False,
    ) -> tuple[Value, ...]:
        """Add the collectives of a chain for a kernel, and return what the last one writes.

        `makes` is the kernel that makes what the chain moves, `needs` the one that needs the result.
        """
        for transfer in transfers:
            size = transfer.elements
            if transfer.kind == REDUCE_SCATTER:
                size = combine("/", size, Name(transfer.axis))
            made = self.value(f"{label}:{transfer.axis}", product((element, size)), element, wanted, saved_as=saved_as)
            beside = makes if transfer.kind == REDUCE_SCATTER else needs
            collective = collective_of(transfer, element, label, operator, self.token_copies.get(label), beside)
            name = f"{label} {collective.kind} {collective.axis}"
            self.nodes.append(Transferred(name, index, self.direction, collective, taken, (made,), after_kernel))
            taken = (made,)
        return taken

    def statistics(self, index: int, op: Operator, taken: tuple[Value, ...]) -> tuple[Value, ...]:
        """Add the all-reduces of row statistics, which a divided normalised dimension needs; return the last ones."""
        if not op.kind.statistics:
            return ()
        argument = op.arguments[0]
        *rows, last = argument.distribution.dims
        kept = Distribution(tuple(rows))
        size = product((tensor_bytes(self.layer, argument.tensor, kept), op.kind.statistics))
        made: tuple[Value, ...] = ()
        for axis in last.axes:
            label = f"statistics of {op.name}"
            reads = made or taken
            made = (self.value(f"{label}:{axis}", size, element_bytes(self.layer, argument.tensor), kept),)
            collective = Collective(ALL_REDUCE, axis, size, label, False)
            name = f"{label} {ALL_REDUCE} {axis}"
            self.nodes.append(Transferred(name, index, self.direction, collective, reads, made, False))
        return made


class _Forward(_GraphBuilder):
    """Walks the kernels in order."""

    def __init__(self, layer: Layer, kernels: list[Kernel], uncounted: frozenset[str]) -> None:
        super().__init__(layer, kernels, uncounted, FORWARD)
        self.values: dict[str, tuple[Value, ...]] = {}  # of each tensor, as it is produced
        self.copies: dict[_Key, tuple[Value, ...]] = {}  # of each tensor in another distribution
        self.states: dict[int, tuple[Value, ...]] = {}  # of each kernel, what it keeps besides tensors
        for name, tensor in layer.tensors.items():
            if tensor.weight or name in layer.inputs:
                self.values[name] = (self._produced(name),)

    def run(self, index: int) -> None:
        """Add the nodes of a kernel."""
        kernel = self.kernels[index]
        inside = {name for op in kernel.operators for name in op.outputs}
        reads: list[Value] = []
        for op in kernel.operators:
            # Statistics are of the first argument, which the kernel may make of what it has read.
            rows = tuple(reads)
            for number, argument in enumerate(op.arguments):
                if argument.tensor not in inside:
                    taken = self._consumed(index, op, argument)
                    reads += taken
                    rows = rows if number else taken
            reads += self.statistics(index, op, rows)
        if not self.counted(index):
            made = tuple(value for value in dict.fromkeys(reads) if not value.weight)
            for name in inside:
                self.values.setdefault(name, made)
            return
        writes: list[Value] = []
        for name in crossing(self.layer, kernel.operators):
            leaves = self._leaves(name)
            for leaf in leaves:
                self.values[leaf] = (self._produced(leaf),)
            self.values[name] = tuple(value for leaf in leaves for value in self.values[leaf])
            writes += self.values[name]
        self.states[index] = tuple(
            self.value(" ".join(saved.key), saved.bytes, 1, None, saved_as=saved.key)
            for saved in kernel.saved
            if saved.key[1].startswith("state ")
        )
        work = forward_launch(self.layer, kernel, self.uncounted)
        taken_once = tuple(dict.fromkeys(reads))
        made = (*writes, *self.states[index])
        self.nodes.append(Launch(kernel.name, index, FORWARD, "forward", work.work, taken_once, made))

    def _produced(self, name: str) -> Value:
        tensor = self.layer.tensors[name]
        size = tensor_bytes(self.layer, name, tensor.distribution)
        element = element_bytes(self.layer, name)
        return self.value(name, size, element, tensor.distribution, saved_as=(name, ""), weight=tensor.weight)

    def _leaves(self, name: str) -> list[str]:
        """Return the tensors that views split a tensor into; itself if none does."""
        for op in self.layer.operators:
            takes = op.arguments[0]
            if op.fuse or not op.costs_nothing or takes.tensor != name:
                continue
            if match(self.layer.tensors[name].distribution, takes.distribution):
                continue
            found = [leaf for output in op.outputs for leaf in self._leaves(output)]
            if len(found) > 1:
                return found
        return [name]

    def _consumed(self, index: int, op: Operator, argument: Argument) -> tuple[Value, ...]:
        """Return the values of an argument, and add the collectives that bring it into its distribution."""
        key = (argument.tensor, str(argument.distribution))
        produced = self.values[argument.tensor]
        if key not in self.copies or op.panelled:
            transfers = match(self.layer.tensors[argument.tensor].distribution, argument.distribution)
            element = element_bytes(self.layer, argument.tensor)
            self.copies[key] = self.transfer(
                index, op, transfers, argument.tensor, element, produced, argument.distribution,
                self.maker(argument.tensor), index, key,
            )  # fmt: skip
        return self.copies[key]


class _Backward(_GraphBuilder):
    """Walks the kernels in reverse."""

    def __init__(self, forward: _Forward, backward: Backward, fused_backward_reads: str) -> None:
        super().__init__(forward.layer, forward.kernels, forward.uncounted, BACKWARD)
        self.forward, self.fused_backward_reads = forward, fused_backward_reads
        self.names = forward.names
        self.regathered: dict[Regather, tuple[Value, ...]] = {}
        self.gradients: dict[str, list[Value]] = {}  # of each tensor, as its producer needs it
        # Sums by the kernel that contributes last; what each still lacks, and what it has.
        self.open: dict[int, list[GradientSum]] = {}
        self.contributed: dict[tuple[str, Distribution], list[Value]] = {}
        self.of_outputs: list[Value] = []
        for gradient_sum in backward.sums:
            last = gradient_sum.operators[-1]
            self.open.setdefault(len(self.kernels) if last is None else self.kernel_of[last.name], []).append(
                gradient_sum
            )
        for name in self.layer.outputs:
            whole = self.layer.tensors[name].distribution.without_partial()
            made = self._gradient(name, whole)
            self.of_outputs.append(made)
            self.contributed[name, whole] = [made]
        self._settle(len(self.kernels))

    def run(self, index: int) -> None:
        """Add the nodes of a kernel's backward, and the collectives of gradients that it completes."""
        kernel = self.kernels[index]
        made = crossing(self.layer, kernel.operators)
        incoming = tuple(value for name in made for value in self.gradients.get(name, ()))
        if not self.counted(index):
            self._regather(index)
            self._pass_on(index, incoming)
            self._settle(index)
            return
        statistics = tuple(value for op in kernel.operators for value in self.statistics(index, op, incoming))
        copies = self._regather(index)
        launches = backward_launches(self.layer, kernel, self.fused_backward_reads, self.uncounted)
        if not launches:
            self._pass_on(index, incoming)
        for number, launch in enumerate(launches):
            self._launch(index, launch, (*incoming, *statistics), copies)
            later = {argument.tensor for other in launches[number + 1 :] for argument in other.gradients_of}
            self._settle(index, {argument.tensor for argument in launch.gradients_of} - later)
        self._settle(index)

    def _launch(
        self, index: int, launch: LaunchWork, incoming: tuple[Value, ...], copies: dict[_Key, tuple[Value, ...]]
    ) -> None:
        kernel = self.kernels[index]
        reads = [*incoming]
        for argument in launch.reads:
            key = (argument.tensor, str(argument.distribution))
            own = self.forward.copies.get(key) or self.forward.values.get(argument.tensor, ())
            reads += copies.get(key, own)
        if launch.keeps:
            reads += self.forward.states[index]
        writes: list[Value] = []
        for tensor, consumed in dict.fromkeys((arg.tensor, arg.distribution) for arg in launch.gradients_of):
            writes.append(self._gradient(tensor, consumed))
            for gradient_sum in self._sums(index, tensor, consumed)[:1]:
                # It adds to what earlier kernels contribute, so the sum is one tensor.
                reads += self.contributed.pop((tensor, gradient_sum.distribution), ())
                self.contributed[tensor, gradient_sum.distribution] = [writes[-1]]
        name = f"{kernel.name} {launch.part}"
        node = Launch(name, index, BACKWARD, launch.part, launch.work, tuple(dict.fromkeys(reads)), tuple(writes))
        self.nodes.append(node)

    def _sums(self, index: int, tensor: str, consumed: Distribution) -> list[GradientSum]:
        """Return the sums that the gradient of an argument of a kernel belongs to."""
        own = {op.name for op in self.kernels[index].operators}
        return [
            gradient_sum
            for totals in self.open.values()
            for gradient_sum in totals
            if gradient_sum.tensor == tensor
            and gradient_sum.distribution.dims == consumed.dims
            and any(op is not None and op.name in own for op in gradient_sum.operators)
        ]

    def _pass_on(self, index: int, incoming: tuple[Value, ...]) -> None:
        """Make the gradients of a kernel without a backward those of its arguments."""
        for argument in entering_arguments(self.kernels[index]):
            for gradient_sum in self._sums(index, argument.tensor, argument.distribution)[:1]:
                into = self.contributed.setdefault((argument.tensor, gradient_sum.distribution), [])
                into += [value for value in incoming if value not in into]

    def _settle(self, index: int, tensors: set[str] | None = None) -> None:
        """Add the collectives of the sums that are complete with a kernel: those of some tensors, or all."""
        left: list[GradientSum] = []
        for gradient_sum in self.open.pop(index, []):
            if tensors is not None and gradient_sum.tensor not in tensors:
                left.append(gradient_sum)
                continue
            tensor = self.layer.tensors[gradient_sum.tensor]
            values = tuple(self.contributed.pop((gradient_sum.tensor, gradient_sum.distribution), ()))
            element = GRADIENT_BYTES if tensor.weight else element_bytes(self.layer, gradient_sum.tensor)
            operator = gradient_sum.operators[-1]
            place = index if index < len(self.kernels) else len(self.kernels) - 1
            label = _gradient_of(gradient_sum.tensor)
            moved = self.transfer(
                place, operator, gradient_sum.transfers, label, element, values, tensor.distribution,
                place, self.maker(gradient_sum.tensor), after_kernel=True,
            )  # fmt: skip
            into = self.gradients.setdefault(gradient_sum.tensor, [])
            into += [value for value in moved if value not in into]
        if left:
            self.open[index] = left

    def _regather(self, index: int) -> dict[_Key, tuple[Value, ...]]:
        """Add the redistributions that the backward of a kernel repeats, and return their results."""
        found: dict[_Key, tuple[Value, ...]] = {}
        for op, regather in self.kernels[index].regathers:
            name, wanted = regather.tensor, regather.wanted
            if regather not in self.regathered or op.panelled:
                produced = self.layer.tensors[name].distribution
                self.regathered[regather] = self.transfer(
                    index, op, match(produced, wanted), name, element_bytes(self.layer, name),
                    self.forward.values[name], wanted, self.maker(name), index,
                )  # fmt: skip
            found[name, str(wanted)] = self.regathered[regather]
        return found

    def _gradient(self, tensor: str, distribution: Distribution) -> Value:
        element = GRADIENT_BYTES if self.layer.tensors[tensor].weight else element_bytes(self.layer, tensor)
        return self.value(f"d {tensor}", product((element, elements(distribution.dims))), element, distribution)


def transient_bytes(layer: Layer, graph: LayerGraph, index: int, kernel: Kernel) -> Any:
    """Return the local bytes of the transient tensors of the backward of a kernel, by its position in the layer.

    0 for one that has no backward of its own: the gradient of its result is that of its arguments.
    """
    begins = next(
        (at for at, node in enumerate(graph.backward) if node.kernel == index and isinstance(node, Launch)), None
    )
    if begins is None:
        return 0
    operators = list(kernel.operators)
    inside = {name for op in operators for name in op.outputs}
    found = _held_gradients(graph, begins)
    seen: set[tuple[str, str]] = set()
    for op in operators:
        for argument in op.arguments:
            key = (argument.tensor, str(argument.distribution))
            tensor = layer.tensors[argument.tensor]
            if argument.tensor in inside or key in seen:
                continue
            seen.add(key)
            size = tensor_bytes(layer, argument.tensor, argument.distribution)
            redistributed = argument.distribution != tensor.distribution
            if redistributed and (op.panelled or argument.regathered):
                again = product((size, is_copy(axes_between(tensor.distribution, argument.distribution))))
                found.append(combine("/", size, Name(PANELS)) if op.panelled else again)
            if not (tensor.weight or tensor.data):
                found.append(size)
            elif tensor.weight and redistributed and not op.panelled:
                found.append(product((GRADIENT_BYTES, elements(argument.distribution.dims))))
    return total(found)


def _held_gradients(graph: LayerGraph, begins: int) -> list[Any]:
    """Return the bytes of the gradients that exist before a node of the backward, and are read by it or later.

    Of a gradient and its redistributed copies, the first counts, and others where the axes between have several ranks.
    """
    read = {value for node in graph.backward[begins:] for value in node.reads} | {*graph.input_gradients}
    # By gradient, the one that it is a copy of, and the axes that it was redistributed over.
    made: dict[Value, tuple[Value, tuple[str, ...]]] = {value: (value, ()) for value in graph.output_gradients}
    for node in graph.backward[:begins]:
        if isinstance(node, Launch):
            made |= {value: (value, ()) for value in node.writes}
        elif node.after_kernel:
            source, axes = made[node.reads[0]] if len(node.reads) == 1 else (node.writes[0], ())
            made |= {value: (source, (*axes, node.collective.axis)) for value in node.writes}
    counted: dict[Value, tuple[str, ...]] = {}
    found: list[Any] = []
    for value, (source, axes) in made.items():
        if value not in read:
            continue
        first = source not in counted
        between = {*axes} ^ {*counted.setdefault(source, axes)}
        found.append(value.bytes if first else product((value.bytes, is_copy(sorted(between)))))
    return found
