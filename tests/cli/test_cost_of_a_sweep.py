"""Money in a sweep: objectives of it, and what must be stated for them."""

import json

import numpy as np
import pytest

import dsx

PRICE = ("--set", "cluster.price=2 USD/h")
TOKENS = ("--set", "sweep.train_tokens=20B")
FRONT = ("--set", "sweep.keep={pareto: [cost_usd, training_days]}")


@pytest.mark.slow
def test_the_front_and_the_cheapest_are_those_of_all_rows(run, folder, swept_all):
    done = run("sweep", "sweep.yaml", "-o", "out", *PRICE, *TOKENS, *FRONT, "--json")
    assert done.code == 0
    frame = dsx.load("out")
    hours = 20e9 / frame["tokens_per_s"] / 3600 * frame["num_gpus"]
    np.testing.assert_allclose(frame["gpu_hours"], hours, rtol=1e-5)
    np.testing.assert_allclose(frame["cost_usd"], 2 * hours, rtol=1e-5)
    feasible = swept_all[swept_all["reject"] == 0]
    assert frame["training_days"].min() == pytest.approx(20e9 / feasible["tokens_per_s"].max() / 86400, rel=1e-5)
    assert frame.attrs["units"]["cost_usd"] == "USD"
    # The cheapest are kept.
    keep = ("--set", "sweep.keep={top: 3, objective: cost_usd}", "--set", "sweep.precision=float64")
    done = run("sweep", "sweep.yaml", "-o", "cheapest", *PRICE, *TOKENS, *keep, "--json")
    assert done.code == 0
    feasible = swept_all[swept_all["reject"] == 0]
    best = (feasible["tokens_per_s"] / feasible["num_gpus"]).nlargest(3)
    np.testing.assert_allclose(sorted(dsx.load("cheapest")["tokens_per_s_per_gpu"]), sorted(best), rtol=1e-5)


@pytest.fixture(scope="module")
def swept_all(request):
    return dsx.load(request.getfixturevalue("swept"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--set", "sweep.keep={pareto: [-goodput, -mfu]}"), "states no failures: give --set cluster.failures='{mtbf:"),
        (
            (*TOKENS, "--set", "sweep.keep={top: 1, objective: energy_kwh}", "--set", "sweep.cluster=tpu-v5p"),
            "cluster 'tpu-v5p' states no power of its device: give --set cluster.device.power='700 W'",
        ),
    ],
)
def test_what_is_not_stated_is_said(run, folder, options, says):
    done = run("sweep", "sweep.yaml", "-o", "out", *options)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_prices_beside_operator_times_and_in_evaluations(run, folder):
    """A price changes no time, so measured times stay valid."""
    (folder / "times.csv").write_text("operator,direction,shape,seconds\n")
    job = ("--model", "gpt3-5b", "--cluster", "h100-nvs8", "--num-gpus", "8", "--global-batch-size", "8")
    for setting, refused in (("cluster.price=2 USD/h", False), ("cluster.device.hbm_capacity=141 GB", True)):
        done = run("evaluate", *job, "tp=8", "--operator-times", "times.csv", "--set", setting)
        assert ("operator times are measured on one machine" in done.err) is refused
    # An evaluation has the columns of a run.
    job = ("--model", "gpt3-5b", "--cluster", "h100-nvs8", "--num-gpus", "8", "--global-batch-size", "8")
    data = json.loads(run("evaluate", *job, "tp=8", "--json").out)
    assert data["tokens_per_s_per_gpu"] == pytest.approx(data["tokens_per_s"] / 8)
    assert (data["cost_usd"], data["goodput"], data["gpu_hours"]) == (None, None, None)
