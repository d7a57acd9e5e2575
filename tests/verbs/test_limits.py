"""`limit` of a search: as text, texts or a mapping, with the grammar, the columns and the effect of a sweep's."""

import pytest
from verbs.small import SWEEP

import dsx
from dsx.errors import InputError, NothingFeasible, SpecError

EVERY = 100_000  # more plans than the job has
BOUNDS = {"tp": ["<=4", ">=2"], "microbatch_size": ["<8"]}


@pytest.fixture(scope="module")
def limited(job):
    return dsx.best(job, EVERY, limit=BOUNDS, partition="even")


@pytest.mark.parametrize(
    "limit",
    [
        "tp<=4 tp>=2 microbatch_size<8",
        ["tp<=4", "tp >= 2", " microbatch_size < 8 "],
        ("tp<=4 tp>=2", "microbatch_size<8.0"),
        {"tp": ("<=4", ">=2"), "microbatch_size": "<8"},
    ],
)
def test_limits_may_be_given_in_many_ways(job, limited, limit):
    found = dsx.best(job, EVERY, limit=limit, partition="even")
    assert found.plans == limited.plans
    assert found.to_data()["limit"].keys() == BOUNDS.keys()


@pytest.mark.parametrize("partition", ["even", "optimal"])
def test_a_limited_search_is_the_search_without_the_other_plans(job, partition):
    every = dsx.best(job, EVERY, partition=partition)
    few = dsx.best(job, EVERY, limit=BOUNDS, partition=partition)
    kept = [plan for plan in every.plans if 2 <= plan["tp"] <= 4 and plan["microbatch_size"] < 8]
    assert 0 < len(kept) < len(every.plans)
    assert sorted(plan["candidate"] for plan in few.plans) == sorted(plan["candidate"] for plan in kept)
    assert few.step_time_s == min(one["step_time_s"] for one in every.priced if one["plan"] in kept)


def test_limits_are_those_of_a_sweep_and_are_said(job, limited):
    swept = dsx.sweep({**SWEEP, "num_gpus": 8, "what_if": {}, "limit": BOUNDS, "keep": "feasible"}).frame
    assert sorted(swept["candidate"]) == sorted(plan["candidate"] for plan in limited.plans)
    # The answer says its limits.
    assert limited.to_data()["limit"] == {"tp": ["<=4", ">=2"], "microbatch_size": ["<8"]}
    assert "\nlimit tp<=4 tp>=2 microbatch_size<8; not searched: " in str(limited)
    both = dsx.best(job, fix="pp=1,2", limit="nvs.tp<=2")
    assert "\nonly pp=1,2; limit tp_nvs<=2; not searched: " in str(both)
    assert {plan["tp_nvs"] for plan in both.plans} <= {1, 2}
    assert dsx.best(job).to_data()["limit"] == {}


def test_limits_of_partitions_and_virtual_stages(job):
    found = dsx.partition(job, "pp=1,2,4", limit="pp>=2")
    assert (
        found.plan["pp"]
        == min((dsx.partition(job, pp=pp) for pp in (2, 4)), key=lambda one: one.step_time_s).plan["pp"]
    )
    assert found.to_data()["limit"] == {"pp": [">=2"]}
    assert "only pp=1,2,4; limit pp>=2" in str(found).splitlines()
    # A search of any cut obeys limits of virtual stages.
    for limit, holds in (("vpp>=2", lambda vpp: vpp >= 2), ("vpp<=1", lambda vpp: vpp == 1)):
        plans = dsx.best(job, EVERY, limit=limit, fix="vpp=1,2,4").plans
        assert plans
        assert all(holds(plan["vpp"]) for plan in plans)


@pytest.mark.parametrize("verb", [dsx.best, dsx.partition])
@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("tpp<=8", "limit: tpp: unknown candidate column 'tpp'; did you mean 'tp'?"),
        ("recompute<=1", "'recompute' holds names; expected a column of numbers, such as 'tp'; for a name use fix"),
        ("mfu>=0.5", "'mfu' is a cost; expected a candidate column"),
        ("device.hbm_capacity<=4", "'device.hbm_capacity' belongs to the hardware"),
        ("num_gpus<=4", "limit: num_gpus: the job states num_gpus"),
        ("tp", "'tp' is not a limit, such as 'tp<=8'; in a shell it needs quotes, since < and > redirect"),
        ("<=8", "'<=8' is not a limit"),
        ("", "'' is not a limit"),
        ("tp<=x", "limit: tp: '<=x' is not a bound, such as '<=16' or '>=2'"),
        ("tp<=1e999", "'1e999' is not a finite number"),
        ("tp=8", "'=8' has no known relation; did you mean '==8'?"),
        ("8>=tp", "the column comes first; did you mean 'tp<=8'?"),
        ("2<=tp<=8", "a limit has one bound; give two limits, 'tp>=2' and 'tp<=8'"),
        ("16>tp>=2", "a limit has one bound; give two limits, 'tp<16' and 'tp>=2'"),
        ({"tp": 8}, "limit: tp: 8 is not a bound, such as '<=16'"),
        ({"tp": None}, "limit: tp: None is not a bound"),
        (8, "limit: 8 is given, and limits are wanted, such as 'tp<=8'"),
        ([8], "limit: [8] is given, and limits are wanted"),
        (b"tp<=8", "limits are wanted"),
    ],
)
def test_what_is_no_limit_is_refused(job, verb, limit, says):
    with pytest.raises((InputError, SpecError)) as error:
        verb(job, limit=limit)
    assert says in str(error.value)


def test_limits_that_contradict(job):
    for verb in (dsx.best, dsx.partition):
        with pytest.raises(InputError, match=r"^limit: tp>=4 and tp<=2 exclude each other: leave out one of them$"):
            verb(job, limit="tp>=4 tp<=2")
    with pytest.raises(SpecError, match="limit: tp>4 and tp<5 exclude each other"):
        dsx.sweep({**SWEEP, "limit": {"tp": [">4", "<5"]}})
    with pytest.raises(SpecError, match="limit: tp>=4 contradicts the fixed tp=1,2: leave out one of the two"):
        dsx.sweep({**SWEEP, "fix": {"tp": [1, 2]}, "limit": {"tp": ">=4"}})
    # A limit that contradicts a fixed choice.
    for verb in (dsx.best, dsx.partition):
        with pytest.raises(InputError, match=r"^limit: tp<=4 and tp>1 contradicts the fixed tp=1,8: leave out one of"):
            verb(job, fix={"tp": [1, 8]}, limit="tp<=4 tp>1")
    assert {plan["tp"] for plan in dsx.best(job, EVERY, fix={"tp": [1, 8]}, limit="tp<=4").plans} == {1}


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("tp<=0", "the command: tp <= 0: tp divides num_gpus and obeys the rules of 1d; nearest: tp = 1"),
        ("tp>=1e30", "the command: tp >= 1e+30: tp divides num_gpus and obeys the rules of 1d; nearest: tp = 8"),
        (
            "pp>=5 pp<=7 tp<=8",
            "the command: pp >= 5 and pp <= 7: pp divides num_gpus and the 8 layers; nearest: pp = 4",
        ),
        ("vpp>=3", "vpp >= 3: vpp divides"),
        (
            "tp<2 pp<2 dp<2",
            "dp < 2: dp divides global_batch_size, and all degrees multiply to num_gpus; nearest: dp = 8",
        ),
    ],
)
def test_the_limit_that_leaves_no_candidate_is_named(job, limit, says):
    found = dsx.best(job, limit=limit, partition="even")
    assert not found.plans
    with pytest.raises(NothingFeasible) as error:
        assert found.plan
    assert "the fixed choices and limits leave none" in str(error.value)
    assert says in str(error.value)
    with pytest.raises(NothingFeasible, match="the fixed choices and limits leave none"):
        dsx.partition(job, limit="pp>=5 pp<=7")
