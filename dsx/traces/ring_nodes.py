"""Ring attention as nodes: blocks sent on from rank to rank, beside the parts of the kernel that works on them.

With n ranks, a kernel has n parts. Part i works on the block of the rank that is i places before, which arrives while
part i - 1 runs. The gradients of a block travel on likewise: what part i - 1 adds to them leaves while part i runs
(arXiv 2310.01889, section 3). A rank reuses a buffer once it is sent, so it waits for its own send too.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsx.graph.match import ALL_GATHER
from dsx.traces.layer_nodes import Compute, LayerNode, Move
from dsx.traces.messages import COMM_RECV, COMM_SEND, COMP
from dsx.traces.trace_nodes import OWN, Communication, Reference, TraceNode

if TYPE_CHECKING:
    from dsx.traces.node_builder import NodeBuilder, Tensors

_SIZES = 6  # numbers of a multiply, of which the fifth is its FLOPs
_FLOPS = 4
_NO_WORK = Compute(0, 0, 0, 0, 0, ())


def add_ring(
    builder: "NodeBuilder",
    position: int,
    node: LayerNode,
    inputs: "Tensors",
    outputs: "Tensors",
    around: Sequence[tuple[LayerNode, "Tensors", "Tensors"]],
) -> int:
    """Add a launch in parts with the sends and receives of its blocks; return the number of the last part.

    `around` are the rings, with what each reads and writes: gathers for the kernel, and scatters of its results. A part
    waits for all that was passed on beside the part before.
    """
    moves = [ring.move for ring, _, _ in around if ring.move]
    size = int(builder.plan.columns[moves[0].axis])
    gathers = [(ring, taken, made) for ring, taken, made in around if ring.move and ring.move.kind == ALL_GATHER]
    scatters = [(ring, taken, made) for ring, taken, made in around if ring.move and ring.move.kind != ALL_GATHER]
    gathered = {name for _, _, made in gathers for name, _ in made}
    partial = {name for _, taken, _ in scatters for name, _ in taken}
    base = [tensor for tensor in inputs if tensor[0] not in gathered]
    blocks = {ring.name: list(taken) for ring, taken, _ in gathers}
    sums: dict[str, Tensors] = {ring.name: [] for ring, _, _ in scatters}
    beside: list[Reference] = []  # what a part runs beside
    number = -1
    for part in range(size):
        last, before = part == size - 1, beside
        beside, arriving = [], {}
        for ring, _, ends in scatters if part else ():
            taken = [*_own_sum(ring, ends, part - 1, size), *sums[ring.name]]
            sums[ring.name] = _pass_on(builder, ring.move, ends[0][0], part - 1, taken, size, beside)
        for ring, _, ends in gathers if not last else ():
            arriving[ring.name] = _pass_on(builder, ring.move, ends[0][0], part, blocks[ring.name], size, beside)
        made = [tensor for tensor in outputs if tensor[0] not in partial] if last else []
        made += [tensor for ring, _, ends in scatters for tensor in _own_sum(ring, ends, part, size)]
        work = _part(node.compute, part, size) if node.compute else None
        number = builder.add(
            TraceNode(
                COMP,
                builder.own(position, f"{node.name} part {part}"),
                [*dict.fromkeys([*base, *(tensor for block in blocks.values() for tensor in block)])],
                made,
                data_deps=before,
                compute=work,
                kernel_text=f"{node.kernel_text}/part {min(part, 1) if not last else 2}",
                op_type=node.op_type,
            )
        )
        blocks |= arriving
    if scatters:
        # The kernel has added its last part to the sums, which arrived beside it.
        taken = [tensor for ring, _, ends in scatters for tensor in _own_sum(ring, ends, size - 1, size)]
        taken += [tensor for ring, _, _ in scatters for tensor in sums[ring.name]]
        made = [tensor for _, _, ends in scatters for tensor in ends]
        name = builder.own(position, f"{node.name} sums")
        builder.add(TraceNode(COMP, name, taken, made, data_deps=beside, compute=_NO_WORK))
    return number


def _own_sum(ring: LayerNode, ends: "Tensors", part: int, size: int) -> "Tensors":
    return [(f"{ends[0][0]} part {part}", _block(ring.move, size))]


def _pass_on(
    builder: "NodeBuilder",
    move: Move | None,
    tensor: str,
    part: int,
    block: "Tensors",
    size: int,
    beside: list[Reference],
) -> "Tensors":
    """Add the send of a block to the next rank, and the receive of one from the rank before; return what arrives.

    Every other rank of the ring receives first, so that no rank waits for itself if one communication runs at a time.
    `beside` gets both nodes.
    """
    axis, num_bytes = (move.axis if move else ""), _block(move, size)
    tag = builder.next_tag()
    arrived = [(f"{tensor} block {part + 1}", num_bytes)]
    ends = [(COMM_SEND, "send", 1), (COMM_RECV, "receive", -1)]
    for kind, verb, way in ends[::-1] if builder.receives_first else ends:
        communication = Communication(num_bytes, peer=("ring", axis, way), tag=tag)
        node = TraceNode(kind, f"{tensor} {verb} {part + 1}", communication=communication)
        node.inputs, node.outputs = (list(block), []) if kind == COMM_SEND else ([], list(arrived))
        node.overlap = 1.0 if kind == COMM_SEND else None
        beside.append(Reference(OWN, builder.add(node)))
    return arrived


def _block(move: Move | None, size: int) -> int:
    return move.volume // size if move else 0


def _part(work: Compute, part: int, size: int) -> Compute:
    """Return one of `size` parts of a launch; the last one has what a division leaves."""

    def share(amount: int) -> int:
        return amount // size + (amount % size if part == size - 1 else 0)

    multiplies = tuple(
        share(number) if index % _SIZES == _FLOPS else number for index, number in enumerate(work.multiplies)
    )
    return replace(
        work,
        matrix_flops=share(work.matrix_flops),
        vector_flops=share(work.vector_flops),
        bytes=share(work.bytes),
        unfused_bytes=share(work.unfused_bytes),
        launches=work.launches if part == 0 else 0,
        multiplies=multiplies,
    )
