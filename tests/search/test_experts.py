"""Expert parallelism in a search: its candidates, the costs of gradients and optimizer state, and the best plans."""

import math
from functools import cache

import numpy as np
import pytest
from laws.spaces import SYSTEM, USUAL, assert_rows_equal
from priced import evaluate_plan
from validation.cases import cluster_spec, model_spec
from validation.cases import priced as priced_rows_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import ModelSpec, load_model
from dsx.plans.choices import KEY_COLUMNS
from dsx.pricing.keys import price_keys
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.search.spaces import Space

DEFAULT = load_assumptions("default")
MIXTRAL = load_model("mixtral-8x7b")
EXPERT = 3 * 4096 * 14336  # parameters of one expert of one layer
SMALL = {"e": 512, "h": 4, "g": 4, "k": 128, "fx": 256, "x": 6, "topk": 2, "capacity_percent": 100}
AXES = ("tp", "tp2", "cp")


def mixture(dimensions, count):
    layers = [{"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": count}]
    spec = {"name": "mixture", "source": "a test", "default_sequence_length": 1024, "dimensions": dimensions}
    return ModelSpec.model_validate(spec | {"layers": layers})


@cache
def problem(*strategies, model="small", system=(), **changes):
    spec = {"small": mixture(SMALL, 2), "mixtral": MIXTRAL, "layer": mixture(MIXTRAL.dimensions, 1)}[model]
    assumptions = DEFAULT.model_copy(update=changes)
    made = make_problem(
        spec, cluster_spec(SYSTEM | dict(system)), assumptions, strategies, ProblemOptions(sequence_length=1024)
    )
    return made.searching(USUAL)


@cache
def space(*strategies, num_gpus=(12, 24), batches=(24,)):
    return Space(problem(*strategies), num_gpus, batches)


def etp(strategy, row):
    return row["tp"] if strategy == "2d-expert-tp" else 1


@pytest.mark.parametrize("strategy", ["1d", "2d", "2d-expert-tp", "summa"])
def test_ep_etp_and_edp_make_up_the_ranks_of_a_stage(strategy):
    made = space(strategy)
    positions, choices = made.blocks.rows(0, made.size)
    columns = {name: column[positions].tolist() for name, column in made.keys.items()}
    columns |= {name: column.tolist() for name, column in choices.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert {row["ep"] for row in rows} == {1, 2, 3, 6}
    even = 0
    for row in rows:
        stage = math.prod(row[axis] for axis in AXES) * row["dp"]
        assert stage * row["pp"] == row["num_gpus"]
        edp, rest = divmod(stage, row["ep"] * etp(strategy, row))
        assert rest == 0
        # Domains hold whole parts of ep groups, and of the groups of ranks with the same experts.
        shares = {axis: row[f"{axis}_nvs"] for axis in (*AXES, "ep", "dp")}
        inside = math.prod(shares[axis] for axis in (*AXES, "dp")) // etp(strategy, {"tp": shares["tp"]})
        placed = math.prod(shares[axis] for axis in (*AXES, "dp")) * row["pp_nvs"]
        if all(row[axis] % row[f"{axis}_nvs"] == 0 for axis in (*AXES, "dp", "pp")):
            assert shares["ep"] == math.gcd(row["ep"], inside)
            assert edp % (inside // shares["ep"]) == 0
            even += placed in {12: (6, 4), 24: (8, 6)}[row["num_gpus"]]
        assert placed <= 8
    assert 0.5 * len(rows) < even < len(rows)
    assert len({tuple(row.values()) for row in rows}) == len(rows)


def check_rows(problem, rows, chosen, names):
    """Compare some of the rows of a space with plans that are priced by themselves."""
    for row in np.random.default_rng(0).choice(chosen, 12, replace=False).tolist():
        settings = [f"{name}={rows[name][row]}" for name in ("tp", "cp", "ep", "pp", "dp", "microbatch_size", *names)]
        settings += [f"nvs.{axis}={rows[f'{axis}_nvs'][row]}" for axis in ("tp", "cp", "pp", "dp")]
        found = evaluate_plan(problem, settings, int(rows["num_gpus"][row]), 24)
        assert {violation.reason.name for violation in found.broken} <= {"memory"}
        assert [found.plan[name] for name in ("candidate", "ep_nvs")] == [rows["candidate"][row], rows["ep_nvs"][row]]
        for name, value in found.costs.items():
            assert value == pytest.approx(float(rows[name][row]), rel=1e-12, abs=1e-15, nan_ok=True), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["2d", "2d-expert-tp"])
def test_every_candidate_is_a_plan_that_breaks_no_rule(strategy):
    made = space(strategy)
    check_rows(problem(strategy), priced_rows_of(problem(strategy), made), made.size, ())


def settings_of(**plan):
    return [f"{name.replace('nvs_', 'nvs.')}={value}" for name, value in plan.items()]


def evaluated(*settings, model="mixtral", strategy="1d", num_gpus=16, batch=16, system=(), **changes):
    return evaluate_plan(
        problem(strategy, model=model, system=system, **changes), list(settings), num_gpus, batch
    ).costs


def test_memory_of_mixtral_by_hand():
    """Two of 16 ranks hold the same expert of a layer and share its state; all other state is sharded over 16."""
    experts = 32 * EXPERT
    others = (MIXTRAL.parameters or 0) - 8 * experts
    costs = evaluated("ep=8", "dp=16", "nvs.dp=8")
    assert costs["weight_bytes"] == 2 * (experts + others)
    assert costs["gradient_bytes"] == 2 * (experts + others)
    assert costs["optimizer_bytes"] == pytest.approx(12 * (experts / 2 + others / 16), rel=1e-12)
    whole = evaluated("ep=1", "dp=16", "nvs.dp=8")
    assert whole["weight_bytes"] == 2 * (8 * experts + others)
    assert whole["optimizer_bytes"] == pytest.approx(12 * (8 * experts + others) / 16, rel=1e-12)
    # One expert per rank, over tp and dp; no other rank has it.
    spread = evaluated("ep=8", "tp=2", "dp=4", "nvs.tp=2", "nvs.dp=4", num_gpus=8)
    assert spread["optimizer_bytes"] > 12 * experts
    assert spread["optimizer_bytes"] < 12 * (experts + others / 4)


def test_replicas_of_experts():
    """Two of 16 ranks hold the same expert. With two replicas each has its whole state; all other state is over 8."""
    experts = 32 * EXPERT
    others = (MIXTRAL.parameters or 0) - 8 * experts
    costs = evaluated("ep=8", "dp=16", "nvs.dp=8", "zero_replicas=2")
    assert costs["optimizer_bytes"] == pytest.approx(12 * (experts + others / 8), rel=1e-12)
    costs = evaluated("ep=2", "dp=16", "nvs.dp=8", "zero_replicas=4")
    assert costs["optimizer_bytes"] == pytest.approx(12 * (4 * experts / 2 + others / 4), rel=1e-12)
    # Zero replicas that split experts break a rule.
    here = problem("1d", model="layer")
    broken = evaluate_plan(here, ["ep=8", "dp=16", "nvs.dp=8", "zero_replicas=4"], 16, 16).broken
    (violation,) = [violation for violation in broken if violation.reason.name != "memory"]
    assert violation.reason.name == "expert_replicas_not_divisible"
    assert violation.detail == (
        "zero_replicas=4 does not divide the 2 ranks that hold the same experts; nearest: zero_replicas=2"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["2d", "2d-expert-tp"])
def test_every_number_of_zero_replicas_breaks_no_rule(strategy):
    opened = problem(strategy).searching({"zero_replicas": [1, 2, 3, 4], "zero_stage": [0, 1, 3]})
    made = Space(opened, (12, 24), (24,))
    rows = priced_rows_of(opened, made)
    assert (rows["zero_replicas"][rows["ep"] > 1] > 1).any()
    etp = rows["tp"] if strategy == "2d-expert-tp" else 1
    alike, rest = np.divmod(rows["tp"] * rows["cp"] * rows["dp"], rows["ep"] * etp)
    assert (rest == 0).all()
    assert (alike % rows["zero_replicas"] == 0).all()
    several = np.flatnonzero(rows["zero_replicas"] > 1)
    check_rows(opened, rows, several, ("zero_stage", "zero_replicas"))


@pytest.mark.parametrize(
    ("plan", "strategy", "members", "share"),
    [
        ({"ep": 8, "dp": 16, "nvs_dp": 8}, "1d", 2, 1),
        ({"ep": 2, "dp": 16, "nvs_dp": 8}, "1d", 8, 4),
        ({"ep": 8, "dp": 4, "tp": 4, "nvs_tp": 4, "nvs_dp": 2}, "1d", 2, 1),
        ({"ep": 2, "dp": 4, "tp": 4, "nvs_tp": 4, "nvs_dp": 2}, "2d-expert-tp", 2, 1),
        ({"ep": 1, "dp": 4, "tp": 2, "cp": 2, "nvs_tp": 2, "nvs_cp": 2, "nvs_dp": 2}, "2d", 16, 8),
    ],
)
def test_the_ranks_that_hold_the_same_experts(plan, strategy, members, share):
    here = problem(strategy, model="layer")
    found = evaluate_plan(here, settings_of(**plan), 16, 16).plan
    keys = {name: np.array([0 if name == "strategy" else found[name]]) for name in KEY_COLUMNS}
    (costs,) = price_keys(here, keys)
    held = 2 * 8 // plan["ep"] * EXPERT // (plan.get("tp", 1) if strategy == "2d-expert-tp" else 1)
    (group,) = np.flatnonzero(costs.weight_bytes[0, :, 0] == held)
    assert costs.group_size[0, group, 0] * found["dp"] / costs.group_ep[0, group, 0] == members
    assert costs.group_share[0, group, 0] * found["dp_nvs"] // costs.group_ep[0, group, 0] == share


def test_the_reduction_of_experts_by_hand():
    """One layer of Mixtral: nothing hides its reduction. Rings at full bandwidth, no latency of a call."""
    ideal = {"call_latency": 0.0, "relay": 0.0, "bulk_latency": 1.0, "nvs_efficiency": 1.0, "net_efficiency": 1.0}
    here = problem("1d", model="layer", protocols=("bulk",), **ideal)
    costs = evaluate_plan(here, ["ep=8", "dp=16", "nvs.dp=8"], 16, 16).costs
    slow, fast = SYSTEM["slow_latency"], SYSTEM["fast_latency"]
    attention = 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096
    others = attention + 2 * 4096 + 4096 * 8

    def pair(volume):  # the two ranks with the same expert, each in its own domain
        return slow + volume / 2 / SYSTEM["slow_bandwidth"]

    def all_ranks(volume):  # two domains of eight, through eight NICs
        pace = max(1 / SYSTEM["fast_bandwidth"], 1 / (8 * SYSTEM["slow_bandwidth"]))
        return slow + 14 * fast + 15 / 16 * volume * pace

    gather = pair(2 * EXPERT) + all_ranks(2 * others)
    scatter = pair(2 * EXPERT) + all_ranks(2 * others)
    assert costs["dp_comm_s"] == pytest.approx(gather + scatter, rel=1e-9)


def test_the_all_to_all_of_experts_by_hand():
    """In one domain, and on two: then half of what a rank sends leaves its domain through its NIC."""
    ideal = {"call_latency": 0.0, "bulk_latency": 1.0, "nvs_efficiency": 1.0, "net_efficiency": 1.0}
    ideal |= {"ep_overlap": 0.0, "dispatcher": "once_per_copy"}
    here = problem("1d", model="layer", protocols=("bulk",), **ideal)
    volume = 2 * 2 * 1024 * 4096  # two experts of each token, two bytes
    for share in (8, 4):
        costs = evaluate_plan(here, ["ep=8", "dp=8", f"nvs.dp={share}"], 8, 8).costs
        outside = (8 - share) / 8 * volume / SYSTEM["slow_bandwidth"]
        inside = (share - 1) / 8 * volume / SYSTEM["fast_bandwidth"]
        latency = (SYSTEM["slow_latency"] if share < 8 else 0.0) + 7 * SYSTEM["fast_latency"]
        assert costs["ep_comm_s"] == pytest.approx(4 * (latency + max(outside, inside)), rel=1e-9)


@pytest.mark.parametrize("replicas", [[1], [1, 2, 4]])
def test_ep_1_has_no_cost_of_expert_parallelism(replicas):
    """ep = 1 costs the same whether or not the search has other degrees."""
    here = problem("2d").searching({"zero_replicas": replicas})
    closed = here.searching({"ep": [1]})
    only = Space(closed, (12, 24), (24,))
    assert closed.workload.searched.ep == (1,)
    rows = priced_rows_of(here, Space(here, (12, 24), (24,)))
    ones = {name: column[rows["ep"] == 1] for name, column in rows.items()}
    order, expected = np.argsort(ones["candidate"]), priced_rows_of(closed, only)
    again = np.argsort(expected["candidate"])
    assert_rows_equal(
        {name: column[order] for name, column in ones.items()},
        {name: column[again] for name, column in expected.items()},
        rtol=1e-14,
    )
    assert (ones["ep_comm_s"] == 0.0).all()


def test_expert_degrees_without_experts_fixed_and_limited():
    spec = model_spec({"l": 512, "e": 1024, "h": 8, "f": 4096, "depth": 2})
    here = make_problem(spec, cluster_spec(SYSTEM), DEFAULT, ["2d"])
    assert here.workload.searched.ep == (1,)
    assert here.expert_axes == ((),)
    assert set(Space(here, [8], [8]).keys["ep"].tolist()) == {1}
    # Fixed and limited.
    made = problem("1d").searching({"ep": [1, 6]})
    found = Space(made, [12], [24], {"ep": [1, 6]})
    assert set(found.keys["ep"].tolist()) == {1, 6}
    every = space("1d", num_gpus=(12,)).keys
    assert len(found.keys["ep"]) == sum(ep in (1, 6) for ep in every["ep"].tolist())
    assert problem("1d").workload.searched.ep == ()
    fixed = DEFAULT.model_copy(update={"fixed": DEFAULT.fixed | {"ep": 2}})
    held = make_problem(mixture(SMALL, 2), cluster_spec(SYSTEM), fixed, ["1d"], ProblemOptions(sequence_length=1024))
    assert set(Space(held, [12], [24]).keys["ep"].tolist()) == {2}
