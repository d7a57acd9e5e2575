"""Memory as tools count it: tensors, what the allocator holds, all that the driver reports."""

import numpy as np
import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.runs.predict import predict
from dsx.runs.predicted_rows import compare
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

ASSUMED = load_assumptions("uncalibrated", [("overhead", "3 GB"), ("fragmentation", "0.25")])
UNITS = {"GiB": "allocated", "GiB peak reserved": "reserved", "MiB nvidia-smi": "device", "GB by the driver": "device"}


def test_the_allocator_adds_fragments_and_the_driver_the_context(tmp_path):
    asked = setups(read_runs(write(tmp_path / "runs.csv")))
    found, plain = predict(asked, ASSUMED), predict(asked, load_assumptions("uncalibrated", [("fragmentation", "0")]))
    assert found.peak_bytes - found.reserved_bytes == pytest.approx(3e9)
    np.testing.assert_allclose(found.allocated_bytes, plain.allocated_bytes, rtol=1e-12)
    # A quarter of the activations; what is left of the tensors is weights, gradients and the optimizer's state.
    tight = predict(asked, load_assumptions("uncalibrated", [("fragmentation", "0.5")]))
    fragments = found.reserved_bytes - found.allocated_bytes
    np.testing.assert_allclose(tight.reserved_bytes - tight.allocated_bytes, 2 * fragments, rtol=1e-12)


def test_a_row_is_compared_with_what_its_tool_counts(tmp_path):
    changes = [{"measured_mem_gb": "40", "mem_unit": unit} for unit in UNITS]
    runs = read_runs(write(tmp_path / "runs.csv", *changes))
    asked = setups(runs)
    found = predict(asked, ASSUMED)
    by_kind = {"allocated": found.allocated_bytes, "reserved": found.reserved_bytes, "device": found.peak_bytes}
    expected = [by_kind[kind][0] for kind in UNITS.values()]
    np.testing.assert_allclose(compare(runs, asked, predict, ASSUMED).predicted_bytes, expected, rtol=1e-12)
