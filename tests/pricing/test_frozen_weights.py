"""The price of phases that do not train all weights, against counts by hand; and of steps of several phases."""

from functools import cache

import numpy as np
import pytest
from laws.spaces import SYSTEM, USUAL, problem_of
from priced import evaluate_plan
from search.sweeps import study_of, swept
from validation.cases import cluster_spec, priced

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.config.sweep_file import KeepTop
from dsx.cost.step import step_of_phases
from dsx.pricing.one_plan import columns_of
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.pricing.row_costs import price_plans
from dsx.schedules.schedules import SCHEDULES
from dsx.search.spaces import Space

QUERIES, FORWARD_ALONE, PRE_TRAINING = ("wqkv",), (), ("*",)
DEFAULT, WITHOUT_OVERLAP = load_assumptions("default"), load_assumptions("default", [("pp_overlap", "0")])
# Of Llama-3 8B: 32 layers with e = 4096, and 32 + 2 * 8 heads of 128.
OF_QUERIES = 32 * 4096 * (32 + 2 * 8) * 128
PARAMETERS = 8_030_261_248


@cache
def problem(trained, model="llama-3-8b"):
    spec, options = load_model(model, [("trained", [*trained])]), ProblemOptions(sequence_length=4096)
    return make_problem(spec, load_cluster("h100-nvs8"), DEFAULT, (DEFAULT.default_strategy,), options)


@cache
def costs(trained, settings, model="llama-3-8b"):
    return evaluate_plan(problem(trained, model), settings.split(), 16, 32).costs


@pytest.mark.parametrize(
    ("settings", "shards"),
    [("tp=8 dp=2 zero_stage=0", (8, 8)), ("tp=2 dp=8 zero_stage=1", (2, 16)), ("dp=16 zero_stage=3", (16, 16))],
)
def test_state_of_trained_weights_alone(settings, shards):
    found, plain = costs(QUERIES, settings), costs(PRE_TRAINING, settings)
    of_gradients, of_states = (OF_QUERIES / number for number in shards)
    assert found["gradient_bytes"] == pytest.approx(of_gradients * DEFAULT.gradient_bytes, rel=1e-12)
    assert found["optimizer_bytes"] == pytest.approx(of_states * DEFAULT.optimizer_bytes_per_parameter, rel=1e-12)
    assert plain["optimizer_bytes"] == pytest.approx(
        PARAMETERS / shards[1] * DEFAULT.optimizer_bytes_per_parameter, rel=1e-3
    )
    assert found["weight_bytes"] == plain["weight_bytes"]
    # A step updates and reduces as many parameters.
    share = OF_QUERIES / PARAMETERS
    assert found["optimizer_s"] == pytest.approx(share * plain["optimizer_s"], rel=1e-3)
    if "zero_stage=3" not in settings:
        assert found["dp_comm_s"] < 0.5 * plain["dp_comm_s"]
    assert found["step_time_s"] < plain["step_time_s"]


@pytest.mark.parametrize(
    "settings", ["tp=8 dp=2", "tp=2 pp=2 dp=4 zero_stage=2", "dp=16 zero_stage=3", "tp=2 pp=2 dp=4 recompute=full"]
)
def test_a_forward_alone_holds_weights_and_runs_forwards(settings):
    found, plain = costs(FORWARD_ALONE, settings), costs(PRE_TRAINING, settings)
    for nothing in ("gradient_bytes", "optimizer_bytes", "optimizer_s", "recompute_s"):
        assert found[nothing] == 0.0, nothing
    assert found["weight_bytes"] == pytest.approx(plain["weight_bytes"], rel=1e-5)  # the worst stage is another one
    # The logits, and what the loss keeps of them in pre-training too, are the most that a layer holds.
    tp = int(settings.split()[0].removeprefix("tp=")) if "tp" in settings else 1
    assert DEFAULT.activation_bytes * 4096 * 128_256 / tp < found["activation_bytes"] < plain["activation_bytes"]
    # A third of the FLOPs of a step, in about a third of its time.
    assert found["mfu"] * found["step_time_s"] == pytest.approx(plain["mfu"] * plain["step_time_s"] / 3, rel=1e-12)
    assert found["compute_s"] == pytest.approx(plain["compute_s"] / 3, rel=0.15)
    if "zero_stage=3" in settings:  # it gathers weights once for every microbatch
        assert 0.0 < found["dp_comm_s"] < plain["dp_comm_s"]
    else:
        assert found["dp_comm_s"] == 0.0


PIPELINES = [f"tp=2 pp=4 dp=2 schedule={schedule.name}" for schedule in SCHEDULES]


def test_fewer_trained_weights_never_cost_more():
    growing = [FORWARD_ALONE, ("head.*",), ("head.*", "wo"), ("head.*", "w*"), PRE_TRAINING]
    plans = ["tp=2 pp=2 dp=4 zero_stage=1", "dp=16 zero_stage=3 recompute=full", "tp=4 dp=4 zero_replicas=2"]
    for settings in (*plans, *PIPELINES, "tp=4 pp=2 vpp=4 dp=2 zero_stage=1", "tp=4 pp=4 nvs.pp=2 nvs.tp=4"):
        found = [costs(trained, settings) for trained in growing]
        # The parts of the memory are those of the worst stage, which may be another one.
        of_one_stage = () if "pp" in settings else ("gradient_bytes", "optimizer_bytes")
        for name in ("step_time_s", "dp_comm_s", "optimizer_s", "peak_bytes", *of_one_stage):
            column = [row[name] for row in found]
            if name in ("dp_comm_s", "optimizer_s"):
                # Backwards of earlier layers hide the reduction of the head, and of earlier stages its update; where
                # the head alone is trained, nothing does.
                assert column.pop(1) > 0.0
            assert column == sorted(column), (settings, name)


@pytest.mark.parametrize("trained", [FORWARD_ALONE, ("wo",)], ids=str)
@pytest.mark.slow
def test_the_fastest_of_a_search_are_the_fastest_of_all(trained):
    """A search bounds candidates and prices blocks of them in compiled code; brute force prices all on NumPy."""
    whole = problem_of("default", ("1d",))
    spec, options = whole.model.model_copy(update={"trained": [*trained]}), ProblemOptions(train_tokens=1e12)
    made = make_problem(spec, cluster_spec(SYSTEM), whole.assumptions_spec, ("1d",), options).searching(USUAL)
    space = Space(made, (24,), (48,))
    rows = priced(made, space)
    rows = {name: column[rows["reject"] == 0] for name, column in rows.items()}
    found, counts = swept([study_of(made, space)], KeepTop(top=10))
    assert counts.feasible <= len(rows["tp"]) > 100
    order = np.argsort(rows["step_time_s"], kind="stable")[:10]
    np.testing.assert_allclose(found["step_time_s"], rows["step_time_s"][order], rtol=1e-12)
    np.testing.assert_allclose(found["peak_bytes"], rows["peak_bytes"][order], rtol=1e-12)


@pytest.mark.parametrize("settings", PIPELINES)
def test_gradients_are_sent_back_as_far_as_weights_before_are_trained(settings):
    def sent_s(*trained):
        spec = load_model("deepseek-v3", [("trained", [*trained])])
        made = make_problem(spec, load_cluster("h100-nvs8"), WITHOUT_OVERLAP, ("1d",))
        return evaluate_plan(made, [*settings.split(), "ep=4"], 16, 32).costs["pp_comm_s"]

    forwards_s, whole_s = sent_s(), sent_s("*")
    assert forwards_s == pytest.approx(whole_s / 2, rel=1e-12)
    assert sent_s("head.*") == forwards_s
    assert sent_s("wqa") == sent_s("embedding.*") == whole_s
    # The first three layers have no experts. Under DualPipe all sends hide.
    assert forwards_s < sent_s("experts.*") <= whole_s or whole_s == 0.0


def test_a_tied_weight_is_reduced_if_it_is_trained():
    found = {
        trained: costs(trained, "pp=2 dp=8", "gemma-3-12b") for trained in (PRE_TRAINING, FORWARD_ALONE, ("gamma",))
    }
    assert found[FORWARD_ALONE]["dp_comm_s"] == 0.0
    assert found["gamma",]["dp_comm_s"] < 0.2 * found[PRE_TRAINING]["dp_comm_s"]


def test_a_step_of_two_models():
    """A policy that is trained beside a reference that only runs forwards, and the policy's own forward before."""
    settings = "tp=8 dp=2"
    policy, before, reference = (
        price_plans(made := problem(phase, model), columns_of(made, evaluate_plan(made, settings.split(), 16, 32).plan))
        for phase, model in ((PRE_TRAINING, "llama-3-8b"), (FORWARD_ALONE, "llama-3-8b"), (FORWARD_ALONE, "llama-2-7b"))
    )
    step = step_of_phases([("policy", before), ("reference", reference), ("policy", policy)])
    assert step.step_time_s == pytest.approx(before.step_time_s + reference.step_time_s + policy.step_time_s, rel=1e-15)
    # The policy's weights are there once.
    assert step.weight_bytes == policy.weight_bytes + reference.weight_bytes
    assert step.peak_bytes == pytest.approx(policy.peak_bytes + reference.weight_bytes, rel=1e-12)
    assert step.optimizer_bytes == policy.optimizer_bytes
    flops = [phase.mfu * phase.step_time_s for phase in (policy, before, reference)]
    assert step.mfu * step.step_time_s == pytest.approx(sum(flops), rel=1e-12)
    assert flops[0] == pytest.approx(3 * flops[1], rel=1e-12)
    assert step.tokens_per_s == pytest.approx(32 * 4096 / step.step_time_s, rel=1e-12)
    assert step.tokens_per_s_per_gpu == pytest.approx(step.tokens_per_s / 16, rel=1e-12)
    # One phase is itself.
    alone = step_of_phases([("policy", policy)])
    for name in policy.__dataclass_fields__:
        np.testing.assert_allclose(getattr(alone, name), getattr(policy, name), rtol=1e-15, err_msg=name)
