"""Options and block parameters: which lines count, names that are assigned again, what used blocks inherit."""

import pytest
from notation.definitions import STANDARD, build, derived, fails, kernel, number, read, settings, weights

from dsx.errors import InputError, NotationError, SpecError, UnknownNameError
from dsx.notation.library import load_layer

SIZES = {"b": 2, "s": 8, "e": 16, "f": 64}
MLP = """\
layer mlp
option bias wide
option activation = gated | squared
dim f = 4 * e                          unless wide
dim f = 8 * e                          when wide
input  x[b, s, e]
weight w1[e, f] w2[f, e]
weight b1[f]                           when bias
weight wup[e, f]                       when gated
weight bup[f]                          when gated bias
z[b, s, f]    = einsum(x, w1)
fuse activation
z[b, s, f]    = bias(z, b1)            when bias
u[b, s, f]    = gelu(z)                unless gated squared
u[b, s, f]    = squared_relu(z)        when squared
up[b, s, f]   = einsum(x, wup)         when gated
up[b, s, f]   = bias(up, bup)          when gated bias
u[b, s, f]    = swiglu(z, up)          when gated
end
output[b, s, e] = einsum(u, w2)
"""


def kinds(text, chosen, **kwargs):
    return [op.kind.name for op in build(text, chosen=chosen, **kwargs).operators]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", "einsum gelu einsum"),
        ("squared", "einsum squared_relu einsum"),
        ("bias", "einsum bias gelu einsum"),
        ("gated", "einsum einsum swiglu einsum"),
        ("bias gated", "einsum bias einsum bias swiglu einsum"),
        ("bias squared wide", "einsum bias squared_relu einsum"),
    ],
)
def test_a_line_counts_if_all_options_of_when_are_set_and_none_of_unless(chosen, expected):
    assert kinds(MLP, chosen) == expected.split()


@pytest.mark.parametrize("chosen", ["", "bias", "wide", "wide bias"])
def test_options_of_dimensions_and_weights(chosen):
    width = 2 * (8 if "wide" in chosen else 4) * 16
    expected = {"w1": 16 * width, "w2": 16 * width} | ({"b1": width} if "bias" in chosen else {})
    found = weights(derived(MLP, chosen=chosen), b=2, s=8, e=16)
    assert {name: size for name, (size, _, _) in found.items()} == expected


def test_what_is_chosen_for_a_layer():
    text = "layer a\noption tied\ninput x[b, s, e]\nweight w[e, v] unless tied\ntied w[e, v] when tied\n"
    text += "output[b, s, v] = einsum(x, w)"
    for chosen in ("", "tied"):
        assert [weight.tied for weight in derived(text, chosen=chosen).weights] == [chosen == "tied"]
    # A layer is called by what is chosen for it.
    layer = build(MLP, chosen="wide bias", inherited="squared")
    assert layer.name == "mlp[bias wide]"
    assert layer.options == {"bias": True, "wide": True, "gated": False, "squared": True}
    assert build(MLP).name == "mlp"
    # Options that exclude each other.
    with pytest.raises(InputError, match=r"layer 'mlp': .*'gated' and 'squared' exclude .*\(activation: one of"):
        build(MLP, chosen="bias gated squared")
    with pytest.raises(InputError, match="'gated' and 'squared' exclude each other"):
        build(MLP, chosen="gated", inherited="squared")
    # What is chosen is known.
    with pytest.raises(UnknownNameError, match=r"unknown option.*'gatd'; did you mean 'gated'\?.*layer 'mlp'"):
        build(MLP, chosen="bias gatd")
    with pytest.raises(UnknownNameError, match=r"unknown block parameter.*'ffn'.*layer 'mlp'"):
        build(MLP, chosen="ffn=experts")
    # What is inherited is for those that know it.
    assert kinds(MLP, "", inherited="gatd squared core=mine") == ["einsum", "squared_relu", "einsum"]


def test_a_name_may_be_assigned_again():
    """The bias is of the product, the second bias of that, and the result has both."""
    layer = build("""\
        layer a
        input x[b, s, e]
        weight w[e, f] c[f] d[f]
        z[b, s, f] = einsum(x, w)
        z[b, s, f] = bias(z, c)
        y[b, s, f] = gelu(z)
        z[b, s, f] = bias(z, d)
        x[b, s, f] = add(z, y)
        output[b, s, f] = gelu(x)
    """)
    assert {op.outputs[0]: [arg.tensor for arg in op.arguments] for op in layer.operators} == {
        "z": ["x", "w"], "z.2": ["z", "c"], "y": ["z.2"], "z.3": ["z.2", "d"], "x.2": ["z.3", "y"], "output": ["x.2"],
    }  # fmt: skip
    assert layer.outputs == ("output",)
    # The reduce-scatter of the sum comes with the bias, as it would under a name of its own.
    text = "layer a\ninput x[b, s, e/tp]\nweight w[e/tp, f] c[f]\ny[b, s, f @tp] = einsum(x, w)\n"
    again = derived(text + "y[b, s/tp, f] = bias(y[b, s/tp, f], c)\noutput[b, s/tp, f] = gelu(y)")
    other = derived(text + "z[b, s/tp, f] = bias(y[b, s/tp, f], c)\noutput[b, s/tp, f] = gelu(z)")
    for direction in (0, 1):
        found = [[(m.kind, m.axis, m.bytes) for m in one.collectives(direction)] for one in (again, other)]
        assert found[0] == found[1] != []


HEAD = "layer a\noption bias narrow\ninput x[b, s, e]\nweight w[e, f]\n"
PLAIN = "block plain\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)"


@pytest.mark.parametrize(
    ("lines", "chosen", "words"),
    [
        ("y[b, s, e] = gelu(x)\n^y[b, s, e] = scale(x)", "", ["'y'"]),
        ("y[b, s, e] = gelu(x) when bias\n^y[b, s, e] = scale(x)", "bias", ["'y'"]),
        ("y[b, s, e] = gelu(x)\n^use plain (x = x, output = y)", "", ["'y'"]),
        ("^w[b, s, e] = gelu(x)", "", ["'w'"]),
    ],
)
def test_a_name_is_not_assigned_again_before_anything_reads_it(lines, chosen, words):
    fails(HEAD + lines, *words, "assigned again before anything reads it", chosen=chosen, blocks=[PLAIN])


@pytest.mark.parametrize(
    ("lines", "chosen", "words"),
    [
        ("y[b, s, e] = gelu(x) when bias\nz[b, s, e] = gelu(^y)", "", ["'y' above", "line 5 makes it when bias"]),
        (
            "y[b, s, e] = gelu(x) when bias unless narrow\nz[b, s, e] = gelu(^y)",
            "bias narrow",
            ["'y' above", "line 5 makes it when bias unless narrow"],
        ),
        ("weight v[e] unless bias\ny[b, s, e] = norm(x, ^v)", "bias", ["'v' above", "line 5 makes it unless bias"]),
        ("y[b, s, e] = gelu(x) when bias\n^use plain (x = y)", "", ["'y' above", "line 5 makes it when bias"]),
        (
            "use plain (x = x, output = y) when bias\nz[b, s, e] = gelu(^y)",
            "",
            ["'y' above", "line 5 makes it when bias"],
        ),
    ],
)
def test_a_tensor_that_is_missing_under_some_options(lines, chosen, words):
    fails(HEAD + lines, *words, chosen=chosen, blocks=[PLAIN])
    build(HEAD + lines.replace("^", ""), chosen="" if chosen == "bias" else "bias", blocks=[PLAIN])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}fuse f unless bias\n^end\ny[b, s, e] = gelu(x)", ["'end' without a 'fuse' or a 'recompute'"]),
        (f"{HEAD}^fuse f when bias\ny[b, s, e] = gelu(x)\nend unless bias", ["kernel 'f' has no 'end'"]),
        (f"{HEAD}dim f = e\ndim ^f = 2 * e when bias\ny[b, s, e] = gelu(x)", ["dimension 'f' is defined twice"]),
        (f"{HEAD}weight ^w[e] when bias\ny[b, s, e] = gelu(x)", ["'w' is declared twice"]),
        (f"^{HEAD}y[b, s, e] = gelu(x) unless bias", ["layer 'a' has no operators with the options bias"]),
    ],
)
def test_lines_that_form_no_layer_under_an_option(text, words):
    fails(text, *words, chosen="bias")


FUSED = """\
layer a
option bias drop
input x[b, s, e]
weight c[e]
fuse both
y[b, s, e] = bias(x, c)          when bias
y[b, s, e] = dropout(y)          when drop bias
y[b, s, e] = gelu(x)             unless bias
end
output[b, s, e] = add(x, y)
"""


def test_kernels_of_one_operator_and_roles_of_blocks():
    names = [[op.fuse for op in read(FUSED, chosen).body] for chosen in ("", "bias", "bias drop")]
    assert names == [[None, None], [None, None], [("both", 1), ("both", 1), None]]
    assert kernel(derived(FUSED), "y").kinds == ("gelu",)
    # A kernel that has one operator whatever is set is one.
    text = "layer a\ninput x[b, s, e]\nfuse alone\ny[b, s, e] = gelu(x)\nend"
    assert kernel(derived(text), "alone").kinds == ("gelu",)
    # A block says what a role is where the strategy does not give it.
    text = "layer a\nrole as = $is\ninput x[b, $is, e]\noutput[b, $as, e] = gelu(x)"
    assert build(text, "strategy s\nrole is = s/tp").tensors["output"].distribution.axes == ("tp",)
    given = "strategy s\nrole is = s/tp\nrole as = s"
    with pytest.raises(NotationError, match="'s' is divided differently"):
        build(text, given)
    with pytest.raises(NotationError, match="gives no role 'as'"):
        build(text.replace("role as = $is\n", ""), "strategy s\nrole is = s/tp")
    with pytest.raises(NotationError, match=r"a\.layer:2:11: expected '\$'"):
        build(text.replace("$is\ninput", "s\ninput"), given)


INNER = """\
block inner
option bias
block core = plain
input n[b, s, e]
weight c[e]                      when bias
n[b, s, e]      = bias(n, c)     when bias
use $core (x = n, output = y)
output[b, s, e] = scale(y)
"""
TWICE = "block plain\noption twice\ninput x[b, s, e]\ny[b, s, e] = gelu(x)\ny[b, s, e] = gelu(y) when twice\n"
TWICE += "output[b, s, e] = view(y)"
SQUARED = "block squared\ninput x[b, s, e]\noutput[b, s, e] = squared_relu(x)"
OUTER = "layer outer\noption out\nuse inner (output = r)\noutput[b, s, e] = scale(r) when out\n"
BLOCKS = {"blocks": (INNER, TWICE, SQUARED)}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", "gelu view scale"),
        ("bias", "bias gelu view scale"),
        ("twice out", "gelu gelu view scale scale"),  # of a block inside a block
        ("core=squared", "squared_relu scale"),
        ("bias core=squared", "bias squared_relu scale"),
    ],
)
def test_used_blocks_have_the_options_and_blocks_of_the_layer(chosen, expected):
    assert kinds(OUTER, chosen, **BLOCKS) == expected.split()
    assert kinds(OUTER, "", inherited=chosen, **BLOCKS) == expected.split()


def test_options_and_blocks_of_blocks():
    layer = build(OUTER, chosen="bias", inherited="core=plain", **BLOCKS)
    assert layer.options == {"out": False, "bias": True, "twice": False}
    assert layer.blocks == {"core": "plain"}
    assert build(OUTER, chosen="core=squared", **BLOCKS).blocks == {"core": "squared"}
    # An option is known where the block that is used then knows it.
    with pytest.raises(UnknownNameError, match=r"unknown option.*'twice'"):
        build(OUTER, chosen="twice core=squared", **BLOCKS)
    assert kinds(OUTER, "core=squared", inherited="twice", **BLOCKS) == ["squared_relu", "scale"]
    # A block that is used twice has the options twice.
    text = "layer a\nuse inner\nuse inner\n"
    assert kinds(text, "bias core=squared", **BLOCKS) == ["bias", "squared_relu", "scale"] * 2
    # Options of a block exclude each other.
    block = "block plain\noption kind = soft | hard\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)"
    with pytest.raises(InputError, match=r"block 'plain': .*'soft' and 'hard' exclude each other \(kind: one of"):
        build(OUTER, chosen="soft hard", blocks=(INNER, block))


def test_block_parameters():
    with pytest.raises(NotationError, match=r"block\.layer:7:1: no block 'plane'"):
        build(OUTER, chosen="core=plane", **BLOCKS)
    with pytest.raises(NotationError, match=r"block\.layer:7:1: block 'inner' uses itself"):
        build(OUTER, chosen="core=inner", **BLOCKS)
    # What a strategy or an assumption set names is used in the place of what a model names.
    assert kinds(OUTER, "core=squared", inherited="core=plain", **BLOCKS) == ["gelu", "view", "scale"]
    # A used block parameter has the modifier.
    outer = "layer a\nblock core = square\noption half\ninput x[b, s, e]\nuse $core{causal} when half\n"
    outer += "use $core unless half\n"
    square = "block square\ndim t = s\ninput x[b, s, e]\nw[b, t, e] = view(x)\noutput[b, s, t] = einsum{*}(x, w)"
    work = [
        number(one, kernel(one, "square.output").work[0].matrix, **SIZES)
        for one in (derived(outer, chosen=chosen, blocks=[square]) for chosen in ("", "half"))
    ]
    assert work[0] == 2 * work[1] > 0
    # Block parameters of the library.
    with pytest.raises(SpecError, match=r"block parameter 'ffn': unknown block 'expert'; did you mean 'experts'\?"):
        load_layer("transformer", "2d", STANDARD, chosen=settings("ffn=expert"))
    with pytest.raises(NotationError, match=r"transformer\.layer:\d+:1: 'head' is not a block"):
        load_layer("transformer", "2d", STANDARD, chosen=settings("ffn=head"))
