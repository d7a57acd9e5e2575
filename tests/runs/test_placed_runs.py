"""The members of each axis in one fast domain, of measured runs."""

import math

import pytest
from runs.tables import write

from dsx.runs.setups import setups
from dsx.runs.table import read_runs

NVL72 = {"gpu": "GB200", "gpus_per_node": "4"}


def placed(tmp_path, tp, cp, dp, pp, **changes):
    degrees = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    count = math.prod(degrees.values())
    row = {name: str(value) for name, value in degrees.items()} | {"n_gpus": str(count), "global_batch": str(8 * dp)}
    (setup,) = setups(read_runs(write(tmp_path / "runs.csv", row | {"layers": "48"} | changes)))
    return tuple(setup.plan[f"{axis}_nvs"] for axis in degrees)


@pytest.mark.parametrize(
    ("degrees", "found"),
    [
        ((2, 1, 4, 2), (2, 1, 4, 1)),  # tp innermost
        ((4, 1, 1, 4), (4, 1, 1, 2)),
        ((8, 1, 2, 2), (8, 1, 1, 1)),
        ((16, 1, 2, 1), (8, 1, 1, 1)),  # over two nodes
        ((4, 1, 3, 1), (4, 1, 1, 1)),  # one node of two groups, one of one
    ],
)
def test_in_nodes_of_eight(tmp_path, degrees, found):
    assert placed(tmp_path, *degrees) == found


@pytest.mark.parametrize(
    ("degrees", "found"),
    [
        ((1, 1, 256, 1), (1, 1, 64, 1)),  # 64 of the 72 in a rack
        ((1, 1, 64, 4), (1, 1, 64, 1)),
        ((4, 2, 2, 8), (4, 2, 2, 4)),
        ((1, 1, 72, 2), (1, 1, 72, 1)),
        ((2, 1, 8, 1), (2, 1, 8, 1)),
    ],
)
def test_a_rack_that_the_degrees_do_not_fill_keeps_groups_whole(tmp_path, degrees, found):
    assert placed(tmp_path, *degrees, **NVL72) == found
