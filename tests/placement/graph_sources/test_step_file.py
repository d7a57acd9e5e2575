"""Steps from files: those of examples/, and what is wrong with others."""

from pathlib import Path

import jax
import pytest
from placement.graphs import without_cycle

from dsx.errors import InputError
from dsx.placement.from_file import load_step
from dsx.placement.from_jax import from_jax
from dsx.placement.op_graph import joined

STEPS = Path(__file__).parents[3] / "examples" / "steps"
EXAMPLES = {
    "alexnet.py:alexnet": 8,
    "vgg.py:vgg16": 16,
    "bert.py:bert_base": 98,
    "fnet.py:fnet": 25,
    "gpt2.py:gpt2": 97,
}

FILE = """
import jax
from layers import WIDTH

def good():
    return (lambda x: x @ x), jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")

def of_nothing():
    return 3

def of_three():
    return good, 1, 2

def of_texts():
    return (lambda x: x), ("a",)

def broken():
    return 1 / 0

number = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "layers.py").write_text("WIDTH = 4")
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_step_of_a_file(file, tmp_path_factory):
    step, shapes = load_step(f"{file}:good")
    assert [one.shape for one in shapes] == [(4, 4)]
    assert from_jax(step, *shapes).ids == ("input.0", "dot_general.0")
    # A module of the same name in another folder is another one.
    other = tmp_path_factory.mktemp("other")
    (other / "layers.py").write_text("WIDTH = 8")
    (other / "mine.py").write_text(FILE)
    assert load_step(f"{other}/mine.py:good")[1][0].shape == (8, 8)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is no step: FILE.py:NAME is wanted"),
        ("goood", "has no function 'goood'; did you mean 'good'?"),
        ("number", "has no function 'number'"),
        ("of_nothing", "returns no step but int: (step, shapes) is wanted"),
        ("of_three", "returns no step but a tuple of 3"),
        ("of_texts", "shapes[0] is 'a'; a jax.ShapeDtypeStruct or an array is wanted"),
        ("broken", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_function(file, name, said):
    with pytest.raises(InputError) as caught:
        load_step(f"{file}:{name}")
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_a_missing_file_is_said(file):
    with pytest.raises(InputError, match=r"there is no file .*; did you mean 'mine.py'"):
        load_step(f"{file.parent}/mime.py:good")


def test_a_file_that_cannot_be_imported_is_said(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("import nothing_of_this_name")
    with pytest.raises(InputError, match=r"wrong\.py:f: ModuleNotFoundError: No module named"):
        load_step(f"{path}:f")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if "alexnet" in one else pytest.mark.slow) for one in EXAMPLES]
)
def test_examples_have_their_layers(name):
    step, shapes = load_step(f"{STEPS}/{name}")
    with jax.numpy_rank_promotion("allow"):
        graph = from_jax(step, *shapes)
    assert without_cycle(graph) and {*joined(graph.num_ops, graph.edges)} == {0}
    forward = [
        kind
        for op, kind in zip(graph.ids, graph.kinds, strict=True)
        if kind in ("dot_general", "conv_general_dilated") and str(op).startswith("jvp")
    ]
    assert len(forward) == EXAMPLES[name]
    weights = sum(leaf.size for leaf in jax.tree.leaves(shapes[0]))
    held = sum(size for op, size in zip(graph.ids, graph.memory_bytes, strict=True) if str(op).startswith("input.0/"))
    assert held == 4 * weights
    new = {graph.together[op] for op, kind in enumerate(graph.kinds) if kind != "input"}
    assert {graph.together[op] for op, one in enumerate(graph.ids) if str(one).startswith("input.0/")} <= new
