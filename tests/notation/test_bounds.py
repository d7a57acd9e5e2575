"""A layer definition that would take forever is refused at once; one of ten times the packaged sizes is not."""

import time

import pytest

from dsx.errors import InputError, NotationError, SpecError
from dsx.notation.build import MOST_BLOCKS
from dsx.notation.library import load_layer, load_operators, needs_strategy
from dsx.notation.work import derive
from dsx.verbs.layer import describe

STATED_S = 1.0  # of processor time, within which a definition is refused
HEAD = "layer a\ninput x[b, s, e]\n"
OUTPUT = "output[b, s, e] = gelu(x)\n"
DIMS = ", ".join(f"d{index}" for index in range(61))
GELU = "gelu: {arguments: [x], forward: {vector: '%s'}}\n"


@pytest.fixture
def described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(text, blocks=(), table="standard", **sizes):
        (tmp_path / "a.layer").write_text(text)
        for name, block in blocks:
            (tmp_path / f"{name}.layer").write_text(f"block {name}\ninput x[b, s, e]\n{block}")
        needs_strategy("./a.layer")
        return describe(derive_of("./a.layer", table), "consumed", (), {}, {"b": 1, "tp": 1} | sizes)

    def derive_of(name, table):
        layer = load_layer(name, None, load_operators([table]))
        derive(layer)
        return layer

    return read


def dims(*definitions):
    return HEAD + "".join(f"dim {definition}\n" for definition in definitions) + OUTPUT


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            dims("c0 = e * e", *(f"c{index} = c{index - 1} * c{index - 1}" for index in range(1, 27))),
            "a.layer:12:5: with all definitions substituted, the size of 'c9' has 1,024 numbers and dimensions",
        ),
        (
            dims("c0 = e", "c1 = e", *(f"c{index} = c{index - 1} + c{index - 2}" for index in range(2, 90))),
            "a.layer:19:5: with all definitions substituted, the size of 'c16' has 1,597 numbers and dimensions",
        ),
        (dims(*(f"c{index} = e" for index in range(101))), "a.layer:103:5: one layer defines more than 100 dimensions"),
        (HEAD + "".join(f"y{i}[b, s, e] = gelu(x)\n" for i in range(20_000)) + OUTPUT, "more than 100,000 characters"),
        (
            HEAD + "".join(f"y{i}[b, s, e] = gelu(x)\n" for i in range(2_000)),
            "a.layer:403:1: one layer has more than 400 operators",
        ),
        (
            HEAD + "".join(f"weight {' '.join(f'w{i}_{j}[e]' for j in range(100))}\n" for i in range(10)) + OUTPUT,
            "a.layer:12:889: one layer has more than 1,000 tensors",
        ),
        (f"layer a\ninput x[{DIMS}]\noutput[{DIMS}] = gelu(x)\n", "a.layer:2:7: 'x' has 61 dimensions"),
        (f"{HEAD}{'y' * 301}[b, s, e] = gelu(x)\n", "a.layer:3:1: the name has more than 300 characters"),
        (f"{HEAD}{'#' * 20_001}\n{OUTPUT}", "a.layer:3:20001: the line has more than 20,000 characters"),
        (
            HEAD + f"option {' '.join(f'o{i}' for i in range(101))}\n" + OUTPUT,
            "one definition has more than 100 options",
        ),
        ("strategy a\n" + "require e % tp == 0 divides\n" * 151, "a.layer:152:1: one strategy has more than 150 rules"),
    ],
)
def test_definitions_that_would_take_forever_are_refused(described, text, says):
    begun = time.process_time()
    with pytest.raises(InputError) as caught:
        described(text)
    assert time.process_time() - begun < STATED_S
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "blocks",
    [
        [*((f"b{index}", f"use b{index + 1}\nuse b{index + 1}\n") for index in range(13)), ("b13", OUTPUT)],
        [*((f"b{index}", f"use b{index + 1}\n") for index in range(200)), ("b200", OUTPUT)],
    ],
)
def test_blocks_that_use_each_other_are_bounded(described, blocks):
    with pytest.raises(NotationError, match=rf"b\d+\.layer:\d:1: one layer uses more than {MOST_BLOCKS} blocks"):
        described(f"{HEAD}use b0\n", blocks)


@pytest.mark.parametrize("lines", ["", "fuse kernel\n"])
def test_as_many_operators_as_are_allowed_are_described(described, lines):
    chain = "".join(f"y{index}[b, s, e] = gelu(y{index - 1})\n" for index in range(1, 398))
    end = "end\n" if lines else ""
    text = f"{HEAD}{lines}y0[b, s, e] = gelu(x)\n{chain}output[b, s, e] = gelu(y397)\n{end}"
    found = described(text, s=2, e=3, activation_bytes=2, weight_bytes=2, gradient_bytes=4)
    assert len(found["operators"]) == 399
    assert found["saved_bytes"]["value"] == (12 if lines else 399 * 12)


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        (
            " + ".join(["size(x)"] * 90),
            "t.yaml:1:1: with the sizes of its tensors substituted, the formula has 540 numbers and dimensions",
        ),
        (" + ".join(["size(x)"] * 70), "a.layer:73:1: the work of the layer has more than 30,000 numbers"),
    ],
)
def test_the_formulas_of_a_layer_are_bounded_with_their_tensors_substituted(described, tmp_path, formula, says):
    (tmp_path / "t.yaml").write_text(GELU % formula)
    letters = "b, s, e, f, g, h"
    text = f"layer a\ninput x[{letters}]\n" + "".join(f"y{i}[{letters}] = gelu(x)\n" for i in range(99))
    with pytest.raises(NotationError) as caught:
        described(text, table="./t.yaml")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            dims("c = e * e", "d = c * c"),
            "layer 'a': dimension 'c' = e * e is 4.61e+18 where e=2147483647; a size is at most",
        ),
        (dims(f"c = {' * '.join(['999999999999999999'] * 90)}"), "a size is at most 9,007,199,254,740,992"),
        (dims("c = 8 / (e % 2 - 1)"), "layer 'a': dimension 'c' = 8 / (e % 2 - 1) divides by zero where e=2147483647"),
        (
            "layer a\ninput x[b, s, e, f, g, h]\noutput[b, s, e, f, g, h] = gelu(x)\n",
            "e=2147483647, f=2147483647, g=2147483647, h=2147483647, s=2: more than 1e+30",
        ),
    ],
)
def test_sizes_and_amounts_that_no_number_holds_are_refused(described, text, says):
    large = dict.fromkeys("efgh", 2**31 - 1)
    with pytest.raises(SpecError) as caught:
        described(text, s=2, activation_bytes=2, **large)
    assert says in str(caught.value)
