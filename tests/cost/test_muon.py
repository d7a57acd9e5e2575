"""Muon by hand: which weights it has, bytes of state, Newton-Schulz steps, gathers over tp and among shards."""

import numpy as np
import pytest
from cost.records import WORKLOAD, choices, machine, make_assumptions
from verbs.small import model_of

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.cost.context import StepPlans
from dsx.cost.groups import group
from dsx.cost.layer_work import Matrices
from dsx.cost.muon import newton_schulz, orthogonal_s, share_of_rank
from dsx.cost.roofline import sustained_flops
from dsx.notation.library import load_layer, load_operators
from dsx.notation.syntax import Settings
from dsx.notation.work import derive
from dsx.plans.choices import KEY_COLUMNS
from dsx.plans.enumerate import SearchedCodes
from dsx.pricing.keys import price_keys

E, F, FX, X, V, H, G, K = 512, 2048, 256, 16, 8192, 8, 4, 64
MODEL = model_of([
        {"kind": "embedding"},
        {"kind": "transformer", "options": ["gated", "rotary"], "count": 2},
        {"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": 6},
        {"kind": "head"}], {
        "e": E, "h": H, "g": G, "k": K, "f": F, "fx": FX, "x": X, "topk": 2, "v": V, "capacity_percent": 100
    }, length=1024)  # fmt: skip
ATTENTION = [(E, (H + 2 * G) * K), (H * K, E)]
DENSE, EXPERT = [*ATTENTION, (E, F), (E, F), (F, E)], [*ATTENTION, (E, X), *[(E, FX)] * 3 * X]
MATRICES = 2 * DENSE + 6 * EXPERT


def priced(plan, num_gpus=16, optimizer="muon", **fields):
    assumed = {"optimizer": optimizer} | fields
    chosen = {f"assumptions.{name}": value for name, value in assumed.items()}
    return dsx.evaluate(dsx.Job(MODEL, "h100-nvs8", num_gpus, 64, set=chosen), plan)


def flops_of(rows, columns, steps=5):
    small, large = min(rows, columns), max(rows, columns)
    return steps * (4 * small**2 * large + 2 * small**3)


@pytest.mark.parametrize(
    ("layer", "options", "blocks", "muon"),
    [
        ("embedding", ["learned_positions"], (), set()),
        ("head", [], (), set()),
        ("transformer", ["gated", "qkv_bias", "layernorm"], (), {"wqkv", "wo", "w1", "wup", "w2"}),
        ("transformer", ["corrected"], (("ffn", "experts"),), {"wqkv", "wo", "router", "wgate", "wup", "wdown"}),
        ("transformer", [], (("attention", "latent-attention"),), {"wqa", "wqb", "wkva", "wkvb", "wo", "w1", "w2"}),
        ("sublayer", [], (("mixer", "state-space"),), {"win", "wo"}),
        ("head", ["prediction"], (), {"merge", "wqkv", "wo", "w1", "w2"}),
    ],
)
def test_matrices_of_the_body_have_muon(layer, options, blocks, muon):
    settings = Settings(frozenset(options), blocks)
    found = derive(load_layer(layer, "2d", load_operators(["standard"]), chosen=settings)).weights
    assert {weight.name.rpartition(".")[2] for weight in found if weight.matrix} == muon


@pytest.mark.slow
def test_bytes_and_flops_of_a_plan():
    """8 bytes for each parameter of a matrix and 12 for the others, on the rank of two of 16 experts."""
    local = 2 * sum(r * c for r, c in DENSE) + 6 * (sum(r * c for r, c in ATTENTION) + E * X + 3 * E * FX * 2)
    others = 2 * V * E + 8 * 2 * E + E
    found = priced("dp=8 ep=8 zero_stage=0", num_gpus=8)
    assert found.costs["optimizer_bytes"] == 8 * local + 12 * others
    assert priced("dp=8 ep=8 zero_stage=0", 8, "adam").costs["optimizer_bytes"] == 12 * (local + others)
    sharded = priced("dp=8 zero_stage=1", num_gpus=8).costs["optimizer_bytes"]
    assert sharded == (8 * sum(r * c for r, c in MATRICES) + 12 * others) / 8
    assert priced("dp=8 zero_stage=1 offload=optimizer", num_gpus=8).costs["optimizer_bytes"] == 0
    # All matrices on every rank without ZeRO, an eighth of them with it; none is divided.
    plain = {"tile_half": 0, "tile_quantisation": 0, "wave_quantisation": 0, "kernel_slowdown": 1, "effects": {}}
    plain |= dict.fromkeys(("tile_latency", "launch_latency", "dispatch_latency"), "0 us")
    plain |= {"matrix_efficiency": 0.0001}
    found = priced("dp=8 zero_stage=0", 8, **plain)
    cluster, assumed = found.problem.at_point(0)
    all_s = sum(flops_of(*shape) for shape in MATRICES) / sustained_flops(cluster.device, assumed)
    assert found.costs["optimizer_s"] == pytest.approx(all_s, rel=2e-3)
    assert priced("dp=8 zero_stage=1", 8, **plain).costs["optimizer_s"] == pytest.approx(all_s / 8, rel=5e-3)


def test_newton_schulz_steps_and_the_share_of_a_rank():
    """Five steps of 4 m^2 n + 2 m^3 FLOPs for either orientation, at half of 1 PFLOP/s; launches of 10 us each."""
    sides = [np.array([[1e4], [2e4], [64.0]]), np.array([[2e4], [1e4], [64.0]])]
    matrices = Matrices(*sides, np.ones((3, 1)), (0, 1, 2), ((),) * 3)
    flops, seconds = newton_schulz(matrices, machine().device, make_assumptions(launch_latency=0.0))
    assert flops[:, 0].tolist() == [5 * (4 * 1e8 * 2e4 + 2 * 1e12)] * 2 + [5 * (4 * 64**3 + 2 * 64**3)]
    assert seconds[:2, 0] == pytest.approx([5e13 / 0.5e15] * 2)
    # A small matrix takes the time of its bytes, 3 m n + 4 m^2 elements of two bytes at 1 TB/s.
    assert seconds[2, 0] == pytest.approx(5 * 2 * 7 * 64**2 / 1e12)
    launched = newton_schulz(matrices, machine().device, make_assumptions())[1]
    assert launched[:2, 0] - seconds[:2, 0] == pytest.approx(15e-5)
    # No rank has less than one matrix.
    ranks = group(np.array([8.0]), np.array([8.0]))
    assert share_of_rank(np.array([100.0]), ranks) == [1 / 8]
    assert share_of_rank(np.array([5.0]), ranks) == [1 / 5]
    assert share_of_rank(np.array([0.0]), ranks) == [1.0]


def test_gathers():
    """Two bytes of each element among shards, four of each whole matrix over tp, as an all-gather takes."""
    # With bandwidth alone: one link of a ring of 8 at half of 800 GB/s passes 7/8 of what is gathered.
    ranks, network = group(np.array([8.0]), np.array([8.0])), machine(nvs_latency=0.0, net_latency=0.0)
    weights, assumed = np.array([[4e9]]), make_assumptions()
    one, plans = np.array([1e9]), StepPlans(choices(), SearchedCodes(), WORKLOAD.stack, network, assumed)
    found = orthogonal_s(np.zeros((1, 1)), weights, [ranks], one, plans)
    assert found == pytest.approx(4e9 / 2 * 2 * 7 / 8 / 4e11)
    of_steps = orthogonal_s(np.ones((1, 1)), weights, [ranks], one, plans) - found
    assert of_steps == pytest.approx(1 / 8)
    free = {"muon_bytes": 1, "muon_steps": 1, "launch_latency": "0 us"}
    over_tp = [priced("tp=8 zero_stage=0", 8, **free, muon_tp_bytes=size).costs["optimizer_s"] for size in (4, 4000)]
    divided = 8 * sum(r * c for r, c in ATTENTION) + 2 * 3 * E * F
    link = 450e9 * load_assumptions("default").nvs_efficiency
    assert over_tp[1] - over_tp[0] == pytest.approx(3996 * divided * 7 / 8 / link, rel=0.05)


def test_offloaded_state_is_updated_on_the_host_but_orthogonalised_on_the_gpu():
    on_gpu, on_host = (priced(f"dp=8 zero_stage=0 offload={where}", 8) for where in ("none", "optimizer"))
    adam = priced("dp=8 zero_stage=0 offload=optimizer", 8, "adam")
    parameters = sum(r * c for r, c in MATRICES)
    assumed, machine_of_job = on_host.problem.assumptions_spec, on_host.job.cluster
    node = machine_of_job.node
    memory = assumed.host_memory_efficiency * node.host_memory_bandwidth / 8
    link = min(assumed.host_efficiency * machine_of_job.device.host_bandwidth, memory)
    traffic = parameters * (24 - 28) / memory
    there_and_back = 2 * 2 * parameters / link
    steps = on_gpu.costs["optimizer_s"]
    more = on_host.costs["optimizer_s"] - adam.costs["optimizer_s"] - traffic - there_and_back
    assert 0.8 * steps < more < steps


@pytest.mark.slow
def test_layers_are_priced_alike_however_many_keys(monkeypatch):
    """Compiled and on NumPy."""
    problem = priced("tp=2 dp=4 ep=4", 8).problem
    keys = {name: np.ones(2, dtype=np.int64) for name in KEY_COLUMNS} | {
        "tp": np.array([1, 2]),
        "tp_nvs": np.array([1, 2]),
    }
    keys["strategy"] = np.zeros(2, dtype=np.int64)
    slow = price_keys(problem, keys)
    monkeypatch.setattr("dsx.pricing.keys._COMPILED", 1)
    for numpy, compiled in zip(slow, price_keys(problem, keys), strict=True):
        for name in ("matrix_bytes", "orthogonal_s", "orthogonal_flops", "largest_matrix_flops"):
            np.testing.assert_allclose(getattr(numpy, name)[0], getattr(compiled, name)[0], rtol=1e-12)


def test_a_framework_without_muon_says_so():
    job = dsx.Job("llama-3-8b", "h100-nvs8", 8, 64, set={"assumptions.optimizer": "muon"})
    with pytest.raises(
        dsx.errors.SpecError, match=r"'torchtitan' runs no plan with assumptions\.optimizer=muon \(it runs"
    ):
        dsx.best(job, framework="torchtitan")
    with pytest.raises(
        dsx.errors.InputError, match=r"assumptions\.optimizer=muon; nearest: assumptions\.optimizer=adam"
    ):
        dsx.launch(job, "dp=8 zero_stage=3", framework="torchtitan")
    with pytest.raises(dsx.errors.InputError, match=r"zero_stage=3; nearest: zero_stage=1"):
        dsx.launch(job, "dp=8 zero_stage=3", framework="megatron")


@pytest.mark.parametrize(("zero_stage", "name"), [(0, "muon"), (1, "dist_muon")])
def test_megatron_is_told(zero_stage, name):
    job = dsx.Job("llama-3-8b", "h100-nvs8", 8, 64, set={"assumptions.optimizer": "muon"})
    found = dsx.launch(job, f"tp=8 zero_stage={zero_stage}", framework="megatron").files["launch.sh"]
    assert f"--optimizer {name} " in found.replace("\\", " ").replace("\n", " ")
    assert "--muon-num-ns-steps 5" in found and "--muon-tp-mode duplicated" in found
    assert "--use-distributed-optimizer" not in found


# On the host, the transfers of one layer run beside the steps of another.
@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("plan", "within"),
    [("tp=2 dp=4 ep=4 zero_stage=1", 0.03), ("dp=8 zero_stage=0", 0.05), ("dp=8 zero_stage=1 offload=optimizer", 0.12)],
)
def test_a_trace_has_the_update(tmp_path, plan, within):
    found = priced(plan, 8)
    dsx.trace.write(found.job, plan, out=tmp_path / "trace")
    replayed = dsx.trace.replay(tmp_path / "trace", "h100-nvs8", set={"assumptions.optimizer": "muon"})
    assert replayed.step_time_s == pytest.approx(found.step_time_s, rel=within)
