"""Plans as people write them: how they are read, which are not well formed, and which rules a plan breaks."""

import re

import pytest
from plans.texts import DIVIDED, EXPERTS, MIXTURE, ONE_AXIS, PANELS, SPREAD, TINY, layer

from dsx.errors import PlanError
from dsx.plans.choices import CODES
from dsx.plans.plan import JobSizes, PlanDefaults, Setting, filled_shares, fixed_settings, plan_of_settings
from dsx.plans.rules import DEGREES, Limits
from dsx.plans.violations import violations

CODES_OF_DEFAULTS = {
    "vpp": 1, "zero_stage": 1, "recompute": 0, "schedule": 0, "zero_replicas": 1, "stored_layers": 0, "offload": 0,
    "order": 0,
}  # fmt: skip
DEFAULTS = PlanDefaults(CODES_OF_DEFAULTS)
IN_RANK_ORDER = PlanDefaults(CODES_OF_DEFAULTS, in_rank_order=True)
DIMS = {"e": 8, "f": 16}


def plan_of(words, *problem):
    return plan_of_settings([*map(Setting.of, words)], *problem)


def fixed(*words):
    return fixed_settings([*map(Setting.of, words)], 8, Limits(4, 8))


def parse(*settings, strategy=ONE_AXIS, num_gpus=8, batch=8, layers=4):
    job = JobSizes(num_gpus, batch, 2048)
    return plan_of(settings, (layer(strategy),), "its-name", job, Limits(layers, 8), DEFAULTS)


def test_plans_that_break_no_rule_and_settings_left_out():
    assert dict(parse("tp=2", "dp=4")) == {
        "strategy": "its-name", "sequence_length": 2048,
        "tp": 2, "tp2": 1, "cp": 1, "ep": 1, "pp": 1, "dp": 4, "panels": 1, "microbatch_size": 1,
        "tp_nvs": 1, "tp2_nvs": 1, "cp_nvs": 1, "ep_nvs": 1, "pp_nvs": 1, "dp_nvs": 1,
        "num_gpus": 8, "global_batch_size": 8, "num_microbatches": 2,
        "vpp": 1, "zero_stage": 1, "recompute": "none", "schedule": "1f1b", "zero_replicas": 1, "stored_layers": 0,
        "offload": "none", "order": "tp-cp-ep-dp-pp",
    }  # fmt: skip
    # A plan that breaks no rule.
    assert broken("tp=2", "pp=2", "dp=2") == []
    assert broken("tp=2", "pp=2", "dp=2", "nvs.tp=2", "nvs.dp=2", nvs_size=4) == []
    # Experts are divisible.
    ((reason, detail),) = broken("dp=8", "ep=4", strategy=SPREAD, text=MIXTURE, dims=DIMS | {"x": 6})
    assert reason == "experts_not_divisible"
    assert detail == "x % ep == 0 is required, but x % ep = 2 (ep=4, x=6); nearest: ep=2"


@pytest.mark.parametrize(
    ("settings", "nvs_size", "shares"),
    [
        (["tp=4", "pp=2", "dp=8"], 8, {"tp": 4, "dp": 2}),  # tp innermost, then dp
        (["tp=4", "pp=2", "dp=8", "order=tp-cp-ep-pp-dp"], 8, {"tp": 4, "pp": 2}),  # then pp
        (["tp=4", "pp=2", "dp=8", "nvs.tp=2"], 8, {"tp": 2, "dp": 4}),  # what is named stays
        (["tp=4", "pp=2", "dp=8", "nvs.dp=8"], 8, {"dp": 8}),
        (["tp=4", "pp=2", "dp=8", "nvs.pp=2"], 8, {"tp": 4, "pp": 2}),
        (["tp=4", "pp=2", "dp=8", "nvs.pp=2", "nvs.tp=8"], 8, {"tp": 8, "pp": 2}),  # more than there is
        (["tp=32", "pp=2"], 8, {"tp": 8}),
        (["tp=4", "pp=2", "dp=8", "nvs.tp=1", "nvs.dp=1", "nvs.pp=1"], 8, {}),  # all are named
    ],
)
def test_shares_that_are_left_out_are_filled_in_rank_order(settings, nvs_size, shares):
    limits = Limits(4, nvs_size)
    job = JobSizes(64, 64, 2048)
    plan = plan_of(settings, (layer(ONE_AXIS),), "its-name", job, limits, IN_RANK_ORDER)
    assert {axis: plan[f"{axis}_nvs"] for axis in DEGREES if plan[f"{axis}_nvs"] > 1} == shares
    given = {setting.partition("=")[0] for setting in settings}
    expected = {f"nvs.{axis}": share for axis, share in shares.items() if f"nvs.{axis}" not in given}
    assert filled_shares(plan, [*map(Setting.of, settings)]) == expected


def test_settings_are_filled_listed_once_and_may_have_several_values():
    made = layer(SPREAD, MIXTURE)
    limits = Limits(4, 8, made.expert_axes)
    job, settings = JobSizes(16, 16, 2048), ["tp=2", "dp=8", "ep=8"]
    plan = plan_of(settings, (made,), "its-name", job, limits, IN_RANK_ORDER)
    assert (plan["tp_nvs"], plan["dp_nvs"], plan["ep_nvs"]) == (2, 4, 8)
    assert filled_shares(plan, []) == {"nvs.tp": 2, "nvs.dp": 4}
    # Each setting that is known is listed once.
    for ask in (lambda: parse("foo=1"), lambda: fixed("foo=1")):
        with pytest.raises(PlanError) as raised:
            ask()
        known = str(raised.value).partition("(known: ")[2].removesuffix(")").split(", ")
        assert len(known) == len(set(known))
        assert known.count("ep") == 1
    # A setting of a search may have several values.
    values = fixed("zero_stage=1,3,1", "recompute=none,full", "tp=2,4", "nvs.tp=2")
    assert values == {"zero_stage": [1, 3], "recompute": ["none", "full"], "tp": [2, 4], "tp_nvs": [2]}
    for wrong, message in (
        ("tp=2,3", "tp=3 does not divide num_gpus=8; nearest: tp=2"),
        ("zero_stage=1,4", "zero_stage = 4 must be one of 0, 1, 2, 3"),
        ("recompute=full,", "recompute = '' is not known"),
    ):
        with pytest.raises(PlanError, match=re.escape(message)):
            fixed(wrong)


def test_every_choice_has_a_setting():
    plan = parse(
        "tp=2", "pp=2", "dp=2", "microbatch_size=2", "nvs.tp=2", "nvs.dp=2", "nvs.pp=1", "zero_stage=3", "vpp=2"
    )
    assert (plan["zero_stage"], plan["vpp"]) == (3, 2)
    assert (plan["tp_nvs"], plan["dp_nvs"], plan["num_microbatches"]) == (2, 2, 2)
    plan = parse("dp=8", "zero_replicas=4", "recompute=full", "stored_layers=2", "offload=both", "schedule=zb-h2")
    assert (plan["zero_replicas"], plan["stored_layers"]) == (4, 2)
    assert (plan["offload"], plan["schedule"], plan["recompute"]) == ("both", "zb-h2", "full")
    assert {name: plan.codes[name] for name in ("offload", "schedule")} == {
        "offload": CODES["offload"].index("both"),
        "schedule": CODES["schedule"].index("zb-h2"),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tp"], "'tp' is not a setting of a plan: write column=value, such as tp=8"),
        (["tpp=2"], "unknown setting 'tpp'; did you mean 'tp'? (known: tp, tp2, cp, ep, pp, dp, panels,"),
        (["nvs.tpp=2"], "unknown setting 'nvs.tpp'; did you mean 'nvs.tp'?"),
        (["tp=2 dp=4"], "'tp=2 dp=4' is several settings: give each by itself"),
        (["tp=2", "dp=4", "tp_nvs=2", "nvs.tp=2"], "nvs.tp is given twice: 'tp_nvs=2' and 'nvs.tp=2'"),
        (["num_microbatches=2"], "num_microbatches is global_batch_size"),
        (["zero_stage=4"], "zero_stage = 4 must be one of 0, 1, 2, 3"),
        (
            ["recompute=ful"],
            "recompute = 'ful' is not known; did you mean 'full'? (known: none, selective, full, or names",
        ),
        (["schedule=2"], "schedule = 2 is not known (known: 1f1b, gpipe, zb-h1, zb-h2, dualpipe, zb-v)"),
        (["offload=weights"], "offload = 'weights' is not known (known: none, optimizer, activations, both)"),
        (["zero_replicas=0"], "zero_replicas = 0 must be a whole number of at least 1"),
        (["stored_layers=-1"], "stored_layers = -1 must be a whole number of at least 0"),
        (["stored_layers=2147483648"], "must be a whole number of at least 0 and at most 2147483647"),
        (["stored_layers=all"], "stored_layers = 'all' must be a whole number of at least 0"),
        (["vpp=0"], "vpp = 0 must be a whole number of at least 1"),
        (["tp=0"], "'tp=0': tp must be a whole number of at least 1"),
        (["tp=-2"], "'tp=-2': tp must be a whole number"),
        (["tp=2.0"], "'tp=2.0': tp must be a whole number"),
        (["tp=two"], "'tp=two': tp must be a whole number"),
        (["tp="], "'tp=' has no value: write column=value"),
        (["cp=2", "dp=4"], "over cp; its axes are tp; nearest: cp=1, or a strategy with cp"),
        (["ep=2", "dp=4"], "ep=2: strategy 'its-name' shards nothing of this model over ep"),
        (["panels=2", "dp=8"], "panels=2: strategy 'its-name' has no panels"),
        (["tp=2", "dp=2"], "tp=2 * dp=2 = 4, but num_gpus=8; nearest: dp=4"),
        ([], "all degrees are 1, but num_gpus=8; nearest: dp=8"),
        (["tp=3", "dp=2"], "tp=3 * dp=2 = 6, but num_gpus=8; nearest: tp=4"),
        (["tp=3"], "tp=3 alone, but num_gpus=8; nearest: tp=2 dp=4"),
        (["tp=3", "pp=5", "dp=3"], "tp=3 * pp=5 * dp=3 = 45, but num_gpus=8; nearest: tp=2 pp=4 dp=1"),
        (["pp=8"], "pp=8 leaves stages without a layer: the model has 4 layers"),
        (["dp=8", "microbatch_size=2"], "dp=8 * microbatch_size=2 exceeds global_batch_size=8: a replica has no"),
    ],
)
def test_plans_that_are_not_well_formed(settings, message):
    with pytest.raises(PlanError) as caught:
        parse(*settings)
    assert message in str(caught.value)


def broken(*settings, strategy=ONE_AXIS, num_gpus=8, batch=8, layers=4, nvs_size=1, length=16, dims=DIMS, text=TINY):
    made = (layer(strategy, text),)
    limits = Limits(layers, nvs_size, made[0].expert_axes)
    plan = plan_of(settings, made, "its-name", JobSizes(num_gpus, batch, length), limits, DEFAULTS)
    found = violations(plan, made, dims, limits)
    return [(violation.reason.name, violation.detail) for violation in found]


@pytest.mark.parametrize(
    ("settings", "options", "reason", "detail"),
    [
        (
            ["tp=2", "dp=4", "zero_replicas=3"],
            {},
            "replicas_not_divisible",
            "zero_replicas=3 does not divide dp=4; nearest: zero_replicas=2",
        ),
        (
            ["tp=2", "dp=4", "zero_replicas=2", "zero_stage=0"],
            {},
            "replicas_not_divisible",
            "zero_replicas=2, but zero_stage=0 shards nothing; nearest: zero_replicas=1",
        ),
        (
            ["pp=2", "dp=4", "recompute=full", "stored_layers=3"],
            {},
            "stored_layers_exceeded",
            "stored_layers=3, but a stage has 2 layers: with all of them stored nothing is recomputed (recompute=none)"
            "; nearest: stored_layers=1",
        ),
        (
            ["pp=2", "dp=4", "stored_layers=1"],
            {},
            "stored_layers_exceeded",
            "stored_layers=1, but recompute=none recomputes no layer; nearest: stored_layers=0",
        ),
        (["dp=8", "vpp=2"], {}, "chunks_not_divisible", "vpp=2 needs a pipeline, but pp=1; nearest: vpp=1"),
        (
            ["pp=2", "dp=4", "vpp=3"],
            {"layers": 8},
            "chunks_not_divisible",
            "pp=2 * vpp=3 does not divide 8 layers; nearest: vpp=2",
        ),
        (
            ["pp=2", "dp=4", "vpp=2", "schedule=gpipe"],
            {},
            "chunks_without_1f1b",
            "vpp=2, but a stage has 1 with schedule=gpipe and pp=2; only 1f1b can be interleaved; "
            "nearest: vpp=1, or schedule=1f1b",
        ),
        (
            ["pp=2", "dp=4", "vpp=2"],
            {"batch": 12},
            "microbatches_not_in_groups",
            "vpp=2 runs microbatches in groups of pp, but pp=2 does not divide the 3 microbatches; nearest: vpp=1",
        ),
        (
            ["pp=4", "dp=2"],
            {"layers": 6},
            "layers_not_divisible",
            "pp=4 does not divide 6 layers; nearest: pp=2, or unequal stages (stage_layers)",
        ),
        (["dp=8"], {"batch": 12}, "batch_not_divisible", "dp=8 does not divide global_batch_size=12; nearest: dp=6"),
        (
            ["tp=2", "dp=4", "microbatch_size=3"],
            {"batch": 16},
            "microbatch_not_divisible",
            "microbatch_size=3 does not divide the 4 sequences of a replica; nearest: microbatch_size=2",
        ),
        (
            ["tp=4", "dp=2", "nvs.tp=2", "nvs.dp=4"],
            {"nvs_size": 8},
            "share_not_divisible",
            "nvs.dp=4 does not divide dp=2; nearest: nvs.dp=2",
        ),
        (
            ["tp=4", "dp=2", "nvs.tp=4"],
            {"nvs_size": 2},
            "domain_exceeded",
            "nvs.tp=4 uses 4 GPUs, but a fast domain has 2; nearest: no shares, which fills it in rank order",
        ),
        (
            ["tp=4", "dp=2", "nvs.tp=4"],
            {"nvs_size": 8},
            "domain_not_filled",
            "nvs.tp=4 uses 4 of the 8 GPUs of a fast domain, but the job can use 8; nearest: nvs.tp=4 nvs.dp=2",
        ),
        (
            ["tp=4", "dp=2"],
            {"nvs_size": 4},
            "domain_not_filled",
            "nvs.*=1 uses 1 of the 4 GPUs of a fast domain, but the job can use 4; nearest: nvs.tp=4",
        ),
        (
            ["tp=8"],
            {"dims": {"e": 8, "f": 24}},
            "too_narrow",
            "f / tp >= 4 is required, but f / tp = 3 (f=24, tp=8); nearest: tp=4",
        ),
        (
            ["tp=8"],
            {"dims": {"e": 8, "f": 36}, "length": 8},
            "width_not_divisible",
            "f % tp == 0 is required, but f % tp = 4 (f=36, tp=8); nearest: tp=4",
        ),
        (
            ["tp=4", "dp=2"],
            {"length": 6},
            "tokens_not_divisible",
            "b * s % tp == 0 is required, but b * s % tp = 2 (b=1, s=6, tp=4); nearest: tp=2",
        ),
    ],
)
def test_one_broken_rule(settings, options, reason, detail):
    assert broken(*settings, **options) == [(reason, detail)]


def test_broken_rules_and_their_nearest_values():
    assert broken("panels=8", "dp=8", strategy=PANELS) == [
        ("panel_too_thin", "e / panels >= 2 is required, but e / panels = 1 (e=8, panels=8); nearest: panels=4")
    ]
    # A dimension that is divided away.
    assert broken("tp=32", strategy=EXPERTS, num_gpus=32) == [
        ("dimension_divided_away", "some rank has no element of f/tp")
    ]
    # Rules name what they miss, and a nearest value leaves every rank something.
    both = dict(broken("tp=32", num_gpus=32, length=32))
    assert both["dimension_divided_away"] == "some rank has no element of f/tp"
    assert both["too_narrow"].endswith("nearest: tp=4")
    # The nearest value obeys all rules.
    # f / tp >= 4 alone would allow 5, 6 and 7 ranks; only divisors of the GPUs and of f are offered.
    (found,) = broken("tp=8", "dp=3", num_gpus=24, dims={"e": 8, "f": 24}, batch=9, length=24)
    assert found[1].endswith("nearest: tp=6")
    # No nearest value where there is none.
    impossible = ONE_AXIS.replace("f / tp >= 4 ", "f / tp >= 40")
    (found,) = broken("tp=2", "dp=4", strategy=impossible)
    assert "nearest" not in found[1]
    # All broken rules are reported.
    names = [name for name, _ in broken("pp=4", "dp=2", "nvs.pp=3", layers=6, nvs_size=2, batch=9)]
    assert names == ["layers_not_divisible", "batch_not_divisible", "share_not_divisible", "domain_exceeded"]


EXPERT_DIMS = DIMS | {"x": 8}


@pytest.mark.parametrize(
    ("settings", "strategy", "share"),
    [
        (["dp=8", "ep=4", "nvs.dp=8"], SPREAD, 4),
        (["tp=2", "dp=4", "ep=4", "nvs.tp=2"], SPREAD, 2),
        (["tp=2", "dp=4", "ep=8", "nvs.tp=2", "nvs.dp=2"], SPREAD, 4),
        (["tp=2", "dp=4", "ep=4", "nvs.tp=2", "nvs.dp=2"], DIVIDED, 2),
        (["tp=4", "dp=2", "ep=2", "nvs.tp=4"], DIVIDED, 1),
        (["dp=8", "ep=8", "nvs.dp=8", "nvs.ep=2"], SPREAD, 2),
    ],
)
def test_the_share_of_an_ep_group_follows_from_those_it_nests_in(settings, strategy, share):
    made = layer(strategy, MIXTURE)
    plan = plan_of(settings, (made,), "its-name", JobSizes(8, 8, 2048), Limits(4, 8, made.expert_axes), DEFAULTS)
    assert plan["ep_nvs"] == share


@pytest.mark.parametrize(
    ("settings", "strategy", "reason", "detail"),
    [
        (["pp=4", "dp=2", "ep=8"], SPREAD, "experts_not_nested",
         "ep=8 nests in dp=2, but does not divide 2; nearest: ep=2"),
        (["tp=4", "dp=2", "ep=8"], DIVIDED, "experts_not_nested",
         "ep=8 nests in dp=2, but does not divide 2; nearest: ep=2"),
        (["dp=8", "ep=4", "nvs.ep=2"], SPREAD, "expert_share_not_nested",
         "nvs.ep=2, but with nvs.*=1 a fast domain has 1 of the 4 members of an ep group; leave nvs.ep out"),
    ],
)  # fmt: skip
def test_experts_that_do_not_nest(settings, strategy, reason, detail):
    assert broken(*settings, strategy=strategy, text=MIXTURE, dims=EXPERT_DIMS) == [(reason, detail)]
    nested = ["tp=4", "dp=2", "ep=8"] if strategy == SPREAD else ["tp=4", "dp=2", "ep=2"]
    assert broken(*nested, strategy=strategy, text=MIXTURE, dims=EXPERT_DIMS) == []
