"""``dsx import-hf``: a model file that dsx loads, what was ignored, the count; nothing is written on an error."""

import json
import shutil

import pytest
from config.hf.configs import CONFIGS, NAMES

from dsx.config.model_file import load_model

PUBLISHED = {
    "llama-3-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,  # of the language model
    "gpt2": 124_439_808,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-20b": 20_910_000_000,  # rounded
    "phi-3-mini": 3_821_079_552,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "gemma-3-27b": 27_009_346_304,
    "deepseek-v3": 671_026_419_200,
    "qwen3-32b": 32_762_123_264,
    "llama-4-scout": 107_769_861_120,  # of the language model
    "llama-4-maverick": 400_711_848_960,
    "glm-4.5": 352_797_829_024,  # without the layer that predicts a second token
    "glm-4.5-air": 106_852_251_264,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-32b": 32_234_279_936,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "vit-l-16": 304_326_632,
    "mamba2-2.7b": 2_702_599_680,
    "moonlight-16b": 15_960_110_208,
    "kimi-k2": 1_026_408_232_448,
    "kimi-k2.5": 1_026_408_232_448,
    "minimax-m2.5": 228_689_764_864,  # without the layers that predict further tokens
    "qwen3-vl-32b": 32_762_123_264,  # of the language model
    "qwen3-vl-30b-a3b": 30_532_122_624,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "command-r": 34_980_831_232,
    "deepseek-v2-lite": 15_706_484_224,
    "exaone-4.0-32b": 32_003_200_000,
    "gemma-7b": 8_537_680_896,
    "glm-4-9b": 9_399_951_360,
    "glm-5": 743_180_209_920,
    "internlm2-7b": 7_737_708_544,
    "internlm3-8b": 8_804_241_408,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-vl-7b": 7_615_616_512,
    "qwen2.5-vl-7b": 7_615_616_512,
    "seed-oss-36b": 36_151_104_512,
    "smollm3-3b": 3_075_098_624,
    "starcoder2-15b": 15_957_889_024,
    "starcoder2-3b": 3_030_371_328,
    "starcoderbase": 15_517_456_384,
    "mimo-v2-flash": 309_000_000_000,  # rounded
    "hunyuan-a13b": 80_000_000_000,  # rounded
    "phi-2": 2_779_683_840 - 51_200,  # without the bias of the head
    "phi-3.5-moe": 41_873_153_344 - 32_064,
}
# Of configs without a published total: counted from the model classes of the transformers library 5.24.0.
COUNTED = {
    "reward-llama-3-8b": 7_504_928_768,
    "nemotron-3-super-120b-a12b": 120_668_707_840,
    "deepseek-v4-flash": 283_811_158_528
    + 43 * 64,  # with sinks; without compressors, indexers, weights of residual streams
    "gemma-4-31b": 30_697_345_280,
    "gemma-4-26b-a4b": 25_233_141_760 - 30 * (4 * 2_816 + 128),  # without norms around experts, scales of routers
    "afm-4.5b": 4_619_184_640,
    "bamba-9b": 9_780_235_392,
    "falcon-h1-0.5b": 521_411_104,
    "olmo-1b": 1_176_764_416,
    "command-r7b": 8_028_033_024,
    "deepseek-v3.2": 671_026_419_200,
    "dots.llm1": 142_774_381_696,
    "ernie-4.5-0.3b": 360_748_032,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "glm-4-9b-0414": 9_400_279_040,
    "glm-4.7-flash": 29_943_393_920,
    "granite-3.0-3b-a800m": 3_298_793_472,
    "granite-3.0-3b-shared": 3_449_788_416,
    "granite-3.1-8b": 8_170_848_256,
    "granite-4.0-h-small": 32_207_337_984,
    "hunyuan-7b": 7_504_568_320,
    "ministral-3-8b": 8_489_553_920,
    "ministral-8b": 8_019_808_256,
    "mistral-small-3.1-24b": 23_572_403_200,
    "mistral-small-4": 118_972_826_624,
    "nemotron-340b": 341_029_195_776,
    "olmo-3-7b": 7_298_011_136,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen3.5-9b": 8_953_803_264,
    "solar-open-100b": 102_651_799_552,
}


@pytest.fixture
def config(folder):
    """The config of Llama-3-8B in the working directory."""
    shutil.copy(CONFIGS / "llama-3-8b.json", folder / "config.json")
    return folder / "config.json"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_published(run, folder, name):
    done = run("import-hf", CONFIGS / f"{name}.json", "-o", f"{name}.yaml", "--json")
    assert (done.code, done.err) == (0, f"dsx: wrote {name}.yaml\n")
    data = json.loads(done.out)
    count = data["parameters"]
    assert count["published"] == PUBLISHED.get(name)
    if name in PUBLISHED:
        assert count["counted"] - count["published"] == count["difference"]
        assert 2 * abs(count["difference"]) < count["rounding"]
    else:
        assert count["counted"] == COUNTED[name]
    assert data["model"]["layers"] == [layer.model_dump() for layer in load_model(f"{name}.yaml").layers]
    assert set(data) == {"schema_version", "family", "model", "output", "parameters", "ignored"}
    assert set(data["ignored"]) == {"changes_cost", "unknown", "no_cost"}


def test_a_model_is_printed_or_written_with_what_was_not_used(run, config, folder):
    done = run("import-hf", "config.json")
    assert done.code == 0
    (folder / "printed.yaml").write_text(done.out)
    assert load_model("printed.yaml").dimensions["f"] == 14336
    assert "dsx: 8,030,261,248 parameters, as published (model card of Meta-Llama-3-8B)\n" in done.err
    assert "  initial values: initializer_range\n" in done.err
    assert {file.name for file in folder.iterdir()} == {"config.json", "printed.yaml", "small.yaml", "sweep.yaml"}
    # Into a file that other verbs take.
    done = run("import-hf", "config.json", "-o", "llama.yaml")
    assert (done.code, done.err) == (0, "dsx: wrote llama.yaml\n")
    assert done.out.startswith("llama, of the family llama: e=4096 h=32 g=8 k=128 f=14336 v=128256\n")
    assert load_model("llama.yaml").name == "llama"
    assert run("layer", "transformer", "--model", "llama.yaml").out.startswith("transformer[gated rotary] under 1d;")
    # What changes the cost is said first.
    data = json.loads(config.read_text()) | {"quantization_config": {"bits": 8}, "quantum_layers": 3}
    config.write_text(json.dumps(data))
    out = run("import-hf", "config.json", "-o", "quantum.yaml").out
    costs = out.index("not used, though it changes the cost:\n  quantization_config: weights in fewer bits")
    unknown = out.index("not used, and not known whether it changes the cost:\n  quantum_layers: 3\n")
    assert costs < unknown < out.index("not used, and without effect on the cost:\n")


def test_a_count_that_is_not_the_published_one(run, config, folder):
    data = json.loads(config.read_text()) | {"tie_word_embeddings": True}
    config.write_text(json.dumps(data))
    done = run("import-hf", "config.json", "-o", "tied.yaml")
    fewer = 128256 * 4096
    assert f"{8_030_261_248 - fewer:,} parameters, {fewer:,} (6.54 %) fewer than the published" in done.out
    data |= {"num_hidden_layers": 16}
    config.write_text(json.dumps(data))
    assert (
        "parameters, unchecked: no published total is known\n" in run("import-hf", "config.json", "-o", "half.yaml").out
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": None}, "config.json:10: hidden_size: is required, but missing\n"),
    ],
)
def test_nothing_is_written_on_an_error(run, config, folder, changes, says):
    config.write_text(json.dumps(json.loads(config.read_text()) | changes, indent=2))
    before = {file.name for file in folder.iterdir()}
    for output in ((), ("-o", "out.yaml"), ("-o", "out.yaml", "--json")):
        done = run("import-hf", "config.json", *output)
        assert (done.code, done.out) == (2, "")
        assert says in done.err
        assert "Traceback" not in done.err
    assert {file.name for file in folder.iterdir()} == before


def test_a_family_of_ones_own(run, config, folder, monkeypatch):
    (folder / "own" / "families").mkdir(parents=True)
    own = "extends: llama\nsource: mine\nkeys: {intermediate_size: {holds: count, default: 3 * hidden_size}}\n"
    (folder / "own" / "families" / "mine.yaml").write_text(own)
    monkeypatch.setenv("DSX_PATH", str(folder / "own"))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "mine", "intermediate_size": None}))
    done = run("import-hf", "config.json", "-o", "mine.yaml")
    assert done.code == 0
    assert load_model("mine.yaml").dimensions["f"] == 3 * 4096
    (folder / "own" / "families" / "mine.yaml").write_text(f"{own}default_sequence_length: max_lenght\n")
    done = run("import-hf", "config.json")
    assert (done.code, done.out) == (2, "")
    assert "own/families/mine.yaml:1: 'max_lenght' reads 'max_lenght', which is not one of 'keys'" in done.err
