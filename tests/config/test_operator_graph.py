"""Files of operator graphs: both forms, and what is wrong in them with file and key."""

import json

import numpy as np
import pytest

from dsx.config.operator_files import read_operator_graph
from dsx.errors import InputError, SpecError
from dsx.placement import graph_of

NODES = [{"id": 0, "op": "MatMul", "compute_us": 12.5, "memory_bytes": 4}, {"id": "b", "compute_us": [1, 2]}]
EDGES = [{"src": 0, "dst": "b", "bytes": 4096}]


def read(folder, nodes, edges, **more):
    (folder / "g.json").write_text(json.dumps({"nodes": nodes, "edges": edges, **more}))
    return read_operator_graph(str(folder / "g.json"))


def test_a_graph(tmp_path):
    found = read(tmp_path, NODES, EDGES, meta={"batch": 1})
    assert [(one.id, one.kind, one.compute_us, one.memory_bytes) for one in found.operators] == [
        (0, "MatMul", (12.5,), 4.0),
        ("b", "", (1.0, 2.0), 0.0),
    ]
    graph = graph_of(found)
    assert graph.seconds == pytest.approx(np.array([[12.5e-6, 12.5e-6], [1e-6, 2e-6]]))
    assert graph.edge_bytes == {(0, 1): 4096.0}
    # The node link form.
    content = {"directed": True, "nodes": NODES, "links": [{"source": 0, "target": "b", "bytes": 8}]}
    (tmp_path / "g.json").write_text(json.dumps(content))
    (edge,) = read_operator_graph(str(tmp_path / "g.json")).edges
    assert (edge.source, edge.target, edge.num_bytes) == (0, 1, 8.0)
    # Tensors of edges.
    nodes = [{"id": op, "compute_us": 1} for op in range(4)]
    sizes = [(1, 8, None), (2, 8, None), (3, 8, "other")]
    edges = [{"src": 0, "dst": to, "bytes": size} | ({"tensor": name} if name else {}) for to, size, name in sizes]
    graph = graph_of(read(tmp_path, nodes, edges))
    assert graph.edges[0, 1] == graph.edges[0, 2] != graph.edges[0, 3]


@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ([], [], "nodes: has no operators"),
        ([*NODES, NODES[0]], [], "nodes.2.id: 0 is the id of nodes.0 too"),
        ([{"id": 0}], [], "nodes.0: operator 0 has no compute_us"),
        ([{"id": 0, "compute_us": -1}], [], "nodes.0.compute_us: -1 is no number from 0 to"),
        ([{"id": 0, "compute_us": "1"}], [], "nodes.0.compute_us: '1' is no number"),
        ([{"id": 0, "compute_us": float("nan")}], [], "nodes.0.compute_us: nan is no number from 0"),
        ([{"id": 1.5, "compute_us": 1}], [], "nodes.0.id: 1.5 is no id"),
        (NODES, [{"src": 0, "dst": 7}], "edges.0.dst: there is no operator 7; the ids go from 0 to 0"),
        (NODES, [{"src": 0, "dst": 0}], "edges.0: operator 0 has an edge to itself"),
        (NODES, [{"src": 0, "dst": "b", "bytes": -1}], "edges.0.bytes: -1 is no number from 0 to"),
        ([*NODES, {"id": 2, "compute_us": [1, 2, 3]}], [], "nodes: compute_us has lists of 2 and 3 numbers"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, nodes, edges, said):
    with pytest.raises(SpecError) as error:
        read(tmp_path, nodes, edges)
    assert str(error.value).split("g.json: ", 1)[1].startswith(said), error.value


def test_cycles_and_missing_edges_are_named(tmp_path):
    nodes = [{"id": name, "compute_us": 1} for name in "abc"]
    edges = [{"src": one, "dst": other} for one, other in ("ab", "bc", "cb")]
    with pytest.raises(InputError, match=r"g\.json: operators wait for each other: (b -> c -> b|c -> b -> c)"):
        graph_of(read(tmp_path, nodes, edges))
    # A file without edges.
    (tmp_path / "g.json").write_text(json.dumps({"nodes": NODES}))
    with pytest.raises(SpecError, match="has no 'edges'"):
        read_operator_graph(str(tmp_path / "g.json"))
