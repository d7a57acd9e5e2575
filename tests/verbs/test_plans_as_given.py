"""A plan is a text, settings, columns, a plan of a search, or a row of a DataFrame: all are the same plan."""

import json

import numpy as np
import pandas as pd
import pytest
from verbs.small import HEAVY_HEAD, MODEL

import dsx
from dsx.errors import InputError, PlanError

TEXT = "tp=2 dp=4 microbatch_size=2 nvs.tp=2 nvs.dp=4 recompute=full"
COLUMNS = {"tp": 2, "dp": 4, "microbatch_size": 2, "tp_nvs": 2, "dp_nvs": 4, "recompute": "full"}


@pytest.fixture(scope="module")
def evaluated(job):
    return dsx.evaluate(job, TEXT)


@pytest.mark.parametrize(
    ("plan", "choices"),
    [
        (TEXT.split(), {}),
        (tuple(TEXT.split()), {}),
        (COLUMNS, {}),
        (None, COLUMNS),
        ({"tp": 2, "dp": 4, "nvs.tp": 2, "nvs.dp": 4}, {"microbatch_size": 2, "recompute": "full"}),
        ("tp=2 dp=4", {"microbatch_size": 2, "tp_nvs": 2, "dp_nvs": 4, "recompute": "full"}),
        (COLUMNS | {"recompute": "none", "tp": 4}, {"recompute": "full", "tp": 2}),
        (pd.Series(COLUMNS), {}),
        ({name: np.int64(value) for name, value in COLUMNS.items() if name != "recompute"}, {"recompute": "full"}),
        (
            pd.Series({"tp": 2.0, "dp": 4.0, "microbatch_size": 2.0, "tp_nvs": 2.0, "dp_nvs": 4.0, "mfu": 0.5}),
            {"recompute": "full"},
        ),
    ],
)
def test_a_plan_may_be_given_in_many_ways(job, evaluated, plan, choices):
    assert dsx.evaluate(job, plan, **choices) == evaluated
    assert dsx.why(job, plan, **choices).plan == evaluated.plan


def test_a_placement_that_is_left_out_is_filled_and_said(job, evaluated):
    in_order = job.replace(set={"assumptions.default_placement": "rank_order"})
    left_out = dsx.evaluate(in_order, TEXT.partition(" nvs.")[0], recompute="full")
    assert left_out.plan == evaluated.plan and left_out.priced.filled == {"nvs.tp": 2, "nvs.dp": 4}
    assert "\nnvs.tp=2 nvs.dp=4 filled in rank order, tp-cp-ep-dp-pp\n" in str(left_out)
    assert "filled in rank order" not in str(evaluated)


def test_plans_of_searches_and_sets_are_priced_as_they_were(job, found):
    for plan, (_, row) in [*zip(found.plans, found.frame.iterrows(), strict=True)][::4]:
        priced = dsx.evaluate(job, plan)
        assert priced.plan == plan
        assert priced.step_time_s == pytest.approx(row["step_time_s"], rel=1e-12)
        assert dsx.evaluate(job, row) == dsx.evaluate(job, row.to_dict()) == priced
    # What is written beside a plan takes its place.
    other = dsx.evaluate(job, found.plan, recompute="full").plan
    assert {name for name in other if other[name] != found.plan[name]} == {"candidate", "recompute"}
    assert dsx.evaluate(job, found.plan | {"recompute": "full"}).plan == other


def test_rows_are_priced_with_their_strategy(job, swept):
    rows = swept.frame[(swept.frame["num_gpus"] == 8) & (swept.frame["device.hbm_capacity"] == 192e9)]
    assert len(rows) > 20
    for _, row in rows.iloc[::7].iterrows():
        priced = dsx.evaluate(job, row)
        assert priced.plan["candidate"] == row["candidate"]
        assert priced.step_time_s == pytest.approx(row["step_time_s"], rel=1e-5)
        assert bool(priced.reject) == bool(row["reject"])
    # The strategy is that of the row unless another is given.
    row = dsx.best(job, strategy="2d").frame.iloc[0]
    assert dsx.evaluate(job, row).plan["strategy"] == "2d"
    assert dsx.evaluate(job, row, strategy="1d").plan["strategy"] == "1d"


@pytest.mark.slow
def test_a_plan_with_a_cut_of_its_own_is_cut_again(job):
    odd = job.replace(model={**MODEL, "layers": [{"kind": "transformer", "count": 7}]})
    plan = dsx.partition(odd, pp=2, microbatch_size=1).plan
    assert sorted(plan["stage_layers"]) == [3, 4]
    for given in (plan, dict(plan), pd.Series(dict(plan))):
        priced = dsx.evaluate(odd, given)
        assert priced.plan == plan and len(priced.priced.stages) == 2
    assert dsx.evaluate(odd, plan, partition="even").broken.keys() >= {"layers_not_divisible"}


def test_a_plan_of_another_job_is_priced_in_this_one_and_said_so(job, found, caplog):
    assert dsx.evaluate(job, found.plan) and not caplog.messages
    larger = job.replace(global_batch_size=64)
    priced = dsx.evaluate(larger, found.plan)
    assert priced.plan["global_batch_size"] == 64
    assert priced.plan["num_microbatches"] == 2 * found.plan["num_microbatches"]
    assert caplog.messages == [
        "the plan is of a job with global_batch_size=32, but it is priced for this one, with global_batch_size=64"
    ]
    with pytest.raises(PlanError, match="but num_gpus=16; nearest: dp=16"):
        dsx.evaluate(job.replace(num_gpus=16), found.plan)
    assert dsx.evaluate(job.replace(num_gpus=16), found.plan, dp=16, microbatch_size=1).plan["num_gpus"] == 16


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("tp8", "'tp8' is not a setting of a plan: write column=value, such as tp=8"),
        ({"tpp": 8}, "unknown setting 'tpp'; did you mean 'tp'?"),
        (
            {"TP": 8, "mbs": 1},
            "'TP=8 mbs=1': each column has one name here, in lower case: write tp=8 microbatch_size=1",
        ),
        ({"tp": 2.5, "dp": 4}, "'tp=2.5': tp must be a whole number"),
        ({"tp": [2, 4]}, "'tp=2,4': tp must be a whole number"),
        ({"tp": 2, "dp": 3}, "= 6, but num_gpus=8; nearest: dp=4"),
        ({"recompute": "most"}, "'most'"),
        (3, "int is not a plan: give a text such as 'tp=8 dp=64', a mapping of columns, a Plan, or a row of a"),
        ([1, 2], "list is not a plan"),
    ],
)
def test_what_is_no_plan_is_refused(job, plan, says):
    with pytest.raises(InputError) as error:
        dsx.evaluate(job, plan)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("recomptue", "unknown setting 'recomptue'; did you mean 'recompute'?"),
        ("tp_nvss", "unknown setting 'tp_nvss'"),
        ("device.hbm_capcity", "unknown setting 'device.hbm_capcity'"),
        ("nvs.tq", "unknown setting 'nvs.tq'; did you mean 'nvs.tp'?"),
    ],
)
def test_a_misspelt_column_of_a_row_is_refused(job, found, column, says):
    for plan in (found.plan, found.frame.iloc[0].to_dict()):
        with pytest.raises(PlanError) as error:
            dsx.evaluate(job, plan | {column: 1})
        assert says in str(error.value)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("tp", 0, "tp=0 must be a whole number of at least 1"),
        ("tp", "x", "tp='x' must be a whole number"),
        ("recompute", "fulll", "recompute = 'fulll' is not known; did you mean 'full'?"),
        ("zero_stage", 4, "zero_stage = 4 must be one of 0, 1, 2, 3"),
    ],
)
def test_a_plan_takes_no_value_that_no_plan_has(found, column, value, says):
    with pytest.raises(PlanError) as error:
        found.plan | {column: value}
    assert says in str(error.value)


def test_what_is_no_plan(job, found):
    on_tiers = dsx.best(job.replace(cluster="h100-nvl8-rail"), top=1)
    assert {name for name in on_tiers.plan if name.startswith("dp_")} > {"dp_nvs"}
    for given in (on_tiers.plan, on_tiers.frame.iloc[0]):
        assert dsx.evaluate(job, given).plan["tp"] == on_tiers.plan["tp"]
    assert "plan 1: ranks numbered tp-cp-ep-" in str(on_tiers)
    # Bytes are no number.
    with pytest.raises(PlanError, match="tp=b'8': bytes are no value"):
        dsx.evaluate(job, tp=b"8", dp=1)
    # Several plans are no plan.
    with pytest.raises(InputError, match=r"give one of its rows, as in frame.iloc\[0\]"):
        dsx.evaluate(job, found.frame)
    with pytest.raises(InputError, match="BestPlans is not a plan"):
        dsx.evaluate(job, found)


@pytest.mark.slow
def test_fixed_columns_may_have_several_values(job):
    text = dsx.partition(job, "tp=1,2 zero_stage=0,1")
    assert text == dsx.partition(job, {"tp": [1, 2], "zero_stage": (0, 1)})
    assert text == dsx.partition(job, tp=range(1, 3), zero_stage=[0, 1])
    assert text == dsx.partition(job, tp=np.array([1, 2]), zero_stage={0, 1})
    assert text.counts.candidates > dsx.partition(job, tp=2, zero_stage=0).counts.candidates


def test_layouts_and_texts_of_plans(found, job):
    plan = found.plan
    assert str(plan) == plan.text and repr(plan) == f"Plan({plan.text!r})"
    assert repr(dsx.Plan({"tp": 8})) == "Plan({'tp': 8})"
    assert dsx.Plan(json.loads(json.dumps(plan.data))) == plan
    # Another layout of the fastest plan is not the fastest.
    fastest = dsx.partition(job, pp=2)
    own, other = (dsx.why(job, fastest.plan, stage_layers=layout) for layout in (fastest.plan["stage_layers"], "7,1"))
    assert fastest.plan["stage_layers"] == fastest.plan.layers and dsx.Plan(fastest.plan.data) == fastest.plan
    assert fastest.plan.data["stage_layers"] == ",".join(map(str, fastest.plan.layers))
    assert (fastest.plan | {"stage_layers": "5,3"}) == (fastest.plan | {"stage_layers": [5, 3]})
    for none in ("", "Et*5|t*3L", 8, None, [5, 3.0]):
        with pytest.raises(PlanError, match="expected the layers of each chunk, as in 9,8,8,9"):
            fastest.plan | {"stage_layers": none}
    assert other.plan.layers == (7, 1)
    assert other.plan["candidate"] == own.plan["candidate"]
    assert "It is the fastest of" not in str(other)
    # A search takes no layout.
    for search in (dsx.best, dsx.partition):
        with pytest.raises(PlanError, match="'stage_layers=4,4': a search cuts the layers itself; dsx evaluate prices"):
            search(job, fix="stage_layers=4,4")
    plan = dsx.evaluate(job, SPLIT, stage_layers=[5, 3]).plan
    assert dsx.best(job, fix={name: plan[name] for name in ("tp", "pp", "dp", "stage_layers")}).plans


SPLIT = "tp=2 pp=2 dp=2"


@pytest.mark.slow
def test_a_layout_may_be_given_in_many_ways(job):
    stated = dsx.evaluate(job, f"{SPLIT} stage_layers=5,3")
    assert (stated.plan["stage_layers"], len(stated.priced.stages)) == ((5, 3), 2)
    columns = {"tp": 2, "pp": 2, "dp": 2}
    for plan, choices in (
        (SPLIT, {"stage_layers": [5, 3]}),
        (SPLIT.split(), {"stage_layers": "Et*5|t*3L"}),
        (columns | {"stage_layers": (5, 3)}, {}),
        (columns | {"stage_layers": np.array([5, 3]).tolist()}, {}),
        (columns | {"stage_layers": "4,4"}, {"stage_layers": "5,3"}),
        (pd.Series(columns | {"stage_layers": "5,3"}), {}),
    ):
        assert dsx.evaluate(job, plan, **choices) == stated
        assert dsx.why(job, plan, **choices).plan == stated.plan
    assert dsx.evaluate(job, SPLIT, stage_layers=[3, 2, 2, 1]).plan["vpp"] == 2


def test_a_plan_keeps_its_layout_unless_another_cut_is_asked_for(job):
    stated = dsx.evaluate(job, SPLIT, stage_layers=[6, 2])
    assert dsx.evaluate(job, stated.plan) == dsx.evaluate(job, stated.frame.iloc[0]) == stated
    full = dsx.evaluate(job, stated.plan, recompute="full")
    assert (full.plan["stage_layers"], full.plan["recompute"]) == ((6, 2), "full")
    for partition, layout in (("optimal", (4, 4)), ("even", None)):
        again = dsx.evaluate(job, stated.plan, partition=partition)
        assert (again.plan.get("stage_layers"), again.plan["candidate"]) == (layout, stated.plan["candidate"])
        with pytest.raises(
            InputError, match=f"'stage_layers=6,2' states a layer layout, and partition {partition} ano"
        ):
            dsx.evaluate(job, f"{SPLIT} stage_layers=6,2", partition=partition)
    with pytest.raises(PlanError, match="stage_layers=6,2: has 2 chunks, but pp=4 needs 4"):
        dsx.evaluate(job, stated.plan, pp=4, dp=1)
    both = [dsx.best(job, top=1, partition=partition).plan for partition in ("even", "optimal")]
    rows = pd.DataFrame([dict(plan) for plan in both])
    assert dsx.evaluate(job, rows.iloc[0]).plan.get("stage_layers") is None


TREE = [{"name": "leaf", "units": 2, "oversubscription": 4}, {"name": "spine"}]
RANKS = "ranks numbered tp-cp-ep-pp-dp; members of a group that share a unit of each tier:"


def words(answer):
    return [" ".join(line.split()) for line in str(answer).splitlines()]


@pytest.mark.slow
def test_the_order_of_ranks_is_part_of_the_plan():
    job = dsx.Job(HEAVY_HEAD, "b200-nvs8", 64, 64)
    job = job.replace(set={"cluster.network.topology": {"kind": "fat_tree", "levels": TREE}})
    fix = "pp=4 vpp=1 tp=8 microbatch_size=1 nvs.tp=8"
    orders = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    plans = [dsx.partition(job, f"{fix} order={order}", strategy="1d") for order in orders]
    data = [plan.to_data() for plan in plans]
    assert [one["plan"]["order"] for one in data] == [*orders] and data[1]["plan"]["pp_leaf"] == 2
    assert all(max(stage["load_s"] for stage in one["stages"]) == one["bottleneck_s"] for one in data)
    # Either the replicas of a stage share a leaf, or the stages of a replica do.
    links = [[stage["link"] for stage in one["stages"]] for one in data]
    assert links == [[None, "spine", "spine", "spine"], [None, "leaf", "spine", "leaf"]]
    free = dsx.partition(job, fix, strategy="1d")
    assert free.step_time_s == min(plan.step_time_s for plan in plans) != max(plan.step_time_s for plan in plans)
    # The stages are those of the same plan where it is evaluated.
    same = dsx.evaluate(job, f"{fix} dp=2 order={free.plan['order']}", strategy="1d", partition="optimal")
    assert free.to_data()["stages"] == same.to_data()["stages"]
    at = words(plans[1]).index(RANKS)
    assert words(plans[1])[at + 1 : at + 5] == ["tp pp dp", "nvs 8 1 1", "leaf 8 2 1", "spine 8 4 2"]


def test_a_plan_says_how_it_lies_on_the_tiers():
    levels = [{"name": "leaf", "units": 2}, {"name": "pod", "units": 4, "oversubscription": 2}, {"name": "core"}]
    job = dsx.Job("gpt3-5b", "h100-nvs8", 64, 64)
    tree = job.replace(set={"cluster.network.topology": {"kind": "fat_tree", "levels": levels}})
    plan = "tp=4 pp=4 dp=4 nvs.tp=4 nvs.dp=2"
    lines = words(dsx.evaluate(tree, f"{plan} order=tp-cp-ep-pp-dp"))
    at = lines.index(RANKS)
    assert lines[at + 1 : at + 6] == ["tp pp dp", "nvs 4 1 2", "leaf 4 2 2", "pod 4 4 4", "core 4 4 4"]
    assert lines[0].endswith("order=tp-cp-ep-pp-dp nvs.tp=4 nvs.dp=2")
    columns = dsx.evaluate(tree, plan).plan
    assert columns | {"order": "tp-cp-ep-dp-pp", "dp_leaf": 4, "pp_leaf": 1, "pp_pod": 4} == columns
    uneven = str(dsx.evaluate(tree.replace(num_gpus=80, global_batch_size=80), "tp=8 dp=10 nvs.tp=8"))
    assert "dp straddles units of pod: it is priced as crossing that tier" in uneven
    for other in (dsx.evaluate(tree.replace(num_gpus=1, global_batch_size=1)), dsx.evaluate(job, plan)):
        assert "ranks numbered" not in str(other)
