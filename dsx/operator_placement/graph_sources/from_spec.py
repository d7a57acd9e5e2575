"""The graph of a file."""

import numpy as np

from dsx.errors import InputError
from dsx.operator_placement.op_graph import OpGraph
from dsx.spec.operator_graph import OperatorGraphSpec

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
