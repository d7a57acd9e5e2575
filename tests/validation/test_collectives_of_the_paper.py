"""Collectives of arXiv 2410.00273: the referee's formula, to the last digits."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from oracles.formulas import collective as referee
from oracles.formulas import system_from_inputs
from validation.cases import INPUTS, cluster_spec

from dsx.config.assumption_set import load_assumptions
from dsx.cost.collectives import collective
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group
from dsx.hardware.cluster import cluster_from_spec
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER

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
