"""The memory of a prediction as tools count it, and what the columns of a row change in it."""

import numpy as np
import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.runs.predict import compare, predict
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

ASSUMED = load_assumptions("uncalibrated", [("overhead", "3 GB"), ("fragmentation", "0.25")])
UNITS = {"GiB": "allocated", "GiB peak reserved": "reserved", "MiB nvidia-smi": "device", "GB by the driver": "device"}
WHOLE = load_assumptions("uncalibrated", [("fragmentation", "0")])
ONE_GPU = {"n_gpus": "1", "tp": "1", "pp": "1", "dp": "1", "layers": "4", "global_batch": "4", "zero_stage": "0"}


@pytest.mark.slow
def test_what_a_row_counts_as_memory(tmp_path):
    asked = setups(read_runs(write(tmp_path / "runs.csv")))
    found, plain = predict(asked, ASSUMED), predict(asked, load_assumptions("uncalibrated", [("fragmentation", "0")]))
    assert found.peak_bytes - found.reserved_bytes == pytest.approx(3e9)
    np.testing.assert_allclose(found.allocated_bytes, plain.allocated_bytes, rtol=1e-12)
    # A quarter of the activations; what is left of the tensors is weights, gradients and the optimizer's state.
    tight = predict(asked, load_assumptions("uncalibrated", [("fragmentation", "0.5")]))
    fragments = found.reserved_bytes - found.allocated_bytes
    np.testing.assert_allclose(tight.reserved_bytes - tight.allocated_bytes, 2 * fragments, rtol=1e-12)
    # A row is compared with what its tool counts.
    changes = [{"measured_mem_gb": "40", "mem_unit": unit} for unit in UNITS]
    runs = read_runs(write(tmp_path / "runs.csv", *changes))
    asked = setups(runs)
    found = predict(asked, ASSUMED)
    by_kind = {"allocated": found.allocated_bytes, "reserved": found.reserved_bytes, "device": found.peak_bytes}
    expected = [by_kind[kind][0] for kind in UNITS.values()]
    np.testing.assert_allclose(compare(runs, asked, predict, ASSUMED).predicted_bytes, expected, rtol=1e-12)
    # Gradients in float32 add two bytes a parameter.
    small, large, blank = memory(tmp_path, *({"gradient_bytes": size} | ONE_GPU for size in ("2", "4", "")))
    hidden, feed_forward, vocabulary = 4096, 11008, 32000
    parameters = 4 * (4 * hidden**2 + 3 * hidden * feed_forward + 2 * hidden) + (2 * vocabulary + 1) * hidden
    # The head's transient has the gradients of its weights once more.
    assert large - small == pytest.approx(2 * parameters, rel=0.06)
    assert blank == small
    # An unfused cross entropy keeps ten bytes more of each logit.
    fused, unfused, blank = memory(tmp_path, *({"cross_entropy": word} | ONE_GPU for word in ("fused", "Unfused", "")))
    assert unfused - fused == pytest.approx(10 * 2 * 2048 * 32000)
    assert blank == unfused


def memory(tmp_path, *changes):
    return predict(setups(read_runs(write(tmp_path / "runs.csv", *changes))), WHOLE).peak_bytes


@pytest.mark.slow
def test_rows_that_differ_in_a_field_are_priced_as_each_alone(tmp_path):
    fields = [{"cross_entropy": word, "gradient_bytes": size} for word in ("fused", "unfused") for size in ("2", "4")]
    changes = [field | ONE_GPU for field in fields]
    together = memory(tmp_path, *changes)
    np.testing.assert_allclose(together, [memory(tmp_path, change)[0] for change in changes], rtol=1e-12)
    assert len({*together}) == 4
