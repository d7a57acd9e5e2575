"""A space at three hardware points, its sweeps part by part, and the rows of every candidate.

The compiled code depends on the strategies and on the number of points, so tests share both.
"""

import threading
from functools import cache

import jax
import numpy as np
from laws.spaces import problem_of, space_of
from validation.cases import PAPER, priced

from dsx.pricing import compiled as devices
from dsx.pricing.cuts import CandidateCounts, joined
from dsx.search.spaces import Study, at_points, points_of
from dsx.search.sweep import Sweep

STRATEGIES = ("2d", "summa")
# Some candidates fit at the first point, none at the second, and most at the third. On the third machine shares of a
# fast domain have no effect, so that most step times occur several times.
POINTS = {
    "device.hbm_capacity": np.array([3e9, 4e8, 7e9]),
    "network.nvs.bandwidth": np.array([4.5e11, 4.5e11, 5e10]),
    "network.nvs.latency": np.array([2.5e-6, 2.5e-6, 5e-6]),
}


def at_one_point(point):
    """The problem at one of the points alone."""
    facts = {path: column[point : point + 1] for path, column in POINTS.items()}
    return at_points(problem_of(PAPER, STRATEGIES), facts)


@cache
def searched():
    """The problem at all points, its space, and the layer costs of its keys."""
    problem = at_points(problem_of(PAPER, STRATEGIES), POINTS)
    space = space_of(PAPER, batches=tuple(range(24, 145, 24)), strategies=STRATEGIES)
    return problem, space, space.table(problem)


@cache
def all_rows():
    """All rows of that space, each point priced alone, and the number of the point."""
    parts = []
    for point in range(len(POINTS["device.hbm_capacity"])):
        rows = priced(at_one_point(point), searched()[1])
        parts.append(rows | {"point": np.full(len(rows["tp"]), point)})
    return joined(parts)


@cache
def feasible_rows():
    """The rows that fit."""
    return where(all_rows(), all_rows()["reject"] == 0)


def study_of(problem, space):
    """The study of one problem at its own hardware points."""
    return Study(problem, space, 0, {})


def run(sweep, numbers=None):
    """{number: (rows, counts)} of some parts of a sweep, of all by default; each is written once."""
    found, lock = {}, threading.Lock()

    def write(number, rows, counts):
        with lock:
            assert number not in found
            found[number] = (rows, counts)

    numbers = range(len(sweep.parts)) if numbers is None else numbers
    sweep.run(numbers, write)
    assert sorted(found) == sorted(numbers)
    return found


def swept(studies, keep, precision="float64", part_size=None):
    """The rows that a sweep keeps, and its counts."""
    sweep = Sweep(studies, keep, precision, part_size)
    parts = run(sweep)
    counts = CandidateCounts(0, 0)
    for _, made in parts.values():
        counts = counts.plus(made)
    return sweep.merged(joined([parts[number][0] for number in sorted(parts)])), counts


def everything(studies):
    """All rows of studies, each hardware point priced on its own."""
    parts = []
    for study in studies:
        for point in range(study.problem.num_points):
            alone = points_of(study, point, point + 1)
            rows = priced(alone.problem, study.space)
            rows["cluster"] = np.full(len(rows["tp"]), study.cluster)
            parts.append(rows | {path: np.repeat(column, len(rows["tp"])) for path, column in alone.values.items()})
    return joined(parts)


def where(rows, mask):
    """Some of the rows of a table."""
    return {name: column[mask] for name, column in rows.items()}


def assert_identical(found, expected):
    """Both have the same columns of the same types, and the same bytes in them."""
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype, name
        assert found[name].tobytes() == expected[name].tobytes(), name


def set_workers(monkeypatch, count):
    """Set the number of workers, all on the first device."""
    monkeypatch.setattr(devices, "workers", lambda: [jax.local_devices()[0]] * count)
