"""Plans of well-known jobs take as long, and hold as much, as their replays."""

import logging

import pytest
from laws.well_known_jobs import JOBS

import dsx
from dsx.traces.inspect import memory_use
from dsx.traces.read import open_folder, traces

# The other plans of a job have more microbatches and stages, and take minutes to replay; so do some of the fastest.
ROLES = {"fastest": pytest.mark.slow, "simplest": pytest.mark.fuzz, "leanest": pytest.mark.fuzz}
LONG = ("deepseek-v3", "qwen3", "nemotron-4-340b")
PLANS = [
    pytest.param(job, role, marks=pytest.mark.fuzz if number % 2 or str(job).startswith(LONG) else mark)
    for number, job in enumerate(JOBS)
    for role, mark in ROLES.items()
]


@pytest.fixture(scope="module")
def asked(request):
    """A job and its answer."""
    log = logging.getLogger("dsx")
    before = log.level
    log.setLevel(logging.ERROR)
    yield request.param.job, dsx.best(request.param.job, framework=request.param.framework)
    log.setLevel(before)


def largest_difference(plan):
    """How far a replay may be from the price, in time and in memory: the passes of these plans are coarser."""
    coarse = plan["zero_stage"] >= 2 or plan["vpp"] > 1 or plan["offload"] != "none"
    return 0.05 if coarse else 0.03


@pytest.mark.parametrize(("asked", "role"), PLANS, indirect=["asked"], ids=str, scope="module")
def test_a_plan_takes_as_long_and_holds_as_much_as_its_replay(asked, role, tmp_path):
    _, answer = asked
    chosen = answer.to_data()[role]
    priced = dsx.evaluate(answer.job, getattr(answer, role))
    assert priced.step_time_s == pytest.approx(chosen["step_time_s"], rel=1e-9)
    dsx.trace.write(answer.job, getattr(answer, role), out=tmp_path / "trace", ranks="stages")
    step = dsx.trace.replay(tmp_path / "trace", cluster=answer.job.cluster, assumptions=answer.job.assumptions)
    peak = max(memory_use(trace).peak_bytes for trace in traces(open_folder(tmp_path / "trace")))
    bound = largest_difference(chosen["plan"])
    assert step.step_time_s == pytest.approx(priced.step_time_s, rel=bound)
    assert peak == pytest.approx(priced.costs["peak_bytes"] - priced.costs["overhead_bytes"], rel=bound)
