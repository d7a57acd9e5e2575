"""Layers built from blocks and strategies."""

import re

import pytest
import yaml
from notation.definitions import AG, AR, BACKWARD, FORWARD, RS, STANDARD, build, collectives, derived, fails

from dsx.config.model_file import LayerCount
from dsx.config.search_path import packaged_data
from dsx.errors import NotationError, SpecError, UnknownNameError
from dsx.notation.library import layer_names, load_layer, load_operators, load_strategy, strategy_names
from dsx.notation.model import check_repeats
from dsx.notation.syntax import Settings

STRATEGY = "strategy mine\nrs = s/tp re = e\nrequire s % tp == 0 why"
NORM = "block norms\ninput x[b, $rs, e]\nweight g[e]\noutput[b, $rs, e] = norm(x, g)"
ADD = "block joins\ninput x[b, $rs, e] z[b, $rs, e]\noutput[b, $rs, e] = add(x, z)"
WHOLE = "block whole\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)"
ALL = {"strategy": STRATEGY, "blocks": (NORM, ADD, WHOLE)}


def test_blocks_follow_each_other_by_their_bindings():
    layer = build("layer a\nuse norms\nuse norms\n", **ALL)
    assert layer.strategy == "mine"
    assert layer.inputs == ("norms.x",)
    assert [op.name for op in layer.operators] == ["norms.output", "norms2.output"]
    assert [op.arguments[0].tensor for op in layer.operators] == ["norms.x", "norms.output"]
    assert [name for name, tensor in layer.tensors.items() if tensor.weight] == ["norms.g", "norms2.g"]
    assert layer.outputs == ("norms2.output",)
    assert [rule.reason for rule in layer.rules] == ["why"]
    # Bindings name what goes in and comes out.
    layer = build(
        "layer a\ninput y[b, $rs, e]\nuse norms (x = y, output = n)\nuse norms (x = n)\n"
        "use joins (x = y, z = output, output = r)\nlast[b, $rs, e] = add(r, n)",
        **ALL,
    )
    joins, last = layer.operators[2:]
    assert [arg.tensor for arg in joins.arguments] == ["y", "norms2.output"]
    assert [arg.tensor for arg in last.arguments] == ["joins.output", "norms.output"]
    # A result may take the name of what the block read.
    layer = build("layer a\ninput y[b, $rs, e]\nuse norms (output = y)\nuse norms (x = y, output = y)\n", **ALL)
    assert [op.arguments[0].tensor for op in layer.operators] == ["y", "norms.output"]
    # All but one input may be bound.
    layer = build("layer a\ninput y[b, $rs, e]\nuse norms\nuse joins (z = y)\n", **ALL)
    assert [arg.tensor for arg in layer.operators[1].arguments] == ["norms.output", "y"]


def test_collectives_of_blocks_and_roles():
    layer = derived("layer a\nuse norms\nuse whole\nuse norms\n", **ALL)
    assert collectives(layer, FORWARD) == {(AG, "tp", "norms.output"): 1}
    # gelu's gradient is whole on every rank, so it is sliced; that of the third block is gathered.
    assert collectives(layer, BACKWARD) == {(AG, "tp", "d whole.output"): 1}
    # Roles make one block several.
    layer = "layer a\ninput x[b, $rs, $re]\nweight w[$re, f]\nz[b, $rs, f @*] = einsum(x, w)\n"
    layer += "output[b, $os, $of] = gelu(z[b, $os, $of])"
    rows = "strategy rows\nrs = s re = e/tp os = s of = f"
    assert collectives(derived(layer, strategy=rows), FORWARD) == {(AR, "tp", "z"): 1}
    assert collectives(derived(layer, strategy=rows.replace("os = s", "os = s/tp")), FORWARD) == {(RS, "tp", "z"): 1}
    assert collectives(derived(layer, strategy="strategy tokens\nrs = s/tp re = e os = s/tp of = f"), FORWARD) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layer a\n^use norms (y = x)", ["block 'norms' has no input 'y'"]),
        ("layer a\ninput xx[b, $rs, e]\n^use norms (x = xy)", ["no tensor 'xy' above", "did you mean 'xx'?"]),
        ("layer a\ninput y[b, $rs, e]\n^use joins", ["block 'joins' has the inputs x, z: bind all but one"]),
        (
            "layer a\ninput y[b, $rs, e]\nuse norms (output = n)\n^use norms (x = y, output = n)",
            ["'n' is assigned again before anything reads it"],
        ),
        ("layer a\ninput y[b, ^$rt, e]\nuse norms", ["strategy 'mine' gives no role 'rt'", "did you mean 'rs'?"]),
        ("^layer a\nweight w[e, f]\nv[e, f] = gelu(w)", ["layer 'a' has no 'input'"]),
        ("layer a\ndim ^t = t\nuse norms", ["dimension 't' is defined through itself: t -> t"]),
        ("layer a\ndim q = t\ndim ^t = 2 * u\ndim u = t + 1\nuse norms", ["defined through itself: t -> u -> t"]),
    ],
)
def test_errors(text, words):
    fails(text, *words, **ALL)


def block(body):
    return f"block bad\ninput x[b, $rs, e]\n{body}"


@pytest.mark.parametrize(
    ("body", "place", "words"),
    [
        ("y[b, $rs, e] = gelu(x)", "a.layer:3:1", "block 'bad' makes no tensor 'output'"),
        ("use bad", "block.layer:3:1", "block 'bad' uses itself"),
        ("use worse", "block.layer:2:1", "block 'bad' uses itself"),
        ("dim t = 2 * s\noutput[b, $rs, e] = gelu(x)", "block.layer:3:5", "'t' of 'bad' is defined differently"),
        ("weight x[e]\noutput[b, $rs, e] = gelu(x)", "block.layer:3:8", "'x' is declared twice"),
        ("output[b, $rs, e] = glu(x)", "block.layer:3:1", "no operator 'glu'; did you mean 'gelu'?"),
        ("input v[b, $rs, k]\noutput[b, $rs, k] = gelu(v)", "a.layer:3:1", "has the inputs x, v: bind all but one"),
    ],
)
def test_errors_inside_blocks(body, place, words):
    blocks = (NORM, block(body), "block worse\nuse bad")
    with pytest.raises(NotationError) as caught:
        derived("layer a\ndim t = s\nuse bad\ninput q[b, $rs, e]", strategy=STRATEGY, blocks=blocks)
    assert str(caught.value).startswith(f"{place}: ")
    assert words in str(caught.value)


def test_names_of_the_library(tmp_path):
    with pytest.raises(UnknownNameError, match=r"unknown layer 'transformr'; did you mean 'transformer'\?"):
        load_layer("transformr", "2d", STANDARD)
    with pytest.raises(UnknownNameError, match=r"unknown strategy 'suma'; did you mean 'summa'\?"):
        load_layer("transformer", "suma", STANDARD)
    with pytest.raises(NotationError, match="'2d' is a strategy, not a layer or block"):
        load_layer("2d", None, STANDARD)
    with pytest.raises(NotationError, match="'feed-forward' is a block, not a strategy"):
        load_strategy("feed-forward")
    with pytest.raises(NotationError, match=r"role \$rs needs a strategy"):
        load_layer("transformer", None, STANDARD)
    assert set(strategy_names()) >= {"1d", "2d", "summa"}
    # Former names say what is written now.
    with pytest.raises(SpecError, match=r"'gated-transformer' is now written \{kind: transformer, options: "):
        load_layer("gated-transformer", "2d", STANDARD)
    (tmp_path / "a.layer").write_text("layer a\nuse mlp\n")
    with pytest.raises(NotationError, match=r"a\.layer:2:1: (?!;).*'mlp' is now written 'use feed-forward"):
        load_layer(str(tmp_path / "a.layer"), "2d", STANDARD)


FORMER = yaml.safe_load((packaged_data() / "layers" / "former-names.yaml").read_text())


@pytest.mark.parametrize("name", FORMER)
def test_what_is_written_now_builds(name):
    assert name not in layer_names()
    if FORMER[name].startswith("{"):
        entry = LayerCount.model_validate(yaml.safe_load(FORMER[name]))
        kind, chosen = entry.kind, Settings(entry.layer.options, entry.layer.blocks)
    else:
        (kind,) = re.findall(r"use ([a-z-]+)", FORMER[name])
        options = re.findall(r"with the options? (.*)$", FORMER[name])
        chosen = Settings(frozenset(" ".join(options).replace(" and ", " ").split()))
    strategy = "ulysses" if "exchange" in chosen.options else "2d"
    assert load_layer(kind, strategy, STANDARD, chosen=chosen).operators


def test_a_layer_beside_its_own_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.layer").write_text("layer a\nuse own\nuse feed-forward\n")
    (tmp_path / "own.layer").write_text("block own\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)")
    layer = load_layer("./a.layer", "1d", STANDARD)
    assert [op.name for op in layer.operators][:2] == ["own.output", "feed-forward.n"]
    (tmp_path / "b.layer").write_text("layer b\nuse onw\n")
    with pytest.raises(NotationError, match=r"b\.layer:2:1: unknown block 'onw'; did you mean 'own'"):
        load_layer("./b.layer", "1d", STANDARD)
    for other in ("2d", "transformer"):
        (tmp_path / "c.layer").write_text(f"layer c\nuse {other}\n")
        with pytest.raises(NotationError, match=rf"c\.layer:2:1: '{other}' is not a block"):
            load_layer("./c.layer", "1d", STANDARD)
    # A layer that goes on after a block has its own output.
    block = tmp_path / "first.layer"
    block.write_text("block first\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)\n")
    layer = tmp_path / "whole.layer"
    layer.write_text("layer whole\nuse first\nn[b, s, e] = scale(output)\noutput[b, s, e] = gelu(n)\n")
    built = load_layer(str(layer), None, load_operators(["standard"]))
    assert built.outputs == ("output",)
    assert built.producer("output").arguments[0].tensor == "n"
    # A layer that the next one could not take is refused.
    layer = tmp_path / "open.layer"
    layer.write_text("layer open\ninput x[b, s/tp, e]\noutput[b, s, e] = gelu(x[b, s, e])\n")
    with pytest.raises(
        SpecError, match=r"has the input \[b, s/tp, e\] and the output \[b, s, e\].*output\[b, s/tp, e\] = view"
    ):
        check_repeats(load_layer(str(layer), None, load_operators(["standard"])))


def test_a_copy_that_one_operator_keeps_is_not_regathered_for_another():
    layer = derived(
        """
        layer mixed
        input  x[b, s/tp, e]
        weight w1[e, f/tp] w2[e, f/tp]
        u[b, s, f/tp] = einsum(x[b, s, e]~, w1)
        v[b, s, f/tp] = einsum(x[b, s, e], w2)
        output[b, s, f/tp] = add(u, v)
        """
    )
    assert [c.kind for c in layer.collectives(BACKWARD)] == [RS]
    assert [saved.key for kernel in layer.kernels for saved in kernel.saved] == [("x", "[b, s, e]")]
