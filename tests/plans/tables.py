"""Filters, and synthetic key tables: combining keys to candidates needs no layer."""

import numpy as np
from hypothesis import strategies as st

from dsx.plans.choices import KEY_COLUMNS, MODEL_AXES
from dsx.plans.enumerate import SearchedCodes, SpaceBounds
from dsx.plans.rules import Limits

# One of the two strategies of synthetic keys shards its experts over tp too.
EXPERT_AXES = ((), ("tp",))


def everything(table):
    """The filter that keeps all rows."""
    return np.ones(len(next(iter(table.values()))), dtype=bool)


def only(**values):
    """The filter that keeps the rows with these values in the columns that a table has."""

    def keep(table):
        good = everything(table)
        for column, allowed in values.items():
            if column in table:
                good &= np.isin(table[column], allowed)
        return good

    return keep


def bounds(num_gpus, global_batch_size, num_layers=1, nvs_size=1, keep_choices=everything, searched=SearchedCodes()):  # noqa: B008
    """Bounds for blocks; keys are given, so settings that only keys depend on are arbitrary."""
    # `test_uneven_domains` has the placements whose groups lie unevenly.
    settings = (tuple(num_gpus), tuple(global_batch_size), 1, Limits(num_layers, nvs_size, uneven=False), searched)
    return SpaceBounds(*settings, everything, keep_choices, EXPERT_AXES)


@st.composite
def key_tables(draw):
    """Keys of small degrees, some of which no GPU count allows. A share of a fast domain divides its degree."""
    count = draw(st.sampled_from([120, 60, 20, 1, 0]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = {name: np.ones(count, dtype=np.int64) for name in KEY_COLUMNS}
    table["strategy"] = random.integers(0, 2, count)
    table["panels"] = random.integers(1, 4, count)
    table["microbatch_size"] = random.choice([1, 1, 2, 3], count)
    for axis in MODEL_AXES:
        degree = random.choice([1, 1, 1, 1, 2, 2, 3, 4], count)
        table[axis] = degree
        table[f"{axis}_nvs"] = np.where(random.random(count) < 0.7, degree, np.where(degree % 2 == 0, degree // 2, 1))
    return table


BOUNDS = st.builds(
    bounds,
    num_gpus=st.lists(st.sampled_from([48, 24, 36, 16, 12, 8, 4, 1]), min_size=2, max_size=4, unique=True),
    global_batch_size=st.lists(st.sampled_from([*range(24, 241, 12), 7, 1]), min_size=2, max_size=20, unique=True),
    num_layers=st.sampled_from([1, 6, 12]),
    searched=st.sampled_from(
        [
            SearchedCodes(),
            SearchedCodes(vpp=()),
            SearchedCodes(vpp=(1, 2, 4), schedule=(0, 1, 2, 5)),
            SearchedCodes(zero_stage=(0, 3), recompute=(0, 2), schedule=(2,)),
            SearchedCodes(zero_stage=(0, 1), zero_replicas=(), offload=(0, 3)),
            SearchedCodes(zero_stage=(2,), zero_replicas=(2, 3), recompute=(0, 2), stored_layers=()),
            SearchedCodes(recompute=(1, 2), stored_layers=(0, 3), schedule=(0, 3), offload=(1,)),
        ]
    ),
    nvs_size=st.sampled_from([1, 2, 3, 4, 8, 72]),
)
