"""Graphs of JAX steps: calls and loops, work, tensors, and what is no step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from placement.graphs import without_cycle

from dsx.config.assumption_set import load_assumptions
from dsx.cost.context import assumptions_from_spec
from dsx.errors import InputError
from dsx.placement.jaxpr import flattened, from_jax, traced
from dsx.placement.op_graph import joined

DEFAULT = assumptions_from_spec(load_assumptions("default"))


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def mlp_loss(params, x):
    for weight, bias in params:
        x = jax.nn.gelu(x @ weight + bias[None])
    return jnp.mean(x**2)


def mlp_step(params, x):
    value, gradients = jax.value_and_grad(mlp_loss)(params, x)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, params, gradients), value


MLP = [(shape(64, 64), shape(64))] * 3


def kinds(graph):
    return [kind for kind in graph.kinds if kind != "input"]


def edge(graph, source, target):
    return graph.edges[graph.ids.index(source), graph.ids.index(target)]


def test_a_step_of_training():
    graph = from_jax(mlp_step, MLP, shape(8, 64))
    assert kinds(graph).count("dot_general") == 3 + 3 + 2  # forward, of weights, of inputs but the first
    assert without_cycle(graph) and {*joined(graph.num_ops, graph.edges)} == {0}
    assert len({*graph.ids}) == graph.num_ops
    assert {"input.0/0/0", "input.0/2/1", "input.1"} <= {*graph.ids}
    weights = [op for op, kind in enumerate(graph.kinds) if kind == "input"]
    assert not graph.mean_s[weights].any() and graph.memory_bytes[weights].sum() == 4 * (3 * (64 * 64 + 64) + 8 * 64)
    assert (graph.seconds[graph.mean_s > 0] > 1e-6).all()
    # A weight and its new value share a device.
    label = graph.together[graph.ids.index("input.0/1/0")]
    weight, new = np.flatnonzero(graph.together == label)
    assert graph.kinds[weight] == "input" and graph.kinds[new] == "mul+sub"
    assert graph.memory_bytes[[weight, new]].tolist() == [4 * 64 * 64, 0]  # the new value takes the place of the old


def test_edges_and_calls_of_a_step():
    one, other = (from_jax(mlp_step, MLP, shape(8, 64)) for _ in range(2))
    assert one.ids == other.ids and dict(one.edges) == dict(other.edges)
    assert np.array_equal(one.seconds, other.seconds) and np.array_equal(one.tensor_bytes, other.tensor_bytes)
    # Readers of a variable share its tensor.
    graph = from_jax(lambda x, w: (x @ w, x @ (w @ w)), shape(8, 8), shape(8, 8))
    assert edge(graph, "input.1", "dot_general.0") == edge(graph, "input.1", "dot_general.1") != frozenset()
    assert graph.tensor_bytes.tolist() == [256.0] * 3
    # Numbers and scalar arguments have no edges.
    graph = from_jax(lambda x, rate: (x @ x) * rate * 2.0, shape(8, 8), shape())
    assert graph.ids == ("input.0", "dot_general.0", "mul.1")
    assert set(graph.edges) == {(0, 1), (1, 2)}

    # Calls are flattened.
    @jax.custom_vjp
    def cube(x):
        return jax.jit(lambda y: y @ y @ y)(x)

    cube.defvjp(lambda x: (cube(x), x), lambda x, g: (jnp.sin(x) @ g,))
    direct = from_jax(lambda x: x @ x @ x, shape(8, 8))
    assert kinds(from_jax(jax.jit(cube), shape(8, 8))) == kinds(direct) == ["dot_general"] * 2
    gradient = from_jax(jax.grad(lambda x: cube(x).sum()), shape(8, 8))
    assert kinds(gradient).count("dot_general") == 1  # what only the value needs is left out
    again = from_jax(jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y @ y))(x).sum()), shape(8, 8))
    assert kinds(again).count("dot_general") == 1 + 2


def scanned(step):
    def loss(weights, x):
        made, sums = lax.scan(lambda c, w: (step(c, w), c), x, weights)
        return made.sum() + jnp.sin(sums).sum()

    return loss


def test_scans_and_loops():
    length, layer = 5, scanned(lambda x, w: jnp.tanh(x @ w))
    graph = from_jax(jax.grad(layer), shape(length, 16, 16), shape(8, 16))
    assert kinds(graph).count("dot_general") == 3 * length - 1  # the gradient of the first input is not wanted
    # The loop over layers, written out, has the same multiplies, and no array of all activations.
    assert sum("stack" in kind for kind in graph.kinds) == 2  # the sum of carries, and the gradients of the weights
    first = edge(graph, "input.0", "jvp()/dot_general.0")
    assert graph.tensor_bytes[[*first]].tolist() == [4 * 16 * 16]  # of all weights, a layer takes its own
    assert without_cycle(graph)

    # Loops of unknown length and branches are one operator.
    def step(x):
        x = lax.while_loop(lambda y: y.sum() < 1.0, lambda y: y @ y, x)
        return lax.cond(x.sum() > 0, lambda y: y, lambda y: y @ y @ y, x)

    graph = from_jax(step, shape(64, 64))
    alone = from_jax(lambda x: x @ x, shape(64, 64)).seconds.sum()
    seconds = dict(zip(graph.kinds, graph.mean_s, strict=True))
    assert seconds["cond"] == pytest.approx(2 * alone, rel=1e-9)
    assert alone < seconds["while"] < 3 * alone


@pytest.mark.slow
def test_an_unrolled_scan_computes_the_same():
    closed = jax.make_jaxpr(jax.value_and_grad(scanned(lambda x, w: jnp.tanh(x @ w))))(shape(3, 4, 4), shape(2, 4))
    flat = flattened(closed)
    weights, x = jax.random.normal(jax.random.key(0), (3, 4, 4)), jnp.ones((2, 4))
    values = dict(zip(flat.inputs, (weights, x), strict=True)) | dict(flat.constants)
    for equation in flat.equations:
        operands = [values[one] if isinstance(one, int) else one.val for one in equation.inputs]
        values |= dict(zip(equation.outputs, equation.run(*operands), strict=True))
    expected = jax.tree.leaves(jax.value_and_grad(scanned(lambda x, w: jnp.tanh(x @ w)))(weights, x))
    for one, value in zip(flat.outputs, expected, strict=True):
        # The compiled scan adds in another order: sums of numbers of size one, in float32.
        np.testing.assert_allclose(values[one], value, rtol=1e-5, atol=1e-6)


def test_a_long_scan_is_one_operator():
    def step(x, length):
        return lax.scan(lambda c, _: (c @ c, None), x, None, length=length)[0]

    once = from_jax(lambda x: step(x, 1), shape(8, 8)).seconds.sum()
    graph = from_jax(lambda x: step(x, 20_001), shape(8, 8))
    assert kinds(graph) == ["scan"]
    assert graph.seconds.sum() == pytest.approx(20_001 * once, rel=1e-9)
    # All scans of a step share the limit.
    assert kinds(from_jax(lambda x: step(step(step(x, 10), 19_995), 5), shape(8, 8))) == [
        *(["dot_general"] * 10),
        "scan",
        *(["dot_general"] * 5),
    ]


def flops(step, *shapes):
    found = traced(step, shapes)[0]
    return sum(multiply.flops for op in found.operators for multiply in op.multiplies)


def xla_flops(step, *shapes):
    return jax.jit(step).lower(*shapes).cost_analysis()["flops"]


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("groups", [1, 4])
def test_flops_of_convolutions_are_those_of_xla(strides, padding, groups):
    """Forward and both gradients; within 1 %, for what XLA counts besides the convolutions."""

    def convolution(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=numbers, feature_group_count=groups
        ).sum()

    arguments = shape(8, 16, 16, 32), shape(3, 3, 32 // groups, 64)
    step = jax.value_and_grad(convolution, argnums=(0, 1))
    assert flops(step, *arguments) == pytest.approx(xla_flops(step, *arguments), rel=0.01 if groups == 1 else 0.03)


def test_flops_of_attention_are_those_of_xla():
    """Within 2 %: XLA counts the operators of the softmax too."""

    def attention(q, k, v):
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.125)
        return jnp.einsum("bhqk,bkhd->bqhd", scores, v).sum()

    arguments = [shape(2, 128, 4, 64)] * 3
    step = jax.grad(attention, argnums=(0, 1, 2))
    found = flops(step, *arguments)
    assert found == 5 * 2 * 2 * 4 * 128 * 128 * 64  # the value of the loss is not wanted
    assert found == pytest.approx(xla_flops(step, *arguments), rel=0.05)


def test_flops_and_bytes_of_operators():
    """5 n log2 n for each of 3 rows of 1,024 elements."""
    (transform,) = traced(jnp.fft.fft, (shape(3, 1024, dtype="complex64"),))[0].operators
    assert transform.vector_flops == 3 * 5 * 1024 * 10
    # A launch, then 8 MB at what the set reaches of 3.35 TB/s.
    graph = from_jax(lambda x: jnp.tanh(jnp.sin(x) + 1.0), shape(1000, 1000))
    assert kinds(graph) == ["sin+add+tanh"]
    traffic = DEFAULT.kernel_slowdown * 8e6 / (DEFAULT.hbm_efficiency * 3.35e12)
    assert graph.seconds.sum() == pytest.approx(DEFAULT.launch_latency + traffic, rel=1e-3)
    assert from_jax(lambda x: x @ x, shape(2048, 2048), device="a100-80-nvs8").seconds.sum() > 2 * (
        from_jax(lambda x: x @ x, shape(2048, 2048)).seconds.sum()
    )
    # Rows of a table are read and not all of it.
    few = from_jax(lambda table, at: table[at] * 2.0, shape(1_000_000, 128), shape(8, dtype="int32"))
    assert few.seconds.sum() < 3 * DEFAULT.launch_latency + 1e-6
    # Results of reductions and kernels are what memory holds.
    graph = from_jax(lambda x: jnp.exp(x).sum() * jnp.ones((4,)), shape(100, 100))
    assert dict(zip(graph.ids, graph.memory_bytes, strict=True))["reduce_sum.0"] == 4.0


def failing(x):
    raise ValueError("no such layer\nmore")


@pytest.mark.parametrize(
    ("step", "shapes", "said"),
    [
        (3, (), "3: int is given"),
        (failing, (shape(3),), "step failing cannot be traced with the given shapes: ValueError: no such layer"),
        (lambda x, y: x @ y, (shape(3, 4), shape(3, 4)), "TypeError: dot_general requires contracting"),
        (lambda x: x, ("text",), "cannot be traced"),
        (lambda x: x, (shape(3),), "computes nothing of its arguments"),
        (lambda x: 3.0, (shape(3),), "computes nothing of its arguments"),
        (lambda x: x.reshape(1, 3), (shape(3),), "no operators"),
    ],
)
def test_what_is_no_step_is_said(step, shapes, said):
    with pytest.raises(InputError) as caught:
        from_jax(step, *shapes)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_device_is_said():
    with pytest.raises(InputError, match="unknown cluster 'h100-nvs9'; did you mean 'h100-nvs8'"):
        from_jax(mlp_step, MLP, shape(8, 64), device="h100-nvs9")
