"""Ring attention as nodes: blocks sent on from rank to rank, beside the parts of the kernel that works on them.

With n ranks, a kernel has n parts. Part i works on the block of the rank that is i places before, which arrives while
part i - 1 runs; the gradients of a block travel on likewise, and each part adds to them (arXiv 2310.01889, section 3).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsx.graph.match import ALL_GATHER
from dsx.traces.layer_nodes import Compute, LayerNode, Move
from dsx.traces.messages import COMM_RECV, COMM_SEND, COMP
from dsx.traces.trace_nodes import Communication, TraceNode

if TYPE_CHECKING:
    from dsx.traces.node_builder import NodeBuilder, Tensors

_SIZES = 6  # numbers of a multiply, of which the fifth is its FLOPs
_FLOPS = 4


def add_ring(
    builder: "NodeBuilder",
    position: int,
    node: LayerNode,
    inputs: "Tensors",
    outputs: "Tensors",
    around: Sequence[tuple[LayerNode, "Tensors", "Tensors"]],
) -> int:
    """Add a launch in parts with the sends and receives of its blocks; return the number of the last part.

    `around` are the rings, with what each reads and writes: gathers for the kernel, and scatters of its results.
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
    number = -1
    for part in range(size):
        last = part == size - 1
        arriving: dict[str, Tensors] = {}
        for ring, _, ends in gathers if not last else ():
            arriving[ring.name] = _pass_on(builder, ring.move, ends[0][0], part, blocks[ring.name], size)
        made = [tensor for tensor in outputs if tensor[0] not in partial] if last else []
        for ring, _, ends in scatters:
            made += list(ends) if last else [(f"{ends[0][0]} part {part}", _block(ring.move, size))]
        work = _part(node.compute, part, size) if node.compute else None
        reads = [*base, *(tensor for each in (*blocks.values(), *sums.values()) for tensor in each)]
        number = builder.add(
            TraceNode(
                COMP,
                builder.own(position, f"{node.name} part {part}"),
                [*dict.fromkeys(reads)],
                made,
                compute=work,
                kernel_text=f"{node.kernel_text}/part {min(part, 1) if not last else 2}",
                op_type=node.op_type,
            )
        )
        for ring, _, ends in scatters if not last else ():
            own = [(f"{ends[0][0]} part {part}", _block(ring.move, size))]
            sums[ring.name] = _pass_on(builder, ring.move, ends[0][0], part, own, size)
        blocks |= arriving
    return number


def _pass_on(
    builder: "NodeBuilder", move: Move | None, tensor: str, part: int, block: "Tensors", size: int
) -> "Tensors":
    """Add the send of a block to the next rank, and the receive of one from the rank before; return what arrives.

    Every other rank of the ring receives first, so that no rank waits for itself if one communication runs at a time.
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
        builder.add(node)
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
