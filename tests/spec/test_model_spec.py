"""Model files: what they hold, and that all faults are listed at once with line and nearest name."""

import pytest

from dsx.errors import SpecError, UnknownNameError
from dsx.spec.model import LayerCount, ModelSpec, load_model

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


def test_overrides_are_set_and_optional_fields_may_be_added(tmp_path):
    file = write(tmp_path, GOOD)
    model = load_model(file, [("dimensions.e", "128"), ("layers.0.count", "1e1"), ("description", "wide")])
    assert (model.dimensions["e"], model.layers[0].count, model.description) == (128, 10, "wide")
    with pytest.raises(SpecError, match=r"--set model\.dimensions\.x: unknown path"):
        load_model(file, [("dimensions.x", "1")])
    with pytest.raises(SpecError, match=r"--set model\.dimensions\.e: dimensions\.e: 'x' is not a finite number"):
        load_model(file, [("dimensions.e", "x")])


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
        "tiny.yaml:5: dimensions.b: 'b' is the microbatch_size, a choice of the plan: it is no dimension",
        "tiny.yaml:6: dimensions.s: 's' is the sequence_length, a training setting: it is no dimension",
        "tiny.yaml:7: dimensions.k head: 'k head' is no name in the layer notation",
        "tiny.yaml:8: dimensions.f: 2.5 is not a whole number",
        "tiny.yaml:10: layers.0.count: is required, but missing",
        "tiny.yaml:10: layers.0.cuont: unknown key; did you mean 'count'? (known: kind, count)",
    ]
    assert len(lines) == len(wanted)
    for text in wanted:
        assert any(text in line for line in lines), (text, lines)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{e: 64, h: 4, g: 4, k: 16, f: 256}", "{}", "dimensions: has no entries, and at least 1 is wanted"),
        (
            "{e: 64, h: 4, g: 4, k: 16, f: 256}",
            "[64]",
            "dimensions: input should be a valid dictionary, got [64]",
        ),
        (
            "{kind: head, count: 1}",
            "head",
            "tiny.yaml:7: layers.1: expected a section with the keys kind, count, got 'head'",
        ),
        (
            "{kind: head, count: 1}",
            "{kind: head, count: 0}",
            "layers.1.count: 0 is not a whole number from 1",
        ),
        ("{value: 1000, source: counted}", "1 GB", "parameters: '1 GB' is not a finite number"),
    ],
)
def test_faults_inside_sections(tmp_path, old, new, says):
    with pytest.raises(SpecError) as caught:
        load_model(write(tmp_path, GOOD.replace(old, new)))
    assert says in str(caught.value)


def test_an_unknown_model_names_the_nearest():
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
    assert last == "... and 14,960 more faults"
