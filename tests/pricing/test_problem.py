"""Problems that are priced: what is derived of them, of single experts and of predictions."""

from dataclasses import fields, replace
from textwrap import dedent

import pytest
from laws.spaces import SYSTEM, problem_of
from plans.texts import MIXTURE, ONE_AXIS, PANELS, SPREAD, layer
from validation.cases import STRATEGIES, cluster_spec, model_spec
from verbs.small import model_of

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.errors import PlanError, SpecError
from dsx.notation.expressions import evaluate as number
from dsx.notation.library import load_layer, load_operators, strategy_names
from dsx.notation.model import build_model, unsharded
from dsx.notation.syntax import Settings
from dsx.notation.work import _HASHED, layers_hash
from dsx.pricing.problem import ProblemOptions, make_problem

MODEL = model_spec({"l": 512, "e": 1024, "h": 8, "f": 4096, "depth": 4})
DEFAULT = load_assumptions("default")


def make(model=MODEL, assumptions=DEFAULT, strategies=("1d",), **options):
    return make_problem(model, cluster_spec(SYSTEM), assumptions, strategies, ProblemOptions(**options))


def test_tensors_sharded_over_dp_are_refused(tmp_path):
    text = (tmp_path / "fsdp.layer").absolute()
    text.write_text(
        dedent("""
            strategy fsdp
            role rs = s    role re = e    role is = s    role ie = e
            role wi = e/dp role wf = f    role uf = f    role vf = f/dp
            role ve = e    role oe = e    role wc = c    role hg = g
            role hm = m    role um = m    role vm = m/dp
        """)
    )
    with pytest.raises(SpecError, match="shards over dp, which is derived but not priced yet"):
        make(strategies=[str(text)])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("zero_stage", 4, "zero_stage = 4 must be one of 0, 1, 2, 3"),
        ("recompute", "ful", "recompute = 'ful' is not known; did you mean 'full'?"),
        ("ep", 0, "ep = 0 must be a whole number of at least 1"),
        ("tp", 2, "'fixed' cannot fix 'tp'; did you mean 'ep'? (known: ep, vpp,"),
        ("vp", 2, "'fixed' cannot fix 'vp'; did you mean 'vpp'? (known: ep, vpp,"),
    ],
)
def test_what_cannot_be_fixed(column, value, message):
    fixed = DEFAULT.model_copy(update={"fixed": DEFAULT.fixed | {column: value}})
    with pytest.raises(SpecError) as caught:
        make(assumptions=fixed)
    assert message in str(caught.value)
    assert "'default'" in str(caught.value)


def test_lengths_reasons_and_fingerprints_of_problems():
    assert make().sequence_length == 512
    longer = make(sequence_length=2048)
    assert (longer.sequence_length, longer.workload.sequence_length) == (2048, 2048.0)
    assert longer.workload.forward_flops > 4 * make().workload.forward_flops
    # Reasons have distinct names and begin with memory.
    names = [reason.name for reason in problem_of("default").reasons]
    assert names[:3] == ["memory", "dimension_divided_away", "host_memory"]  # bits 0 to 2 of `reject`
    assert len(set(names)) == len(names)
    alone = {reason.name for s in STRATEGIES for reason in problem_of("default", (s,)).reasons}
    assert set(names) == alone
    # A fingerprint changes only with what is derived.
    problem = make(strategies=STRATEGIES)
    assert make(strategies=STRATEGIES, sequence_length=2048).fingerprint() == problem.fingerprint()
    assert set(problem.fingerprint()) == set(STRATEGIES)
    assert len(set(problem.fingerprint().values())) == 3
    paper = make(assumptions=load_assumptions("paper-2410.00273"), strategies=STRATEGIES)
    assert not set(paper.fingerprint().values()) & set(problem.fingerprint().values())
    (layer, count) = problem.models[0].layers[0]
    without = replace(problem.models[0], layers=((replace(layer, rules=layer.rules[1:]), count),))
    assert replace(problem, models=(without, *problem.models[1:])).fingerprint() != problem.fingerprint()


def test_hashes_of_layers_are_those_on_disk():
    """Sets go on, and traces are compared, by them: new words or fields need a new version of the format."""
    made = [layer(ONE_AXIS), layer(SPREAD, MIXTURE), layer(PANELS)]
    assert [layers_hash([one])[:16] for one in made] == ["0fe38bde615fca0e", "3f7cab195728d267", "2a92404895d6d5e1"]
    unlisted = {
        (kind.__name__, field.name)
        for kind, (_, *names) in _HASHED.items()
        for field in fields(kind)
        if field.name not in names
    }
    follows = {("KernelCosts", "extent"), ("KernelCosts", "gradient_flops"), ("Multiply", "operator")}
    assert unlisted == {*follows, ("Weight", "frozen")}
    # Of weights the names of frozen ones count; a gain of a norm has no kernel of its own.
    models = [MODEL.model_copy(update={"trained": trained}) for trained in (["*"], ["w*"], ["w*", "gamma1"])]
    hashes = {layers_hash(make(model).kinds[0]) for model in models}
    assert len(hashes) == 3


SIZES = {"e": 2048, "h": 16, "g": 4, "k": 128, "v": 32000}


def kernels(experts):
    """The seconds of the kernels of a layer, by name and direction; with or without experts."""
    layer = {"kind": "transformer", "options": ["rotary"], "ffn": "experts"} if experts else {}
    dense = {"kind": "transformer", "options": ["rotary", "gated"]}
    of_experts = {"fx": 8192, "x": experts, "topk": 1, "capacity_percent": 100}
    of_ffn = of_experts if experts else {"f": 8192}
    model = model_of(
        [{"kind": "embedding"}, {**(layer or dense), "count": 4}, {"kind": "head"}], SIZES | of_ffn, name="one"
    )
    frame = dsx.evaluate(dsx.Job(model, "h100-nvs8", 8, 16), "dp=8").operators
    seconds = frame["compute_s"] + frame["memory_s"]
    return {(row.kernel, row.direction): time for row, time in zip(frame.itertuples(), seconds, strict=True)}


def test_the_multiplies_of_one_expert_are_those_of_the_dense_layer():
    one, several, dense = kernels(1), kernels(2), kernels(0)
    for expert, name in (("gate", "z"), ("up", "up"), ("u", "u"), ("y", "output")):
        for direction in ("forward", "backward"):
            found = one[f"experts.{expert}", direction]
            assert found == pytest.approx(dense[f"feed-forward.{name}", direction], rel=1e-9)
    assert one["experts.gate", "forward"] < 0.7 * several["experts.gate", "forward"]
    more = sum(one.values()) - sum(dense.values())
    stated = [time for (name, _), time in one.items() if name.startswith(("experts.scores", "experts.routing"))]
    stated += [time for (name, _), time in one.items() if name in ("experts.d", "experts.c")]
    assert more == pytest.approx(sum(stated), rel=1e-6)


ON = {"model.num_prediction_layers": 1}
E, V = 7168, 129280  # of DeepSeek-V3
MOE = model_of([
        {"kind": "embedding"},
        {"kind": "transformer", "options": ["gated", "rotary"], "count": 2},
        {"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": 6},
        {"kind": "head"}], {
        "e": 1024, "h": 16, "g": 4, "k": 64, "f": 4096, "fx": 512, "x": 16, "topk": 2, "v": 32000,
        "capacity_percent": 100})  # fmt: skip


def job(model=MOE, num_gpus=16, batch=16, **more):
    return dsx.Job(model, "h100-nvs8", num_gpus, batch, **more)


@pytest.mark.slow
def test_parameters_of_predictions():
    """A layer of experts, a projection of 2e to e, and three norms; head and embedding are shared."""
    attention = E * 1536 + 1536 + 1536 * 128 * 192 + E * 576 + 512 + 512 * 128 * 256 + 128 * 128 * E
    experts = 256 * E + 256 + 3 * 256 * E * 2048 + 3 * E * 2048
    layer = attention + experts + 2 * E
    plain = dsx.Job("deepseek-v3", "h100-nvs8", 8, 8)
    trained = plain.replace(set=ON)
    assert dsx.parameters("deepseek-v3") == 671026419200
    assert dsx.parameters(trained.model) - 671026419200 == layer + 2 * E * E + 3 * E == 11610068224
    # 355B with the layer that predicts a second token, without embedding and head (arXiv 2508.06471, table 1).
    plain = dsx.Job("glm-4.5", "h100-nvs8", 8, 8)
    assert round((dsx.parameters(plain.replace(set=ON).model) - 2 * 151552 * 5120) / 1e9) == 355
    # A head without tokens predicts none.
    with pytest.raises(SpecError, match=r"the last layer, 'classification-head', predicts no further token, as 'head'"):
        dsx.Job("vit-l-16", "h100-nvs8", 8, 8, set=ON)
    # The table that looks up further tokens is that of the projection, so it is there once.
    sizes = {"e": 256, "h": 4, "g": 4, "k": 64, "f": 1024, "v": 512}
    layers = [{"kind": "embedding"}, {"kind": "transformer", "count": 2}, {"kind": "head", "options": ["tied"]}]
    model = {"name": "tied", "source": "none", "default_sequence_length": 128, "dimensions": sizes, "layers": layers}
    more = 4 * 256 * 256 + 2 * 256 * 1024 + 2 * 256 + 2 * 256 * 256 + 3 * 256
    assert dsx.parameters({**model, "num_prediction_layers": 1}) - dsx.parameters(model) == more
    spec = load_model({**model, "num_prediction_layers": 1})
    built = build_model(spec, load_assumptions("default"), "2d")
    (head,) = built.last
    values = unsharded(head, spec.dimensions, 128)
    assert [number(weight.bytes, values) for weight in head.weights if weight.tied] == [512 * 256]


@pytest.mark.parametrize("strategy", strategy_names())
@pytest.mark.parametrize("options", ["", "tied", "layernorm"])
def test_it_runs_under_every_strategy(strategy, options):
    chosen = Settings(frozenset({"prediction", *options.split()}))
    assert "further" in load_layer("head", strategy, load_operators(["standard"]), chosen=chosen).tensors


@pytest.mark.slow
def test_flops_and_memory_by_hand():
    """A second pass of the head, a third of 2e * e, and one more layer; the logits of both passes are kept."""
    plain, trained = (dsx.evaluate(job(set=fields), "dp=16 ep=16") for fields in (None, ON))
    sizes, tokens = MOE["dimensions"], 16 * 2048
    e, v = sizes["e"], sizes["v"]
    attention = e * (16 + 2 * 4) * 64 + 16 * 64 * e + 2048 * 16 * 64  # half of the square of queries and keys
    layer = attention + e * 16 + 3 * 2 * e * 512
    more = 2.0 * tokens * 3 * (layer + 2 * e * e + e * v)
    flops = [found.costs["mfu"] * found.step_time_s * 16 * 989.5e12 for found in (plain, trained)]
    assert flops[1] - flops[0] == pytest.approx(more, rel=2e-3)  # without the first addition of each product
    logits = 2048 * v * plain.problem.assumptions_spec.cross_entropy_bytes
    kept = trained.costs["activation_bytes"] - plain.costs["activation_bytes"]
    assert logits < kept < 1.6 * logits  # with the activations of the further layer


@pytest.mark.slow
def test_the_last_stage_has_it_and_a_layout_states_it(caplog):
    plain, trained = (dsx.evaluate(job(set=fields), "pp=4 dp=4 ep=4 stage_layers=3,2,2,3") for fields in (None, ON))
    more = [new.load_s / old.load_s for old, new in zip(plain.priced.stages, trained.priced.stages, strict=True)]
    assert more[:3] == [1.0, 1.0, 1.0]
    assert more[3] > 1.5
    assert trained.costs["dp_comm_s"] > plain.costs["dp_comm_s"]  # the embedding is on the first and the last stage
    # A layout states it.
    plan = "pp=4 dp=4 ep=4"
    stated = dsx.evaluate(job(), f"{plan} stage_layers=Et*2|t*2|t*2|t*2mL")
    assert "the layout has m, a layer of multi-token prediction, so small is priced with one" in caplog.text
    set_too = dsx.evaluate(job(set=ON), f"{plan} stage_layers=3,2,2,3")
    assert (stated.step_time_s, stated.peak_bytes) == (set_too.step_time_s, set_too.peak_bytes)
    with pytest.raises(PlanError, match="has 0 m, but the model has 1 layer of multi-token prediction"):
        dsx.evaluate(job(set=ON), f"{plan} stage_layers=Et*2|t*2|t*2|t*2L")


@pytest.mark.sampled(0)
@pytest.mark.parametrize(("zero_stage", "difference"), [(0, 0.02), (1, 0.02), (3, 0.03)])  # 3: docs/model/limits.md
def test_its_trace_takes_the_same_time(tmp_path, zero_stage, difference):
    plan = f"tp=2 pp=2 dp=4 ep=4 zero_stage={zero_stage}"
    fast_host = {"assumptions.dispatch_latency": "0 s"}  # it never stalls so small a model
    priced = dsx.evaluate(job(set=ON | fast_host), plan)
    dsx.trace.write(job(set=ON | fast_host), plan, out=tmp_path / "trace")
    replayed = dsx.trace.replay(tmp_path / "trace", "h100-nvs8", set=fast_host)
    assert replayed.step_time_s == pytest.approx(priced.step_time_s, rel=difference)


def test_megatron_is_told():
    found = dsx.launch(job(set=ON), "pp=4 dp=4 ep=4 stage_layers=Et*2|t*2|t*2|t*2mL", framework="megatron")
    assert "--mtp-num-layers 1" in found.files["launch.sh"]
    found = dsx.launch(job(set=ON), "pp=4 dp=4 ep=4 stage_layers=Et|t*3|t*2|t*2mL", framework="megatron")
    assert "t*2mL" in found.files["launch.sh"]
