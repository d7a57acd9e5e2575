"""What every answer can do: be read in a shell and a notebook, be compared, be pickled, be a DataFrame."""

import json
import pickle

import pandas as pd
import pytest
from verbs.small import MODEL, SWEEP

import dsx
from dsx.errors import InputError, NothingFeasible, SpecError

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
    assert found.to_data()["plans"][0]["plan"] == found.plan


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


def test_progress_is_told_to_who_watches(job, capsys):
    told = []
    found = dsx.best(job, watch=lambda *now: told.append(now))
    done, total, what = zip(*told, strict=True)
    assert list(done) == sorted(done) and done[-1] == total[-1] == found.counts.candidates
    assert {*total} == {found.counts.candidates} and {*what} == {"pricing"}
    assert capsys.readouterr() == ("", "")


def test_what_a_user_should_know_is_a_warning_of_the_logger(job, caplog, capsys):
    prime = job.replace(model=MODEL | {"layers": [{"kind": "transformer", "count": 31}]})
    dsx.best(prime, partition="even")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("dsx", "WARNING")
    assert "has 31 layers" in record.getMessage()
    assert capsys.readouterr().out == ""


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
