"""The benchmark of a step with measured kernels: its step trains, and its section has every prediction."""

from functools import partial
from math import log

import jax
import jax.numpy as jnp
import pytest


@pytest.fixture(autouse=True)
def lenient():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
def test_the_step_trains(benchmark_script):
    jax_step = benchmark_script("jax_step")
    sizes = jax_step.Sizes(e=32, h=4, g=2, k=8, f=48, v=64, layers=1)
    weights = jax_step.weights_of(sizes)
    ids = jax.random.randint(jax.random.key(1), (2, 9), 0, sizes.v)
    loss = jax.jit(partial(jax_step.loss, sizes))
    before = float(loss(weights, ids))
    assert before == pytest.approx(log(sizes.v), rel=0.05)
    moments = jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights)
    for _ in range(3):
        weights, moments = jax_step.step(sizes, weights, moments, ids)
    assert loss(weights, ids) < before


@pytest.mark.slow
def test_predictions_stand_beside_the_step(benchmark_script, monkeypatch, tmp_path):
    script = benchmark_script("measured_step")
    monkeypatch.setattr(script, "step_s", lambda sequences: 0.1 * sequences)
    monkeypatch.setattr("dsx.measuring.cases.timed_briefly", lambda call, wait: script.timed(lambda: None, id, 0, 1))
    monkeypatch.setattr("dsx.measuring.jax_library.JaxLibrary.arrays", lambda self, operands, dtype: [])
    monkeypatch.setattr("dsx.measuring.jax_library.JaxLibrary.backward", lambda self, program, dtype: None)
    monkeypatch.setattr("dsx.verbs.measure._device", lambda *given: DEVICE)
    monkeypatch.setattr("dsx.verbs.measure._collectives", lambda limit_s, watch: [])
    rows, found = script.compared(tmp_path, "1 min")
    assert [row.sequences for row in rows] == list(script.SEQUENCES)
    assert len(found.measured) > 100
    for row in rows:
        rooflines, others, every = row.predicted_s
        assert len({rooflines, others, every}) == 3
    own = (tmp_path / "times.csv").read_text().splitlines()
    assert 0 < len(own) - len((tmp_path / "without-2.csv").read_text().splitlines()) < 60
    text = script.section(rows, found)
    assert "| 2 | 200 ms | 200 to 200 ms | " in text
    document = tmp_path / "validation.md"
    document.write_text("# Validation\n")
    for shown in (text, "other"):
        script.put_section(document, "A step", "measured_step", shown)
        assert document.read_text().count("## A step") == 1 and shown in document.read_text()
    assert text not in document.read_text()


DEVICE = """name: here
device:
  name: here
  matrix_flops: {value: 100 GFLOP/s, source: made up}
  vector_flops: {value: 20 GFLOP/s, source: made up}
  hbm_bandwidth: {value: 10 GB/s, source: made up}
  hbm_capacity: {value: 20 GB, source: made up}
network:
  nvs: {size: {value: 1, source: x}, bandwidth: {value: 1 GB/s, source: x}, latency: {value: 1 us, source: x}}
  net: {bandwidth: {value: 1 GB/s, source: x}, latency: {value: 1 us, source: x}}
"""
