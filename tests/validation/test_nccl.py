"""Collectives against NCCL's measured times (data/validation/nccl.csv) from 1 MB up.

The errors are a frozen copy: whoever changes a prediction changes them here, and in docs/validation.md by
`python benchmarks/collectives.py --write docs/validation.md`.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.cost.context import assumptions_from_spec
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

ROOT = Path(__file__).resolve().parents[2]
FROZEN = {
    ALL_GATHER: (0.0581, 0.0813),
    REDUCE_SCATTER: (0.0567, 0.0764),
    ALL_REDUCE: (0.0400, 0.0631),
    "all": (0.0536, 0.0738),
}


@pytest.fixture(scope="module")
def benchmark(benchmark_script):
    return benchmark_script("collectives")


@pytest.fixture(scope="module")
def measured(benchmark):
    return benchmark.measurements()


@pytest.fixture(scope="module")
def own():
    return assumptions_from_spec(load_assumptions("default"))


@pytest.fixture(scope="module")
def fitted(benchmark, measured, own):
    with jax.enable_x64(True):
        return benchmark.fitted(measured, own)


@pytest.fixture(scope="module")
def found(benchmark, measured, own, fitted):
    with jax.enable_x64(True):
        return benchmark.medians(measured, np.asarray(benchmark.predicted(measured, benchmark.of_nodes(own, fitted))))


def test_all_of_the_file_is_read(measured):
    assert len(measured.bytes) == 664
    assert set(measured.nodes) == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert measured.seconds[0] == pytest.approx(10.18e-6)


@pytest.mark.parametrize("name", FROZEN)
def test_the_errors_are_those_that_were_published(found, name):
    """Median and mean, as shares."""
    assert found[name][-2:] == pytest.approx(FROZEN[name], abs=5e-5)


def test_the_errors_are_small_enough(found):
    assert max(row[-2] for row in found.values()) < 0.09
    assert found["all"][-2] < 0.08


def test_the_document_shows_them(found):
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    for name, row in found.items():
        shown = " | ".join(f"{100 * value:.1f} %" for value in row)
        assert f"| {name} | {shown} |" in text, name


def test_the_fields_of_the_set_are_what_a_fit_gives(benchmark, own, fitted):
    for name, value in fitted.items():
        if name not in benchmark.OF_NODES:
            assert getattr(own, name) == pytest.approx(value, rel=0.03), name


def test_direct_links_reach_less_than_nvswitch(own, fitted):
    """The source of `nvs_efficiency` says what a fit to these nodes gives."""
    assert fitted["nvs_efficiency"] == pytest.approx(0.67, rel=0.03)
    assert own.nvs_efficiency > fitted["nvs_efficiency"]
