"""Model files: what they hold, and that all faults are listed at once with line and nearest name."""

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import LayerCount, LayerKind, ModelSpec, load_model
from dsx.errors import InputError, SpecError, UnknownNameError
from dsx.notation.model import build_model

GOOD = """name: tiny
source: a test
default_sequence_length: 128
dimensions: {e: 64, h: 4, g: 4, k: 16, f: 256}
layers:
  - {kind: transformer, count: 2}
  - {kind: head, count: 1}
parameters: {value: 1000, source: counted}
"""


def write(tmp_path, text):
    file = tmp_path / "tiny.yaml"
    file.write_text(text)
    return file


def test_a_model_is_read_by_path_and_by_name(tmp_path):
    file = write(tmp_path, GOOD)
    model = load_model(file)
    assert model.dimensions == {"e": 64, "h": 4, "g": 4, "k": 16, "f": 256}
    assert model.layers == [LayerCount(kind="transformer", count=2), LayerCount(kind="head", count=1)]
    assert model.parameters == 1000
    assert load_model("tiny", near=tmp_path / "sweep.yaml") == model
    assert ModelSpec.model_validate(model.model_dump(mode="json")) == model


def test_what_a_model_sets_of_a_layer(tmp_path):
    entry = "{kind: transformer, options: [rotary, shared], attention: latent-attention, ffn: experts}"
    layers = load_model(write(tmp_path, GOOD.replace("{kind: transformer, count: 2}", entry))).layers
    assert layers[0].layer == LayerKind(
        "transformer", frozenset({"rotary", "shared"}), (("attention", "latent-attention"), ("ffn", "experts"))
    )
    assert str(layers[0].layer) == "transformer[rotary shared attention=latent-attention ffn=experts]"
    assert (layers[0].count, str(layers[1].layer)) == (1, "head")


def test_a_pattern_is_a_shorter_way_to_write_a_sequence(tmp_path):
    entries = ["{kind: transformer, options: [window], count: 3}", "{kind: transformer, ffn: experts}"]
    start, end = GOOD.split("  - {kind: transformer, count: 2}\n")
    pattern = "  - repeat: 2\n    layers:\n" + "".join(f"      - {entry}\n" for entry in entries)
    repeated = load_model(write(tmp_path, start + pattern + end))
    written = load_model(write(tmp_path, start + "".join(f"  - {entry}\n" for entry in 2 * entries) + end))
    assert (len(repeated.layers), len(written.layers)) == (2, 5)
    assert repeated.sequence == written.sequence == written.layers
    assert [entry.count for entry in repeated.sequence] == [3, 1, 3, 1, 1]
    assert ModelSpec.model_validate(repeated.model_dump(mode="json")) == repeated
    changes = [("layers.0.repeat", "4"), ("layers.0.layers.0.options", "[full]"), ("layers.0.layers.1.ffn", "mine")]
    changed = load_model(write(tmp_path, start + pattern + end), changes).sequence
    assert [str(entry.layer) for entry in changed] == ["transformer[full]", "transformer[ffn=mine]"] * 4 + ["head"]


def test_overrides_are_set_and_optional_fields_may_be_added(tmp_path):
    file = write(tmp_path, GOOD)
    model = load_model(file, [("dimensions.e", "128"), ("layers.0.count", "1e1"), ("description", "wide")])
    assert (model.dimensions["e"], model.layers[0].count, model.description) == (128, 10, "wide")
    with pytest.raises(SpecError, match=r"--set model\.dimensions\.x: unknown path"):
        load_model(file, [("dimensions.x", "1")])
    with pytest.raises(
        SpecError, match=r"--set model\.dimensions\.e: dimensions\.e: 'x' is not a whole number, as in 512"
    ):
        load_model(file, [("dimensions.e", "x")])


def test_a_model_may_say_which_weights_are_trained(tmp_path):
    file = write(tmp_path, GOOD)
    assert load_model(file).trained == ["*"]
    assert "trained" not in load_model(file).model_dump(mode="json")  # so that files of models are as they were
    for written, read in (("head.*", ["head.*"]), ("[wo, 'gamma*']", ["wo", "gamma*"]), ("[]", [])):
        model = load_model(file, [("trained", written)])
        assert model.trained == load_model(write(tmp_path, f"{GOOD}trained: {written}\n")).trained == read
        assert ModelSpec.model_validate(model.model_dump(mode="json")) == model
        file = write(tmp_path, GOOD)


def test_all_faults_are_listed_with_line_path_and_nearest_name(tmp_path):
    file = write(
        tmp_path,
        """name: 7
default_sequence_lenght: 128
dimensions:
  e: 64
  b: 2
  s: 3
  k head: 4
  f: 2.5
layers:
  - {kind: transformer, cuont: 2}
""",
    )
    with pytest.raises(SpecError) as caught:
        load_model(file)
    lines = str(caught.value).splitlines()
    wanted = [
        "tiny.yaml:1: name: input should be a valid string, got 7",
        "tiny.yaml:1: source: is required, but missing",
        "tiny.yaml:1: default_sequence_length: is required, but missing",
        "tiny.yaml:2: default_sequence_lenght: unknown key; did you mean 'default_sequence_length'? (known: ",
        "tiny.yaml:5: dimensions.b: 'b' is the microbatch_size, a choice of the plan, not a dimension of the model",
        "tiny.yaml:6: dimensions.s: 's' is the sequence_length, a training setting, not a dimension of the model",
        "tiny.yaml:7: dimensions.k head: 'k head' is not a name of the layer notation",
        "tiny.yaml:8: dimensions.f: 2.5 is not a whole number",
        "tiny.yaml:10: layers.0: 'cuont' is not a key of a layer; did you mean 'count'? (known: kind, options, "
        "count); a block parameter, as in 'ffn: experts', names a block, not 2",
    ]
    assert len(lines) == len(wanted)
    for text in wanted:
        assert any(text in line for line in lines), (text, lines)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{e: 64, h: 4, g: 4, k: 16, f: 256}", "{}", "dimensions: has no entries, but at least 1 is needed"),
        ("{e: 64, h: 4, g: 4, k: 16, f: 256}", "[64]", "dimensions: expected keys and values, got [64]"),
        (
            "{kind: head, count: 1}",
            "head",
            "tiny.yaml:7: layers.1: expected a section with the keys kind, options, blocks, count, got 'head'",
        ),
        ("{kind: head, count: 1}", "{kind: head, count: 0}", "layers.1.count: 0 is not a whole number from 1"),
        (
            "{kind: head, count: 1}",
            "{kind: head, options: tied}",
            "tiny.yaml:7: layers.1.options: expected a list, as in",
        ),
        ("{kind: head, count: 1}", "{kind: head, ffn: [experts]}", "names a block, not ['experts']"),
        (
            "{kind: head, count: 1}",
            "{kind: embedding, options: [learned_positions], positions: 1024}",
            "'positions' is not a key of a layer: the model states sizes, as in dimensions: {positions: 1024}",
        ),
        (
            "{kind: head, count: 1}",
            "{repeat: 3, layers: [{kind: head, cuont: 1}]}",
            "tiny.yaml:7: layers.1.layers.0: 'cuont' is not a key of a layer; did you mean 'count'?",
        ),
        (
            "{kind: head, count: 1}",
            "{repeat: 3, layers: []}",
            "layers.1.layers: has no entries, but at least 1 is needed",
        ),
        (
            "{kind: head, count: 1}",
            "{repeat: 0, layers: [{kind: head}]}",
            "layers.1.repeat: 0 is not a whole number from 1",
        ),
        ("{kind: head, count: 1}", "{repeat: 3}", "tiny.yaml:7: layers.1.layers: is required, but missing"),
        (
            "{kind: head, count: 1}",
            "{repeat: 3, layers: [{repeat: 2, layers: [{kind: head}]}]}",
            "tiny.yaml:7: layers.1.layers.0",
        ),
        (
            "{kind: head, count: 1}",
            "{repeat: 60000, layers: [{kind: head}, {kind: head}]}",
            "layers: expanded patterns have 120,000 entries; at most 100,000",
        ),
        ("{value: 1000, source: counted}", "1 GB", "parameters: '1 GB' is not a whole number, as in 512"),
    ],
)
def test_faults_inside_sections(tmp_path, old, new, says):
    with pytest.raises(SpecError) as caught:
        load_model(write(tmp_path, GOOD.replace(old, new)))
    assert says in str(caught.value)


def test_a_misspelt_extends_or_model_is_named():
    with pytest.raises(SpecError, match="model: extend: unknown key; did you mean 'extends'"):
        load_model({"extend": "llama-3-8b", "name": "mine"})
    # An unknown model names the nearest.
    with pytest.raises(UnknownNameError, match="unknown model 'gpt3-175'; did you mean 'gpt3-175b'"):
        load_model("gpt3-175")


def test_of_many_faults_the_first_ones_are_listed(tmp_path):
    file = tmp_path / "a.yaml"
    text = "name: a\nsource: b\ndefault_sequence_length: 1\ndimensions: {e: 1}\nlayers:\n"
    file.write_text(text + "  - {kinde: transformer, count: 0}\n" * 5_000)
    with pytest.raises(SpecError) as caught:
        load_model(file)
    *faults, last = str(caught.value).split("\n")
    assert len(faults) == 40
    assert "layers.0.kind: is required, but missing" in faults[0]
    assert last == "... and 9,960 more faults"


BUILT = GOOD.replace("  - {kind: head, count: 1}\n", "")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            "{kind: transformer, options: [rotary, gatd]}",
            "layer 'transformer[gatd rotary]' of model 'tiny': unknown option 'gatd'; did you mean 'gated'? (known: ",
        ),
        (
            "{kind: transformer, fnn: experts}",
            "layer 'transformer[fnn=experts]' of model 'tiny': unknown block parameter 'fnn'; did you mean 'ffn'? ("
            "known: attention, core, ffn) to be 'experts'",
        ),
        (  # the default block knows it, the one that is set does not
            "{kind: transformer, options: [gated], ffn: experts}",
            "layer 'transformer[gated ffn=experts]' of model 'tiny': unknown option 'gated'",
        ),
        ("{kind: transformer, ffn: expert}", "layer 'transformer[ffn=expert]' of model 'tiny': "),
        ("{kind: transformer, options: [window, full]}", "layer 'transformer[full window]' of model 'tiny': "),
    ],
)
def test_settings_that_no_layer_knows(tmp_path, entry, says):
    model = load_model(write(tmp_path, BUILT.replace("{kind: transformer, count: 2}", entry)))
    with pytest.raises(InputError) as caught:
        build_model(model, load_assumptions("default"), "1d")
    assert says in str(caught.value)
