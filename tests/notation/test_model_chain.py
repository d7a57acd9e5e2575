"""Layers of a model follow each other, and its letters are those of its dimensions."""

import pytest

import dsx
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


def test_models_without_ends_weights_or_strategies():
    built = build(("embedding", 1), (GATED, 3), ("transformer", 2), ("head", 1))
    assert (built.leading, built.trailing, built.num_layers, built.num_body_layers) == (1, 1, 7, 5)
    assert [layer.name for layer in built.first + built.last] == ["embedding", "head"]
    body = [(layer.name, count) for layer, count in built.body]
    assert body == [("transformer[gated rotary]", 3), ("transformer", 2)]
    body = build((GATED, 4))
    assert (body.leading, body.trailing, body.num_body_layers) == (0, 0, 4)
    assert build(("embedding", 1), (GATED, 4)).trailing == 0
    assert build((GATED, 4), ("head", 1)).leading == 0
    # Uncounted kinds have no weights.
    without = DEFAULT.model_copy(update={"uncounted_layers": ["embedding", "head"]})
    layers = (("embedding", 1), (GATED, 2), ("head", 1))
    built = build(*layers, assumptions=without)
    assert [layer.name for layer, _ in built.layers] == ["transformer[gated rotary]"]
    e, v = LLAMA.dimensions["e"], LLAMA.dimensions["v"]
    assert parameters(build(*layers)) - parameters(built) == 2 * v * e + e
    with pytest.raises(SpecError, match=r"counts no layer of model 'llama-3-8b' \(it has: embedding, head\)"):
        build(("embedding", 1), ("head", 1), assumptions=without)
    # Parameters do not depend on the strategy.
    counts = {parameters(build_model(LLAMA, DEFAULT, name)) for name in ("1d", "1d-no-sp", "2d", "summa", "ulysses")}
    assert counts == {8_030_261_248}


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


def test_an_assumption_set_names_blocks_and_sets_options():
    unfused = DEFAULT.model_copy(update={"set": {"core": "unfused-attention-core"}})
    names = [[k.name for k in build((GATED, 1), assumptions=a).kinds[0].kernels] for a in (DEFAULT, unfused)]
    fused_kernels, unfused_kernels = ([name.rpartition(".")[2] for name in found] for found in names)
    assert "attention" in fused_kernels and "p" not in fused_kernels
    assert "attention" not in unfused_kernels and {"a", "p"} <= set(unfused_kernels)
    # An assumption set sets an option of the layers that know it.
    dropping = DEFAULT.model_copy(update={"set": {"dropout": True}})
    layers = [("embedding", 1), (GATED, 1), ("head", 1)]
    found = [{kind for k in layer.kernels for kind in k.kinds} for layer in build(*layers, assumptions=dropping).kinds]
    assert ["dropout" in kinds for kinds in found] == [False, True, False]
    nearly = DEFAULT.model_copy(update={"set": {"corre": "unfused-attention-core"}})
    with pytest.raises(SpecError, match=r"assumption set 'default' sets 'corre', .* did you mean 'core'\?"):
        build(*layers, assumptions=nearly)


LAYER = """layer mine
dim q = e - 100000
input x[b, s, e]
weight w[q]
output[b, s, e] = gelu(x)
"""


def job(base, assumptions="default", **content):
    model = {"extends": base, "name": "mine", **content}
    return dsx.Job(model, "h100-nvs8", num_gpus=16, global_batch_size=64, assumptions=assumptions)


@pytest.mark.parametrize(
    ("base", "dimensions", "says"),
    [
        ("llama-3-8b", {"ff": 16384}, "dimensions.ff: no layer of the model uses this dimension; did you mean 'f'? ("),
        ("llama-3-8b", {"x": 8}, "dimensions.x: no layer of the model uses this dimension"),
        ("mixtral-8x7b", {"top": 2}, "did you mean 'topk'?"),
        ("llama-3-8b", {"g": 6}, "h=32 attention heads are no multiple of g=6 key-value heads; nearest: g=4"),
        ("mixtral-8x7b", {"topk": 9}, "topk=9: the router cannot send a token to more experts than there are, x=8"),
    ],
)
def test_a_dimension_that_has_no_effect_or_does_not_fit_is_refused(base, dimensions, says):
    with pytest.raises(SpecError) as error:
        job(base, dimensions=dimensions)
    assert str(error.value).startswith("model: dimensions") and says in str(error.value)


def test_dimensions_of_replaced_layers_may_stay_and_unknown_ones_have_their_line(tmp_path):
    layers = [{"kind": "transformer", "count": 3}]
    assert job("deepseek-v3", layers=layers, dimensions={"g": 8, "k": 128}).model.dimensions["topk"] == 8
    with pytest.raises(SpecError, match=r"dimensions.kk: no layer"):
        job("deepseek-v3", layers=layers, dimensions={"g": 8, "k": 128, "kk": 3})
    # The place of an unknown dimension is that of its line.
    file = tmp_path / "mine.yaml"
    file.write_text("extends: llama-3-8b\nname: mine\ndimensions:\n  e: 4096\n  ff: 2\n")
    with pytest.raises(SpecError, match=r"mine.yaml:5: dimensions.ff: no layer"):
        dsx.parameters(file)


@pytest.mark.slow
@pytest.mark.parametrize("assumptions", dsx.names("assumptions"))
def test_a_packaged_model_may_state_what_an_assumption_set_does_not_count(assumptions):
    for model in dsx.names("models"):
        assert job(model, assumptions).model.dimensions


def test_a_size_is_not_negative(tmp_path):
    (tmp_path / "mine.layer").write_text(LAYER)
    model = {"name": "m", "source": "a test", "default_sequence_length": 8, "dimensions": {"e": 4096}}
    (tmp_path / "m.yaml").write_text(f"{model | {'layers': [{'kind': str(tmp_path / 'mine.layer')}]}}")
    with pytest.raises(InputError) as error:
        dsx.parameters(tmp_path / "m.yaml")
    assert "dimension 'q' = e - 100000 is -95904 where e=4096; a size cannot be negative" in str(error.value)
