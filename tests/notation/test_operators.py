"""Operator tables: what is read, what is an error, and that they know no mesh."""

import re

import pytest
import yaml
from notation.definitions import derived, kernel, number

from dsx.config.search_path import packaged_data
from dsx.errors import SpecError, UnknownNameError
from dsx.notation.library import load_operators
from dsx.notation.operators import load_tables

TABLES = sorted((packaged_data() / "operators").glob("*.yaml"))
LAYER = "layer a\ninput x[b, s, e]\ny[b, s, e] = {op}(x)"
SIZES = {"b": 2, "s": 3, "e": 5}


@pytest.fixture
def table(tmp_path):
    def write(text, name="t.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("f: 3\n", 1, ["f: expected a mapping", "found 3"]),
        ("f:\n  shape: same\n", 1, ["f: an operator must name its arguments, as in 'arguments: [x]'"]),
        ("f:\n  arguments: x\n", 2, ["f.arguments: expected a list, found 'x'"]),
        ("f:\n  arguments: [1]\n", 1, ["f: an operator must name its arguments"]),
        ("f:\n  arguments: [x]\n  foward: {vector: 1}\n", 3, ["f.foward: no such field", "did you mean 'forward'?"]),
        ("f:\n  arguments: [x]\n  forward: {vectr: 1}\n", 3, ["f.forward.vectr: no such field", "'vector'"]),
        ("f:\n  arguments: [x]\n  forward: 4\n", 3, ["f.forward: expected a mapping of matrix, vector, bytes"]),
        ("f:\n  arguments: [x]\n  forward:\n    vector: 4 *\n", 4, ["f.forward.vector: '4 *' is not an expression"]),
        ("f:\n  arguments: [x]\n  forward: {vector: 1.5}\n", 3, ["is not an expression", "unexpected character '.'"]),
        ("f:\n  arguments: [x]\n  forward: {vector: }\n", 3, ["no quantity 'None'"]),
        ("f:\n  arguments: [x]\n  forward: {vector: size(z)}\n", 3, ["size(z): no such argument or result"]),
        ("f:\n  arguments: [x]\n  forward: {vector: size(dx)}\n", 3, ["size(dx): no such argument or result"]),
        ("f:\n  arguments: [x]\n  forward: {vector: sise(x)}\n", 3, ["unexpected '('"]),
        ("f:\n  arguments: [x]\n  forward: {vector: size(x) / tp}\n", 3, ["no quantity 'tp'", "contracted, panels"]),
        ("f:\n  arguments: [x]\n  forward: {vector: panel}\n", 3, ["no quantity 'panel'", "did you mean 'panels'?"]),
        ("f:\n  arguments: [x]\n  saved: [z]\n", 3, ["f.saved.0: 'z' is neither an argument nor y"]),
        ("f:\n  arguments: [x]\n  saved: x\n", 3, ["f.saved: expected a list"]),
        ("f:\n  arguments: [x]\n  saved: [{byte: 1}]\n", 3, ["no such field", "did you mean 'bytes'?"]),
        ("f:\n  arguments: [x]\n  saved: [{}]\n", 3, ["f.saved.0: the field 'bytes' is missing"]),
        (
            "f:\n  arguments: [x]\n  shape: sum\n",
            3,
            ["f.shape: 'sum' is not one of same, contract, lookup, view, free"],
        ),
        ("f:\n  arguments: [x]\n  linear: yes\n", 3, ["f.linear: 'yes' is not one of none, each, one"]),
        ("f:\n  arguments: [x]\n  statistics: two\n", 3, ["f.statistics: expected a count, found 'two'"]),
        ("f:\n  arguments: [x]\n  rearranges: 1\n", 3, ["f.rearranges: expected true or false, found 1"]),
        ("f:\n  arguments: [x]\n  work: {half: 2}\n", 3, ["f.work.half: expected 'modifier: [numerator"]),
        ("f:\n  arguments: [x]\n  work: {half: [1, 0]}\n", 3, ["f.work.half: expected"]),
        ("f:\n  arguments: [x]\n  work: [1, 2]\n", 3, ["expected 'modifier: [numerator, denominator]'"]),
        ("f:\n  arguments: [x]\n  panels: {forward: {vector: 1}}\n", 3, ["f.panels: the field 'gradient' is missing"]),
        ("f:\n  arguments: [x]\n  in_kernel: {keep: true}\n", 3, ["f.in_kernel.keep: no such field"]),
        ("f:\n  arguments: [x]\nf:\n  arguments: [x]\n", 3, ["the key 'f' is given twice"]),
        ("- f\n", 1, ["expected keys and values"]),
        ("", 1, ["empty"]),
    ],
)
def test_errors_name_the_field_and_its_line(table, text, line, words):
    with pytest.raises(SpecError) as caught:
        load_tables([table(text)])
    message = str(caught.value)
    assert re.search(rf"t\.yaml:{line}\b", message), message
    for word in words:
        assert word in message


def test_a_later_table_replaces_single_operators(table):
    first = table("f:\n  arguments: [x]\n  forward: {vector: size(x)}\ng:\n  arguments: [x]\n", "first.yaml")
    later = table("f:\n  arguments: [x]\n  forward: {vector: 7 * size(x)}\n", "later.yaml")
    for tables, each in (([first], 1), ([first, later], 7), ([later, first], 1)):
        kinds = load_tables(tables)
        assert set(kinds) == {"f", "g"}
        layer = derived(LAYER.format(op="f"), table=kinds)
        assert number(layer, kernel(layer, "y").work[0].vector, **SIZES) == each * 30
    # A replaced operator keeps nothing of the first.
    first = table("f:\n  arguments: [x]\n  backward: {vector: size(x)}\n  saved: [x]\n", "first.yaml")
    later = table("f:\n  arguments: [x]\n", "later.yaml")
    layer = derived(LAYER.format(op="f"), table=load_tables([first, later]))
    assert (layer.kernels[0].work[1].vector, layer.kernels[0].saved) == (0, ())
    # Unknown table.
    with pytest.raises(UnknownNameError, match=r"'standrd'; did you mean 'standard'\?"):
        load_operators(["standrd"])


def test_a_user_operator_in_every_function_of_a_table(table):
    kinds = load_tables(
        [
            table(
                "mine:\n  arguments: [x, 'z?']\n  saved: [x, {bytes: 3 * rows(x)}]\n"
                "  forward: {matrix: last(x) * 2, vector: size(y), bytes: bytes(x) + bytes(y) + weight_bytes}\n"
                "  backward: {bytes: 'max(bytes(dy), 7) % 100 - activation_bytes / 2'}\n"
            )
        ]
    )
    layer = derived(LAYER.format(op="mine"), table=kinds)
    (only,) = layer.kernels
    forward, backward = ([number(layer, v, **SIZES) for v in (w.matrix, w.vector, w.bytes)] for w in only.work)
    assert forward == [10, 30, 60 + 60 + 2]
    assert backward == [0, 0, 60 - 1]
    assert [number(layer, entry.bytes, **SIZES) for entry in only.saved] == [60, 3 * 6]


def expressions(entry):
    """Every expression of a table's entry: the strings and numbers below its efforts."""
    if isinstance(entry, dict):
        return [text for value in entry.values() for text in expressions(value)]
    if isinstance(entry, list):
        return [text for value in entry for text in expressions(value)]
    return [str(entry)]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_operator_tables_name_no_axis_and_no_degree(path):
    table = yaml.safe_load(path.read_text())
    words = {word for text in expressions(table) for word in re.findall(r"\w+", text)}
    assert "size" in words
    assert words.isdisjoint({"tp", "tp2", "cp", "ep", "etp", "edp", "dp", "pp"})
    assert not re.search(r"\b(tp2?|cp|ep|dp|pp)\b", path.read_text())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_packaged_tables_load(path):
    assert set(load_tables([path])) == set(yaml.safe_load(path.read_text()))
