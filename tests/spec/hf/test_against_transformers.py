"""The count of every published config against the model classes of the transformers library, on the meta device."""

import json

import pytest
from spec.hf.configs import CONFIGS, NAMES

from dsx.api.import_hf import import_hf

# Keys without parameters whose published values the class of today refuses.
_WITHOUT_PARAMETERS = (
    "rope_scaling",
    "rope_theta",
    "rope_parameters",
    "attn_temperature_tuning",
    "quantization_config",
)
# A number for each head of gpt-oss, and a bias of the head of Phi, which dsx leaves out.
_LEFT_OUT = ("self_attn.sinks", "lm_head.bias")
_CHOSEN = [name for name in NAMES if json.loads((CONFIGS / f"{name}.json").read_text())["model_type"] != "vit"]


@pytest.mark.external
@pytest.mark.parametrize("name", _CHOSEN)
def test_the_count_is_that_of_the_model_class(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    imported = import_hf(CONFIGS / f"{name}.json")
    stated = json.loads((CONFIGS / f"{name}.json").read_text())
    of_text = stated.get("text_config", stated)
    keys = {key: value for key, value in of_text.items() if key not in (*_WITHOUT_PARAMETERS, "model_type")}
    config = transformers.AutoConfig.for_model(of_text["model_type"], **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = [value for key, value in model.named_parameters() if not key.endswith(_LEFT_OUT)]
    corrections = [size for key, size in model.named_buffers() if key.endswith("e_score_correction_bias")]
    assert imported.parameters == sum(value.numel() for value in [*weights, *corrections])
