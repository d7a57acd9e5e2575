"""FLOPs of a token beside the active parameters that models are published with."""

import pytest

from dsx.config.model_file import load_model
from dsx.runs.machines import token_flops

PUBLISHED = {"deepseek-v3": 37e9, "mixtral-8x7b": 12.9e9, "qwen3-30b-a3b": 3.3e9, "kimi-k2": 32e9, "gpt3-175b": 175e9}


@pytest.mark.parametrize(("name", "active"), PUBLISHED.items())
def test_active_parameters_are_those_published(name, active):
    spec = load_model(name)
    once = token_flops(spec, 4096)
    # An embedding is looked up, not multiplied; some count it all the same. Published numbers are rounded.
    embedding = spec.dimensions["v"] * spec.dimensions["e"]
    assert 0.98 * (active - embedding) < (once.layers + once.head) / 2 < 1.02 * active


def test_attention_is_not_masked_and_has_the_head_dimensions_of_its_text():
    # Scores over 128 + 64 dimensions per head, values over 128.
    once = token_flops(load_model("deepseek-v3"), 4096)
    assert once.attention == pytest.approx(61 * 2 * 128 * (192 + 128) * 4096)
    assert token_flops(load_model("deepseek-v3"), 8192).attention == pytest.approx(2 * once.attention)
