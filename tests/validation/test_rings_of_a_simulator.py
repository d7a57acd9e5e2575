"""Ring collectives against a network simulator's (tests/data/astrasim_rings.csv), with its latency and bandwidth.

A step of its rings takes h (latency) + bytes / bandwidth, with h = 1 on a ring and 2 through a switch; where it
counts congestion a switch passes the bytes on twice too. In a reduce-scatter each step adds up what it received, three
accesses to its memory of 3350 GB/s, which is no part of a network and is added here. However the ranks lie on tiers
that are all alike, a ring of them takes that.
"""

import csv
from pathlib import Path

import jax
import numpy as np
import pytest
from cost.records import make_assumptions

from dsx.cost.collectives import collective
from dsx.cost.groups import group
from dsx.hardware.cluster import Network, Tier
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

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
