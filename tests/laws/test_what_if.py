"""A column of what-ifs multiplies the rows of a sweep, of which those fit whose memory is there."""

from functools import cache

import numpy as np
import pytest
from laws.spaces import hardware, on, problem_of
from search.sweeps import STRATEGIES, swept, where

from dsx.config.sweep_file import KeepTop
from dsx.config.what_if import WhatIf
from dsx.search import sweep as sweep_parts
from dsx.search.spaces import make_studies

CAPACITIES = (1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 8e9, 12e9, 40e9)


@pytest.fixture(autouse=True, scope="module")
def three_points_at_once():
    """Ranges of as many points as in other tests, for which everything is compiled already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_parts, "_POINTS", 3)
        yield


def studies(fields, points, clusters=1):
    problems = [problem_of("default", STRATEGIES), on(problem_of("default", STRATEGIES), hardware(matrix_flops=5e14))]
    return make_studies(problems[:clusters], WhatIf(fields, points), [24], [48])


@cache
def along_the_capacity():
    """All rows at every capacity, on two clusters."""
    return swept(studies(("device.hbm_capacity",), tuple((one,) for one in CAPACITIES), clusters=2), "all", "float32")[
        0
    ]


def at(rows, capacity, cluster=0):
    return where(rows, (rows["device.hbm_capacity"] == capacity) & (rows["cluster"] == cluster))


@pytest.mark.slow
def test_a_column_of_what_ifs_multiplies_the_rows():
    rows = along_the_capacity()
    (base,) = studies((), ((),))
    assert len(rows["tp"]) == base.space.size * len(CAPACITIES) * 2
    alone, _ = swept([base], "all", "float32")
    for cluster in (0, 1):
        for capacity in CAPACITIES:
            here = at(rows, capacity, cluster)
            np.testing.assert_array_equal(here["candidate"], alone["candidate"])
            np.testing.assert_array_equal(here["peak_bytes"], alone["peak_bytes"])
            np.testing.assert_array_equal(here["reject"] == 0, here["peak_bytes"].astype(float) <= capacity)
            if cluster == 0:
                np.testing.assert_allclose(here["step_time_s"], alone["step_time_s"], rtol=1e-6)
            else:
                # Where a GPU waits for its host, its own rate changes nothing.
                assert (here["compute_s"] >= alone["compute_s"]).all()
                assert (here["compute_s"] > alone["compute_s"]).any()


@pytest.mark.slow
def test_columns_multiply_and_more_memory_is_never_slower():
    capacities, bandwidths = (3e9, 6e9), (1e11, 2e11, 4e11)
    grid = tuple((one, other) for one in capacities for other in bandwidths)
    rows, counts = swept(studies(("device.hbm_capacity", "network.nvs.bandwidth"), grid), "all", "float32")
    size = studies((), ((),))[0].space.size
    assert counts.candidates == len(rows["tp"]) == 6 * size
    points = list(zip(rows["device.hbm_capacity"].tolist(), rows["network.nvs.bandwidth"].tolist(), strict=True))
    assert points == [point for point in grid for _ in range(size)]
    # More memory never makes the best plan slower.
    rows, counts = swept(
        studies(("device.hbm_capacity",), tuple((one,) for one in CAPACITIES)), KeepTop(top=1), "float32"
    )
    assert rows["device.hbm_capacity"].tolist() == list(CAPACITIES[2:])  # nothing fits into the others
    times = rows["step_time_s"].tolist()
    assert times == sorted(times, reverse=True)
    assert len(set(times)) > 2
    first = where(along_the_capacity(), along_the_capacity()["cluster"] == 0)
    assert (counts.candidates, counts.feasible) == (len(first["tp"]), (first["reject"] == 0).sum())
