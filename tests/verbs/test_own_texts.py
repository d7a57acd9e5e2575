"""A user's block, layer, model and strategy, added as text alone and swept beside what comes with dsx."""

import pytest

import dsx
from dsx.errors import UnknownNameError

BLOCK = """# Two feed-forward networks side by side, whose partial results are added before they are reduced.
block parallel-mlp
input  x[b, $rs, $re]
weight gamma[$re] w1[$wi, $wf] w2[$vf, $ve] w3[$wi, $wf] w4[$vf, $ve]
n[b, $rs, $re]           = norm(x, gamma)
z1[b, $is, $wf @*]       = einsum{panels}(n[b, $is, $ie]~, w1[$ie, $wf]~)
z2[b, $is, $wf @*]       = einsum{panels}(n[b, $is, $ie]~, w3[$ie, $wf]~)
u1[b, $is, $wf]          = gelu(z1)
u2[b, $is, $wf]          = gelu(z2)
d1[b, $is, $oe @*]       = einsum{panels}(u1[b, $is, $uf], w2[$uf, $oe]~)
d2[b, $is, $oe @*]       = einsum{panels}(u2[b, $is, $uf], w4[$uf, $oe]~)
d[b, $is, $oe @*]        = add(d1, d2)
output[b, $rs, $re]      = add(x, d[b, $rs, $re])
"""
LAYER = """layer wide
input  x[b, $rs, $re]
weight gamma[$re]
n[b, $rs, $re]           = norm(x, gamma)
use self-attention{causal} (n = n, output = y)
r[b, $rs, $re]           = add(x, y[b, $rs, $re])
use parallel-mlp (x = r, output = output)
"""
STRATEGY = """# Tensor parallelism without sequence parallelism: activations are whole between the multiplies.
strategy megatron
role rs = s              role is = s                     role wi = e
role re = e              role ie = e                     role wf = f/tp   role wc = c/tp
role hg = g/tp           role uf = f/tp                  role vf = f/tp                   role oe = e
role hm = m/tp           role um = m/tp                  role vm = m/tp                   role ve = e
require h % tp == 0                     heads_not_divisible
require g % tp == 0                     kv_heads_not_divisible
require f % tp == 0                     feed_forward_not_divisible
"""
MODEL = """name: wide-model
source: made up
default_sequence_length: 2048
dimensions: {e: 1024, h: 8, g: 8, k: 128, f: 4096}
layers:
  - {kind: wide, count: 8}
"""
SWEEP = """model: wide-model
cluster: b200-nvs8
num_gpus: 8
global_batch_size: 16
strategy: [1d, 2d, summa, megatron]
framework: any
fix: {schedule: 1f1b, zero_stage: 1, recompute: none}
keep: feasible
"""
TEXTS = {"parallel-mlp.layer": BLOCK, "wide.layer": LAYER, "megatron.layer": STRATEGY, "wide-model.yaml": MODEL}
JOB = ("b200-nvs8", 8, 16)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with all of a user's texts, which is not the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSX_PATH", raising=False)
    place = tmp_path / "mine"
    place.mkdir()
    for name, text in (TEXTS | {"mine.yaml": SWEEP}).items():
        (place / name).write_text(text)
    return place


@pytest.fixture
def on_path(mine, monkeypatch):
    monkeypatch.setenv("DSX_PATH", str(mine))
    return mine


def plain_and_sequence_parallel_agree(frame):
    """Without tensor parallelism the two are the same; with it, one keeps what the other divides."""
    choices = ["tp", "pp", "dp", "microbatch_size", "tp_nvs", "pp_nvs", "dp_nvs"]
    choices += ["vpp", "zero_stage", "zero_replicas", "recompute", "stored_layers", "schedule", "offload"]
    theirs, ours = (frame[frame["strategy"] == name] for name in ("1d", "megatron"))
    both = theirs.merge(ours, on=choices, suffixes=("_1d", "_megatron"))
    assert {1, 2, 4, 8} == set(both["tp"])
    whole, divided = both[both["tp"] == 1], both[both["tp"] > 1]
    assert (whole["step_time_s_1d"] == whole["step_time_s_megatron"]).all()
    assert (divided["activation_bytes_1d"] < divided["activation_bytes_megatron"]).all()
    # An all-reduce is a reduce-scatter and an all-gather; 1d gathers operands again for the backward.
    assert (divided["tp_comm_s_1d"] > divided["tp_comm_s_megatron"]).all()


@pytest.mark.slow
def test_swept_beside_the_others_from_their_own_folder(mine):
    swept = dsx.sweep("mine/mine.yaml", "out", set={"assumptions.tp_overlap": 0})
    assert set(swept.frame["strategy"]) == {"1d", "2d", "summa", "megatron"}
    plain_and_sequence_parallel_agree(swept.frame)
    row = swept.frame[swept.frame["strategy"] == "megatron"].iloc[0]
    assert dsx.why_row("out", row).plan["strategy"] == "megatron"


@pytest.mark.slow
def test_found_by_name_on_the_path(on_path):
    assert "megatron" in dsx.names("strategies")
    assert {"wide", "parallel-mlp"} <= {*dsx.names("layers")}
    plan = "tp=4 dp=2 nvs.tp=4 nvs.dp=2 microbatch_size=8"
    evaluated = dsx.evaluate(dsx.Job("wide-model", *JOB), plan, strategy="megatron")
    assert evaluated.reject == ()
    best = dsx.best(evaluated.job, strategy="megatron", framework="any")
    assert best.step_time_s <= evaluated.step_time_s


@pytest.mark.slow
def test_texts_are_found_by_path_and_not_elsewhere(mine):
    text = "mine/megatron.layer"
    found = dsx.best(dsx.Job("mine/wide-model.yaml", *JOB), 1, strategy=text, framework="any")
    assert found.plan["strategy"] == "megatron"
    assert dsx.layer("mine/wide.layer", strategy=text).to_data()["layer"] == "wide"
    with pytest.raises(UnknownNameError, match="unknown model 'wide-model'"):
        dsx.Job("wide-model", *JOB)


def collectives(described):
    return [
        (direction, c["kind"], c["tensor"])
        for kernel in described.to_data()["kernels"]
        for direction in ("forward", "backward")
        for c in kernel[direction]["collectives"]
    ]


def test_layers_and_blocks_of_ones_own_are_described(on_path):
    assert sorted(collectives(dsx.layer("wide", strategy="megatron"))) == [
        ("backward", "all-reduce", "d n"),
        ("backward", "all-reduce", "d parallel-mlp.n"),
        ("forward", "all-reduce", "parallel-mlp.d"),
        ("forward", "all-reduce", "self-attention.output"),
    ]
    # The block alone with numbers.
    described = dsx.layer("parallel-mlp", strategy="1d", model="wide-model", sizes={"tp": 4})
    kernels = {kernel["name"]: kernel for kernel in described.to_data()["kernels"]}
    assert kernels["z1"]["forward"]["matrix_flops"]["value"] == 2048 * 1024 * (2 * 1024 - 1)
    assert "all-reduce" not in [kind for _, kind, _ in collectives(described)]
    assert "z1[b, s, f/tp] = einsum{panels}\n      local shape 1 x 2048 x 1024" in str(described)
    # What every rank does in full: ranks of tp have the same n, but partial sums d of their own.
    lines = str(dsx.layer("parallel-mlp", strategy="megatron")).splitlines()
    assert {"  n; not divided over tp", "  d; not divided over tp", "  z1"} <= set(lines)


@pytest.mark.slow
def test_a_text_of_ones_own_comes_before_what_comes_with_dsx(on_path):
    (on_path / "feed-forward.layer").write_text(BLOCK.replace("parallel-mlp", "feed-forward"))
    assert "w4" in str(dsx.layer("feed-forward"))
    (on_path / "b200-nvs8.yaml").write_text("extends: b200-nvs8\ndevice: {hbm_capacity: 1 kB}\n")
    assert dsx.Job("wide-model", *JOB).cluster.device.hbm_capacity == 1e3
