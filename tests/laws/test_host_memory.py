"""Memory of hosts and of tied weights."""

from collections import Counter

import numpy as np
import pytest
from laws.test_best_of_everything import DENSE, DIMENSIONS, problem_for
from trace_totals import Priced
from verbs.small import model_of
from written_traces import communications

import dsx
from dsx.cost.interval import room
from dsx.search.spaces import Space, at_points
from dsx.search.sweep import search_of
from dsx.traces.inspect import memory_use
from dsx.traces.read import open_folder, traces
from dsx.verbs.trace_write import traced_plan

LAYERS = [{"kind": "embedding"}, {**DENSE, "count": 4}, {"kind": "head"}]
MODEL = model_of(LAYERS, DIMENSIONS)
HOSTS = (1e12, 3e9, 2.5e9, 2e9)  # of a node: from no limit to one that leaves no plan


def searched(problem):
    """The feasible plans of a search with all offloads, and what a GPU has of its host."""
    space = Space(problem, [4], [8])
    rows, counts = search_of(problem, space, space.table(problem)).best(1)
    return rows, counts, float(room(problem.hardware, problem.assumptions, np.array([4.0])).host[0])


@pytest.mark.sampled(0)
@pytest.mark.parametrize("partition", ["even", "optimal"])
def test_more_of_it_never_leaves_fewer_plans_or_a_slower_best(partition):
    system = {"hbm_capacity": 3e9, "fast_size": 4, "node": {"gpus": 4}}
    problem = problem_for((LAYERS, DIMENSIONS), system, ["1d-no-sp"]).with_partition(partition)
    choices = {"offload": ["none", "optimizer", "both"], "recompute": ["none"], "stored_layers": [0], "vpp": [1]}
    problem = problem.searching(choices | {"schedule": ["1f1b"], "zero_stage": [1], "zero_replicas": [1]})
    feasible, times = [], []
    for host in HOSTS:
        here = at_points(problem, {"node.host_memory": np.array([host])})
        rows, counts, usable = searched(here)
        assert (rows["host_bytes"] <= usable).all() and (rows["reject"] == 0).all()
        feasible.append(counts.feasible)
        times.append(rows["step_time_s"].min(initial=np.inf))
    assert times == sorted(times) and times[0] < times[-1]
    if partition == "even":  # bounds leave out plans that are cut
        assert feasible == sorted(feasible, reverse=True) and feasible[0] > feasible[-1]


def test_answers_keep_less_on_a_host_than_it_has_or_it_is_said():
    few = "recompute=full zero_stage=3 zero_replicas=1 vpp=1 schedule=1f1b stored_layers=0"
    changes = {"cluster.device.hbm_capacity": "24 GB", "cluster.node.host_memory": "160 GB"}
    job = dsx.Job("llama-3-8b", "h100-nvs8", 8, 16, 2048, set=changes)
    found = dsx.best(job, 5, strategy="1d", fix=few)
    assert found.plans and (found.frame["host_bytes"] <= 0.9 * 160e9 / 8).all()
    # Where all offload too much the host is what is said.
    few = "offload=optimizer pp=1 recompute=full vpp=1 schedule=1f1b zero_stage=0 zero_replicas=1 stored_layers=0"
    job = dsx.Job("llama-3-8b", "h100-nvs8", 1, 1, 2048, set={"cluster.node.host_memory": "64 GB"})
    said = dsx.best(job, 1, strategy="1d", framework="any", fix=few).infeasible
    # 8.03e9 parameters, 16 bytes each, and nine tenths of 64 GB.
    assert "keeps 128 GB on it, and a job has 57.6 GB of it" in said and "cluster.node.host_memory" in said


V, E, TP, DP = 51200, 2048, 2, 4
TABLE = V * E // TP  # parameters of a rank
SMALL = ["model.layers.1.count=4", f"model.dimensions.v={V}", "assumptions.dispatch_latency=0 s"]
SMALL += [f"model.dimensions.{size}" for size in (f"e={E}", "f=8192", "h=16", "g=16")]


def job(*options, pp=1):
    head = f"model.layers.2={{kind: head, options: [{', '.join(('layernorm', *options))}]}}"
    return dsx.Job("gpt3-5b", "h100-nvs8", TP * DP * pp, 32, 1024, set=[*SMALL, head])


def plan(zero_stage, **choices):
    return {"tp": TP, "dp": DP, "microbatch_size": 2, "zero_stage": zero_stage, **choices}


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_one_stage_counts_the_table_once(zero_stage):
    """By hand, elements of 2, 2 and 12 bytes; ZeRO divides the state, gradients, and weights over dp."""
    apart, tied = (dsx.evaluate(job(*options), **plan(zero_stage)).costs for options in ((), ("tied",)))
    saved = {name: apart[name] - tied[name] for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes")}
    shards = [DP if zero_stage >= stage else 1 for stage in (3, 2, 1)]
    assert saved == {
        "weight_bytes": pytest.approx(2 * TABLE / shards[0]),
        "gradient_bytes": pytest.approx(2 * TABLE / shards[1]),
        "optimizer_bytes": pytest.approx(12 * TABLE / shards[2]),
    }
    # Traffic of an update: 26 bytes a parameter.
    assert tied["optimizer_s"] < apart["optimizer_s"]
    assert tied["mfu"] * tied["step_time_s"] == pytest.approx(apart["mfu"] * apart["step_time_s"])  # all FLOPs stay


def test_the_last_stage_or_a_head_alone_has_the_table():
    apart, tied = (dsx.evaluate(job(*options, pp=2), **plan(1, pp=2)).costs for options in ((), ("tied",)))
    for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"):
        assert tied[name] == apart[name]
    assert tied["dp_comm_s"] > apart["dp_comm_s"]
    # A set may count no embedding; the projection of the head is then there all the same.
    none = "assumptions.uncounted_layers=[embedding]"
    apart, tied = (
        dsx.evaluate(job(*options).replace(set=[none]), **plan(1)).costs["weight_bytes"] for options in ((), ("tied",))
    )
    assert tied == apart


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("schedule", "vpp", "zero_stage"), [("zb-v", 2, 0), ("zb-v", 2, 1), ("zb-v", 2, 3), ("dualpipe", 1, 1)]
)
def test_a_stage_with_the_first_and_the_last_chunk_counts_the_table_once(tmp_path, schedule, vpp, zero_stage):
    """Stage 0 has both, in the shape of a V as in two directions, and all-reduces no gradient with another stage."""
    asked = plan(zero_stage, pp=2, schedule=schedule, vpp=vpp)
    apart, tied = (dsx.evaluate(job(*options, pp=2), **asked).costs for options in ((), ("tied",)))
    ranks = DP * (2 if schedule == "dualpipe" else 1)  # two stages hold the same chunks
    shards = [ranks if zero_stage >= stage else 1 for stage in (3, 2, 1)]
    saved = {name: apart[name] - tied[name] for name in ("gradient_bytes", "optimizer_bytes")}
    assert saved == {
        "gradient_bytes": pytest.approx(2 * TABLE / shards[1]),
        "optimizer_bytes": pytest.approx(12 * TABLE / shards[2]),
    }
    assert apart["weight_bytes"] - tied["weight_bytes"] == pytest.approx(2 * TABLE / shards[0])
    dsx.trace.write(job("tied", pp=2), out=tmp_path, ranks="stages", **asked)
    assert dsx.trace.inspect(tmp_path).num_faults == 0
    used = [memory_use(trace).peak_bytes for trace in traces(open_folder(tmp_path))]
    fullest = tied["peak_bytes"] - tied["overhead_bytes"]
    assert max(used) == pytest.approx(fullest, rel=0.03)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "choices",
    [
        *({"zero_stage": stage} for stage in range(4)),
        {"zero_stage": 1, "zero_replicas": 2},
        {"zero_stage": 3, "zero_replicas": 2},
        {"zero_stage": 1, "offload": "optimizer"},
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [("tied",), ("tied", "prediction")], ids=" ".join)
def test_a_trace_has_what_is_priced(tmp_path, options, choices):
    stated, asked = job(*options), plan(**choices)
    found = dsx.evaluate(stated, **asked)
    dsx.trace.write(stated, out=tmp_path, ranks="stages", **asked)
    assert dsx.trace.inspect(tmp_path).num_faults == 0
    (trace,) = traces(open_folder(tmp_path))
    need = found.costs["peak_bytes"] - found.costs["overhead_bytes"]
    assert memory_use(trace).peak_bytes == pytest.approx(need, rel=0.02)
    replayed = dsx.trace.replay(tmp_path, "h100-nvs8", set=["assumptions.dispatch_latency=0 s"])
    assert replayed.step_time_s == pytest.approx(found.step_time_s, rel=0.05 if asked["zero_stage"] > 1 else 0.02)
    of_dp = Counter({key: count for key, count in communications(trace).items() if key[1] == "dp"})
    priced = Priced(found.problem, found.plan.codes).of_stage(0)
    assert of_dp == Counter({key: count for key, count in priced.items() if key[1] == "dp"})
    assert traced_plan(found.problem, found.plan).shared is not None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("schedule", "vpp", "zero_stage"), [("zb-v", 2, 1), ("dualpipe", 1, 0), ("dualpipe", 1, 3)])
def test_an_update_waits_for_the_gradients_of_both_chunks(tmp_path, schedule, vpp, zero_stage):
    """Passes of the two chunks mix, so neither is behind the other."""
    choices = plan(zero_stage, pp=2, schedule=schedule, vpp=vpp)
    dsx.trace.write(job("tied", pp=2), out=tmp_path, ranks="stages", **choices)
    first = next(trace for trace in traces(open_folder(tmp_path)) if trace.rank == 0)
    (update,) = (row for row in range(first.num_nodes) if first.names.of(row) == "L000.optimizer")
    head = f".L{4 + 1:03d}."
    waits_for = [first.names.of(row) for row in first.data_deps.of(update).tolist()]
    assert any(head in name for name in waits_for) and any(".L000." in name for name in waits_for), waits_for
