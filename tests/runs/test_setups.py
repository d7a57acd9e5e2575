"""From rows to setups: defaults and their counts, machines, models, schedules, and runs that cannot be."""

import dataclasses

import pytest
from runs.tables import write

from dsx.runs.machines import cluster_of, known_clusters
from dsx.runs.setups import DEFAULTS, Setup, count_filled, setups
from dsx.runs.table import UnmodelledReason, read_runs

CLUSTERS = known_clusters()


@pytest.fixture
def made(tmp_path):
    """Return the setups, or reasons, of rows that differ from a good one as stated."""
    return lambda *changes: setups(read_runs(write(tmp_path / "runs.csv", *changes)))


def layers(setup):
    return [(str(entry.layer), entry.count) for entry in setup.model.layers]


def test_a_full_row_needs_no_default(made):
    (setup,) = made({})
    assert setup.filled == ()
    assert [setup.plan[name] for name in ("tp", "pp", "dp", "num_microbatches", "microbatch_size")] == [2, 2, 4, 8, 2]
    assert (setup.cluster.name, setup.precision, setup.plan["recompute"], setup.plan["schedule"]) == (
        *("a100-80-nvs8", "bf16"),
        *("none", "1f1b"),
    )
    assert layers(setup) == [("embedding", 1), ("transformer[gated rotary]", 32), ("head", 1)]
    assert setup.model.dimensions == {"e": 4096, "h": 32, "g": 32, "k": 128, "f": 11008, "v": 32000}


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
    counts = count_filled([bare, experts, parallel, UnmodelledReason("none")])
    assert counts["vocab"] == 3 and counts["heads"] == 2 and counts["sp"] == 1


def test_a_blank_sp_is_none_where_tp_does_not_divide_the_sequence(made):
    degrees = {"tp": "3", "pp": "1", "dp": "4", "n_gpus": "12", "heads": "48", "kv_heads": "1", "hidden": "6144"}
    degrees |= {"ffn_hidden": "12288", "global_batch": "16"}
    blank, stated = made(degrees | {"sp": ""}, degrees | {"sp": "1"})
    assert "sp" in blank.filled and not blank.sp
    assert stated.rule == "tp * cp does not divide seq, with sp"


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
    ("gpu", "gpus_per_node", "cluster"),
    [
        ("A100", 8, "a100-80-nvs8"),
        ("a100-40gb-sxm4", 8, "a100-40-nvs8"),
        ("A100-40GB", 4, "a100-40-nvs4"),
        ("NVIDIA A100 80GB", 4, "a100-80-nvs4"),
        ("A800-80GB", 8, "a800-nvs8"),
        ("H100-80GB-SXM", 8, "h100-nvs8"),
        ("H100-96GB-HBM2e-500W", 8, "h100-96-nvs8"),
        ("H200-141GB-SXM", 8, "h200-141-nvs8"),
        ("H800", 8, "h800-nvs8"),
        ("V100-16GB-SXM2", 8, "v100-16-nvs8"),
        ("V100-32GB", 16, "v100-32-nvs16"),
        ("B200-180GB", 8, "b200-180-nvs8"),
        ("b300", 8, "b300-288-nvs8"),
        ("GB200-NVL72", 4, "gb200-nvl72"),
        ("GB300", 72, "gb300-nvl72"),
        ("GH200-96GB", 1, "gh200-96-nvs4, 1 to a node"),
        ("MI250X", 8, "mi250x-xgmi8"),
        ("MI300X", 8, "mi300x-xgmi8"),
        ("AMD Instinct MI300X", 8, "mi300x-xgmi8"),
        ("MI325X-256GB", 8, "mi325x-xgmi8"),
        ("MI350X", 8, "mi350x-xgmi8"),
        ("mi355x", 4, "mi355x-xgmi8, 4 to a node"),
        ("Gaudi 2", 8, "gaudi2-eth8"),
        ("Intel Gaudi3", 8, "gaudi3-eth8"),
        ("TPU v5e", 8, "tpu-v5e"),
        ("TPUv5p", 4, "tpu-v5p"),
        ("TPU v6e", 4, "tpu-v6e"),
        ("TPU7x", 8, "tpu-7x"),
        ("TPU-v5p", 8960, "tpu-v5p"),
        ("TPU-v5p", 512, "tpu-v5p, 512 to a node"),
        ("TPU-v5e", 16, "tpu-v5e, 16 to a node"),
        ("TPUv4", 4, "tpu-v4"),
        ("TPU v4", 4, "tpu-v4"),
        ("H100 SXM", 8, "h100-nvs8"),
        ("h100_80g", 8, "h100-nvs8"),
        ("H100-SXM5-80GB", 8, "h100-nvs8"),
        ("H100SXM5", 8, "h100-nvs8"),
        ("A100-SXM4-40GB", 8, "a100-40-nvs8"),
        ("h200-nvs64", 8, "h200-nvs64"),
        ("H100", 2, "h100-nvs8, 2 to a node"),
    ],
)
def test_a_gpu_is_matched_by_its_longest_prefix(gpu, gpus_per_node, cluster):
    found = cluster_of(gpu, gpus_per_node, CLUSTERS)
    assert not isinstance(found, UnmodelledReason) and found.name == cluster


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [
        ("H1000", "H100"),
        ("H100X", "H100"),
        ("A10", "A100"),
        ("V100S", "V100"),
        ("TPUv42", "TPU-v4"),
        ("GB2000", "GB200"),
        ("MI300A", "MI300X"),
        ("TPUv5", "TPU-v5p"),
    ],
)
def test_a_longer_name_is_another_gpu(gpu, nearest):
    found = cluster_of(gpu, 8, CLUSTERS)
    assert isinstance(found, UnmodelledReason) and found.rule == "no cluster has this gpu"
    assert found.detail.startswith(f"{gpu!r}, nearest: {nearest}")


def test_a_smaller_node_reduces_the_fast_domain():
    found = cluster_of("H100", 2, CLUSTERS)
    assert not isinstance(found, UnmodelledReason) and found.network.nvs.size == 2


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
    ("precision", "read"), [("fp8-rowwise", "fp8"), ("FP16", "bf16"), ("BF16-mixed", "bf16"), ("mxfp8", "fp8")]
)
def test_precisions_are_matched_by_their_prefix(made, precision, read):
    assert made({"precision": precision})[0].precision == read


def test_layer_kinds_follow_from_the_columns(made):
    plain, grouped, gated, experts = made(
        {"gated_mlp": "0"}, {"gated_mlp": "0", "kv_heads": "8"}, {}, {"experts": "8", "topk": "2"}
    )
    kinds = [[kind for kind, _ in layers(setup)] for setup in (plain, grouped, gated, experts)]
    with_biases = "transformer[dropout ff_bias ff_out_bias layernorm out_bias qkv_bias residual_dropout]"
    assert kinds == [
        ["embedding[learned_positions]", with_biases, "head[layernorm tied]"],
        ["embedding", "transformer[layernorm rotary squared_relu]", "head[layernorm]"],
        ["embedding", "transformer[gated rotary]", "head"],
        ["embedding", "transformer[rotary ffn=experts]", "head"],
    ]
    assert plain.model.dimensions["positions"] == 2048
    assert [experts.model.dimensions[letter] for letter in ("x", "fx", "topk")] == [8, 11008, 2]


def test_equal_architectures_have_equal_names(made):
    first, again, other = made({}, {"tp": "1", "dp": "8", "sp": "0"}, {"layers": "30"})
    assert first.model == again.model
    assert first.model.name != other.model.name


MODEL = """name: latent
source: made up
default_sequence_length: 2048
dimensions: {e: 512, h: 8, g: 8, k: 96, f: 2048, fe: 256, x: 16, topk: 4, v: 1000}
layers:
  - {kind: embedding, count: 1}
  - {kind: transformer, options: [rotary, gated], count: 2}
  - repeat: 2
    layers:
      - {kind: transformer, count: 3}
      - {kind: transformer, options: [full]}
  - {kind: head, options: [tied]}
"""


@pytest.mark.parametrize(
    ("number", "counts"),
    [
        (10, [("[gated rotary]", 2), ("", 3), ("[full]", 1), ("", 3), ("[full]", 1)]),
        (3, [("[gated rotary]", 2), ("", 1)]),
        (7, [("[gated rotary]", 1), ("", 2), ("[full]", 1), ("", 2), ("[full]", 1)]),  # in proportion
        (15, [("[gated rotary]", 2), ("", 8), ("[full]", 1), ("", 3), ("[full]", 1)]),  # the commonest fills up
    ],
)
def test_what_columns_do_not_say_is_taken_from_the_model_with_these_dimensions(
    made, tmp_path, monkeypatch, number, counts
):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "latent.yaml").write_text(MODEL)
    monkeypatch.setenv("DSX_PATH", str(tmp_path))
    sizes = {"hidden": "512", "heads": "8", "kv_heads": "8", "ffn_hidden": "256", "experts": "16", "topk": "4"}
    setup, other = made(sizes | {"layers": str(number)}, sizes | {"topk": "2"})
    body = [(f"transformer{settings}", count) for settings, count in counts]
    assert layers(setup) == [("embedding", 1), *body, ("head[tied]", 1)]
    assert (setup.model.dimensions["k"], setup.model.dimensions["v"]) == (96, 32000)
    assert layers(other)[1][0] == "transformer[rotary ffn=experts]"


def test_packaged_models_stand_for_what_columns_do_not_say(made):
    experts = {"head_dim": "", "vocab": "151936", "tp": "1", "sp": "0", "dp": "8"}
    latent, queries = made(
        experts
        | {"layers": "61", "hidden": "7168", "heads": "128", "kv_heads": "128", "ffn_hidden": "2048"}
        | {"experts": "256", "topk": "8"},
        experts
        | {"layers": "48", "hidden": "2048", "heads": "32", "kv_heads": "4", "ffn_hidden": "768"}
        | {"experts": "128", "topk": "8"},
    )
    assert layers(latent) == [
        ("embedding", 1),
        ("transformer[gated attention=latent-attention]", 3),
        ("transformer[corrected limited shared attention=latent-attention ffn=experts]", 58),
        ("head", 1),
    ]
    assert queries.model.dimensions["k"] == 128


def test_as_many_layers_as_a_cell_holds_are_one_entry(made):
    (setup,) = made({"layers": str(2**31 - 1)})
    assert layers(setup) == [("embedding", 1), ("transformer[gated rotary]", 2**31 - 1), ("head", 1)]
