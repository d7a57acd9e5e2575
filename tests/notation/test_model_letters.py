"""A model states the dimensions that its layers use, and sizes that a layer can have."""

import pytest

import dsx
from dsx.errors import InputError, SpecError

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


def test_the_place_of_an_unknown_dimension_is_that_of_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: llama-3-8b\nname: mine\ndimensions:\n  e: 4096\n  ff: 2\n")
    with pytest.raises(SpecError, match=r"mine.yaml:5: dimensions.ff: no layer"):
        dsx.parameters(file)


def test_dimensions_of_layers_that_are_replaced_may_stay():
    layers = [{"kind": "transformer", "count": 3}]
    assert job("deepseek-v3", layers=layers, dimensions={"g": 8, "k": 128}).model.dimensions["topk"] == 8
    with pytest.raises(SpecError, match=r"dimensions.kk: no layer"):
        job("deepseek-v3", layers=layers, dimensions={"g": 8, "k": 128, "kk": 3})


@pytest.mark.sampled(4)
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
