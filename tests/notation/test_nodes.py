"""The graph of a layer: launches with what they read and write, collectives in their places, recomputation."""

from functools import cache

import pytest
from notation.definitions import AG, AR, BACKWARD, FORWARD, RS, derived, number

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.config.search_path import names as files
from dsx.notation.graph import Launch, Transferred
from dsx.notation.library import strategy_names
from dsx.notation.model import build_model
from dsx.notation.recompute import backward_nodes, recomputation
from dsx.plans.choices import VALUES, regions_of

B, S, E, F, W = 2, 64, 32, 128, 2
SIZES = {"b": B, "s": S, "e": E, "f": F}

# A feed-forward network of two gates with sequence parallelism.
GATED = """
layer gated
input x[b, s/tp, e]
weight g[e] w1[e, f/tp] w2[e, f/tp] w3[f/tp, e]
recompute norms
n[b, s/tp, e]      = norm(x, g)
end
u[b, s, f/tp]      = einsum(n[b, s, e]~, w1)
v[b, s, f/tp]      = einsum(n[b, s, e]~, w2)
recompute feed-forward
z[b, s, f/tp]      = swiglu(u, v)
end
y[b, s, e @tp]     = einsum(z, w3)
output[b, s/tp, e] = add(x, y[b, s/tp, e])
"""
ATTENTION = """
layer attention
dim c = 3 * k
dim t = s
input x[b, s/cp, h, k]
weight w[k, c]
y[b, s/cp, h, c]      = einsum(x, w)
q[b, s/cp, h, k], kk[b, s/cp, h, k], vv[b, s/cp, h, k] = view(y)
fuse attention
k1[b, t, h, k]        = view(kk[b, s, h, k]~)
v1[b, t, h, k]        = view(vv[b, s, h, k]~)
a[b, h, s/cp, t]      = einsum(q, k1)
p[b, h, s/cp, t]      = softmax(a)
o[b, s/cp, h, k]      = einsum(p, v1)
end
output[b, s/cp, h, k] = view(o)
"""


def hidden_behind(layer):
    """The collectives of both directions, and the kernel that each may hide behind."""
    return {
        (direction, node.name): None if (at := layer.beside(node.collective)) is None else layer.kernels[at].name
        for direction in (FORWARD, BACKWARD)
        for node in layer.graph.nodes(direction)
        if isinstance(node, Transferred)
    }


def test_what_collectives_hide_behind():
    """As Transformer Engine overlaps fc1, fc2 and their gradients; the addition that follows only waits."""
    assert hidden_behind(derived(GATED)) == {
        (FORWARD, "n all-gather tp"): "u",
        (FORWARD, "y reduce-scatter tp"): "y",
        (BACKWARD, "d y all-gather tp"): "y",
        (BACKWARD, "n all-gather tp"): "v",
        (BACKWARD, "d n reduce-scatter tp"): "u",
    }
    # Attention waits for its keys and values.
    assert set(hidden_behind(derived(ATTENTION)).values()) == {None}


@pytest.mark.parametrize(("strategy", "axis"), [("2d-expert-tp", "tp"), ("1d-no-sp", "tp")])
def test_experts_wait_for_their_tokens_and_nothing_hides_an_all_reduce(strategy, axis):
    model = build_model(load_model("mixtral-8x7b"), load_assumptions("default"), strategy)
    layer = model.body_layer
    moved = [c for direction in (FORWARD, BACKWARD) for c in layer.collectives(direction) if c.axis == axis]
    for collective in moved:
        at = layer.beside(collective)
        assert at is None or not layer.kernels[at].name.startswith("experts.")


def lines(nodes):
    """Nodes as texts: the name, what it reads, what it writes."""
    return [f"{node.name}: {' + '.join(names(node.reads))} -> {' + '.join(names(node.writes))}" for node in nodes]


def names(values):
    return [value.name for value in values]


def recomputed(layer, *chosen):
    """The backward with some regions recomputed."""
    regions = frozenset(chosen)
    return backward_nodes(layer, recomputation(layer, regions), regions)


def named(nodes, name):
    (found,) = [node for node in nodes if node.name == name]
    return found


# Forward and backward


def test_forward_and_backward_in_order():
    assert lines(derived(GATED).graph.forward) == [
        "n: x + g -> n", "n all-gather tp: n -> n:tp", "u: n:tp + w1 -> u", "v: n:tp + w2 -> v", "z: u + v -> z",
        "y: z + w3 -> y", "y reduce-scatter tp: y -> y:tp", "output: x + y:tp -> output",
    ]  # fmt: skip
    # `n` is gathered again once; its gradient is scattered after the kernel that contributes last, before that.
    assert lines(derived(GATED).graph.backward) == [
        "d y all-gather tp: d output -> d y:tp", "y inputs: d y:tp + w3 -> d z", "y weights: d y:tp + z -> d w3",
        "z inputs: d z + u + v -> d u + d v", "n all-gather tp: n -> n:tp.2", "v inputs: d v + w2 -> d n",
        "v weights: d v + n:tp.2 -> d w2", "u inputs: d u + w1 + d n -> d n.2",
        "d n reduce-scatter tp: d n.2 -> d n:tp", "u weights: d u + n:tp.2 -> d w1",
        "n inputs: d n:tp + x + g + d output -> d x + d g",
    ]  # fmt: skip
    # What a graph begins and ends with.
    graph = derived(GATED).graph
    assert (names(graph.inputs), names(graph.outputs)) == (["x"], ["output"])
    assert (names(graph.output_gradients), names(graph.input_gradients)) == (["d output"], ["d x"])
    assert names(graph.weights) == ["g", "w1", "w2", "w3"]
    assert {weight: names(values) for weight, values in graph.weight_gradients.items()} == {
        name: [f"d {name}"] for name in ("g", "w1", "w2", "w3")
    }
    # Collectives belong to the kernel that needs or makes what they move.
    layer = derived(GATED)
    kernel = {one.name: index for index, one in enumerate(layer.kernels)}
    moves = [node for way in (FORWARD, BACKWARD) for node in layer.graph.nodes(way) if isinstance(node, Transferred)]
    found = [(node.name, node.direction, node.kernel, node.after_kernel) for node in moves]
    assert found == [
        ("n all-gather tp", FORWARD, kernel["u"], False),
        ("y reduce-scatter tp", FORWARD, kernel["output"], False),
        ("d y all-gather tp", BACKWARD, kernel["output"], True),
        ("n all-gather tp", BACKWARD, kernel["v"], False),
        ("d n reduce-scatter tp", BACKWARD, kernel["u"], True),
    ]


def test_the_bytes_of_values_and_the_volumes_of_collectives():
    """A gather moves what it writes, a scatter what it reads."""
    layer = derived(GATED)
    sizes = SIZES | {"tp": 4}
    whole, part, wide = W * B * S * E, W * B * S // 4 * E, W * B * S * F // 4
    wanted = {"x": part, "n": part, "n:tp": whole, "u": wide, "z": wide, "y": whole, "y:tp": part, "d y:tp": whole}
    wanted |= {"d n": whole, "d n.2": whole, "d n:tp": part, "d x": part, "w1": W * E * F // 4, "d w1": W * E * F // 4}
    graph = layer.graph
    every = {v.name: v for node in (*graph.forward, *graph.backward) for v in (*node.reads, *node.writes)}
    assert {name: number(layer, every[name].bytes, **sizes) for name in wanted} == wanted
    for node in (*graph.forward, *graph.backward):
        if isinstance(node, Transferred):
            (moved,) = node.writes if node.collective.kind == AG else node.reads
            assert node.collective.kind in (AG, RS)
            assert number(layer, node.collective.bytes, **sizes) == number(layer, moved.bytes, **sizes) == whole


def test_contributions_to_a_gradient():
    """The residual connection passes the gradient of `output` on as it is; that of the multiply is scattered."""
    layer = derived("""
        layer sublayer
        input x[b, s/tp, e]
        weight w1[e, f/tp] w2[f/tp, e]
        u[b, s, f/tp]      = einsum(x[b, s, e]~, w1)
        y[b, s, e @tp]     = einsum(u, w2)
        output[b, s/tp, e] = add(x, y[b, s/tp, e])
    """)
    assert names(layer.graph.input_gradients) == ["d output", "d x:tp"]
    # Contributions of several kernels are one tensor.
    layer = derived("""
        layer three
        input x[b, e]
        weight w1[e, f] w2[e, f] w3[e, f]
        u[b, f]      = einsum(x, w1)
        v[b, f]      = einsum(x, w2)
        w[b, f]      = einsum(x, w3)
        uv[b, f]     = mul(u, v)
        output[b, f] = mul(uv, w)
    """)
    sums = [node for node in layer.graph.backward if isinstance(node, Launch) and node.part == "inputs"][2:]
    assert lines(sums) == [
        "w inputs: d w + w3 -> d x",
        "v inputs: d v + w2 + d x -> d x.2",
        "u inputs: d u + w1 + d x.2 -> d x.3",
    ]
    assert names(layer.graph.input_gradients) == ["d x.3"]
    # An addition has no backward.
    layer = derived("layer a\ninput x[b, e]\nu[b, e] = gelu(x)\nv[b, e] = silu(x)\noutput[b, e] = add(u, v)")
    assert lines(layer.graph.backward) == ["v inputs: d output + x -> d x", "u inputs: d output + x + d x -> d x.2"]


def test_statistics_and_full_recomputation_as_nodes():
    layer = derived("layer a\ninput x[b, e/tp]\nweight g[e/tp]\noutput[b, e/tp] = norm(x, g)")
    for nodes, taken in ((layer.graph.forward, "x"), (layer.graph.backward, "d output")):
        reduced, launch = nodes
        assert reduced.collective.kind == AR
        assert taken in names(reduced.reads)
        assert {*reduced.writes} < {*launch.reads}
        assert not reduced.after_kernel
    # Full recomputation repeats the whole forward first.
    layer = derived(GATED)
    found = backward_nodes(layer, None, frozenset())
    count = len(layer.graph.forward)
    assert [node.name for node in found[:count]] == [f"{node.name}'" for node in layer.graph.forward]
    assert [node.name for node in found[count:]] == [node.name for node in layer.graph.backward]
    first = {value.name for node in layer.graph.forward for value in node.writes}
    assert not first & {value.name for node in found for value in node.reads}
    assert {node.direction for node in found[:count]} == {FORWARD}


# Launches of a backward


@pytest.mark.parametrize("fused", [False, True])
def test_a_multiply_with_a_weight_has_two_launches_alone_or_with_its_bias(fused):
    """Alone, the bias is a kernel of its own; with it, its gradient is computed beside that of the weight."""
    block = ("fuse linear\n", "end\n") if fused else ("", "")
    layer = derived(
        f"layer a\ninput x[b, e]\nweight w[e, f] beta[f]\n{block[0]}u[b, f] = einsum(x, w)\n"
        f"v[b, f] = bias(u, beta)\n{block[1]}output[b, f] = gelu(v)"
    )
    of_bias = ["v inputs: d v -> d u + d beta"]
    gradient = "d v" if fused else "d u"
    name, more = ("linear", " + d beta") if fused else ("u", "")
    assert lines(layer.graph.backward) == [
        "output inputs: d output + v -> d v",
        *([] if fused else of_bias),
        f"{name} inputs: {gradient} + w -> d x",
        f"{name} weights: {gradient} + x -> d w{more}",
    ]
    work = {node.part: node.work for node in layer.graph.backward if node.name.startswith(f"{name} ")}
    assert [multiply.of_weight for multiply in work["inputs"].multiplies] == [False]
    assert [multiply.of_weight for multiply in work["weights"].multiplies] == [True]


def test_data_and_fused_attention():
    layer = derived("layer a\ndata x[b, e]\nweight w[e, f]\noutput[b, f] = einsum(x, w)")
    assert lines(layer.graph.backward) == ["output weights: d output + x -> d w"]
    assert layer.graph.input_gradients == ()
    # Two multiplies forward, and five back: the scores again, and two gradients of each.
    layer = derived(ATTENTION)
    launched = [node for way in (FORWARD, BACKWARD) for node in layer.graph.nodes(way)]
    of_attention = [node for node in launched if isinstance(node, Launch) and node.kernel == 2]
    assert [(node.name, len(node.work.multiplies)) for node in of_attention] == [
        ("attention", 2),
        ("attention inputs", 5),
    ]
    # A fused kernel reads what it needs gathered again and what it kept.
    assert lines(derived(ATTENTION).graph.backward) == [
        "kk all-gather cp: kk -> kk:cp.2",
        "vv all-gather cp: vv -> vv:cp.2",
        "attention inputs: d output + q + kk:cp.2 + o + vv:cp.2 + p state 0 -> d kk + d vv + d q",
        "d kk reduce-scatter cp: d kk -> d kk:cp",
        "d vv reduce-scatter cp: d vv -> d vv:cp",
        "y inputs: d q + d kk:cp + d vv:cp + w -> d x",
        "y weights: d q + d kk:cp + d vv:cp + x -> d w",
    ]


# Views


def test_a_view_writes_nothing_and_its_parts_have_its_bytes():
    assert lines(derived(ATTENTION).graph.forward) == [
        "y: x + w -> q + kk + vv",
        "kk all-gather cp: kk -> kk:cp",
        "vv all-gather cp: vv -> vv:cp",
        "attention: kk:cp + vv:cp + q -> o + p state 0",
    ]
    assert names(derived(ATTENTION).graph.outputs) == ["o"]
    # The parts of a value have its bytes.
    layer = derived(ATTENTION)
    sizes = {"b": B, "s": S, "h": 4, "k": 8, "cp": 2}
    made = named(layer.graph.forward, "y").writes
    assert [number(layer, value.bytes, **sizes) for value in made] == [W * B * S // 2 * 4 * 8] * 3
    # A view of a part is the part.
    layer = derived("""
        layer views
        dim c = 2 * e
        dim m = e
        input x[b, c]
        y[b, c]          = gelu(x)
        l[b, e], r[b, e] = view(y)
        r2[b, m]         = view(r)
        u[b, m]          = gelu(r2)
        u2[b, e]         = view(u)
        output[b, e]     = mul(l, u2)
    """)
    assert lines(layer.graph.forward) == ["y: x -> l + r", "u: r -> u", "output: l + u -> output"]


# Recomputation


def test_a_region_is_repeated_where_it_is_read():
    found = lines(recomputed(derived(GATED), "norms"))
    plain = lines(derived(GATED).graph.backward)
    place = plain.index("n all-gather tp: n -> n:tp.2")
    assert found == [*plain[:place], "n': x + g -> n'", "n all-gather tp: n' -> n:tp.2", *plain[place + 1 :]]
    # Its result was kept for the multiply that follows, which so reads the first one.
    found = lines(recomputed(derived(GATED), "feed-forward"))
    place = plain.index("z inputs: d z + u + v -> d u + d v")
    assert found == [*plain[:place], "z': u + v -> z'", *plain[place:]]
    # Several regions are repeated each in its place.
    found = [node.name for node in recomputed(derived(GATED), "norms", "feed-forward")]
    assert [name for name in found if name.endswith("'")] == ["z'", "n'"]
    assert found.index("z'") == found.index("z inputs") - 1
    assert found.index("n'") == found.index("n all-gather tp") - 1


COMPLETED = """
layer completed
input x[b, s/tp, e]
weight w1[e, f/tp] w2[f/tp, e] w3[e, f/tp] w4[f/tp, e]
recompute experts
u[b, s, f/tp]      = einsum(x[b, s, e]~, w1)
y[b, s, e @tp]     = einsum(u, w2)
end
z[b, s/tp, e]      = gelu(y[b, s/tp, e])
v[b, s, f/tp]      = einsum(z[b, s, e]~, w3)
o[b, s, e @tp]     = einsum(v, w4)
output[b, s/tp, e] = add(x, o[b, s/tp, e])
"""


def test_completed_sums_of_a_region():
    layer = derived(COMPLETED)
    assert [layer.kernels[index].name for index in recomputation(layer, frozenset({"experts"})).completed] == ["z"]
    again = [line for line in lines(recomputed(layer, "experts")) if "':" in line]
    assert again == [
        "x all-gather tp': x -> x:tp'",
        "u': x:tp' + w1 -> u'",
        "y': u' + w2 -> y'",
        "y reduce-scatter tp': y' -> y:tp'",
    ]
    # The activation after the region keeps the scattered sum, so it needs nothing of what is repeated.
    found = lines(recomputed(derived(COMPLETED), "experts"))
    assert "z inputs: d z:tp + y:tp -> d y" in found
    assert found.index("u': x:tp' + w1 -> u'") < found.index("y inputs: d y:tp + w2 -> d u")
    assert "y weights: d y:tp + u' -> d w2" in found


def test_what_a_region_reads():
    """The first region discards its output, which nothing but the forward of the second one reads."""
    layer = derived("""
        layer two
        input x[b, s, h, k]
        weight g[k]
        recompute latent-up-projection
        q[b, s, h, k]      = norm(x, g)
        end
        r[b, s, h, k]      = gelu(x)
        recompute latent-up-projection
        t[b, s, h, k]      = rotary(q)
        end
        u[b, s, h, k]      = mul(r, t)
        output[b, s, h, k] = gelu(u)
    """)
    found = lines(recomputed(layer, "latent-up-projection"))
    assert "t': q' -> t'" in found
    assert (
        found.index("q': x + g -> q'")
        < found.index("t': q' -> t'")
        < found.index("u inputs: d u + r + t' -> d r + d t")
    )
    # Both multiplies gather `x` once in the forward, and once in the backward.
    layer = derived("""
        layer shared
        input x[b, s/tp, e]
        weight w1[e, f/tp] w2[e, f/tp]
        u[b, s, f/tp]      = einsum(x[b, s, e]~, w1)
        recompute feed-forward
        v[b, s, f/tp]      = einsum(x[b, s, e]~, w2)
        end
        output[b, s, f/tp] = mul(u, v)
    """)
    found = recomputed(layer, "feed-forward")
    assert [node.name for node in found if isinstance(node, Transferred)].count("x all-gather tp") == 1
    again, gathered = named(found, "v'"), named(found, "x all-gather tp")
    assert {*gathered.writes} < {*again.reads}
    assert "x:tp" not in {name for node in found for name in names(node.reads)}


# All packaged layers


@cache
def packaged_layers(strategy):
    """Every layer of the packaged models once."""
    found = {}
    for name in files("models", ".yaml"):
        spec = load_model(name)
        kinds = tuple(dict.fromkeys(str(entry.layer) for entry in spec.sequence))
        if kinds not in found:
            found[kinds] = build_model(spec, load_assumptions("default"), strategy).kinds
    layers = {layer.name: layer for kinds in found.values() for layer in kinds}
    return [*layers.values()]


def recomputations(layer):
    """Every set of regions that the layer has, and the whole layer."""
    for code in range(len(VALUES)):
        chosen = regions_of(code)
        if chosen is None or chosen <= {*layer.region_names}:
            again = None if chosen is None else recomputation(layer, chosen)
            yield VALUES[code], again, backward_nodes(layer, again, chosen or frozenset())


of_strategies = pytest.mark.parametrize("strategy", strategy_names())


@pytest.mark.sampled(0)
@of_strategies
def test_whatever_a_node_reads_is_there(strategy):
    for layer in packaged_layers(strategy):
        graph = layer.graph
        after_forward = there(graph.forward, {*graph.inputs, *graph.weights})
        for recompute, _, backward in recomputations(layer):
            after = there(backward, after_forward | {*graph.output_gradients})
            wanted = {*graph.input_gradients, *(v for values in graph.weight_gradients.values() for v in values)}
            assert wanted <= after, (layer.name, recompute)
            assert all(graph.weight_gradients[weight.name] for weight in layer.weights)


def there(nodes, values):
    """The values after some nodes: each is written once, and before it is read."""
    values = {*values}
    written = {value.name for value in values}
    for node in nodes:
        assert {*node.reads} <= values, node.name
        assert not written & {*names(node.writes)}, node.name
        values |= {*node.writes}
        written |= {*names(node.writes)}
    return values


@pytest.mark.slow
@of_strategies
def test_a_backward_reads_what_the_layer_keeps_of_its_forward(strategy):
    """And weights; a tensor also stands for its views, and for the part of it that a rank takes."""
    for layer in packaged_layers(strategy):
        made = {value for node in layer.graph.forward for value in node.writes}
        for recompute, again, backward in recomputations(layer):
            kept = set() if again is None else again.kept_keys
            allowed = kept | {(tensor, "") for tensor, _ in kept}
            sources = viewed(layer, {tensor for tensor, _ in kept})
            for node in backward:
                keys = {value.saved_as for value in node.reads if value in made and not value.weight}
                left = {key for key in keys - allowed if key[0] not in sources}
                assert not left, (layer.name, recompute, node.name)


def viewed(layer, tensors):
    """The tensors that some tensors are views of."""
    found = set()
    for kernel in reversed(layer.kernels):
        if not kernel.runs and {*kernel.makes} & (tensors | found):
            found |= {read.tensor for read in kernel.reads}
    return found


@pytest.mark.sampled(0)
@of_strategies
def test_a_backward_repeats_the_work_and_the_collectives_that_are_priced(strategy):
    for layer in packaged_layers(strategy):
        forward = layer.graph.forward
        for recompute, again, backward in recomputations(layer):
            repeated = [node.name for node in backward if node.direction == FORWARD]
            kernels = range(len(layer.kernels)) if again is None else again.repeated
            moving = kernels if again is None else (*again.repeated, *again.completed)
            wanted = [
                f"{node.name}'"
                for node in forward
                if node.kernel in (moving if isinstance(node, Transferred) else kernels)
            ]
            assert sorted(repeated) == sorted(wanted), (layer.name, recompute)
