"""The plan of dsx is the best of all plans, and no other plan than it says."""

import pytest
from oracles import partition as oracle
from search.chains import plan_of, problem_of, random_case

from dsx.search.partition import solve


@pytest.mark.parametrize("seed", range(300))
def test_the_plan_is_the_best_of_all(seed):
    chain, network, job, per_stage = random_case(seed)
    best = oracle.best(chain, network, job, per_stage)
    made = solve(problem_of(chain, network, job, per_stage))
    if best is None:
        assert made is None
        return
    least, stages, replicas = best
    assert made.step_time_s == pytest.approx(least, rel=1e-9)
    assert (len(made.stages), made.num_replicas) == (stages, replicas)
    again = oracle.price(chain, network, job, plan_of(made))
    assert again == pytest.approx((made.step_time_s, made.bottleneck_s), rel=1e-12)
