"""From rows to setups: defaults and their counts, words, placement, and runs that cannot be."""

import dataclasses
import math

import pytest

from dsx.plans.choices import BY_NAME, value_of
from dsx.runs.complete import DEFAULTS, recompute_words
from dsx.runs.setups import Setup, count_rows_by
from dsx.runs.table import UnmodelledReason


def layers(setup):
    return [(str(entry.layer), entry.count) for entry in setup.model.layers]


def test_defaults_of_a_row(made):
    (setup,) = made({})
    assert setup.filled == ()
    assert [setup.plan[name] for name in ("tp", "pp", "dp", "num_microbatches", "microbatch_size")] == [2, 2, 4, 8, 2]
    assert (setup.cluster.name, setup.precision, setup.plan["recompute"], setup.plan["schedule"]) == (
        *("a100-80-nvs8", "bf16"),
        *("none", "1f1b"),
    )
    assert layers(setup) == [("embedding", 1), ("transformer[gated rotary]", 32), ("head", 1)]
    assert setup.model.dimensions == {"e": 4096, "h": 32, "g": 32, "k": 128, "f": 11008, "v": 32000}
    # A blank sp is none where tp does not divide the sequence.
    degrees = {"tp": "3", "pp": "1", "dp": "4", "n_gpus": "12", "heads": "48", "kv_heads": "1", "hidden": "6144"}
    degrees |= {"ffn_hidden": "12288", "global_batch": "16"}
    blank, stated = made(degrees | {"sp": ""}, degrees | {"sp": "1"})
    assert "sp" in blank.filled and not blank.sp
    assert stated.rule == "tp * cp does not divide seq, with sp"


def test_blank_cells_are_filled_and_counted(made):
    blank = dict.fromkeys(DEFAULTS, "") | {"n_gpus": "8"}
    bare, experts, parallel = made(
        blank, blank | {"experts": "8"}, blank | {"tp": "2", "pp": "2", "global_batch": "8", "heads": "32"}
    )
    assert {"heads", "kv_heads", "ffn_hidden", "vocab", "precision", "flash", "tp", "pp", "dp"} <= {*bare.filled}
    assert bare.sizes == dataclasses.replace(
        bare.sizes, heads=32, kv_heads=32, ffn_hidden=16384, vocab=51200, experts=0, gated_mlp=False
    )
    assert [bare.plan[name] for name in ("tp", "dp", "vpp", "zero_stage", "recompute")] == [1, 8, 1, 1, "none"]
    assert not bare.sp
    # What says nothing in a row is not counted there: a dense model has no expert groups.
    assert not {"ep", "topk", "experts", "vpp", "sp"} & {*bare.filled}
    assert {"ep", "topk", "gated_mlp"} <= {*experts.filled}
    assert (experts.sizes.topk, experts.sizes.gated_mlp, experts.plan["ep"]) == (2, True, 1)
    assert {"sp", "vpp"} <= {*parallel.filled} and parallel.sp and parallel.plan["dp"] == 2
    counts = count_rows_by([bare, experts, parallel, UnmodelledReason("none")], "filled")
    assert counts["vocab"] == 3 and counts["heads"] == 2 and counts["sp"] == 1


@pytest.mark.parametrize(
    ("changes", "rule", "detail"),
    [
        ({"n_gpus": "24"}, "tp * pp * cp * dp is not n_gpus", "tp=2, pp=2, cp=1, dp=4, n_gpus=24"),
        ({"dp": "", "n_gpus": "18"}, "tp * pp * cp * dp is not n_gpus", "dp=4, n_gpus=18"),
        ({"ep": "8"}, "ep without experts", "ep=8, experts=0"),
        ({"ep": "3"}, "ep does not divide tp * cp * dp", "ep=3"),
        ({"ep": "8", "experts": "12", "topk": "2"}, "ep does not divide experts", "ep=8, experts=12"),
        ({"experts": "4", "topk": "8"}, "topk is more than experts", "topk=8"),
        ({"experts": "4", "topk": "0"}, "experts without a topk", "topk=0"),
        ({"microbatch": "3"}, "microbatch * dp does not divide global_batch", "microbatch=3, dp=4, global_batch=64"),
        ({"layers": "4", "vpp": "8"}, "pp * vpp is more than layers with embedding and head", "pp=2, vpp=8"),
        ({"pp": "1", "dp": "8", "vpp": "2"}, "vpp without pp", "vpp=2"),
        ({"kv_heads": "5"}, "kv_heads does not divide heads", "kv_heads=5, heads=32"),
        ({"tp": "64", "dp": "", "n_gpus": "128"}, "tp does not divide heads", "tp=64, heads=32"),
        ({"ffn_hidden": "11007"}, "tp does not divide ffn_hidden", "ffn_hidden=11007"),
        ({"heads": "24", "kv_heads": "3", "hidden": "3072"}, "neither of tp and kv_heads divides the other", "tp=2"),
        ({"cp": "4", "dp": "1", "seq": "2046"}, "cp does not divide seq", "cp=4, seq=2046"),
        ({"seq": "2047"}, "tp * cp does not divide seq, with sp", "tp=2, cp=1, seq=2047"),
        ({"layers": "", "gpu": ""}, "a column without a default is blank", "layers, gpu"),
        ({"gpu": "MI100"}, "no cluster has this gpu", "'MI100'"),
        ({"gpus_per_node": "32"}, "no cluster of this gpu has nodes this large", "32 x A100-80GB-SXM"),
        ({"gpu": "TPU-v5e", "gpus_per_node": "512"}, "no cluster of this gpu has nodes this large", "512 x TPU-v5e"),
        ({"precision": "int4"}, "precision is not known", "'int4', known: fp8, "),
        ({"recompute": "most"}, "recompute is not known", "'most', known: none, selective, full"),
        (
            {"experts": "8", "topk": "2", "tp": "4", "dp": "2", "seq": "8190", "microbatch": "1", "sp": ""},
            "tp * cp does not divide the tokens that are routed to experts",
            "tp=4, cp=1, microbatch=1, seq=8190",
        ),
        ({"oom": "1"}, "out of memory, but with a time", "oom=True, measured_iter_s=3.5"),
        ({"schedule": "zb-h1", "vpp": "2"}, "vpp with a schedule that has no virtual stages", "schedule=zb-h1, vpp=2"),
        ({"schedule": "chimera"}, "schedule is not known", "'chimera', known: 1f1b, 1f1b-i, "),
        ({"heads": "24", "kv_heads": "24"}, "hidden is not a multiple of heads, and head_dim is blank", "hidden=4096"),
    ],
)
def test_a_run_that_cannot_be_has_a_reason(made, changes, rule, detail):
    reason, good = made(changes, {})
    assert isinstance(reason, UnmodelledReason) and reason.rule == rule
    assert detail in reason.detail
    assert str(reason) == f"{rule} ({reason.detail})"
    assert isinstance(good, Setup)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": "22", "pp": "8", "dp": "1"},  # 24 with embedding and head: even stages of three
        {"layers": "30", "pp": "4", "vpp": "8", "dp": "2"},
        {"layers": "61", "pp": "8", "dp": "1"},
        {"kv_heads": "1"},
        {"n_gpus": "2", "dp": "1", "pp": "1"},
        {"heads": "24", "kv_heads": "24", "head_dim": "128"},
        {"ep": "4", "experts": "8", "topk": "2"},
    ],
)
def test_what_is_uneven_is_not_impossible(made, changes):
    (setup,) = made(changes)
    assert isinstance(setup, Setup)


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [
        ({"framework": "a fork, schedule ZB-1p"}, "zb-h1"),
        ({"framework": "a fork, schedule ZB-2p"}, "zb-h2"),
        ({"framework": "a fork, schedule 1F1B-I"}, "1f1b"),
        ({"framework": "GPipe"}, "gpipe"),
        ({"framework": "GPipes of a name"}, "1f1b"),
        ({"framework": "GPipe", "schedule": "zb-h1"}, "zb-h1"),
        ({}, "1f1b"),
    ],
)
def test_words_for_schedules(made, changes, schedule):
    (setup,) = made(changes)
    assert setup.plan["schedule"] == schedule


@pytest.mark.parametrize(
    ("precision", "multiplies"),
    [
        *(("fp8-rowwise", "fp8"), ("FP16", "bf16"), ("BF16-mixed", "bf16"), ("mxfp8", "fp8"), ("NVFP4", "fp4")),
        *(("MXFP8", "fp8"), ("amp_fp8", "fp8"), ("amp_bf16", "bf16"), ("int8", "int8")),
    ],
)
def test_the_precision_of_the_multiplies(made, precision, multiplies):
    assert made({"precision": precision})[0].precision == multiplies


def test_defaults_that_depend_on_the_layer_the_type_and_the_pipeline(made):
    blank = {"kernels": "", "gated_mlp": "0"}
    changes = ({}, {"gated_mlp": "1"}, {"flash": "0"}, {"experts": "8", "topk": "2"})
    rows = made(*(blank | change for change in changes))
    assert ["kernels" in setup.filled for setup in rows] == [False, True, True, True]
    # Gradients of fp16 are in fp16 whatever the set says.
    half, brain, stated = made({"precision": "fp16"}, {}, {"precision": "fp16", "gradient_bytes": "4"})
    assert [setup.assumptions for setup in (half, brain, stated)] == [{"gradient_bytes": 2}, {}, {"gradient_bytes": 4}]
    # Sharded weights in a pipeline are whole for the step.
    sharded = {"zero_stage": "3", "microbatch": ""}
    flat, piped, interleaved, stated = made(
        sharded | {"pp": "1", "dp": "8"}, sharded, sharded | {"vpp": "2"}, sharded | {"microbatch": "1"}
    )
    assert [flat.plan[name] for name in ("zero_stage", "microbatch_size")] == [3, 1]
    assert [piped.plan[name] for name in ("zero_stage", "microbatch_size", "num_microbatches")] == [1, 8, 2]
    assert interleaved.plan["num_microbatches"] == 4
    assert stated.plan["num_microbatches"] == 16


NVL72 = {"gpu": "GB200", "gpus_per_node": "4"}


def placed(made, tp, cp, dp, pp, **changes):
    degrees = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    count = math.prod(degrees.values())
    row = {name: str(value) for name, value in degrees.items()} | {"n_gpus": str(count), "global_batch": str(8 * dp)}
    (setup,) = made(row | {"layers": "48"} | changes)
    return tuple(setup.plan[f"{axis}_nvs"] for axis in degrees)


@pytest.mark.parametrize(
    ("degrees", "found"),
    [
        ((2, 1, 4, 2), (2, 1, 4, 1)),  # tp innermost
        ((4, 1, 1, 4), (4, 1, 1, 2)),
        ((8, 1, 2, 2), (8, 1, 1, 1)),
        ((16, 1, 2, 1), (8, 1, 1, 1)),  # over two nodes
        ((4, 1, 3, 1), (4, 1, 1, 1)),  # one node of two groups, one of one
    ],
)
def test_in_nodes_of_eight(made, degrees, found):
    assert placed(made, *degrees) == found


@pytest.mark.parametrize(
    ("degrees", "found"),
    [
        ((1, 1, 256, 1), (1, 1, 64, 1)),  # 64 of the 72 in a rack
        ((1, 1, 64, 4), (1, 1, 64, 1)),
        ((4, 2, 2, 8), (4, 2, 2, 4)),
        ((1, 1, 72, 2), (1, 1, 72, 1)),
        ((2, 1, 8, 1), (2, 1, 8, 1)),
    ],
)
def test_a_rack_that_the_degrees_do_not_fill_keeps_groups_whole(made, degrees, found):
    assert placed(made, *degrees, **NVL72) == found


def test_words_of_values_and_recomputation(made):
    for word, meant in recompute_words().items():
        assert word == word.lower() and len(meant.source) > 20
        assert meant.recompute is None or value_of(meant.recompute) == meant.recompute
        BY_NAME["offload"].code(meant.offload)
    # Words of recomputation.
    assert "recompute" in made({"recompute": "custom"})[0].filled
    # Selective of a fully sharded recipe is the recipe of single operators.
    sharded = {"zero_stage": "3", "tp": "1", "pp": "1", "dp": "16", "sp": "0"}
    of_words = [made({"recompute": word} | sharded)[0].plan for word in ("selective", "selective op")]
    assert of_words[0] == of_words[1]
    assert (of_words[0]["recompute"], of_words[0]["stored_layers"]) == ("full", 12)
    assert made({"recompute": "selective"})[0].plan["recompute"] == "selective"


@pytest.mark.parametrize(
    ("word", "recompute", "stored", "offload"),
    [
        ("minimal", "core-attention+norms", 0, "none"),
        ("Custom-Offload", "full", 0, "activations"),
        # 16 layers of a stage.
        ("selective op", "full", 6, "none"),
        ("selective layer", "full", 8, "none"),
    ],
)
def test_a_word_gives_the_nearest_plan(made, word, recompute, stored, offload):
    setup = made({"recompute": word})[0]
    plan = setup.plan
    assert (plan["recompute"], plan["stored_layers"], plan["offload"]) == (recompute, stored, offload)
    assert "recompute" not in setup.filled
