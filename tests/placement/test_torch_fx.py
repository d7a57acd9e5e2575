"""Graphs of torch, of nodes like those of torch.fx: torch itself is not needed."""

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from placement.graphs import without_cycle

from dsx.config.assumption_set import load_assumptions
from dsx.errors import InputError
from dsx.placement.torch_fx import from_fx, traced_fx


@dataclass(eq=False)
class Target:
    text: str
    tags: list = field(default_factory=list)
    overloadpacket: Any = None

    def __str__(self):
        return self.text


@dataclass
class Dtype:
    """A type of torch: "torch.float32", with or without its size in bytes."""

    text: str

    def __str__(self):
        return self.text


@dataclass
class Sized(Dtype):
    itemsize: int


@dataclass
class Tensor:
    shape: tuple
    dtype: Dtype


def tensor(*shape, dtype=None):
    return Tensor(shape, dtype or Sized("torch.float32", 4))


@dataclass(eq=False)
class FxNode:
    op: str
    name: str
    target: Any
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    meta: dict = field(default_factory=dict)


class Graph:
    """Builds a graph as torch.export writes them."""

    def __init__(self):
        self.nodes = []
        self.graph = self

    def _add(self, *fields, **more):
        self.nodes.append(FxNode(*fields, **more))
        return self.nodes[-1]

    def given(self, name, value):
        return self._add("placeholder", name, name, meta={"val": value})

    def call(self, name, *args, val, pointwise=False, **kwargs):
        target = Target(f"aten.{name}.default", ["Tag.pointwise"] if pointwise else [])
        number = sum(node.name.startswith(name) for node in self.nodes)
        return self._add("call_function", f"{name}_{number}", target, args, kwargs, {"val": val})

    def item(self, node, at):
        val = node.meta["val"][at]
        return self._add("call_function", f"item_{len(self.nodes)}", operator.getitem, (node, at), meta={"val": val})

    def returns(self, *nodes):
        self._add("output", "output", "output", (nodes,))
        return self


def flops(graph):
    return [sum(one.flops for one in op.multiplies) for op in traced_fx(graph).operators if op.multiplies]


def mlp():
    graph = Graph()
    x, w, b = graph.given("x", tensor(8, 64)), graph.given("w", tensor(32, 64)), graph.given("b", tensor(32))
    t = graph.call("t", w, val=tensor(64, 32))
    hidden = graph.call("addmm", b, x, t, val=tensor(8, 32))
    active = graph.call("relu", hidden, val=tensor(8, 32), pointwise=True)
    twice = graph.call("mul", active, 2.0, val=tensor(8, 32), pointwise=True)
    graph.call("neg", hidden, val=tensor(8, 32), pointwise=True)  # which nothing needs
    back = graph.call("mm", twice, w, val=tensor(8, 64))
    return graph.returns([twice, {"back": back}])


def test_operators_and_results_of_models():
    graph = from_fx(mlp())
    assert graph.ids == ("x", "w", "b", "addmm_0", "mul_0", "mm_0")
    assert graph.kinds[3:] == ("addmm", "relu+mul", "mm")
    assert without_cycle(graph) and not graph.mean_s[:3].any() and (graph.mean_s[3:] > 1e-6).all()
    assert flops(mlp()) == [2 * 8 * 32 * 64] * 2
    # Both multiplies read the weight itself, through the transpose or not.
    assert graph.edges[1, 3] == graph.edges[1, 5] != frozenset()
    assert graph.memory_bytes.tolist() == [4 * 8 * 64, 4 * 32 * 64, 4 * 32, 4 * 8 * 32, 4 * 8 * 32, 4 * 8 * 64]

    # An exported program is read too.
    @dataclass
    class Exported:
        graph_module: Any

    assert from_fx(Exported(mlp())).ids == from_fx(mlp()).ids
    # Results that are taken apart.
    graph = Graph()
    x = graph.given("x", tensor(8, 96))
    parts = graph.call("chunk", x, 3, val=[tensor(8, 32)] * 3)
    norm = graph.call("native_layer_norm", graph.item(parts, 1), val=(tensor(8, 32), tensor(8, 1), tensor(8, 1)))
    made = graph.call("add", graph.item(norm, 0), graph.item(norm, 2), val=tensor(8, 32), pointwise=True)
    found = from_fx(graph.returns(made))
    assert found.ids == ("x", "native_layer_norm_0", "add_0")
    assert found.edge_bytes == {(0, 1): 4 * 8 * 32, (1, 2): 4 * 8 * 32 + 4 * 8}


@pytest.mark.parametrize(
    ("name", "shapes", "made", "expected"),
    [
        ("bmm", [(4, 8, 16), (4, 16, 32)], (4, 8, 32), 2 * 4 * 8 * 16 * 32),
        ("matmul", [(2, 3, 8, 16), (16, 32)], (2, 3, 8, 32), 2 * 6 * 8 * 16 * 32),
        ("matmul", [(8, 16), (16,)], (8,), 2 * 8 * 16),
        ("linear", [(2, 8, 16), (32, 16), (32,)], (2, 8, 32), 2 * 16 * 16 * 32),
        ("conv2d", [(2, 8, 10, 10), (16, 8, 3, 3)], (2, 16, 8, 8), 2 * 2 * 16 * 64 * 8 * 9),
        ("convolution", [(2, 8, 10, 10), (16, 2, 3, 3)], (2, 16, 8, 8), 2 * 2 * 16 * 64 * 2 * 9),
        ("conv_transpose2d", [(2, 16, 8, 8), (16, 16, 3, 3)], (2, 16, 10, 10), 2 * 2 * 16 * 64 * 16 * 9),
        ("scaled_dot_product_attention", [(2, 4, 16, 8)] * 3, (2, 4, 16, 8), 2 * 2 * 8 * 16 * 16 * 8),
    ],
)
def test_flops(name, shapes, made, expected):
    graph = Graph()
    inputs = [graph.given(f"in_{at}", tensor(*shape)) for at, shape in enumerate(shapes)]
    assert flops(graph.returns(graph.call(name, *inputs, val=tensor(*made)))) == [expected]


def test_flops_of_gradients():
    """Those of torch's own counter: each gradient of a convolution as its forward, attention 2.5 times its forward."""
    graph = Graph()
    image, weight = graph.given("image", tensor(2, 8, 10, 10)), graph.given("weight", tensor(16, 8, 3, 3))
    gradient = graph.given("gradient", tensor(2, 16, 8, 8))
    both = graph.call(
        "convolution_backward", gradient, image, weight, val=(tensor(2, 8, 10, 10), tensor(16, 8, 3, 3), tensor(16))
    )
    one = graph.call("convolution_backward", gradient, image, weight, val=(None, tensor(16, 8, 3, 3), None))
    heads = [graph.given(f"head_{at}", tensor(2, 4, 16, 8)) for at in range(4)]
    attention = graph.call("_scaled_dot_product_flash_attention_backward", *heads, val=(tensor(2, 4, 16, 8),) * 3)
    flags = [None, [2, 2], [0, 0], [1, 1], True, [0, 0], 2, [True, True, False]]
    small, back = graph.given("small", tensor(2, 16, 5, 5)), graph.given("back", tensor(2, 8, 11, 11))
    turned = graph.call(
        *("convolution_backward", back, small, graph.given("turned", tensor(16, 4, 3, 3)), *flags),
        val=(tensor(2, 16, 5, 5), tensor(16, 4, 3, 3), None),
    )
    graph.returns(graph.item(both, 0), graph.item(one, 1), graph.item(attention, 0), graph.item(turned, 0))
    forward = 2 * 2 * 16 * 64 * 8 * 9
    of_turned = 2 * 2 * 25 * 16 * 4 * 9
    assert flops(graph) == [2 * forward, forward, 2.5 * 2 * 2 * 8 * 16 * 16 * 8, 2 * of_turned]


def test_what_operators_read_and_change():
    graph = Graph()
    w, g = graph.given("w", tensor(64, 64)), graph.given("g", tensor(64, 64))
    square = graph.call("mm", g, g, val=tensor(64, 64))
    graph.call("sub_", w, square, val=tensor(64, 64), pointwise=True)
    after = graph.call("mm", w, w, val=tensor(64, 64))
    found = from_fx(graph.returns(after))
    assert found.ids == ("w", "g", "mm_0", "sub__0", "mm_1")
    assert set(found.edges) == {(1, 2), (0, 3), (2, 3), (3, 4)}
    assert found.together[0] == found.together[3] and len(np.unique(found.together)) == 4
    # Types of numbers.
    graph = Graph()
    x = graph.given("x", tensor(100, dtype=Dtype("torch.bfloat16")))
    at = graph.given("at", tensor(100, dtype=Dtype("torch.int64")))
    chosen = graph.given("chosen", tensor(100, dtype=Dtype("torch.bool")))
    made = graph.call("where", chosen, x, at, val=tensor(100, dtype=Dtype("torch.bfloat16")), pointwise=True)
    assert from_fx(graph.returns(made)).memory_bytes.tolist() == [200.0, 800.0, 100.0, 200.0]
    # Filled tensors read nothing and looked up ones little.
    graph = Graph()
    table, at = graph.given("table", tensor(1_000_000, 512)), graph.given("at", tensor(8))
    rows = graph.call("embedding", table, at, val=tensor(8, 512))
    ones = graph.call("ones_like", table, val=tensor(8, 512))
    found = from_fx(graph.returns(graph.call("add", rows, ones, val=tensor(8, 512), pointwise=True)))
    assert found.ids == ("table", "at", "embedding_0", "add_0")
    launches = 2 * load_assumptions("default").launch_latency
    assert found.seconds.sum() < launches + 1e-6 and (0, 3) not in found.edges


@dataclass
class Symbol:
    def __int__(self):
        raise RuntimeError("cannot guard on u0")


def without_val():
    graph = Graph()
    graph._add("call_function", "mm_0", Target("aten.mm.default"))
    return graph


def without_size():
    graph = Graph()
    graph.given("x", tensor(Symbol(), 4))
    return graph


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (3, "int is given, and a graph of torch is wanted"),
        (without_val(), "node mm_0 has no meta['val']"),
        (without_size(), "node x has no size in numbers"),
        (Graph().returns(), "no operators"),
    ],
)
def test_what_is_no_graph_is_said(graph, said):
    with pytest.raises(InputError) as caught:
        from_fx(graph)
    assert said in str(caught.value)
