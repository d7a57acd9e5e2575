"""The oracle reproduces the reference numbers of tests/data (see SOURCE.md there)."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from oracles.formulas import price, system_from_inputs
from oracles.space import best, enumerate_candidates

REL = 1e-9
TESTS = Path(__file__).resolve().parents[1]
INPUTS, POINTS, OPTIMA = (
    json.loads((TESTS / "data" / name).read_text()) for name in ("inputs.json", "points.json", "optima.json")
)


def case_id(case):
    gpus = case.get("num_gpus", "")
    return f"{case['model']}-{case['tp_strategy']}-{case['gpu']}-{case['nvs']}-{gpus}"


def setting(case):
    system = system_from_inputs(INPUTS["systems"][case["gpu"]], case["nvs"])
    return INPUTS["models"][case["model"]], system, case["tp_strategy"]


def config_of(reference):
    names = {
        "n1": "n1", "n2": "n2", "np": "np", "nd": "nd", "bm": "bm", "t1": "nNVS1", "t2": "nNVS2", "tp": "nNVSp",
        "td": "nNVSd",
    }  # fmt: skip
    return {"nb": reference.get("nb", 1)} | {ours: reference[theirs] for ours, theirs in names.items()}


def assert_totals(priced, reference):
    parts, memory = priced["parts"], priced["memory"]
    assert sum(parts.values()) == pytest.approx(priced["step_time"], rel=REL)
    ours = {
        "t": priced["step_time"], "t_comp": parts["compute"], "t_mem": parts["exposed_memory"],
        "t_tp_comm": parts["tp_communication"] + parts["cp_communication"],
        "t_dp_comm": parts["dp_communication"], "t_pp_comm": parts["pp_communication"],
        "t_bubble": parts["bubble"],
        "wts_mem": memory["weights"] / 1e9, "wts_grad_mem": memory["gradients"] / 1e9,
        "wts_optimizer_states_mem": memory["optimizer"] / 1e9, "acts_mem": memory["activations"] / 1e9,
        "mem": memory["total"] / 1e9,
    }  # fmt: skip
    assert ours == pytest.approx({name: reference[name] for name in ours}, rel=REL, abs=1e-15)


def flat(operator):
    """An operator of the oracle in the names and units of points.json."""
    ours = {"activation_buffer": operator["saved"] / 1e9, "weights_mem": operator["weights"] / 1e9}
    for direction, suffix in (("forward", "fwd"), ("backward", "bwd")):
        one = operator[direction]
        ours[f"flops_{suffix}"] = one["flops"] / 1e12
        ours[f"mem_{suffix}"] = one["bytes"] / 1e9
        ours[f"t_{suffix}"] = one["time"]
        ours[f"t_{suffix}_comp"] = one["compute"]
        ours[f"t_{suffix}_mem"] = one["exposed_memory"]
        ours[f"t_{suffix}_comm"] = one["tp_communication"] + one["cp_communication"]
    return ours


def test_the_reference_has_34_points_and_152_optima():
    assert (len(POINTS), len(OPTIMA)) == (34, 152)


@pytest.mark.parametrize("case", POINTS, ids=case_id)
def test_point(case):
    model, system, strategy = setting(case)
    priced = price(model, system, strategy, config_of(case["config"]), case["global_batch"])
    assert priced["operators"].keys() == case["ops"].keys()
    for name, reference in case["ops"].items():
        assert flat(priced["operators"][name]) == pytest.approx(reference, rel=REL, abs=1e-15), name
    for direction, suffix in (("forward", "fwd"), ("backward", "bwd")):
        ours = sum(priced["layer_communication"][direction].values())
        assert ours == pytest.approx(sum(op[f"t_{suffix}_comm"] for op in case["ops"].values()), rel=REL)
    assert_totals(priced, case["total"])
    assert priced["fits"] == case["fits"]


def check_optimum(case):
    model, system, strategy = setting(case)
    found = best(model, system, strategy, case["num_gpus"], case["global_batch"])
    assert (found["candidates"], found["feasible"]) == (case["candidates"], case["feasible"])
    if not case["top"]:
        assert found["config"] is None
        return
    (top,) = case["top"]
    assert found["config"] == config_of(top["config"])  # none of the 114 optima has a tie
    assert_totals(found["price"], top)


def sample_of_optima():
    """Two per strategy and model, with an optimum where there is one and with few candidates."""
    chosen = []
    for strategy in ("1d", "2d", "summa"):
        for model in ("gpt3_1T", "vit_era5"):
            cases = [c for c in OPTIMA if c["tp_strategy"] == strategy and c["model"] == model]
            cases.sort(key=lambda c: (not c["top"], c["candidates"]))
            chosen += [cases[0], cases[len(cases) // 4]]
    return chosen


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", sample_of_optima(), ids=case_id)
def test_optimum(case):
    check_optimum(case)


@pytest.mark.sampled(0, 10)
@pytest.mark.parametrize("case", OPTIMA, ids=case_id)
def test_every_optimum(case):
    check_optimum(case)


def test_domains_that_no_product_fills_and_jobs_inside_one():
    model = INPUTS["models"]["gpt3_1T"]
    candidates = enumerate_candidates(model, 72, "1d", 1024, 4096)
    assert candidates
    assert {c["t1"] * c["t2"] * c["tp"] * c["td"] for c in candidates} == {64}
    assert candidates == enumerate_candidates(model, 64, "1d", 1024, 4096)
    # A job inside one fast domain uses the group sizes.
    for c in enumerate_candidates(INPUTS["models"]["gpt3_1T"], 64, "2d", 48, 96):
        assert (c["t1"], c["t2"], c["tp"], c["td"]) == (c["n1"], c["n2"], c["np"], c["nd"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", ["1d", "2d", "summa"])
@pytest.mark.parametrize("model_name", ["gpt3_1T", "vit_era5"])
def test_numpy_baseline(benchmark_script, strategy, model_name):
    numpy_loop = benchmark_script("numpy_loop")
    model = INPUTS["models"][model_name]
    chance = random.Random(f"{strategy} {model_name}")
    systems = (("A100", 4, 128), ("H200", 8, 384), ("B200", 64, 1024), ("B200-next", 72, 512))
    for gpu, fast_size, num_gpus in systems:
        system = system_from_inputs(INPUTS["systems"][gpu], fast_size)
        chosen = [
            (c, batch)
            for batch in (1536, 4096)
            for c in enumerate_candidates(model, fast_size, strategy, num_gpus, batch)
        ]
        chosen = chance.sample(chosen, min(100, len(chosen)))
        columns = {name: np.array([c[name] for c, _ in chosen]) for name in numpy_loop.COLUMNS}
        batches = np.array([batch for _, batch in chosen])
        step_time, peak_bytes = numpy_loop.flat_prices(model, system, strategy, columns, batches)
        priced = [price(model, system, strategy, c, batch) for c, batch in chosen]
        np.testing.assert_allclose(step_time, [p["step_time"] for p in priced], rtol=1e-12)
        np.testing.assert_allclose(peak_bytes, [p["memory"]["total"] for p in priced], rtol=1e-12)


def test_numpy_baseline_finds_the_optimum(benchmark_script):
    case = next(c for c in OPTIMA if c["tp_strategy"] == "2d" and c["top"])
    model, system, strategy = setting(case)
    candidates = enumerate_candidates(model, case["nvs"], strategy, case["num_gpus"], case["global_batch"])
    index, step_time, peak_bytes = benchmark_script("numpy_loop").price_space_with_numpy(
        model, system, strategy, candidates, case["global_batch"]
    )
    assert step_time[index] == pytest.approx(case["top"][0]["t"], rel=REL)
    assert int((peak_bytes <= system["hbm_capacity"]).sum()) == case["feasible"]
