"""Text files, tables of cells, and what kind of document a file is."""

import json
from pathlib import Path

import pytest
from verbs.small import MODEL, SWEEP

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import ClusterSpec, load_cluster
from dsx.config.documents import (
    CsvFormat,
    load_document,
    load_json,
    merged,
    parse_json,
    parse_value,
    read_csv,
    read_text,
    stated_in_code,
    whole_characters,
    whole_number,
)
from dsx.config.framework_file import FrameworkSpec
from dsx.config.load import statements
from dsx.config.model_file import ModelSpec, load_model
from dsx.config.schema import wrong_kind
from dsx.config.search_path import names
from dsx.config.stack import StackSpec
from dsx.config.sweep_file import SweepSpec
from dsx.errors import OperatorTimesError, SpecError


def test_texts_have_a_most_length_and_whole_characters(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("é" * 20)
    assert read_text(file, 20) == "é" * 20
    with pytest.raises(SpecError, match=r"a\.yaml: has more than 19 characters, the limit for a file"):
        read_text(file, 19)
    # A file without end is not read to its end.
    with pytest.raises(SpecError, match="/dev/zero: has more than 20,000,000 characters"):
        load_document(Path("/dev/zero"))
    # Pairs are put together and halves refused.
    assert whole_characters("a\ud83d\ude00 é") == "a\U0001f600 é"
    with pytest.raises(ValueError, match=r"has half a character, \\ude00"):
        whole_characters("\U0001f600\ude00")
    # An escaped pair is its character in yaml as in json.
    file.write_text(json.dumps({"name": "\U0001f600"}))
    assert "\\ud83d" in file.read_text()
    assert load_document(file).data == load_json("text", str(file)).data == {"name": "\U0001f600"}


@pytest.mark.parametrize("half", [r'"\ud800"', r'"x\udfff"', r'"\ud800": 1, "b"'])
def test_half_a_character_is_refused_where_it_is_read(tmp_path, half):
    yaml, data = tmp_path / "a.yaml", tmp_path / "a.json"
    yaml.write_text("name: b\nlist: [{" + (half if ":" in half else f"a: {half}") + "}]\n")
    with pytest.raises(SpecError, match=r"a.yaml:2: .* has half a character"):
        load_document(yaml)
    data.write_text('{"list": [{' + (half + ": 1" if ":" in half else f'"a": {half}') + "}]}")
    with pytest.raises(SpecError, match=r"a.json: list\.0: .* has half a character"):
        load_json("table", str(data))


@pytest.mark.parametrize("text", ["b\udcff", "[a, '\udcff']", "'\udcff'"])
def test_bytes_of_the_command_line_that_are_no_text_are_refused(text):
    with pytest.raises(SpecError, match=r"^--set model.name: .* has half a character, \\udcff"):
        parse_value(text, "--set model.name")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": ' + "9" * 5000 + "}", "a.json: is not JSON that can be read"),
        ('{"a": ' + "[" * 100_000, "a.json: lists and objects are nested too deeply"),
        ('{"a": 1,}', "a.json:1:9: is not JSON"),
    ],
)
def test_what_is_no_json_is_refused(text, says):
    with pytest.raises(SpecError, match=says):
        parse_json(text, "a.json")


FORM = CsvFormat("a list begins", OperatorTimesError, ("name", "size"), ("colour",), comment="#")


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "list.csv").write_text(text, encoding="utf-8")
        return read_csv(tmp_path / "list.csv", "list.csv", FORM)

    return read


def test_cells_come_by_column_and_misspelt_ones_are_refused(read):
    table = read('\ufeff# mine\n\nsize, name ,other\n1,"a\nb",x\n 2 ,c,\n')
    assert (table.header.place, list(table.header.cells)) == ("list.csv:3", ["size", "name", "other"])
    assert [(row.line, row.place) for row in table.rows] == [(4, "list.csv:4"), (6, "list.csv:6")]
    assert table.rows[1].cells == {"size": "2", "name": "c", "other": ""}
    # A misspelt column is refused.
    assert read("name,size,flavour\na,1,x\n").rows
    with pytest.raises(OperatorTimesError, match=r"^list\.csv:1: column 'color' is not known; did you mean 'colour'\?"):
        read("name,size,color\na,1,x\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n# nothing\n", "list.csv:1: is empty: a list begins with the names of its columns"),
        ("name,size\n", "list.csv: has no rows below its header"),
        ("name,size\na,1\nb\n", "list.csv:3: has 1 cell, but the header has 2 columns"),
        (
            ",".join(f"c{index}" for index in range(100_000)),
            "list.csv:1: has 100,000 columns; at most 1,000 are allowed",
        ),
        ("name,size\n" + "a,1\n" * 200_001, "list.csv:200002: has more than 200,000 rows, the limit for a table"),
        ('name,size\n"a,1\n', "list.csv: is not a CSV file in UTF-8: unexpected end of data"),
    ],
)
def test_what_is_no_table(read, text, says):
    with pytest.raises(OperatorTimesError) as error:
        read(text)
    assert str(error.value) == says


def test_whole_numbers_are_in_bounds_and_lines_end(tmp_path):
    assert (whole_number("1e3"), whole_number("0", 0)) == (1000, 0)
    for text in ("0", "2.5", "3000000000"):
        with pytest.raises(ValueError, match="is not a whole number from 1 to 2147483647"):
            whole_number(text)
    # A line without end.
    path = tmp_path / "endless.csv"
    with path.open("wb") as file:
        file.truncate(60_000_000)
    with pytest.raises(OperatorTimesError, match="has more than 50,000,000 characters"):
        read_csv(path, "endless.csv", FORM)


SPECS = {
    "models": ModelSpec,
    "clusters": ClusterSpec,
    "assumptions": AssumptionsSpec,
    "frameworks": FrameworkSpec,
    "stacks": StackSpec,
}
SWEEPS = Path(__file__).parents[2] / "sweeps"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096}


def packaged(kind):
    """Some documents of a kind, whole."""
    if kind == "sweeps":
        return [load_document(file) for file in sorted(SWEEPS.glob("*.yaml"))[:3]]
    return [merged(statements(SPECS[kind], name)) for name in names(kind, ".yaml")[:3]]


@pytest.mark.parametrize("kind", [*SPECS, "sweeps"])
def test_packaged_documents_are_of_their_kind_and_of_no_other(kind):
    own = (SPECS | {"sweeps": SweepSpec})[kind]
    for document in packaged(kind):
        assert wrong_kind(document, own) == ""
        for other in {*SPECS.values(), SweepSpec} - {own}:
            assert ": is a" in wrong_kind(document, other)


@pytest.mark.parametrize("wanted", [*SPECS.values(), SweepSpec])
def test_a_config_of_hugging_face_is_told(wanted):
    said = wrong_kind(stated_in_code(CONFIG, "some/Qwen3 32B.json:1"), wanted)
    assert said.startswith("some/Qwen3 32B.json: is a config of Hugging Face, no ")
    assert "dsx import-hf 'some/Qwen3 32B.json' -o 'qwen3 32b.yaml' makes a model of it" in said
    assert "dsx import-hf config.json -o config.yaml" in wrong_kind(stated_in_code(CONFIG, "model"), wanted)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {key: MODEL[key] for key in ("name", "source", "layers", "dimensions")},
            "default_sequence_length: is required",
        ),
        (MODEL | SWEEP, "num_gpus: unknown key"),
        (MODEL | CONFIG, "model_type: unknown key"),
        ({"name": "small"}, "dimensions: is required"),
        ({"name": "small", "price": "2 USD/h"}, "price: unknown key"),
    ],
)
def test_a_model_with_faults_keeps_their_messages(content, says):
    with pytest.raises(SpecError, match=f"model: {says}"):
        load_model(content)


def test_what_extends_another_kind_is_of_that_kind(tmp_path):
    file = tmp_path / "ours.yaml"
    file.write_text("extends: h100-nvs8\nname: ours\nprice: 2.5 USD/h\n")
    said = "ours.yaml: extends h100-nvs8, a cluster, so it is one too: give it to --cluster"
    for load in (load_model, load_assumptions):
        with pytest.raises(SpecError, match=said):
            load(file)
    assert wrong_kind(load_document(file), SweepSpec).endswith(said)
    assert load_cluster(file).price
    file.write_text("extends: h100-nvs9\nname: ours\n")
    with pytest.raises(SpecError, match="unknown model 'h100-nvs9'"):
        load_model(file)
