"""YAML: places are kept, the traps of YAML 1.1 are gone, and every bad file is an error with its place."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.config.documents import load_document, parse_value
from dsx.errors import SpecError


def load(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_document(file)


def test_data_and_the_line_of_every_key_path(tmp_path):
    document = load(tmp_path, "a: 1\nb:\n  c: [x,\n    {d: y}]\n")
    assert document.data == {"a": 1, "b": {"c": ["x", {"d": "y"}]}}
    lines = {path: int(place.rsplit(":", 1)[1]) for path, place in document.places.items()}
    assert lines == {
        (): 1, ("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 3, ("b", "c", 1): 4, ("b", "c", 1, "d"): 4,
    }  # fmt: skip
    assert document.place(("b", "absent", "deeper")).endswith("a.yaml:2")
    # Keys are text and aliases are followed.
    assert load(tmp_path, "no: &x {1: 2}\nb: *x\n").data == {"no": {"1": 2}, "b": {"1": 2}}
    # A folder and an absent file are refused.
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load_document(tmp_path)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_document(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e12", 1e12),
        ("12:30", "12:30"),
        ("no", "no"),
        ("none", "none"),
        ("010", 10),
        ("1_000", 1000),
        ("2024-10-02", "2024-10-02"),
        ("1f1b", "1f1b"),
        ("'1e12'", "1e12"),
        ("true", True),
        ("~", None),
        ("", None),
        (".inf", ".inf"),
        ("&n 3", 3),
    ],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path, text, value):
    assert load(tmp_path, f"a: {text}\n").data == {"a": value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a.yaml:1: the file is empty"),
        ("# only a comment\n", "a.yaml:1: the file is empty"),
        ("- 1\n", "a.yaml:1: expected keys and values"),
        ("just text\n", "a.yaml:1: expected keys and values"),
        ("a: 1\nb: [1, 2\nc: 3\n", "but got ':' (while parsing a flow sequence that begins at 2:4)"),
        (
            'a: "1\nb: 2\n',
            "a.yaml:3:1: found unexpected end of stream (while scanning a quoted scalar that begins at 1:4)",
        ),
        ("a:\n\tb: 2\n", "a.yaml:2:1: found character '\\t' that cannot start any token; lines are indented by spaces"),
        ("a: b: c\n", "a.yaml:1:5: mapping values are not allowed here"),
        ("limit: {tp: >=2}\n", "needs quotes"),
        ("limit:\n  tp: >=2\n", "needs quotes"),
        (
            "a: 1\n---\nb: 2\n",
            "a.yaml:2:1: expected a single document in the stream at 1:1, but found another document",
        ),
        ("a: &x 1\nb: &x 2\n", "a.yaml:2:4: found duplicate anchor 'x'; first occurrence at 1:4, second occurrence"),
        ("a: !mine {b: 1}\n", "a.yaml:1: the tag '!mine' is not supported"),
        (
            "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '1'] * 10)}]" for i in range(7)),
            "through aliases",
        ),
        ("a: *nowhere\n", "a.yaml:1:4: "),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: the key 'a' is given twice; first at"),
        ("a:\n  b: {c: 1, c: 2}\n", "a.yaml:2: the key 'c' is given twice"),
        ("[1, 2]: 3\n", "a.yaml:1: a key must be a string"),
        ("a: &x [*x]\n", "a.yaml:1: an alias refers to a part that contains it"),
        ("a: !mine 3\n", "a.yaml:1: the tag '!mine' of '3' is not supported"),
        ("a: !!python/object:os.system 3\n", "is not supported"),
        ("a: !!int x\n", "a.yaml:1: 'x' is not a finite number"),
        ("a: !!bool maybe\n", "is not supported"),
        ("a: 1e999\n", "a.yaml:1: '1e999' is not a finite number"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: " + "[" * 60 + "]" * 60, "nested too deeply"),
        ("b: 1\na: \x07\n", "a.yaml:2: the character 0x7 cannot stand in YAML"),
        (b"a: \xff\n", "a.yaml: is not UTF-8 text (byte 3)"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(tmp_path, text, says):
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("141 GB", "141 GB"),
        (" 1e12 ", 1e12),
        ("64", 64),
        ("[1, 2]", [1, 2]),
        ("{top: 3}", {"top": 3}),
        ("'64'", "64"),
        (">=2", ">=2"),
        ("a: b # c", "a: b # c"),
        ("none", "none"),
        ("null", None),
    ],
)
def test_values_of_the_command_line(text, value):
    assert parse_value(text, "--set x") == value


@pytest.mark.parametrize("text", ["", "  ", "[1,", "{a: 1, a: 2}", "1e999", "'x' y"])
def test_bad_values_name_the_option(text):
    with pytest.raises(SpecError, match=r"^--set x"):
        parse_value(text, "--set x")


@given(text=st.text(max_size=40))
def test_no_text_escapes_as_another_error(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="replace", newline="")
    try:
        load_document(file)
        parse_value(text, "--set x")
    except SpecError:
        pass


STATED_S = 2.0  # of processor time, within which a text is read or refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "a: [" + "1, " * 250_000 + "1]\n",
            "a.yaml:1: there are more than 200,000 keys and values, counted through aliases",
        ),
        ("".join(f"k{index}: {index}\n" for index in range(50_000)) + "a: [\n", "a.yaml:50002:1: "),
        ("a: " + "[" * 1_000_000, "a.yaml:1: lists and mappings are nested too deeply"),
        ("".join(" " * level + f"a{level}:\n" for level in range(1000)), "nested too deeply"),
        ("? " * 100_000 + "a\n", "nested too deeply"),
        ("a: " + "1" * 1_000_000, "is not a finite number"),
        ("a: !!float " + "1" * 1_000_000 + "x", "is not a finite number"),
    ],
)
def test_a_long_bad_text_is_refused_soon(tmp_path, text, says):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    begun = time.process_time()
    with pytest.raises(SpecError) as caught:
        load_document(file)
    assert time.process_time() - begun < 2 * STATED_S  # of machines half as fast
    assert says in str(caught.value)
