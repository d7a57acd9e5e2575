"""The count of every published config against the model classes of the transformers library, on the meta device."""

import json
import re

import pytest
from config.hf.configs import CONFIGS, NAMES

from dsx.verbs.import_hf import import_hf

# Keys without parameters whose published values the class of today refuses.
_WITHOUT_PARAMETERS = (
    "rope_scaling",
    "rope_theta",
    "rope_parameters",
    "attn_temperature_tuning",
    "quantization_config",
)
# Of these the configs of dsx say that no layer has them, or what for: a bias of the head of Phi, what chooses
# and compresses keys of DeepSeek V3.2 and V4 and GLM-5, residual streams of V4, and norms and scales around the experts
# of Gemma 4.
_LEFT_OUT = re.compile(
    r"lm_head\.bias$|\.indexer\.|\.compressor\.|_hc\.|\.hc_head\."
    r"|\.router\.(scale|per_expert_scale)$|feedforward_layernorm_[12]\.|^visual\."
)
_CHOSEN = [name for name in NAMES if json.loads((CONFIGS / f"{name}.json").read_text())["model_type"] != "vit"]


@pytest.mark.external
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", _CHOSEN)
def test_the_count_is_that_of_the_model_class(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    imported = import_hf(CONFIGS / f"{name}.json")
    stated = json.loads((CONFIGS / f"{name}.json").read_text())
    of_text = stated.get("text_config", stated)
    if of_text["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"the library has no class of {of_text['model_type']}")
    keys = {key: value for key, value in of_text.items() if key not in (*_WITHOUT_PARAMETERS, "model_type")}
    config = transformers.AutoConfig.for_model(of_text["model_type"], **keys)
    head = 0
    if "ForSequenceClassification" in str(stated.get("architectures")):
        of_class = transformers.AutoModelForSequenceClassification
    elif type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        of_class = transformers.AutoModelForCausalLM
    else:  # of a model that reads images too, the language model alone
        of_class = transformers.AutoModel
        head = 0 if stated.get("tie_word_embeddings") else of_text["vocab_size"] * of_text["hidden_size"]
    with torch.device("meta"):
        model = of_class.from_config(config)
    weights = [value for key, value in model.named_parameters() if not _LEFT_OUT.search(key)]
    corrections = [size for key, size in model.named_buffers() if key.endswith("e_score_correction_bias")]
    assert imported.parameters == head + sum(value.numel() for value in [*weights, *corrections])
