"""Well-known jobs and best partitions have plans that fit."""

import logging
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.well_known_jobs import JOBS
from layer_table.chains import plan_of, problem_of, random_case
from oracles import partition as oracle

import dsx
from dsx.layer_table.solver import solve
from dsx.traces.inspect import memory_use
from dsx.traces.trace_folder import open_folder, traces

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


SEEDS = st.integers(0, 10_000)
ROUNDING = 1 + 1e-12


def seconds(made):
    return float("inf") if made is None else made.step_time_s


def best(case):
    return solve(problem_of(*case))


@settings(max_examples=25)
@given(SEEDS, st.floats(0.3, 1.0))
@pytest.mark.slow
def test_less_memory_is_never_better(seed, share):
    chain, network, job, per_stage = random_case(seed)
    less = job | {"memory": job["memory"] * share}
    assert seconds(best((chain, network, less, per_stage))) * ROUNDING >= seconds(best(random_case(seed)))


@settings(max_examples=25)
@given(SEEDS, st.integers(0, 2), st.floats(0.1, 1.0))
@pytest.mark.slow
def test_a_slower_network_is_never_better(seed, level, share):
    chain, network, job, per_stage = random_case(seed)
    slower = [width * (share if at == level else 1) for at, width in enumerate(network["bandwidth"])]
    made = best((chain, network | {"bandwidth": slower}, job, per_stage))
    assert seconds(made) * ROUNDING >= seconds(best(random_case(seed)))
    later = [latency + (share if at == level else 0) for at, latency in enumerate(network["latency"])]
    made = best((chain, network | {"latency": later}, job, per_stage))
    assert seconds(made) * ROUNDING >= seconds(best(random_case(seed)))


@settings(max_examples=25)
@given(SEEDS)
def test_an_even_cut_is_never_better(seed):
    case = chain, network, job, per_stage = random_case(seed)
    draw, num_layers = Random(seed), len(chain["forward"])
    devices = prod(network["devices"])
    num_stages = draw.randint(1, min(num_layers, devices // per_stage))
    even = {
        "per_stage": per_stage,
        "layers": [num_layers // num_stages + (place < num_layers % num_stages) for place in range(num_stages)],
        "replicas": draw.randint(1, min(job["batch"], devices // (num_stages * per_stage))),
        "zero": draw.randrange(4),
        "recompute": draw.random() < 0.5,
    }
    priced = oracle.price(chain, network, job, even)
    if priced is not None:
        assert seconds(best(case)) <= priced[0] * ROUNDING


@settings(max_examples=25)
@given(SEEDS)
def test_a_plan_for_another_network_is_never_better(seed):
    case = chain, network, job, per_stage = random_case(seed)
    infinite = network | {"bandwidth": [1e30] * 3, "latency": [0.0] * 3}
    blind = best((chain, infinite, job, per_stage))
    aware = best(case)
    assert (blind is None) == (aware is None)
    if blind is not None:
        assert aware.step_time_s <= oracle.price(chain, network, job, plan_of(blind))[0] * ROUNDING


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([2, 64, 1024]))
def test_units_do_not_matter(seed, factor):
    chain, network, job, per_stage = random_case(seed)
    sized = {name: [factor * size for size in chain[name]] for name in ("parameters", "saved", "cut")}
    faster = network | {"bandwidth": [factor * width for width in network["bandwidth"]]}
    scaled = best((chain | sized, faster, job | {"memory": factor * job["memory"]}, per_stage))
    made = best(random_case(seed))
    assert (scaled is None) == (made is None)
    if made is not None:
        assert scaled.step_time_s == pytest.approx(made.step_time_s, rel=1e-12)
        assert plan_of(scaled) == plan_of(made)
