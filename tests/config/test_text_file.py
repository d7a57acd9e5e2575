"""Texts come in with a bound, in UTF-8, and without half characters: in YAML, in JSON and on the command line."""

import json
from pathlib import Path

import pytest

from dsx.config.documents import load_document, load_json, parse_json, parse_value, read_text, whole_characters
from dsx.errors import SpecError


def test_a_text_of_the_most_characters_is_read_and_a_longer_one_refused(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("é" * 20)
    assert read_text(file, 20) == "é" * 20
    with pytest.raises(SpecError, match=r"a\.yaml: has more than 19 characters, the limit for a file"):
        read_text(file, 19)


def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(SpecError, match="/dev/zero: has more than 20,000,000 characters"):
        load_document(Path("/dev/zero"))


def test_pairs_are_put_together_and_halves_refused():
    assert whole_characters("a\ud83d\ude00 é") == "a\U0001f600 é"
    with pytest.raises(ValueError, match=r"has half a character, \\ude00"):
        whole_characters("\U0001f600\ude00")


@pytest.mark.parametrize("half", [r'"\ud800"', r'"x\udfff"', r'"\ud800": 1, "b"'])
def test_half_a_character_is_refused_where_it_is_read(tmp_path, half):
    yaml, data = tmp_path / "a.yaml", tmp_path / "a.json"
    yaml.write_text("name: b\nlist: [{" + (half if ":" in half else f"a: {half}") + "}]\n")
    with pytest.raises(SpecError, match=r"a.yaml:2: .* has half a character"):
        load_document(yaml)
    data.write_text('{"list": [{' + (half + ": 1" if ":" in half else f'"a": {half}') + "}]}")
    with pytest.raises(SpecError, match=r"a.json: list\.0: .* has half a character"):
        load_json("table", str(data))


def test_an_escaped_pair_is_its_character_in_yaml_as_in_json(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps({"name": "\U0001f600"}))
    assert "\\ud83d" in file.read_text()
    assert load_document(file).data == load_json("text", str(file)).data == {"name": "\U0001f600"}


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
