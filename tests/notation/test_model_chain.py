"""A model as a chain of layer kinds: its ends, what may follow what, and what an assumption set does not count."""

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import LayerKind, layer_count, load_model
from dsx.errors import InputError, SpecError
from dsx.notation.model import build_model, parameters

DEFAULT = load_assumptions("default")
LLAMA = load_model("llama-3-8b")
GATED = LayerKind("transformer", frozenset({"rotary", "gated"}))


def model(*layers):
    entries = [layer_count(kind if isinstance(kind, LayerKind) else LayerKind(kind), count) for kind, count in layers]
    return LLAMA.model_copy(update={"layers": entries, "dimensions": LLAMA.dimensions | {"positions": 64}})


def build(*layers, assumptions=DEFAULT):
    return build_model(model(*layers), assumptions, "2d")


def test_embedding_body_and_head():
    built = build(("embedding", 1), (GATED, 3), ("transformer", 2), ("head", 1))
    assert (built.leading, built.trailing, built.num_layers, built.num_body_layers) == (1, 1, 7, 5)
    assert [layer.name for layer in built.first + built.last] == ["embedding", "head"]
    body = [(layer.name, count) for layer, count in built.body]
    assert body == [("transformer[gated rotary]", 3), ("transformer", 2)]


def test_embedding_and_head_may_be_missing():
    body = build((GATED, 4))
    assert (body.leading, body.trailing, body.num_body_layers) == (0, 0, 4)
    assert build(("embedding", 1), (GATED, 4)).trailing == 0
    assert build((GATED, 4), ("head", 1)).leading == 0


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("embedding", 1), ("head", 1)], r"no layer between embedding and head \(embedding, head\)"),
        ([(GATED, 1), ("embedding", 1), (GATED, 1)], "takes data, so it can only be the"),
        ([("embedding", 2), (GATED, 1)], "the embedding 'embedding' has count 2"),
        ([(GATED, 1), ("head", 3)], "the head 'head' has count 3"),
        ([("head", 1), (GATED, 1)], r"layer 'head' has the input \[b, s/cp/tp, e\] and the output \[b, s/cp\]"),
    ],
)
def test_layers_that_do_not_fit_each_other_are_refused(layers, message):
    with pytest.raises(SpecError, match=message):
        build(*layers)


def test_a_layer_whose_input_differs_from_the_output_of_the_previous_one_is_refused(tmp_path):
    text = tmp_path / "whole.layer"
    text.write_text("layer whole\ninput x[b, s, e]\noutput[b, s, e] = gelu(x)\n")
    said = (
        r"output of layer 'transformer\[gated rotary\]' is \[b, s/cp/tp, e\], "
        r"and the input of the next layer, 'whole', is \[b, s, e\]"
    )
    with pytest.raises(SpecError, match=said):
        build((GATED, 1), (str(text), 1))


def test_uncounted_kinds_have_no_weights():
    without = DEFAULT.model_copy(update={"uncounted_layers": ["embedding", "head"]})
    layers = (("embedding", 1), (GATED, 2), ("head", 1))
    built = build(*layers, assumptions=without)
    assert [layer.name for layer, _ in built.layers] == ["transformer[gated rotary]"]
    e, v = LLAMA.dimensions["e"], LLAMA.dimensions["v"]
    assert parameters(build(*layers)) - parameters(built) == 2 * v * e + e
    with pytest.raises(SpecError, match=r"counts no layer of model 'llama-3-8b' \(it has: embedding, head\)"):
        build(("embedding", 1), ("head", 1), assumptions=without)


def test_parameters_do_not_depend_on_the_strategy():
    counts = {parameters(build_model(LLAMA, DEFAULT, name)) for name in ("1d", "1d-no-sp", "2d", "summa", "ulysses")}
    assert counts == {8_030_261_248}


def test_an_assumption_set_names_the_block_that_runs():
    unfused = DEFAULT.model_copy(update={"set": {"core": "unfused-attention-core"}})
    names = [[k.name for k in build((GATED, 1), assumptions=a).kinds[0].kernels] for a in (DEFAULT, unfused)]
    fused_kernels, unfused_kernels = ([name.rpartition(".")[2] for name in found] for found in names)
    assert "attention" in fused_kernels and "p" not in fused_kernels
    assert "attention" not in unfused_kernels and {"a", "p"} <= set(unfused_kernels)


def test_an_assumption_set_sets_an_option_of_the_layers_that_know_it():
    dropping = DEFAULT.model_copy(update={"set": {"dropout": True}})
    layers = [("embedding", 1), (GATED, 1), ("head", 1)]
    found = [{kind for k in layer.kernels for kind in k.kinds} for layer in build(*layers, assumptions=dropping).kinds]
    assert ["dropout" in kinds for kinds in found] == [False, True, False]
    nearly = DEFAULT.model_copy(update={"set": {"corre": "unfused-attention-core"}})
    with pytest.raises(SpecError, match=r"assumption set 'default' sets 'corre', .* did you mean 'core'\?"):
        build(*layers, assumptions=nearly)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            LayerKind("transformer", frozenset({"gatd"})),
            r"unknown option.*'gatd'; did you mean 'gated'\?",
        ),
        (LayerKind("transformer", frozenset({"gated", "squared_relu"})), "exclude each other"),
        (
            LayerKind("head", frozenset({"gated"})),
            r"unknown option.*'gated'.*\(known: bare_layernorm, gathered_logits, ",
        ),
        (
            LayerKind("transformer", blocks=(("fnn", "experts"),)),
            r"unknown block parameter.*'fnn'; did you mean 'ffn'",
        ),
    ],
)
def test_a_model_sets_what_its_layers_know(kind, message):
    with pytest.raises(InputError, match=message) as caught:
        build((GATED, 1), (kind, 1))
    assert str(caught.value).startswith(f"layer '{kind}' of model 'llama-3-8b': ")
