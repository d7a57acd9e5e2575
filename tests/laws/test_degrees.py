"""Degrees make up the GPUs, shares divide their degrees and fill a fast domain, batches are divided exactly."""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import candidates_of, hardware, on, problem_of

from dsx.pricing.rows import candidate_columns
from dsx.search.space import Space

AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")


def largest_product(degrees, domain):
    """The largest product of one divisor of each degree that does not exceed the domain, by trying all."""
    choices = [[d for d in range(1, n + 1) if n % d == 0] for n in degrees]
    return max(p for p in map(math.prod, itertools.product(*choices)) if p <= domain)


@settings(max_examples=25)
@given(
    num_gpus=st.lists(st.integers(1, 96), min_size=1, max_size=3, unique=True),
    batches=st.lists(st.integers(1, 96), min_size=1, max_size=2, unique=True),
    domain=st.integers(1, 72),
)
def test_degrees(num_gpus, batches, domain):
    problem = on(problem_of("default"), hardware(fast_size=domain))
    space = Space(problem, num_gpus, batches)
    positions, choices = candidates_of(space)
    rows = candidate_columns(problem, space.keys, positions, choices)
    degrees = [rows[axis] for axis in AXES]
    shares = [rows[f"{axis}_nvs"] for axis in AXES]
    np.testing.assert_array_equal(np.prod(degrees, axis=0), rows["num_gpus"])
    for degree, share in zip(degrees, shares, strict=True):
        assert (degree % share == 0).all()
    placed = np.prod(shares, axis=0)
    assert (placed <= domain).all()
    distinct = {row[:-1]: row[-1] for row in zip(*(column.tolist() for column in (*degrees, placed)), strict=True)}
    for made, product in distinct.items():
        assert product == largest_product(made, domain), made
    made = rows["dp"] * rows["microbatch_size"] * rows["num_microbatches"]
    np.testing.assert_array_equal(made, rows["global_batch_size"])
    assert (12 % rows["pp"] == 0).all()
    assert set(rows["num_gpus"].tolist()) <= set(num_gpus)
    assert set(rows["global_batch_size"].tolist()) <= set(batches)
    # One GPU, one sequence is always a plan where there is one GPU; and no candidate comes twice.
    everything = list(zip(*(column.tolist() for name, column in rows.items() if name != "candidate"), strict=True))
    assert len(set(everything)) == len(everything) == space.size
