"""The trace of a plan has what is priced: work, communication, seconds. And it has no faults.

The priced side is summed up from the derived layers (`trace_totals`), in whole numbers.
"""

import json
import math
import random
from collections import Counter
from itertools import product

import jax
import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from notation.definitions import settings
from trace_totals import Priced, of_trace, without_zeros
from verbs.small import model_of
from written_traces import KINDS, job_of, written

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.config.model_file import load_model
from dsx.cost.collectives import collective
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group
from dsx.cost.layer import is_data_axis, kernel_times, weight_groups
from dsx.cost.layer_work import layer_work
from dsx.notation.library import load_layer, load_operators, strategy_names
from dsx.notation.syntax import AXES
from dsx.notation.work import derive
from dsx.plans.choices import VALUES
from dsx.pricing.one_plan import stated_plan
from dsx.schedules.schedules import SCHEDULES
from dsx.traces.checks import check
from dsx.traces.codec import (
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    GlobalMetadata,
    Node,
    framed,
    messages,
)
from dsx.traces.read import open_folder, traces
from dsx.verbs.plan import given_plan

AG, AR = "all-gather", "all-reduce"

# Sizes that the degrees below divide.
SIZES = {
    "e": 1024, "h": 16, "g": 4, "k": 64, "f": 2048, "v": 4096, "positions": 512, "x": 8, "topk": 2, "ng": 4, "tg": 2,
    "fx": 512, "fs": 512, "rq": 256, "rkv": 128, "nope": 64, "rope": 32, "kv": 64, "state": 64, "conv": 4, "chunk": 64,
    "window": 128, "patch": 16, "channels": 4, "classes": 1024, "capacity_percent": 100,
}  # fmt: skip
# One model for each kind of layer, with its embedding and its head.
MODELS = (
    "gpt3-5b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "mamba2-2.7b", "vit-l-16", "palm-540b", "gpt-oss-20b",
    "grok-1", "nemotron-3-8b", "qwen3-30b-a3b",
)  # fmt: skip
# Degrees of each strategy; 2d-copied-kv and 2d-gathered-qkv have more of tp than key-value heads.
DEGREES = {
    "1d": {"tp": 2}, "1d-no-sp": {"tp": 2}, "2d": {"tp": 2, "cp": 2}, "2d-no-sp": {"tp": 2, "cp": 2},
    "2d-ring": {"tp": 2, "cp": 4}, "ulysses": {"tp": 2, "cp": 2}, "2d-copied-kv": {"tp": 8, "cp": 2},
    "2d-copied-kv-no-sp": {"tp": 8, "cp": 2}, "2d-gathered-qkv": {"tp": 8, "cp": 2},
    "2d-gathered-qkv-no-sp": {"tp": 8, "cp": 2}, "2d-expert-tp": {"tp": 2, "cp": 2},
    "summa": {"tp": 2, "tp2": 4, "panels": 8},
}  # fmt: skip
RECOMPUTED = ("none", "selective", "full", "norms", "norms+experts", "expert-activation", "feed-forward")


def small(name, count=2):
    """A packaged model with other sizes, and `count` layers of each kind."""
    model = load_model(name).model_dump(mode="json", exclude={"parameters"})
    layers = []
    for entry in model["layers"]:
        if "repeat" in entry:
            entry |= {"repeat": 1, "layers": [one | {"count": count} for one in entry["layers"]]}
        elif entry["count"] > 1:
            entry["count"] = count
        layers.append(entry)
    sizes = {letter: SIZES[letter] for letter in model["dimensions"]}
    if "state" in sizes:
        sizes["g"] = sizes["h"]  # no strategy has replicas of groups
    return model | {"default_sequence_length": 512, "dimensions": sizes, "layers": layers}


def compared(folder, model, strategy, num_microbatches=2, assumptions="default", changes=None, **plan):
    """Compare a written trace with its price, and look for faults; return the traces."""
    batch = plan["microbatch_size"] * plan["dp"] * num_microbatches
    num_gpus = math.prod(plan.get(axis, 1) for axis in ("tp", "tp2", "cp", "dp", "pp"))
    job = job_of(model, num_gpus, batch, assumptions=assumptions, set=changes)
    problem = job.problem(strategy)
    stated = stated_plan(problem, given_plan(None, plan, job).settings, num_gpus, batch)
    found = written(folder, job, strategy=strategy, portable=False, **plan)
    assert [*found] == [*range(num_gpus)]
    assert check(open_folder(folder), found.values()) == []
    priced = Priced(problem, stated.codes)
    of_stages = [without_zeros(priced.of_stage(stage)) for stage in range(plan["pp"])]
    for rank, trace in found.items():
        assert without_zeros(of_trace(trace)) == of_stages[rank * plan["pp"] // num_gpus], rank
    return found


def plan_of(seed, strategy, model):
    """Some choices for a strategy and a model."""
    draw = random.Random(seed)
    plan = {"dp": 2, "pp": draw.choice([1, 2]), "microbatch_size": draw.choice([1, 2]), **DEGREES[strategy]}
    plan["pp"] = 1 if plan["tp"] == 8 else plan["pp"]
    if "x" in model["dimensions"]:
        plan["ep"] = draw.choice([1, 2, 4])
    plan["recompute"] = draw.choice(RECOMPUTED)
    plan["stored_layers"] = draw.choice([0, 1]) if plan["recompute"] != "none" else 0
    plan["zero_stage"] = draw.choice([0, 1, 2, 3])
    # Replicas of experts hold whole ep groups.
    plan["zero_replicas"] = 2 if plan["zero_stage"] and plan.get("ep", 1) <= 2 and draw.random() < 0.5 else 1
    return plan


def test_every_packaged_strategy_has_degrees():
    assert {*DEGREES} == {*strategy_names()}


@pytest.mark.sampled(37, 3)
@pytest.mark.parametrize(("strategy", "name"), [*product(DEGREES, MODELS)])
def test_a_trace_has_what_is_priced(tmp_path, strategy, name):
    model = small(name)
    compared(tmp_path, model, strategy, **plan_of(f"{strategy} {name}", strategy, model))


# Of SIZES, what no layer of the model below has.
UNUSED = {"positions", "ng", "tg", "window", "patch", "channels"}
LATER = model_of(
    [
        {"kind": "embedding"},
        {"kind": "sublayer", "options": ["own_heads", "conv_bias", "gate_norm"], "mixer": "state-space"},
        {"kind": "sublayer", "options": ["latent_experts", "squared_relu", "shared", "corrected"], "mixer": "experts"},
        {"kind": "transformer", "options": ["gated", "plain_queries"], "attention": "latent-attention"},
        {"kind": "transformer", "options": ["gated", "rotary", "global_heads", "shared_kv"]},
        {"kind": "transformer", "options": ["ungated"], "attention": "grouped-output-attention", "ffn": "experts"},
        {"kind": "label-head"},
    ],
    SIZES | {"sh": 32, "sg": 16, "sk": 32, "le": 256, "gg": 8, "gk": 128, "og": 16, "ol": 64, "classes": 3},
    name="later",
    length=512,
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", ["2d", "summa", "2d-gathered-qkv"])
def test_of_layers_of_later_models(tmp_path, strategy):
    used = {letter: size for letter, size in LATER["dimensions"].items() if letter not in UNUSED}
    plan = {"dp": 2, "pp": 1, "ep": 2, "microbatch_size": 1, "recompute": "norms", "zero_stage": 1, **DEGREES[strategy]}
    compared(tmp_path, LATER | {"dimensions": used}, strategy, **plan)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("zero_stage", "schedule"), [*product(range(4), [one.name for one in SCHEDULES])])
def test_under_every_schedule_and_stage_of_zero(tmp_path, schedule, zero_stage):
    plan = {"dp": 4, "pp": 2, "microbatch_size": 1, "zero_replicas": 2 if zero_stage % 2 else 1}
    plan |= {"schedule": schedule, "zero_stage": zero_stage, "recompute": "norms", "stored_layers": 1}
    plan |= {"vpp": 2} if schedule in ("1f1b", "zb-v") else {}
    compared(tmp_path, small("gpt3-5b", 4), "1d", 4, **plan)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("zero_stage", "schedule"), [*product([0, 2], [one.name for one in SCHEDULES])])
def test_each_microbatch_adds_to_the_gradient_that_the_one_before_has_left(tmp_path, schedule, zero_stage):
    """A gradient is there from the start, cleared; from then on each node that adds to it waits for the one before."""
    job = job_of(small("llama-3-8b", 4), 4, 16)
    plan = {"pp": 2, "dp": 2, "microbatch_size": 1, "zero_stage": zero_stage, "schedule": schedule}
    plan |= {"vpp": 2} if schedule in ("1f1b", "zb-v") else {}
    trace = written(tmp_path, job, ranks=[0], **plan)[0]
    state = {}
    for row in range(trace.num_nodes):
        taken = {trace.tensors[tensor] for tensor in trace.reads.of(row).tolist()}
        for made in (trace.tensors[tensor] for tensor in trace.writes.of(row).tolist()):
            if not made.startswith("m") and (".d " in made or ".gradients " in made):
                assert made in taken
                assert made not in state or state[made] in trace.data_deps.of(row).tolist()
                state[made] = row
    assert {buffer.partition(".")[0] for buffer in state} == held_layers(trace)


def held_layers(trace):
    """The layers whose weights the optimizer updates."""
    names = (trace.names.of(row) for row in range(trace.num_nodes))
    return {name.partition(".")[0] for name in names if name.endswith(".optimizer")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", [one.name for one in SCHEDULES])
def test_of_a_long_pipeline_whose_stages_differ(tmp_path, schedule):
    """Six layers, embedding and head on four stages."""
    plan = {"tp": 1, "dp": 1, "pp": 4, "microbatch_size": 2, "schedule": schedule, "zero_stage": 2}
    plan |= {"vpp": 2, "recompute": "full", "stored_layers": 1} if schedule == "zb-v" else {}
    compared(tmp_path, small("llama-3-8b", 8 if schedule == "zb-v" else 6), "1d", 8, **plan)


def test_traces_of_four_byte_gradients_and_of_chunks_without_layers(tmp_path):
    """Two layers, embedding and head on eight chunks."""
    plan = {"dp": 2, "pp": 2, "microbatch_size": 1, "vpp": 4, "zero_stage": 3, "recompute": "full"}
    compared(tmp_path, small("llama-3-8b", 2), "1d", 4, **plan)
    # Gradients of four bytes.
    plan = {"tp": 2, "dp": 2, "pp": 2, "microbatch_size": 1, "zero_stage": 2}
    compared(tmp_path / "bytes", small("llama-3-8b"), "1d", changes={"assumptions.gradient_bytes": 4}, **plan)


@pytest.mark.sampled(20, 2)
@pytest.mark.parametrize("recompute", VALUES)
def test_under_every_recomputation(tmp_path, recompute):
    """Latent attention and experts have all regions but one; the square of unfused attention is core attention."""
    unfused = {"assumptions.set": {"core": "unfused-attention-core"}}
    plan = {"tp": 2, "ep": 2, "dp": 1, "pp": 1, "microbatch_size": 1, "recompute": recompute}
    compared(tmp_path, small("deepseek-v3", 1), "1d", 1, changes=unfused, **plan)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recompute", ["none", "full", "feed-forward"])
def test_a_launch_for_every_operator(tmp_path, recompute):
    """The set of the paper prices a launch for the backward of every operator, and a fused backward that reads less."""
    plan = {"tp": 2, "tp2": 2, "panels": 4, "dp": 2, "pp": 2, "microbatch_size": 1, "zero_stage": 1}
    compared(tmp_path, small("gpt3-5b"), "summa", assumptions="paper-2410.00273", recompute=recompute, **plan)


@pytest.mark.parametrize(
    ("zero_stage", "once", "repeated"),
    [
        (1, {"all-gather weights", "reduce-scatter gradients"}, set()),
        (2, {"all-gather weights"}, {"reduce-scatter gradients"}),
        (3, {"all-reduce gradients"}, {"all-gather weights", "reduce-scatter gradients"}),
    ],
)
def test_what_a_microbatch_repeats_overlaps_otherwise_than_what_a_step_does_once(tmp_path, zero_stage, once, repeated):
    shares = {"assumptions.dp_overlap": 0.25, "assumptions.fsdp_overlap": 0.75}
    job = job_of(small("gpt3-5b"), 4, 8, set=shares)
    replicas = 2 if zero_stage == 3 else 1
    plan = {"dp": 4, "microbatch_size": 1, "zero_stage": zero_stage, "zero_replicas": replicas}
    trace = written(tmp_path, job, ranks=[0], **plan)[0]
    found = {}
    for row in np.flatnonzero(trace.types == COMM_COLL).tolist():
        kind = next(kind for kind in (*once, *repeated) if kind in trace.names.of(row))
        found.setdefault(kind, set()).add(float(trace.overlap[row]))
    assert found == {kind: {0.25} for kind in once} | {kind: {0.75} for kind in repeated}


def test_panels_as_one_collective(tmp_path):
    """For readers without broadcasts and reductions: a gather of the same bytes, or a scatter."""
    job = job_of(small("gpt3-5b"), 8, 2)
    plan = {"strategy": "summa", "tp": 2, "tp2": 4, "panels": 8, "microbatch_size": 1, "ranks": [0]}
    usual = of_trace(written(tmp_path / "usual", job, portable=False, **plan)[0])
    found = of_trace(written(tmp_path / "portable", job, portable=True, **plan)[0])
    for other, kind, shards in (("broadcast", AG, True), ("reduce", "reduce-scatter", False)):
        for axis, ranks in (("tp", 2), ("tp2", 4)):
            moved = sum(key[2] * count for key, count in usual.items() if key[:2] == (other, axis))
            before = sum(key[2] * count for key, count in usual.items() if key[:2] == (kind, axis))
            whole = sum(key[2] * count for key, count in found.items() if key[:2] == (kind, axis))
            assert moved
            assert (whole - before) * (ranks if shards else 1) == moved
    assert not any(key[0] in ("broadcast", "reduce") for key in found)
    work = {key for key in usual if len(key) != 3 or key[0] in ("matrix", "vector", "bytes", "unfused", "launches")}
    assert {key: found[key] for key in work} == {key: usual[key] for key in work}


def test_a_prefill_has_the_forward_alone(tmp_path):
    job = job_of(small("llama-3-8b", 4), 8, 8)
    plan = {"strategy": "2d", "tp": 2, "cp": 2, "pp": 2, "microbatch_size": 1}
    whole = written(tmp_path / "whole", job, **plan)
    found = written(tmp_path / "forward", job, forward_only=True, **plan)
    assert check(open_folder(tmp_path / "forward"), found.values()) == []
    for rank, trace in found.items():
        step = {key: amount for key, amount in of_trace(whole[rank]).items() if "forward" in key}
        assert {key: amount for key, amount in of_trace(trace).items() if "forward" in key} == step
        assert not any("backward" in key for key in of_trace(trace))


# Files

PLANS = {
    "pipeline": ("1d", {"pp": 4, "dp": 2, "microbatch_size": 1, "vpp": 2, "zero_stage": 1}),
    "ring": ("2d-ring", {"tp": 2, "cp": 4, "microbatch_size": 1}),
    "tensor": ("1d", {"tp": 4, "dp": 2, "microbatch_size": 1, "zero_stage": 3, "recompute": "full"}),
    "summa": ("summa", {"tp": 2, "tp2": 2, "pp": 2, "panels": 4, "microbatch_size": 1, "schedule": "zb-h1"}),
    "offload": ("1d", {"pp": 2, "dp": 4, "microbatch_size": 1, "offload": "both"}),
}


def files_of(folder, plan, cluster=None, **more):
    """Write the trace of a plan; return the content of its files by name."""
    strategy, choices = PLANS[plan]
    batch = choices.get("dp", 1) * max(choices.get("pp", 1), 2)
    job = job_of(
        small("llama-3-8b", 8 if "vpp" in choices else 2), 8, batch, **({"cluster": cluster} if cluster else {})
    )
    dsx.trace.write(job, out=folder, strategy=strategy, durations=bool(cluster), **choices, **more)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module", params=PLANS)
def of_plan(request, tmp_path_factory):
    """The folder of a trace of eight ranks."""
    folder = tmp_path_factory.mktemp(request.param)
    files_of(folder, request.param)
    return folder


def raw_messages(file):
    with file.open("rb") as opened:
        return [message for _, message in messages(opened, file.name)]


def parsed(raw):
    return [kind.FromString(one) for kind, one in zip([GlobalMetadata, *[Node] * (len(raw) - 1)], raw, strict=True)]


def check_bytes(file):
    """Check that protobuf writes the bytes that it reads, and knows all of them."""
    raw = raw_messages(file)
    known = parsed(raw)
    assert b"".join(framed(one.SerializeToString()) for one in known) == file.read_bytes()
    assert [node.id for node in known[1:]] == [*range(1, len(raw))]
    for one in known:
        assert not len(UnknownFieldSet(one))
        for attribute in one.attr:
            assert attribute.WhichOneof("value")
            assert not len(UnknownFieldSet(attribute))


@pytest.mark.sampled(5)
def test_protobuf_writes_the_bytes_that_it_reads(of_plan, tmp_path):
    check_bytes(of_plan / "trace.5.et")
    # Protobuf writes the bytes of durations too.
    files_of(tmp_path, "ring", "h100-nvs8", ranks=[5])
    check_bytes(tmp_path / "trace.5.et")
    nodes = parsed(raw_messages(tmp_path / "trace.5.et"))[1:]
    timed = [node for node in nodes if "duration_ns" in {attribute.name for attribute in node.attr}]
    assert {node.type for node in nodes if node not in timed} == {COMM_RECV}
    assert all(node.duration_micros >= 1 for node in timed)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("plan", PLANS)
def test_the_bytes_of_a_rank_do_not_depend_on_what_else_is_written(tmp_path, plan):
    whole = files_of(tmp_path / "all", plan)
    assert files_of(tmp_path / "again", plan) == whole
    for ranks in ([0], [3, 6], "stages"):
        found = files_of(tmp_path / str(ranks), plan, ranks=ranks)
        del found["manifest.json"]
        assert found.items() <= whole.items()
    files_of(tmp_path / "bit by bit", plan, ranks=[2, 6])
    assert files_of(tmp_path / "bit by bit", plan) == whole


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("num_gpus", "plan", "unlike"),
    [
        # Three nodes a stage, four nodes a leaf: the first ranks of a stage send inside a leaf, others between two.
        (96, {"strategy": "1d", "tp": 4, "dp": 6, "pp": 4}, [24, 30, 47]),
        (16, {"strategy": "2d-ring", "cp": 16}, [0, 3, 7, 15]),  # only ranks 7 and 15 send on to another node
    ],
)
def test_ranks_that_are_placed_unlike_each_other_have_the_same_durations(tmp_path, num_gpus, plan, unlike):
    job = job_of(small("llama-3-8b", 4), num_gpus, 24, "h100-spine-leaf")
    together = written(tmp_path / "together", job, unlike, True, **plan)
    for rank, trace in together.items():
        written(tmp_path / str(rank), job, [rank], True, **plan)
        file = f"trace.{rank}.et"
        assert (tmp_path / str(rank) / file).read_bytes() == (tmp_path / "together" / file).read_bytes()
        np.testing.assert_array_equal(np.sort(trace.duration_ns), np.sort(together[unlike[0]].duration_ns))


def test_a_file_is_in_order(of_plan):
    """Every dependency is on an earlier node; who reads what a node makes depends on it, and makes it anew in place."""
    for trace in traces(open_folder(of_plan)):
        reader, writer = pairs(trace.data_deps)
        assert (writer < reader).all()
        assert len({*zip(reader.tolist(), writer.tolist(), strict=True)}) == len(reader)
        of_streams = pairs(trace.ctrl_deps)
        assert (of_streams[1] < of_streams[0]).all()
        depends, writers = {*zip(reader.tolist(), writer.tolist(), strict=True)}, {}
        for row in range(trace.num_nodes):
            taken, made = trace.reads.of(row).tolist(), trace.writes.of(row).tolist()
            assert {(row, writers[tensor]) for tensor in taken if tensor in writers} <= depends
            assert not [tensor for tensor in made if tensor in writers and tensor not in taken]
            # Later microbatches read a weight that the first has gathered in place, and wait for the first.
            writers |= {tensor: row for tensor in made if tensor not in taken or trace.types[row] == COMP}


def pairs(lists):
    """The rows of the nodes that have an entry, and the entries."""
    return np.repeat(np.arange(len(lists.starts) - 1), np.diff(lists.starts)), lists.values


def test_nodes_of_one_kind_are_a_chain_and_groups_are_used_by_their_members(of_plan):
    """Computation, communication, loads and stores each wait for the node of their kind before them."""
    kinds = {COMP: 0, COMM_SEND: 1, COMM_RECV: 1, COMM_COLL: 1, MEM_LOAD: 2, MEM_STORE: 3}
    for trace in traces(open_folder(of_plan)):
        before = {}
        for row, node in enumerate(trace.types.tolist()):
            kind = kinds[node]
            assert trace.ctrl_deps.of(row).tolist() == ([before[kind]] if kind in before else [])
            before[kind] = row
    # A group is used by its members.
    groups = json.loads((of_plan / "comm_groups.json").read_text())
    assert all(len(ranks) > 1 for ranks in groups.values())
    assert [*groups] == [str(number) for number in range(1, len(groups) + 1)]
    used = {trace.rank: {*trace.groups.table} for trace in traces(open_folder(of_plan))}
    assert {name for names in used.values() for name in names} <= {*groups}
    for name, ranks in groups.items():
        # A ring has sends in place of collectives.
        assert {rank for rank in used if name in used[rank]} in ({*ranks}, *([set()] if "ring" in of_plan.name else []))


def test_ids_are_the_order_of_the_file_where_passes_run_side_by_side(tmp_path):
    job = job_of(small("mixtral-8x7b", 4), 4, 8)
    found = written(tmp_path, job, pp=2, dp=2, ep=2, microbatch_size=1, schedule="dualpipe", strategy="2d")
    for trace in found.values():
        assert trace.ids.tolist() == [*range(1, trace.num_nodes + 1)]
        reader, writer = pairs(trace.data_deps)
        assert (writer < reader).all()
    groups = json.loads((tmp_path / "comm_groups.json").read_text())
    assert len({frozenset(ranks) for ranks in groups.values()}) == len(groups)  # those of dp and ep are the same
    assert check(open_folder(tmp_path), found.values()) == []


# Seconds

LAYERS = {
    "1d": ("transformer", "layernorm qkv_bias out_bias ff_bias ff_out_bias dropout residual_dropout", {"tp": 4}),
    "1d-no-sp": ("transformer", "gated rotary", {"tp": 4}),
    "2d": ("transformer", "rotary ffn=experts", {"tp": 2, "cp": 2, "ep": 4}),
    "2d-ring": ("transformer", "gated rotary", {"tp": 2, "cp": 4}),
    "ulysses": ("transformer", "gated rotary qk_norm", {"tp": 2, "cp": 2}),
    "summa": ("transformer", "gated attention=latent-attention", {"tp": 2, "tp2": 4, "panels": 8}),
    "2d-no-sp": ("sublayer", "mixer=state-space", {"tp": 2, "cp": 2}),
    "2d-expert-tp": ("transformer", "shared ffn=experts", {"tp": 2, "cp": 2, "ep": 2}),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("strategy", LAYERS)
@pytest.mark.parametrize("assumptions", ["default", "uncalibrated"])
def test_a_layer_takes_the_seconds_that_it_is_priced_with(tmp_path, strategy, assumptions):
    kind, words, degrees = LAYERS[strategy]
    spec = load_assumptions(assumptions)
    read = load_layer(kind, strategy, load_operators(spec.operators), chosen=settings(words))
    layer = derive(read, spec.fused_backward_reads, spec.uncounted)
    sizes = {letter: SIZES[letter] for letter in layer.letters if letter in SIZES}
    given = {**sizes, **dict.fromkeys(layer.axes, 1), "b": 2, "s": 512, **degrees}
    stated = {"strategy": strategy, "assumptions": assumptions, "sizes": given}
    as_priced = {"cluster": "h100-nvs8", "portable": False}
    dsx.trace.write_layer(kind, *words.split(), **stated, **as_priced, out=tmp_path, ranks=[0])
    (trace,) = traces(open_folder(tmp_path))
    keys = {"microbatch_size": 2, "panels": given.get("panels", 1)}
    keys |= {name: given.get(axis, 1) for axis in AXES for name in (axis, f"{axis}_nvs")}
    work = layer_work(layer, sizes, spec, 512, {name: np.array([size]) for name, size in keys.items()})
    machine = load_cluster("h100-nvs8")
    cluster, assumed = cluster_from_spec(machine), assumptions_from_spec(spec, machine.device.family)
    assert seconds_of_kernels(trace) == pytest.approx(priced_kernels(layer, work, cluster, assumed), rel=1e-9)
    priced = priced_collectives(work, given, cluster, assumed)
    assert seconds_of_collectives(trace) == pytest.approx(priced, rel=1e-9)


def seconds_of_kernels(trace):
    found = Counter()
    for row in np.flatnonzero(trace.types == COMP).tolist():
        if path := trace.kernels.of(row):  # a sum of gradients that is not written takes no time, and is of no kernel
            found[tuple(path.split("/")[1:3])] += trace.duration_ns[row] * 1e-9
        else:
            assert trace.duration_ns[row] < 1e-3
    return found


def priced_kernels(layer, work, cluster, assumed):
    with jax.enable_x64(True):
        times = kernel_times(work, cluster, assumed)
        busy = np.asarray(times.compute_s + times.memory_s)[:, :, 0]
    return {
        (kernel.name, direction): busy[number, place]
        for number, direction in enumerate(("forward", "backward"))
        for place, kernel in enumerate(layer.priced_kernels)
        if busy[number, place]
    }


def seconds_of_collectives(trace):
    found = Counter()
    for row in np.flatnonzero(trace.types == COMM_COLL).tolist():
        found[KINDS[int(trace.comm_type[row])], trace.axes.of(row)] += trace.duration_ns[row] * 1e-9
    return found


def priced_collectives(work, degrees, cluster, assumed):
    """The seconds of all collectives but rings, which are sends; all ranks are in one domain."""

    def seconds(kind, ranks, num_bytes):
        members = group(np.array([float(ranks)]), np.array([float(ranks)]))
        return float(collective(kind, members, cluster.network, assumed)(np.array([num_bytes]))[0])

    found = Counter()
    with jax.enable_x64(True):
        for shape, volume in zip(work.shapes, work.volumes[:, 0], strict=True):
            ranks, count = degrees[shape.axis], degrees.get("panels", 1) if shape.panelled else 1
            if ranks > 1 and not shape.ring:
                found[shape.kind, shape.axis] += count * seconds(shape.kind, ranks, volume / count)
        for shared, members in weight_groups(work.reduced_over, work.over_ep).items():
            ranks = int(shared.members(degrees, 1)) // (degrees["ep"] if shared.over_ep else 1)
            if ranks > 1:  # a gradient that the ranks of another axis have parts of
                found[AR, "dp"] += seconds(AR, ranks, work.weights[members, 0].sum())
        for axis in AXES:
            alike = [axis in axes and not over for axes, over in zip(work.reduced_over, work.over_ep, strict=True)]
            if any(alike) and not is_data_axis(axis) and degrees[axis] > 1:  # of weights that a tp axis does not divide
                found[AR, axis] += seconds(AR, degrees[axis], work.weights[alike, 0].sum())
    return found
