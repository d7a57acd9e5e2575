"""Rules of FORMULAS.md that no reference number decides, each on a case where another reading gives another answer."""

import numpy as np
import pytest
from oracles.formulas import collective
from oracles.space import enumerate_candidates
from priced import evaluate_plan
from validation.cases import CONFIG, configs_of, priced_space, problem_for

from dsx.pricing.one_plan import operator_costs
from dsx.search.spaces import Space

SYSTEM = {
    "matrix_flops": 1e15, "vector_flops": 1e14, "hbm_bandwidth": 2e12, "hbm_capacity": 1e15, "fast_bandwidth": 4e11,
    "slow_bandwidth": 5e10, "fast_latency": 2e-6, "slow_latency": 5e-6, "fast_size": 8,
}  # fmt: skip


def model(e, h, length=4096):
    return {"l": length, "e": e, "h": h, "f": 4 * e, "depth": 6}


def degrees(made, strategy, num_gpus, *columns):
    """The values of some columns in the space, checked against the oracle's candidates first."""
    rows = priced_space(problem_for(made, SYSTEM, strategy), [num_gpus], [num_gpus])
    expected = enumerate_candidates(made, SYSTEM["fast_size"], strategy, num_gpus, num_gpus)
    assert sorted(configs_of(strategy, rows)) == sorted(tuple(one[name] for name in CONFIG) for one in expected)
    return set(zip(*(rows[name].tolist() for name in columns), strict=True))


def test_floors_of_strategies():
    assert {n for (n,) in degrees(model(1280, 10), "summa", 12, "tp2")} == {1, 2, 4}
    assert {n for (n,) in degrees(model(1536, 12), "summa", 12, "tp2")} == {1, 2, 3, 4, 6, 12}
    # Neither the panels, which the other axis decides here, nor the feed-forward width rule it out.
    assert (4, 3) not in degrees(model(1280, 20) | {"f": 3840}, "summa", 12, "tp", "tp2")
    assert (4, 3) in degrees(model(1536, 12), "summa", 12, "tp", "tp2")
    # It need not do so in 2d.
    assert {n for (n,) in degrees(model(1280, 10), "2d", 12, "cp")} == {1, 2, 3, 4, 6, 12}
    # The floor of 1d is on the fused multiply.
    # 3 e / tp is 129 and 126; e / tp is far below 128 in both.
    assert {n for (n,) in degrees(model(344, 8), "1d", 8, "tp")} == {1, 2, 4, 8}
    assert {n for (n,) in degrees(model(336, 8), "1d", 8, "tp")} == {1, 2, 4}
    # The floors of the other strategies are met exactly.
    narrow = model(512, 8, length=256)
    assert degrees(narrow, "2d", 8, "tp", "cp") == {(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)}
    assert degrees(narrow, "summa", 8, "tp", "tp2") == {(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)}


def panels(made, num_gpus, tp, tp2):
    found = degrees(made, "summa", num_gpus, "tp", "tp2", "panels")
    return {count for one, two, count in found if (one, two) == (tp, tp2)}


def test_panels_and_domains_at_their_limits():
    made = model(2048, 8)
    assert panels(made, 8, 2, 1) == {2, 4}
    assert panels(made, 8, 4, 2) == {4}  # the grid alone makes panels of 512
    assert panels(made, 8, 8, 1) == {8}  # and here of 256: no more than the grid asks for
    assert panels(model(3072, 12), 12, 3, 2) == {3, 6}
    assert panels(model(3072, 12), 12, 1, 6) == {6}
    assert panels(model(2304, 12), 12, 3, 1) == {3}  # 768 columns; half of it is too thin
    # Panels do not look at the feed forward width.
    assert panels(model(1024, 8) | {"f": 8192}, 8, 1, 1) == {1, 2}
    # A domain that no product fills is filled as far as possible.
    for fast_size, filled in ((72, 64), (7, 4), (8, 8), (1, 1)):
        space = Space(problem_for(model(2048, 16), SYSTEM | {"fast_size": fast_size}, "2d"), [64], [64])
        keys, choices = space.blocks.rows(0, space.size)
        shares = [space.keys[f"{axis}_nvs"][keys] for axis in ("tp", "cp")]
        assert (np.prod(shares, axis=0) * choices["pp_nvs"] * choices["dp_nvs"] == filled).all()
        assert space.size > 0


@pytest.mark.parametrize("hbm_bandwidth", [4e11, 1e12, 2e12])
def test_a_panel_hides_behind_the_larger_of_compute_and_memory_time(hbm_bandwidth):
    made, system = model(4096, 16), SYSTEM | {"hbm_bandwidth": hbm_bandwidth}
    problem = problem_for(made, system, "summa")
    settings = ["tp=4", "tp2=2", "panels=8", "nvs.tp=4", "nvs.tp2=2"]
    plan = evaluate_plan(problem, settings, 8, 1).plan
    (qkv,) = (kernel for kernel in operator_costs(problem, plan) if kernel["name"] == "qkv")
    rows, columns = 4096 // 2, 3 * 4096 // 4
    operand = collective("broadcast", 2 * rows * 4096 / 8, 4, 4, system)
    weight = collective("broadcast", 2 * 4096 * columns / 8, 2, 2, system)
    panel = operand + weight
    compute_s = 20e-6 + 2 * rows * columns * 4096 / (0.8 * 1e15)
    memory_s = 2 * (rows * 4096 + 4096 * columns + 8 * rows * columns) / hbm_bandwidth
    forward = qkv["forward"]
    assert forward["compute_s"] + forward["memory_s"] == pytest.approx(max(compute_s, memory_s), rel=1e-12)
    assert forward["tp_comm_s"] == pytest.approx(panel + max(8 * panel - max(compute_s, memory_s), 0.0), rel=1e-12)
    # Each bandwidth is another case: all panels hide, some stick out of memory time, some out of compute time.
    assert {
        4e11: memory_s > 8 * panel > compute_s,
        1e12: 8 * panel > memory_s > compute_s,
        2e12: 8 * panel > compute_s > memory_s,
    }[hbm_bandwidth]
