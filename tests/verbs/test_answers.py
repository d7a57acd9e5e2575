"""What every answer can do: be read in a shell and a notebook, be compared, be pickled, be a DataFrame."""

import json
import pickle
import re

import pandas as pd
import pytest
from verbs.small import MODEL, SWEEP

import dsx
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import InputError, NothingFeasible, SpecError
from dsx.plans.choices import PLAN_COLUMNS
from dsx.results.ranked_by import ROLES

USUAL = "zero_replicas=1 stored_layers=0 offload=none"  # of these a search takes other values last


def test_an_answer_shows_itself_and_does_not_change(found, job, evaluated):
    assert repr(found) == f"<BestPlans>\n{found}"
    assert str(found).startswith("small on 8 x b200-nvs8: ")
    # A notebook is shown text and no markup.
    named = job.replace(model=MODEL | {"name": "<b>a & b</b>"})
    shown = dsx.evaluate(named, dp=8)._repr_html_()
    assert shown.startswith("<pre>&lt;b&gt;a &amp; b&lt;/b&gt; on 8 x b200-nvs8")
    assert shown.endswith("</pre>") and shown.count("<") == 2
    # Answers are equal if they say the same.
    assert dsx.best(job, top=20) == found != dsx.best(job, top=3)
    assert dsx.evaluate(job, "tp=2 dp=4 nvs.tp=2 nvs.dp=4") == evaluated != dsx.evaluate(job, "tp=4 dp=2")
    # A number that is none, as the days of a training without an end, equals itself.
    assert evaluated.costs["training_days"] != evaluated.costs["training_days"]
    assert found != evaluated and found != "found"
    with pytest.raises(TypeError, match="unhashable"):
        hash(found)
    # An answer does not change.
    with pytest.raises(AttributeError):
        found.infeasible = "why not"


def test_answers_can_be_pickled_and_their_data_is_plain(found, evaluated, nothing, swept):
    for answer in (found, evaluated, nothing, swept):
        again = pickle.loads(pickle.dumps(answer))
        assert again == answer and str(again) == str(answer)
    assert pickle.loads(pickle.dumps(found)).launch().arguments == found.launch().arguments
    # Data is plain.
    for answer in (found, evaluated, swept):
        json.dumps(answer.to_data())
    assert found.to_data()["plans"][0]["plan"] == found.plan.data


def test_frames_of_answers(found, result_set, job, evaluated):
    frame, loaded = found.frame, dsx.load(result_set)
    assert {*loaded.columns} - {"device.hbm_capacity"} == {*frame.columns} - {"stage_layers"}
    assert frame.attrs["units"]["step_time_s"] == "s" and frame.attrs["units"]["peak_bytes"] == "bytes"
    assert frame.attrs["descriptions"]["tp"] == "tensor parallel degree"
    assert len(frame) == len(found.plans) == 20
    assert frame["step_time_s"].is_monotonic_increasing and frame["step_time_s"].iloc[0] == found.step_time_s
    assert {*frame["cluster"]} == {"b200-nvs8"} and not frame["reject"].any()
    # One plan has a frame too.
    (row,) = evaluated.frame.to_dict(orient="records")
    assert (row["candidate"], row["step_time_s"]) == (evaluated.plan["candidate"], evaluated.step_time_s)
    rejected = dsx.evaluate(job, tp=2, dp=4, vpp=3)
    assert rejected.reject and rejected.frame["reject"].iloc[0] > 0
    explained = dsx.why(job, found.frame.iloc[3])
    assert explained.frame["step_time_s"].tolist() == [explained.step_time_s, found.step_time_s]
    assert dsx.plot.breakdown(explained.frame, "tp").get_ylabel() == "step time [ms]"
    # Frames of several jobs can be put together.
    frames = {"as it is": found.frame, "more": dsx.best(job.replace(num_gpus=16)).frame}
    table = pd.concat({name: frame.head(1) for name, frame in frames.items()}).droplevel(1)
    assert table["num_gpus"].to_dict() == {"as it is": 8, "more": 16}
    assert table.attrs == found.frame.attrs


def test_why_puts_the_parts_beside_those_of_the_fastest_plan(job, found):
    explained = dsx.why(job, found.frame.iloc[3])
    _, _, compared = str(explained).partition("times as long.")
    lines = [line.split("  ") for line in compared.splitlines() if "_s" in line]
    assert lines[-1][0] == "step_time_s"
    changes = {name: explained.costs[name] - explained.fastest[name] for name in ("compute_s", "bubble_s", "tp_comm_s")}
    largest = max(changes, key=lambda name: abs(changes[name]))
    assert (f"\n{largest} " in compared) == (abs(changes[largest]) > 1e-3 * found.step_time_s)
    assert "difference" in compared
    assert "this plan takes" not in str(dsx.why(job, found.plan))
    rejected = str(dsx.why(job, tp=2, dp=4, dp_nvs=2))
    assert "is rejected, for 1 reason:\n  domain_not_filled: " in rejected and "this plan takes" in rejected
    # Why says small differences in percent.
    for plan in found.frame.iloc[1:].itertuples():
        more = 100 * (plan.step_time_s / found.step_time_s - 1)
        if more > 1e-3:
            break
    said = " ".join(str(dsx.why(job, found.frame.loc[plan.Index])).split())
    assert (f"this plan takes {more:.2g} % longer." if more < 10 else "times as long.") in said


def test_what_works_on_result_sets_works_on_frames_and_errors_are_of_dsx(job, found):
    with pytest.raises(SpecError, match="unknown key") as caught:
        dsx.sweep(SWEEP | {"kep": "all"})
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    # What works on result sets works on a frame.
    front = dsx.pareto(found.frame, "step_time_s", "peak_bytes")
    assert 0 < len(front) < 20 and front["candidate"].iloc[0] == found.plan["candidate"]
    slow = dsx.best(job.replace(set={"cluster.network.nvs.bandwidth": "50 GB/s"}), top=20)
    table = dsx.compare(found.frame, slow.frame, per="num_gpus")
    assert table["ratio"].iloc[0] == slow.step_time_s / found.step_time_s > 1
    assert dsx.plot.front(found.frame).get_xlabel() == "step time [ms]"
    assert dsx.plot.breakdown(found.frame, "tp").get_ylabel() == "step time [ms]"


def test_searches_without_a_plan_or_a_candidate_say_why(nothing, job):
    assert "none of" in nothing.infeasible and "a GPU has 1.00 kB" in nothing.infeasible
    assert str(nothing) == nothing.infeasible and nothing.plans == ()
    for ask in (lambda: nothing.plan, lambda: nothing.step_time_s, nothing.launch):
        with pytest.raises(NothingFeasible, match=r"none of .* fits"):
            ask()
    # A frame without plans has its columns.
    even = dsx.best(job, partition="even").frame
    assert list(nothing.frame.columns) == list(even.columns)
    assert nothing.frame.empty and nothing.frame.attrs == even.attrs
    assert dsx.pareto(nothing.frame, "step_time_s", "-mfu").empty
    # A search without a candidate says why.
    none = dsx.best(job.replace(num_gpus=11, global_batch_size=3))
    assert none.counts.candidates == 0 and none.infeasible.startswith("no candidate")
    with pytest.raises(NothingFeasible, match="no candidate"):
        none.plan  # noqa: B018


PRICED = {"plan", "fits", "reject", *StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__}
OF_A_PLAN = {"schema_version", "framework", "not_run", "lacks"} | PRICED
OF_A_SEARCH = {
    "schema_version", "candidates", "priced", "feasible", "cut", "framework", "strategies", "left_out",
    "beyond_framework", "compared_frameworks", "fixed", "limit", "resolution", "within_resolution", "plans",
    "infeasible", "would_fit", "faster_placement", "extrapolated", "model", "cluster", "parameters", "num_gpus",
    "global_batch_size", "sequence_length", "tokens_per_step",
}  # fmt: skip


def test_keys_of_data(job, evaluated, result_set):
    """Programs read these keys from ``--json``."""
    assert evaluated.to_data().keys() == OF_A_PLAN | {"extrapolated"}
    assert evaluated.to_data()["plan"].keys() == {"candidate", *PLAN_COLUMNS}
    of_operators = dsx.evaluate(job, tp=2, dp=4, operators=True).to_data()
    assert of_operators.keys() == OF_A_PLAN | {"extrapolated", "operators", "shapes"}
    explained = dsx.why(job, tp=2, dp=4, dp_nvs=2).to_data()
    assert explained.keys() == OF_A_PLAN | {"why", "best", "candidates"} and explained["best"].keys() == PRICED
    assert [violation["reason"] for violation in explained["why"]] == explained["reject"] == ["domain_not_filled"]
    of_default = dsx.best(job.replace(assumptions="default"), 3, fix=USUAL, strategy="1d", partition="even")
    data, front = of_default.to_data(), dsx.front(result_set).to_data()
    assert data.keys() == OF_A_SEARCH
    of_an_answer = {"launch", "fits_probability", "features", "tokens_per_s_per_gpu", "mfu_of_peak"}
    assert all(plan.keys() == PRICED | of_an_answer for plan in data["plans"])
    assert front.keys() == {"schema_version", "objectives", "plans"}
    assert all(plan.keys() == PRICED | {"hardware"} for plan in front["plans"])


def test_plans_within_the_resolution_of_the_measurements(job):
    known = {"extends": "paper-2410.00273", "name": "known", "resolution": 0.6, "interval": [{"low": 0.9, "high": 1.2}]}
    listed = dsx.best(job.replace(assumptions=known), 9, fix=USUAL)
    times = listed.frame["step_time_s"]
    close = [number for number, time in enumerate(times, 1) if number > 1 and time <= 1.6 * times[0]]
    data, first = listed.to_data(), listed.priced[0]
    assert (data["resolution"], data["within_resolution"]) == (0.6, close) and 0 < len(close) < 8
    assert [first["step_time_s_low"], first["step_time_s_high"]] == [0.9 * times[0], 1.2 * times[0]]
    last = f"plans 2 to {close[-1]} are" if len(close) > 1 else "plan 2 is"
    assert f"{last} within 60 % of plan 1, the resolution of the measurements" in str(listed)
    # Other sets tell nothing.
    unknown = dsx.best(job, 9, fix=USUAL)
    assert (unknown.to_data()["resolution"], unknown.to_data()["within_resolution"]) == (None, [])
    assert unknown.to_data()["plans"][0]["step_time_s_low"] is None and "the measurements" not in str(unknown)


@pytest.fixture(scope="module")
def three(job):
    """The job under assumptions that know a resolution, and its three plans to choose from."""
    of_default = job.replace(assumptions="default")
    return of_default, dsx.best(of_default, fix=USUAL, strategy="1d")


def test_three_plans_to_choose_from(three):
    job, found = three
    fastest, simplest, leanest = (found.to_data()[name] for name in ROLES)
    most = (1 + job.assumptions.resolution) * fastest["step_time_s"]
    assert fastest["step_time_s"] <= simplest["step_time_s"] <= most >= leanest["step_time_s"]
    assert sum(simplest["features"].values()) <= sum(fastest["features"].values())
    assert leanest["peak_bytes"] <= min(simplest["peak_bytes"], fastest["peak_bytes"])
    listed = dsx.best(job, 400, fix=USUAL, strategy="1d")
    assert not {*ROLES} & {*listed.to_data()}
    near = listed.frame[listed.frame["step_time_s"] <= most]
    assert len(near) < 400 and leanest["peak_bytes"] == near["peak_bytes"].min()
    said = str(found).splitlines()
    rows = {line.partition("  ")[0]: line.split() for line in said}
    assert rows["tokens/s/GPU"][1] == f"{fastest['tokens_per_s_per_gpu']:,.0f}"
    assert rows["rank order"][2] == fastest["plan"]["order"]
    for plan in (simplest, leanest):
        features = ", ".join(f"{name} {cost}" for name, cost in plan["features"].items())
        assert not features or f"    features: {features}" in said


@pytest.mark.slow
def test_a_search_leaves_room_for_errors_of_memory(three):
    job = three[0]
    even = {"fix": USUAL, "strategy": "1d", "partition": "even"}
    plain, none = dsx.best(job, **even), dsx.best(job, memory_margin=0, **even)
    assert none.step_time_s <= plain.step_time_s and plain.to_data()["plans"][0]["fits_probability"] > 0.9
    needed = plain.priced[0]["peak_bytes"]
    tight = job.replace(set={"cluster.device.hbm_capacity": f"{1.05 * needed} B"})
    assert dsx.best(tight, **even).priced[0]["peak_bytes"] < needed
    assert dsx.best(tight, memory_margin=0, **even).priced[0]["peak_bytes"] == needed


@pytest.mark.slow
def test_choices_are_searched_where_fix_lists_their_values(three):
    job, everything = three[0], dsx.best(three[0], strategy="1d")
    even = {"strategy": "1d", "framework": "any", "partition": "even"}
    usual = "zero_replicas=1 stored_layers=0 schedule=1f1b"
    plain = dsx.best(job, fix=f"{usual} offload=none", **even)
    fewer = dsx.best(job, fix=f"{usual} offload=none recompute=none zero_stage=1", **even)
    wider = dsx.best(job, fix=f"{usual} offload=none,optimizer", **even)
    assert plain.fixed == everything.fixed == {} and plain.step_time_s <= fewer.step_time_s
    assert plain.counts.candidates == 20 * fewer.counts.candidates  # five values of recompute, ZeRO stage 0 to 3
    assert wider.counts.candidates == 2 * plain.counts.candidates < 2 * everything.counts.candidates
    of_set = job.replace(set={"assumptions.fixed.schedule": "1f1b"})
    said = str(dsx.best(of_set, fix="recompute=none,full", strategy="1d", partition="even")).splitlines()
    assert "only recompute=none,full; not searched: schedule=1f1b (--fix searches other values)" in said


@pytest.mark.parametrize(
    ("num_gpus", "batch"), [(1, 1), (7, 7), (13, 26)], ids=["one", "a prime that is the batch", "a prime in the batch"]
)
def test_few_and_prime_gpus(three, num_gpus, batch):
    job = three[0].replace(num_gpus=num_gpus, global_batch_size=batch)
    found = dsx.best(job, 200, fix=USUAL, strategy="1d", framework="any", partition="even")
    assert {plan["dp"] * plan["pp"] for plan in found.plans} == {num_gpus}
    said, number = str(found).partition("\n\n")[0].splitlines(), found.counts.candidates
    assert said[0] == f"small on {num_gpus} x b200-nvs8: 100.7 million parameters"
    assert said[1].endswith(f" of 2,048 tokens, {batch * 2048:,} tokens a step")
    assert said[2].startswith(f"{number} candidate{'s'[: number != 1]} of one strategy, 1d (software ")
    assert said[2].endswith(f"; {len(found.plans)} feasible")
    shown = [re.match(r" *(\d+)  |plan (\d+) costs", line) for line in said]
    assert sorted(int(row[1] or row[2]) for row in shown if row) == [*range(1, len(found.plans) + 1)]


@pytest.mark.slow
def test_a_plan_with_an_even_cut_is_beside_one_with_a_layout():
    deep = dsx.Job("deepseek-v2", "h100-nvs8", 128, 256)
    few = f"zero_stage=1 recompute=full vpp=1 pp=4 schedule=1f1b,zb-h1 {USUAL}"
    both = dsx.best(deep, 60, fix=few, strategy="1d", framework="any")
    layouts = both.frame["stage_layers"]
    assert 0 < layouts.isna().sum() < len(layouts) == 60
    assert "layers of stages: even" in str(both)
    for row in (layouts.isna().argmax(), layouts.notna().argmax()):
        again = dsx.evaluate(both.job, both.frame.iloc[row])
        assert again.step_time_s == pytest.approx(both.frame["step_time_s"].iloc[row], rel=1e-12)


def test_an_evaluation_has_what_it_prints(job, evaluated, found):
    times = [value for name, value in evaluated.costs.items() if name.endswith("_s") and "_per_" not in name]
    assert evaluated.step_time_s == evaluated.costs["step_time_s"] in times
    assert evaluated.fits and evaluated.reject == () and evaluated.broken == {}
    every = dsx.best(job, top=1000)
    place = [plan["candidate"] for plan in every.plans].index(evaluated.plan["candidate"])
    assert evaluated.launch.arguments == every.launch(1 + place).arguments
    kernels = evaluated.operators
    assert {*kernels["direction"]} == {"forward", "backward"}
    assert kernels.attrs["units"]["matrix_flops"] == "FLOP" and kernels.attrs["units"]["compute_s"] == "s"
    # A rejected plan says which rules it breaks.
    plan = dict(tp=8, tp_nvs=3)
    for answer in (dsx.evaluate(job, plan), dsx.why(job, plan)):
        assert answer.broken and all(answer.broken.values())
    assert dsx.evaluate(job, plan).reject == tuple(dsx.why(job, plan).broken)
    # Launch flags are counted as plans are printed.
    first, last = found.launch(), found.launch(20)
    assert first == found.launch(1) != last
    assert str(first).split()[:2] == ["--tensor-model-parallel-size", str(found.plan["tp"])]
    for number in (0, 21, -1):
        with pytest.raises(InputError, match=f"no plan {number}: there are 20 plans, counted from 1"):
            found.launch(number)


def test_an_answer_says_what_is_trained(job, evaluated, found):
    assert "trains" not in f"{evaluated}{found}"
    for trained, text in ((["w1", "wq*"], "trains w1, wq* alone"), ([], "trains nothing: a forward")):
        frozen = job.replace(set={"model.trained": trained})
        for answer in (dsx.evaluate(frozen, evaluated.plan), dsx.best(frozen, fix="tp=2")):
            assert text in str(answer).splitlines()[:4]


def test_progress_is_told_to_who_watches(job, capsys):
    told = []
    found = dsx.best(job, watch=lambda *now: told.append(now))
    done, total, what = zip(*told, strict=True)
    assert list(done) == sorted(done) and done[-1] == total[-1] == found.counts.candidates
    assert {*total} == {found.counts.candidates} and {*what} == {"pricing"}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("layers", [1, 8, 13, 17, 61])
def test_what_a_user_should_know_is_a_warning_of_the_logger(job, caplog, capsys, layers):
    # What a device has is enough for any of them.
    enough = {"cluster.device.hbm_capacity": "300 GB"}
    model = MODEL | {"layers": [{"kind": "transformer", "count": layers}]}
    deep = job.replace(model=model, set=enough)
    dsx.best(deep, fix=USUAL)  # which takes optimal cuts too
    assert not caplog.records
    dsx.best(deep, fix=USUAL, partition="even")
    dsx.sweep(SWEEP | {"model": model, "what_if": {}, "num_gpus": 8, "keep": {"top": 1}}, set=enough)
    says = f"small has {layers} layers between embedding and head, which 2 to 16 stages do not divide: pp is 1 or"
    assert [record.getMessage().startswith(says) for record in caplog.records] == [True] * (2 if layers > 16 else 0)
    assert {(record.name, record.levelname) for record in caplog.records} <= {("dsx", "WARNING")}
    assert capsys.readouterr().out == ""


def test_a_schedule_whose_closed_form_is_too_fast_is_named(job, caplog):
    dsx.best(job, fix=f"{USUAL} schedule=1f1b,zb-h2", framework="any", partition="even")
    assert "a step of zb-h2 takes longer than its closed form" in caplog.text


def test_several_strategies_are_one_search(job):
    both = dsx.best(job, 30, fix=USUAL, strategy="1d,2d", partition="even")
    alone = [dsx.best(job, 30, fix=USUAL, strategy=name, partition="even") for name in ("1d", "2d")]
    # A plan of 2d without context parallelism is one of 1d.
    assert both.counts.candidates < sum(found.counts.candidates for found in alone)
    own = [*alone[0].priced, *(plan for plan in alone[1].priced if plan["plan"]["cp"] > 1)]
    assert not any(plan["strategy"] == "2d" and plan["cp"] == 1 for plan in dsx.best(job, 999, strategy="1d,2d").plans)
    steps = sorted(plan["step_time_s"] for plan in own)
    assert [plan["step_time_s"] for plan in both.priced] == pytest.approx(steps[:30], rel=1e-12)
    assert {plan["strategy"] for plan in both.plans} == {"1d", "2d"}
    assert " 2 strategies, 1d, 2d; " in str(both).partition("\n\n")[0].replace("\n", " ")
    assert dsx.best(job, 30, fix=USUAL, strategy=["1d", "2d"], partition="even") == both
    for number, plan in enumerate(both.plans[:5], 1):
        again = dsx.evaluate(job, both.frame.iloc[number - 1])
        assert again.plan["candidate"] == plan["candidate"] and again.launch.flags == both.launch(number).flags


@pytest.mark.parametrize("wrong", [["1d", "1d"], "1d,", [], ["1d", 5]])
def test_wrong_lists_of_strategies(job, wrong):
    with pytest.raises(InputError, match="--strategy"):
        dsx.best(job, strategy=wrong)
