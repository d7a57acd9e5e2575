"""The kept slices are those that sorting the whole stream leaves; memory does not grow with the stream."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.search.tiles.contenders import Contenders, KeptSlices


def some(random, count, num_groups, values):
    """Slices of one choice, with few distinct values, so that many are equal."""
    return Contenders(
        group=random.integers(0, num_groups, count),
        value=random.choice(values, count),
        point=np.zeros(count, dtype=np.int32),
        key=random.integers(0, 3, count),
        placement=random.integers(0, 3, (count, 1)),
        global_batch_size=random.integers(0, 1 << 30, (count, 1)),
        length=np.ones(count, dtype=np.int8),
    )


def rows(slices):
    columns = (slices.group, slices.value, slices.key, slices.placement[:, 0], slices.global_batch_size[:, 0])
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(
    seed=st.integers(0, 1000),
    num_groups=st.integers(1, 20),
    count=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    float64=st.booleans(),
)
def test_the_smallest_of_each_group_are_kept(seed, num_groups, count, sizes, float64):
    random, dtype = np.random.default_rng(seed), np.float64 if float64 else np.float32
    # Some differ by less than the rounding of float32.
    values = (1 + np.array([0, 1e-9, 2e-9, 0.1, 0.5, 3.0])).astype(dtype)
    kept = KeptSlices(num_groups, count, dtype)
    everything = []
    for size in sizes:
        found = some(random, size, num_groups, values)
        everything += rows(found)
        kept.add(found)
        known = [sorted(row for row in everything if row[0] == group)[:count] for group in range(num_groups)]
        for group, best in enumerate(known):
            assert kept.worst[group] >= (best[-1][1] if len(best) == count else np.finfo(dtype).max)
    slices = kept.slices()
    assert (rows(slices) if slices else []) == [row for best in known for row in best]


@pytest.mark.parametrize("num_groups", [1, 500])
def test_memory_does_not_grow_with_the_stream(num_groups):
    random, kept = np.random.default_rng(0), KeptSlices(num_groups, 10, np.float32)
    for _ in range(60):
        kept.add(some(random, 10_000, num_groups, np.linspace(1, 2, 1000).astype(np.float32)))
        stored = len(kept._kept) + sum(map(len, kept._new))
        assert stored <= 2 * 10 * num_groups + 10_000
