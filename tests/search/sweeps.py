"""Sweeps that are run part by part in a test, and their rows beside those of every candidate priced alone."""

import threading

import jax
import numpy as np
from validation.cases import priced

from dsx.search import devices
from dsx.search.rows import Counts, joined
from dsx.search.study import Study, points_of
from dsx.search.sweep import Sweep


def study_of(problem, space):
    """The study of one problem, at its hardware points as they are."""
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
    """The rows that a sweep leaves, and its counts."""
    sweep = Sweep(studies, keep, precision, part_size)
    parts = run(sweep)
    counts = Counts(0, 0)
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
    """Have so many workers, all on the first device."""
    monkeypatch.setattr(devices, "workers", lambda: [jax.local_devices()[0]] * count)
