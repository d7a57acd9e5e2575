"""Degrees make up the GPUs, shares multiply to at most a fast domain, batches are divided exactly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import candidates_of, hardware, on, problem_of

from dsx.pricing.cuts import candidate_columns
from dsx.search.spaces import Space

AXES = ("tp", "tp2", "cp", "ep", "pp", "dp")


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
        assert (share <= degree).all()
    placed = np.prod([rows[f"{axis}_nvs"] for axis in AXES if axis != "ep"], axis=0)
    assert (placed <= domain).all()
    even = np.all([degree % share == 0 for degree, share in zip(degrees, shares, strict=True)], axis=0)
    for number in num_gpus:
        filled = max(one for one in range(1, domain + 1) if number % one == 0)
        here = rows["num_gpus"] == number
        assert filled in placed[even & here] or not here.any()
    made = rows["dp"] * rows["microbatch_size"] * rows["num_microbatches"]
    np.testing.assert_array_equal(made, rows["global_batch_size"])
    assert (12 % rows["pp"] == 0).all()
    assert set(rows["num_gpus"].tolist()) <= set(num_gpus)
    assert set(rows["global_batch_size"].tolist()) <= set(batches)
    # One GPU, one sequence is always a plan where there is one GPU; and no candidate comes twice.
    everything = list(zip(*(column.tolist() for name, column in rows.items() if name != "candidate"), strict=True))
    assert len(set(everything)) == len(everything) == space.size
