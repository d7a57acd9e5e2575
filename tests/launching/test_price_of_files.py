"""The price of a plan is that of its launch files: read back from their text, they take the same time and memory.

So nothing that a framework cannot have is priced for it, and no file starts another run than the one that was priced.
"""

from dataclasses import replace

import pytest
from launching import flag_readers
from launching.random_plans import ASSUMED, DEVICE, problem_of, requests
from laws.spaces import SYSTEM
from validation.cases import cluster_spec

from dsx.config.assumption_set import load_assumptions
from dsx.launching.request import run_of
from dsx.launching.writers import FRAMEWORKS, launch_files, refused
from dsx.plans.frameworks import read_framework
from dsx.plans.violations import for_plan
from dsx.pricing.one_plan import evaluate_plan, price_plan
from dsx.pricing.problem import make_problem

COUNT = 100  # plans of each framework and model
READERS = {
    "megatron": flag_readers.megatron,
    "torchtitan": flag_readers.torchtitan,
    "deepspeed": lambda files: flag_readers.deepspeed(files, 2048),
}
COSTS = ("step_time_s", "peak_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def priced_and_read(name, body, seed=3):
    """Plans with their price under the framework's software, and with the files that start them."""
    framework = FRAMEWORKS[name]
    own = ASSUMED.run_by(read_framework(framework.limits))
    spec, _ = problem_of(body, framework.limits)
    for request in requests(body, framework.limits, COUNT, seed):
        plan = request.run.plan
        if plan["num_gpus"] % 8:  # whole nodes
            continue
        problem = make_problem(spec.model, cluster_spec(SYSTEM), own, [plan["strategy"]])
        run = run_of(plan, problem.models[0], for_plan(problem.assumptions_spec, plan.codes), DEVICE)
        own_request = replace(request, run=run)
        if refused(framework, own_request):
            continue
        files = launch_files(framework, own_request, ["a test"])
        if any(part.startswith("the placement") for part in files.lost):
            continue  # domains cut its groups unevenly
        yield plan, price_plan(problem, plan), files, spec.model


@pytest.mark.slow
@pytest.mark.parametrize("body", ["dense", "experts"])
@pytest.mark.parametrize("name", READERS)
def test_launch_files_are_priced_as_they_run(name, body):
    compared = 0
    for plan, priced, files, model in priced_and_read(name, body):
        assert not files.lost, plan
        read = READERS[name](files.files)
        if read.strategy != plan["strategy"] and (1 in (plan["tp"], plan["cp"]) or body == "dense"):
            continue  # groups of one and experts that are not there leave no trace: searches have the other strategy
        assert read.strategy == plan["strategy"]
        stack = read_framework(name).stack
        stated = [
            ("stack", stack),
            ("framework", "any"),
            *((field, str(value)) for field, value in read.fields.items()),
        ]
        assumed = load_assumptions("uncalibrated", stated)
        assumed = assumed.model_copy(update={"conditions": type(assumed.conditions)()})
        problem = make_problem(model, cluster_spec(SYSTEM), assumed, [read.strategy])
        settings = [f"{column}={value}" for column, value in read.settings.items()]
        again = evaluate_plan(problem, settings, read.num_gpus, read.global_batch_size)
        if again.plan["ep_nvs"] != plan["ep_nvs"]:
            continue  # drawn, and not that of the order of ranks
        for cost in COSTS:
            assert again.costs[cost] == pytest.approx(priced.costs[cost], rel=1e-9), (cost, plan, settings)
        compared += 1
    assert compared > COUNT // 8
