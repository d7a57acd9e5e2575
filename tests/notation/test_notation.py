"""The grammar: every production, and the definitions of DESIGN.md word for word."""

import pytest
from notation.definitions import read
from notation.design import MLP_BLOCK, STRATEGIES, TRANSFORMER

from dsx.config.search_path import packaged_data
from dsx.notation.expressions import evaluate
from dsx.notation.parse import parse, parse_file
from dsx.notation.syntax import Dim, Place, Role, Settings, UseSyntax


def one(line, head="layer a"):
    """The only operator of a definition."""
    (entry,) = read(f"{head}\n{line}").body
    return entry


def dims(tensor):
    return [str(item) for item in tensor.dims]


def test_the_layer_and_the_block_of_the_design_parse():
    layer = read(TRANSFORMER)
    assert (layer.kind, layer.name) == ("layer", "transformer")
    assert list(layer.definitions) == ["c", "j", "m", "t"]
    assert [tensor.name for tensor in layer.inputs] == ["x"]
    assert [tensor.name for tensor in layer.weights] == ["g1", "wqkv", "wo", "g2", "w1", "w2"]
    kinds = "norm einsum view view view einsum softmax einsum view einsum add norm einsum gelu einsum add"
    assert [op.kind for op in layer.body] == kinds.split()
    assert [op.outputs[0].name for op in layer.body if op.fuse == ("attention", 1)] == ["k1", "v1", "a", "p", "o"]
    assert sum(op.fuse is not None for op in layer.body) == 5
    # The block of the design parses.
    block = read(MLP_BLOCK)
    assert (block.kind, block.name) == ("block", "mlp")
    z, d = block.body[1], block.body[3]
    assert z.modifier == d.modifier == "panels"
    assert [item.name for item in z.arguments[0].dims if isinstance(item, Role)] == ["is", "ie"]
    assert z.arguments[0].regathered and not d.arguments[0].regathered
    assert d.outputs[0].partial == ("*",)


@pytest.mark.parametrize("source", STRATEGIES)
def test_the_strategies_of_the_design_parse_on_one_line_without_the_word_role(source):
    strategy = parse(source)
    assert list(strategy.roles) == "rs re is ie wi wf uf vf ve oe".split()
    expected = {"2d": ("s/cp/tp", "e", "e"), "summa": ("s/tp2", "e/tp", "e/tp2")}[strategy.name]
    assert tuple(str(strategy.roles[role]) for role in ("rs", "re", "wi")) == expected
    assert strategy.rules == ()


def test_strategies_with_roles_and_rules_that_extend_others():
    strategy = parse(
        "strategy 3d-x  # the name may have digits, dots and dashes\n"
        "role rs = s/cp/tp role re = e  # two on a line\n"
        "require e / tp >= 128  too narrow!\n"
        "require b*s % (tp*cp) == 0 tokens_not_divisible # why\n"
    )
    assert strategy.name == "3d-x"
    assert strategy.roles == {"rs": Dim("s", ("cp", "tp")), "re": Dim("e")}
    assert [(rule.relation, rule.reason) for rule in strategy.rules] == [
        (">=", "too_narrow"),
        ("==", "tokens_not_divisible"),
    ]
    assert evaluate(strategy.rules[1].left, {"b": 3, "s": 5, "tp": 2, "cp": 2}) == 15 % 4
    assert strategy.rules[1].place.line == 4
    # A strategy that extends another.
    strategy = parse(
        "strategy mine extends 2d-no-sp role rs = s role wi = $wf(v)  # on one line\n"
        "set ring set core = my-core.2\n"
        "drop too_narrow\n"
    )
    assert strategy.extends[0] == "2d-no-sp"
    assert strategy.roles["rs"] == Dim("s")
    assert (strategy.roles["wi"].name, strategy.roles["wi"].letter) == ("wf", "v")
    assert strategy.settings == Settings(frozenset({"ring"}), (("core", "my-core.2"),))
    assert list(strategy.dropped) == ["too_narrow"]


def test_options_block_parameters_and_conditions():
    block = parse(
        "block a\n"
        "option bias narrow  # two on a line\n"
        "option mask = causal | full\n"
        "block core = my-core.2\n"
        "dim w = 2 * e                       unless narrow\n"
        "weight g[e] h[e]                    when bias\n"
        "fuse f                              when bias narrow unless full causal\n"
        "end\n"
        "use $core{*} (x = y)                unless full when bias\n"
        "use plain                           when bias\n"
        "y[b] = f(x)\n"
    )
    assert list(block.options) == ["bias", "narrow", "causal", "full"]
    assert block.exclusive == {"mask": ("causal", "full")}
    assert block.parameters == {"core": "my-core.2"}
    conditions = ["unless narrow", "when bias", "when bias narrow unless full causal", "", "when bias unless full"]
    assert [str(condition) for _, condition in block.lines] == [*conditions, "when bias", ""]
    uses = [(line.block, line.parameter) for line, _ in block.lines if isinstance(line, UseSyntax)]
    assert uses == [("", "core"), ("plain", "")]
    assert block.options["full"] == Place("<definition>", 3, 24)


@pytest.mark.parametrize("relation", ["==", "!=", "<=", ">=", "<", ">"])
def test_relations(relation):
    assert parse(f"strategy a\nrequire e {relation} 1 why").rules[0].relation == relation


def test_dim_input_weight_use():
    layer = read(
        "layer a-1.b\n"
        "\n"
        "# a comment alone\n"
        "dim c = (h + 2*g) * k  # behind\n"
        "input x[b, s/cp/tp, e], ids[b, s]\n"
        "weight w[e/dp, c/tp] v[e]\n"
        "use attention\n"
        "use gated-mlp (x = output, output = r)\n"
    )
    assert layer.name == "a-1.b"
    assert evaluate(layer.definitions["c"], {"h": 4, "g": 2, "k": 3}) == 24
    assert [(tensor.name, dims(tensor)) for tensor in layer.inputs] == [
        ("x", ["b", "s/cp/tp", "e"]),
        ("ids", ["b", "s"]),
    ]
    assert [(tensor.name, dims(tensor)) for tensor in layer.weights] == [("w", ["e/dp", "c/tp"]), ("v", ["e"])]
    assert [(use.block, use.bindings) for use in layer.body] == [
        ("attention", {}),
        ("gated-mlp", {"x": "output", "output": "r"}),
    ]
    assert layer.body[1].place.line == 8


def test_operator_lines():
    op = one("q[b, s], k[b, s/cp] = view(qkv)")
    assert ([out.name for out in op.outputs], op.kind, op.modifier) == (["q", "k"], "view", "")
    op = one("y[b @tp] = einsum{causal}(x[b, s/tp]~, w)")
    assert (op.outputs[0].partial, op.modifier) == (("tp",), "causal")
    assert [(arg.name, arg.regathered) for arg in op.arguments] == [("x", True), ("w", False)]
    assert op.arguments[1].dims is None
    assert one("y[b @tp @cp] = f(x)").outputs[0].partial == ("tp", "cp")
    assert one("y[b @*] = f(x)").outputs[0].partial == ("*",)
    assert one("y[b] = f(x[b @tp])").arguments[0].partial == ("tp",)
    assert one("y[$rs, e/tp2/ep] = f(x)", "block a").outputs[0].dims[1] == Dim("e", ("tp2", "ep"))
    # Places are those of the definition.
    op = one("  y[b] = f(x, z[b])")
    assert (op.place.line, op.place.column) == (2, 3)
    assert [arg.place.column for arg in op.arguments] == [12, 15]
    # Two kernels of one name are two.
    layer = read("layer a\nfuse f\ny[b] = g(x)\nend\nfuse f\nz[b] = g(y)\nend\nu[b] = g(z)")
    assert [op.fuse for op in layer.body] == [("f", 1), ("f", 2), None]


@pytest.mark.parametrize("path", sorted((packaged_data() / "layers").rglob("*.layer")), ids=lambda path: path.stem)
def test_every_packaged_definition_parses_and_has_the_name_of_its_file(path):
    assert parse_file(path).name == path.stem
