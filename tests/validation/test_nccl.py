"""Collectives beside measurements of NCCL, the paper and a simulator."""

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from cost.records import make_assumptions
from oracles.formulas import collective as referee
from oracles.formulas import system_from_inputs
from validation.cases import INPUTS, cluster_spec

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import Network, Tier, cluster_from_spec
from dsx.cost.collectives import collective
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER

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


def test_the_file_is_read_and_errors_are_small_and_shown(measured, found):
    assert len(measured.bytes) == 664
    assert set(measured.nodes) == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert measured.seconds[0] == pytest.approx(10.18e-6)
    # Errors are small and shown.
    assert max(row[-2] for row in found.values()) < 0.09
    assert found["all"][-2] < 0.08
    # The document shows them.
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    for name, row in found.items():
        shown = " | ".join(f"{100 * value:.1f} %" for value in row)
        assert f"| {name} | {shown} |" in text, name


@pytest.mark.parametrize("name", FROZEN)
def test_the_errors_are_those_that_were_published(found, name):
    """Median and mean, as shares."""
    assert found[name][-2:] == pytest.approx(FROZEN[name], abs=5e-5)


def test_fields_are_what_a_fit_gives_and_direct_links_reach_less(benchmark, own, fitted):
    for name, value in fitted.items():
        if name not in benchmark.OF_NODES:
            assert getattr(own, name) == pytest.approx(value, rel=0.03), name
    # The source of `nvs_efficiency` says what a fit to these nodes gives.
    assert fitted["nvs_efficiency"] == pytest.approx(0.67, rel=0.03)
    assert own.nvs_efficiency > fitted["nvs_efficiency"]


GROUPS = [(n, t) for n, t in itertools.product((1, 2, 4, 6, 16, 64, 512), (1, 2, 4, 8, 16)) if n % t == 0]
VOLUMES = (1e3, 1e6, 3.3e8, 2.0**34)


@pytest.mark.parametrize("name", sorted(INPUTS["systems"]))
@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE])
def test_the_formula_is_the_referees(name, kind):
    system = system_from_inputs(INPUTS["systems"][name], 8)
    size, share = np.array(GROUPS, dtype=float).T
    with jax.enable_x64(True):
        network = cluster_from_spec(cluster_spec(system)).network
        efficiency = {
            f"{tier}_efficiency": system[f"{of}_efficiency"] for tier, of in (("nvs", "fast"), ("net", "slow"))
        }
        assumptions = replace(assumptions_from_spec(load_assumptions("paper-2410.00273")), **efficiency)
        times = collective(kind, group(np.asarray(size), np.asarray(share)), network, assumptions)
        for volume in VOLUMES:
            wanted = [referee(kind.replace("-", "_"), volume, n, t, system) for n, t in GROUPS]
            np.testing.assert_allclose(times(volume), wanted, rtol=1e-14)


KINDS = {"all_gather": ALL_GATHER, "all_reduce": ALL_REDUCE, "reduce_scatter": REDUCE_SCATTER}
TABLE = (Path(__file__).parents[1] / "data" / "astrasim_rings.csv").read_text(encoding="utf-8")
ROWS = [*csv.DictReader(TABLE.splitlines())]
PLAIN = make_assumptions(
    nvs_efficiency=1.0, net_efficiency=1.0, algorithms=tuple((kind, ("ring",)) for kind in KINDS.values())
)
REDUCING = 3 / 3.35e12  # s/byte


@pytest.mark.parametrize("shares", [(1,), (8,), (2,), (1, 4), (2, 4), (2, 4, 8)])
def test_a_ring_takes_what_it_takes_there(shares):
    errors = []
    for row in ROWS:
        size, hops = int(row["npus"]), 1 if row["topology"] == "ring" else 2
        bandwidth = float(row["bandwidth_GiBps"]) * 2**30 / (hops if row["backend"] == "aware" else 1)
        tier = Tier(bandwidth, hops * float(row["latency_ns"]) * 1e-9, "", 0)
        network = Network(tiers=(tier,) * (len(shares) + 1))
        kind = KINDS[row["collective"]]
        volume = int(row["bytes"]) * (size if kind == ALL_GATHER else 1)  # it counts the shard of an all-gather
        with jax.enable_x64(True):
            members = group(*(np.asarray(float(count)) for count in (size, *shares)))
            found = float(collective(kind, members, network, PLAIN)(volume))
        if kind != ALL_GATHER:
            found += (size - 1) / size * volume * REDUCING
        errors.append(found / (float(row["time_ns"]) * 1e-9) - 1.0)
    assert len(errors) == 72
    assert max(map(abs, errors)) < 0.005
