"""Steps of files: those of examples, wrong ones, and measured times."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from placement.graphs import without_cycle

from dsx.errors import InputError
from dsx.placement import steps as module
from dsx.placement.jaxpr import from_jax, traced
from dsx.placement.op_graph import joined
from dsx.placement.steps import load_step, measure, run_of
from dsx.placement.traced import fused

STEPS = Path(__file__).parents[2] / "examples" / "steps"
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


LAYER = jax.ShapeDtypeStruct((3, 8, 8), "float32")
BATCH = jax.ShapeDtypeStruct((4, 8), "float32")
SQUARE = jax.ShapeDtypeStruct((8, 8), "float32")


def loss(weights, x):
    made, sums = lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, weights)
    return jax.nn.log_softmax(made).mean() + sums.mean() + jnp.where(made > 0.5, jnp.zeros((4, 8)), made).max()


@pytest.mark.slow
def test_the_kernels_of_a_step_compute_it():
    step = jax.value_and_grad(loss, argnums=(0, 1))
    operators, flat = traced(step, (LAYER, BATCH))
    kernels = fused(operators)
    arguments = jax.random.normal(jax.random.key(0), LAYER.shape), jax.random.normal(jax.random.key(1), BATCH.shape)
    values = dict(zip(flat.inputs, arguments, strict=True)) | dict(flat.constants)
    rows = {equation.outputs[0]: equation for equation in flat.equations if equation.outputs[0] in kernels.part_of}
    for kernel in kernels.kernels:
        for tensor in kernel.reads:
            if tensor in rows and tensor not in values:
                values[tensor] = rows[tensor].run(*(values[one] for one in rows[tensor].inputs))[0]
        made = run_of(kernels, flat, kernel)(*(values[tensor] for tensor in kernel.reads))
        values |= dict(zip(kernel.writes, made, strict=True))
    expected = jax.tree.leaves(step(*arguments))
    for one, value in zip(flat.outputs, expected, strict=True):
        np.testing.assert_allclose(values[kernels.source[one]], value, rtol=1e-4, atol=1e-6)


def test_kernels_are_timed_once_or_named(monkeypatch):
    timed = []
    monkeypatch.setattr(module, "seconds_of", lambda run, values: timed.append(values) or 1e-3 * len(timed))
    told = []
    graph = measure(loss, LAYER, BATCH, watch=lambda done, total, what: told.append((done, total)))
    modelled = from_jax(loss, LAYER, BATCH)
    assert graph.ids == modelled.ids and dict(graph.edges) == dict(modelled.edges)
    multiplies = graph.mean_s[[op for op, kind in enumerate(graph.kinds) if kind == "dot_general"]]
    assert len(multiplies) == 3 and len({*multiplies.tolist()}) == 1
    assert len(timed) < sum(kind != "input" for kind in graph.kinds)
    assert told[-1] == (len(timed), len(timed))
    monkeypatch.undo()
    # A loop that would never end has the time of its body.
    graph = measure(lambda x: lax.while_loop(lambda y: y.sum() < jnp.inf, lambda y: y @ y, x), SQUARE)
    assert graph.kinds == ("input", "while") and graph.mean_s[0] == 0.0 < graph.mean_s[1] < 1.0

    # An operator that cannot run is named.
    def fails(run, values):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    monkeypatch.setattr(module, "seconds_of", fails)
    with pytest.raises(InputError, match=r"operator dot_general.0 cannot be run on .*: RESOURCE_EXHAUSTED: out of mem"):
        measure(lambda x: x @ x, SQUARE)
