"""A model as a chain of layer kinds: its ends, what may follow what, and what an assumption set does not count."""

import pytest

from dsx.errors import SpecError
from dsx.graph.model import build_model, parameters
from dsx.spec.assumptions import load_assumptions
from dsx.spec.model import LayerCount, load_model

DEFAULT = load_assumptions("default")
LLAMA = load_model("llama-3-8b")


def model(*layers):
    entries = [LayerCount(kind=kind, count=count) for kind, count in layers]
    return LLAMA.model_copy(update={"layers": entries, "dimensions": LLAMA.dimensions | {"positions": 64}})


def build(*layers, assumptions=DEFAULT):
    return build_model(model(*layers), assumptions, "2d")


def test_the_ends_and_the_body():
    built = build(("embedding", 1), ("gated-transformer", 3), ("transformer", 2), ("head", 1))
    assert (built.leading, built.trailing, built.num_layers, built.num_body_layers) == (1, 1, 7, 5)
    assert [layer.name for layer in built.first + built.last] == ["embedding", "head"]
    assert [(layer.name, count) for layer, count in built.body] == [("gated-transformer", 3), ("transformer", 2)]


def test_ends_may_be_missing():
    body = build(("gated-transformer", 4))
    assert (body.leading, body.trailing, body.num_body_layers) == (0, 0, 4)
    assert build(("embedding", 1), ("gated-transformer", 4)).trailing == 0
    assert build(("gated-transformer", 4), ("head", 1)).leading == 0


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("embedding", 1), ("head", 1)], r"no layer between its ends \(embedding, head\)"),
        ([("gated-transformer", 1), ("embedding", 1), ("gated-transformer", 1)], "takes data, so it can only be the"),
        ([("embedding", 2), ("gated-transformer", 1)], "'embedding' stands 2 times at an end"),
        ([("gated-transformer", 1), ("head", 3)], "'head' stands 3 times at an end"),
        ([("head", 1), ("gated-transformer", 1)], r"layer 'head' begins as \[b, s/cp/tp, e\] and ends as \[b, s/cp\]"),
    ],
)
def test_what_cannot_follow(layers, message):
    with pytest.raises(SpecError, match=message):
        build(*layers)


def test_a_layer_that_begins_otherwise_than_the_one_before_it_ends(tmp_path):
    text = tmp_path / "whole.layer"
    text.write_text("layer whole\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)\n")
    with pytest.raises(
        SpecError, match=r"'gated-transformer' ends as \[b, s/cp/tp, e\] and 'whole' behind it begins as \[b, s, e\]"
    ):
        build(("gated-transformer", 1), (str(text), 1))


def test_uncounted_kinds_have_no_weights():
    without = DEFAULT.model_copy(update={"uncounted_layers": ["embedding", "head"]})
    layers = (("embedding", 1), ("gated-transformer", 2), ("head", 1))
    built = build(*layers, assumptions=without)
    assert [layer.name for layer, _ in built.layers] == ["gated-transformer"]
    e, v = LLAMA.dimensions["e"], LLAMA.dimensions["v"]
    assert parameters(build(*layers)) - parameters(built) == 2 * v * e + e
    with pytest.raises(SpecError, match=r"counts no layer of model 'llama-3-8b' \(it has: embedding, head\)"):
        build(("embedding", 1), ("head", 1), assumptions=without)


def test_parameters_do_not_depend_on_the_strategy():
    counts = {parameters(build_model(LLAMA, DEFAULT, name)) for name in ("1d", "1d-no-sp", "2d", "summa", "ulysses")}
    assert counts == {8_030_261_248}


def test_an_assumption_set_names_the_block_that_runs():
    unfused = DEFAULT.model_copy(update={"blocks": {"attention-core": "unfused-attention-core"}})
    names = [
        [k.name for k in build(("gated-transformer", 1), assumptions=a).kinds[0].kernels] for a in (DEFAULT, unfused)
    ]
    fused_kernels, unfused_kernels = ([name.rsplit(".", 1)[1] for name in found] for found in names)
    assert "attention" in fused_kernels and "p" not in fused_kernels
    assert "attention" not in unfused_kernels and {"a", "p"} <= set(unfused_kernels)
