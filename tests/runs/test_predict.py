"""Measured setups priced together are what an evaluation of the same plan is, each on its own model and machine."""

from dataclasses import replace

import numpy as np
import pytest
from priced import evaluate_plan
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import ClusterSpec
from dsx.config.model_file import load_model
from dsx.config.search_path import names
from dsx.errors import SpecError
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.runs.predict import batches, layout_of, predict
from dsx.runs.setups import setups
from dsx.runs.table import UnmodelledReason, read_runs

DEFAULT = load_assumptions("default")
# An evaluation has the stack of its set, a run that of its software.
OWN = {"software": str(DEFAULT.stack)}
PLAN = {"tp": 2, "pp": 2, "dp": 4, "microbatch_size": 2, "nvs.tp": 2, "nvs.dp": 4}

LLAMA_13B = {"layers": "40", "hidden": "5120", "ffn_hidden": "13824", "heads": "40", "kv_heads": "8"}
# Changes to a row, with the strategy and the plan that they are.
CASES = [
    ({}, "1d", {}),
    ({"sp": "0"}, "1d-no-sp", {}),
    ({"sp": "0", "kv_heads": "1"}, "2d-copied-kv-no-sp", {}),
    ({"recompute": "full", "vpp": "2"}, "1d", {"recompute": "full", "vpp": 2}),
    ({"zero_stage": "3", "pp": "1", "dp": "8"}, "1d", {"zero_stage": 3, "pp": 1, "dp": 8}),
    ({"cp": "2", "dp": "2"}, "2d-ring", {"cp": 2, "dp": 2, "nvs.cp": 2, "nvs.dp": 2}),
    ({"gpu": "H100-80GB-SXM"} | LLAMA_13B, "1d", {}),
    ({"framework": "a fork, schedule ZB-1p"}, "1d", {"schedule": "zb-h1"}),
    ({"ep": "4", "etp": "1", "experts": "8", "topk": "2"}, "1d", {"ep": 4}),
    ({"ep": "8", "etp": "1", "experts": "8", "topk": "2", "pp": "1", "dp": "8"}, "1d", {"ep": 8, "pp": 1, "dp": 8}),
    ({"framework": "a fork, schedule ZB-2p"}, "1d", {"schedule": "zb-h2"}),
    ({"stage_layers": "20,14"}, "1d", {"stage_layers": "20,14"}),
    ({"stage_layers": "Et*9|t*7|t*8|t*8L", "vpp": "2"}, "1d", {"stage_layers": "10,7,8,9"}),
    (
        {"stage_layers": "E|t*20|t*9|t*3L", "tp": "1", "sp": "0", "pp": "4"},
        "1d-no-sp",
        {"tp": 1, "pp": 4, "nvs.tp": 1, "stage_layers": "1,20,9,4"},
    ),
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    file = tmp_path_factory.mktemp("tables") / "runs.csv"
    return setups(read_runs(write(file, *(OWN | change for change, _, _ in CASES))))


@pytest.fixture(scope="module")
def together(asked):
    return predict(asked, DEFAULT)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_prediction_is_an_evaluation(asked, together, case):
    setup, (_, strategy, changes) = asked[case], CASES[case]
    problem = make_problem(
        setup.model, setup.cluster, DEFAULT, [strategy], ProblemOptions(sequence_length=setup.plan["sequence_length"])
    )
    settings = [f"{name}={value}" for name, value in (PLAN | changes).items()]
    evaluation = evaluate_plan(problem, settings, setup.plan["num_gpus"], setup.plan["global_batch_size"])
    assert together.reason[case] is None
    assert together.step_time_s[case] == pytest.approx(evaluation.costs["step_time_s"], rel=1e-9)
    assert together.peak_bytes[case] == pytest.approx(evaluation.costs["peak_bytes"], rel=1e-9)
    assert bool(together.fits[case]) == evaluation.fits


def test_model_flops_are_those_of_the_search(asked):
    made, _ = batches(asked, DEFAULT)
    for batch in made:
        for position, row in enumerate(batch.rows.tolist()):
            setup = asked[row]
            options = ProblemOptions(sequence_length=setup.plan["sequence_length"])
            problem = make_problem(setup.model, setup.cluster, DEFAULT, ["1d"], options)
            assert batch.workload.forward_flops[position] == pytest.approx(problem.workload.forward_flops, rel=1e-12)


def test_what_cannot_be_priced_has_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("dsx.runs.predict.strategy_names", lambda: ["1d"])
    changes = ({"cp": "2", "dp": "2"}, {}, {"cp": "4", "dp": "1"})
    found = predict(setups(read_runs(write(tmp_path / "runs.csv", *changes))), DEFAULT)
    rule = "no strategy divides the model this way"
    assert found.reason[0] == UnmodelledReason(rule, "tp=2, cp=2, ep=1, etp=1, sp=1")
    assert found.reason[2] == UnmodelledReason(rule, "tp=2, cp=4, ep=1, etp=1, sp=1")
    assert found.reason[1] is None
    assert np.isnan(found.step_time_s).tolist() == [True, False, True]
    # A text that no strategy divides is a fault of the text.
    asked = setups(read_runs(write(tmp_path / "runs.csv", OWN | {"flash": "0"})))
    missing = DEFAULT.model_copy(update={"unfused_attention": {"core": "unfused-attention"}})
    with pytest.raises(SpecError, match=r"unknown block 'unfused-attention'; did you mean 'unfused-attention-core'"):
        predict(asked, missing)


@pytest.mark.parametrize("slip", [{"cor": "unfused-attention-core"}, {"dropuot": True}])
def test_what_unfused_attention_sets_is_no_slip_of_the_pen(tmp_path, slip):
    asked = setups(read_runs(write(tmp_path / "runs.csv", OWN | {"flash": "0"})))
    with pytest.raises(SpecError, match=r"which is no (option|block parameter) of any layer; did you mean"):
        predict(asked, DEFAULT.model_copy(update={"unfused_attention": slip}))


@pytest.mark.slow
@pytest.mark.parametrize("case", [5, 9])
def test_on_several_tiers_too(asked, case):
    """On a fat tree whose leaves join two domains, and are oversubscribed."""
    setup, (_, strategy, changes) = asked[case], CASES[case]
    levels = [{"name": "leaf", "units": 2, "oversubscription": 4}, {"name": "spine"}]
    facts = setup.cluster.model_dump(mode="json")
    facts["network"] |= {"topology": {"kind": "fat_tree", "levels": levels}}
    moved = replace(setup, cluster=ClusterSpec.model_validate(facts))
    found = predict([moved], DEFAULT)
    problem = make_problem(
        moved.model, moved.cluster, DEFAULT, [strategy], ProblemOptions(sequence_length=moved.plan["sequence_length"])
    )
    settings = [f"{name}={value}" for name, value in (PLAN | changes).items()]
    alone = evaluate_plan(problem, settings, moved.plan["num_gpus"], moved.plan["global_batch_size"])
    assert found.step_time_s[0] == pytest.approx(alone.costs["step_time_s"], rel=1e-9)


def of_models(folder, *models):
    """Setups that differ in their models alone, which one strategy divides."""
    (setup,) = setups(read_runs(write(folder / "runs.csv", {"tp": "1", "sp": "0", "pp": "1", "dp": "16"})))
    return [replace(setup, model=load_model(name)) for name in models]


def assert_alike(found, row, alone):
    # A batch of one is compiled by itself, so the last digit may be rounded otherwise.
    for name in ("step_time_s", "low", "high", "peak_bytes", "allocated_bytes", "reserved_bytes"):
        np.testing.assert_allclose(getattr(found, name)[row], getattr(alone, name)[0], rtol=1e-15, err_msg=name)


@pytest.mark.slow
def test_alternating_layers_of_unequal_depth_are_priced_as_alone(tmp_path):
    asked = of_models(tmp_path, "gpt-oss-20b", "gpt-oss-120b")
    assert len(batches(asked, DEFAULT)[0]) == 1
    found = predict(asked, DEFAULT)
    for row, setup in enumerate(asked):
        assert_alike(found, row, predict([setup], DEFAULT))


@pytest.mark.slow
def test_all_packaged_models_together_are_priced_as_alone(tmp_path):
    asked = of_models(tmp_path, *names("models", ".yaml"))
    made, reasons = batches(asked, DEFAULT)
    assert not reasons
    assert len(made) < len(asked)
    found = predict(asked, DEFAULT)
    for row in (row for batch in made if len(batch.rows) > 1 for row in batch.rows.tolist()):
        assert_alike(found, row, predict([asked[row]], DEFAULT))


LAYOUTS = (
    {"stage_layers": "20,14"},
    {"stage_layers": "10,9,9,6", "pp": "4", "dp": "2"},
    {"stage_layers": "Et*16|t*16L"},
    {"stage_layers": "Et*9|t*7|t*8|t*8L", "vpp": "2"},
    {},
)


def test_each_stated_layout_is_a_layout_of_its_own(tmp_path):
    asked = setups(read_runs(write(tmp_path / "runs.csv", *LAYOUTS)))
    found, (made, _) = predict(asked, DEFAULT), batches(asked, DEFAULT)
    assert sorted(batch.rows.tolist() for batch in made) == [[0, 1, 2], [3], [4]]
    assert found.step_time_s[2] == pytest.approx(found.step_time_s[4], rel=1e-9)  # an even layout
    assert len({layout_of(setup) for setup in asked}) == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stage_layers": "20,13"}, "stage_layers=20,13: the chunks hold 33 layers, but the model has 34 layers"),
        ({"stage_layers": "10,8,8,8"}, "has 4 chunks, but pp=2 needs 2; it is one of vpp=2"),
        ({"stage_layers": "Et*16|x*16L"}, "position 7: 'x' is no layer"),
    ],
)
def test_a_layout_that_is_not_of_the_run(tmp_path, change, says):
    (found,) = setups(read_runs(write(tmp_path / "runs.csv", change)))
    assert found.rule == "stage_layers are no layout of the run"
    assert says in found.detail
