"""Measured times: the kernels of a step compute it, and equal ones are timed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dsx.errors import InputError
from dsx.placement import from_file as measured_times
from dsx.placement.from_file import measure, run_of
from dsx.placement.from_jax import from_jax, traced
from dsx.placement.traced import fused

LAYER = jax.ShapeDtypeStruct((3, 8, 8), "float32")
BATCH = jax.ShapeDtypeStruct((4, 8), "float32")
SQUARE = jax.ShapeDtypeStruct((8, 8), "float32")


def loss(weights, x):
    made, sums = lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, weights)
    return jax.nn.log_softmax(made).mean() + sums.mean() + jnp.where(made > 0.5, jnp.zeros((4, 8)), made).max()


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


def test_equal_kernels_are_timed_once(monkeypatch):
    timed = []
    monkeypatch.setattr(measured_times, "seconds_of", lambda run, values: timed.append(values) or 1e-3 * len(timed))
    told = []
    graph = measure(loss, LAYER, BATCH, watch=lambda done, total, what: told.append((done, total)))
    modelled = from_jax(loss, LAYER, BATCH)
    assert graph.ids == modelled.ids and dict(graph.edges) == dict(modelled.edges)
    multiplies = graph.mean_s[[op for op, kind in enumerate(graph.kinds) if kind == "dot_general"]]
    assert len(multiplies) == 3 and len({*multiplies.tolist()}) == 1
    assert len(timed) < sum(kind != "input" for kind in graph.kinds)
    assert told[-1] == (len(timed), len(timed))


def test_times_are_measured():
    """A loop that would never end has the time of its body."""
    graph = measure(lambda x: lax.while_loop(lambda y: y.sum() < jnp.inf, lambda y: y @ y, x), SQUARE)
    assert graph.kinds == ("input", "while") and graph.mean_s[0] == 0.0 < graph.mean_s[1] < 1.0


def test_an_operator_that_cannot_run_is_named(monkeypatch):
    def fails(run, values):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    monkeypatch.setattr(measured_times, "seconds_of", fails)
    with pytest.raises(InputError, match=r"operator dot_general.0 cannot be run on .*: RESOURCE_EXHAUSTED: out of mem"):
        measure(lambda x: x @ x, SQUARE)
