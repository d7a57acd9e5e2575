"""What a verb prints is the answer of one function of the API: its text, and with --json its data."""

import json
import shutil
from pathlib import Path

import pytest
from config.hf.configs import CONFIGS
from config.instances import networks, small
from config.instances import write as write_instance
from runs.tables import write as write_runs

import dsx

SIZES = {"num_gpus": 8, "global_batch_size": 32}
OF_JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 32)
OF_JOB += ("--assumptions", "paper-2410.00273")
OF_SIZES = ("--num-gpus", "8,16", "--global-batch-size", "32,64")
FEW = ("--fix", "pp=1,2", "--fix", "zero_stage=1")
TIMES = "operator,direction,m,n,k,batch,time\neinsum,,1024,4096,1024,,900 us\n"
SET = """extends: paper-2410.00273
name: two
matrix_efficiency: {value: 0.8, between: [0.5, 1], source: estimate}
specialise: {matrix_efficiency: {deviation: 0.1, between: [0.5, 1]}}
noise: 0.02
"""
RUN = {"layers": "8", "hidden": "1024", "ffn_hidden": "4096", "heads": "8", "kv_heads": "8", "gated_mlp": "0"}
RUN |= {"n_gpus": "8", "pp": "1", "tp": "2", "dp": "4"}


def job(**changes):
    return dsx.Job("small.yaml", "b200-nvs8", **SIZES, assumptions="paper-2410.00273", **changes)


def candidate(swept):
    return dsx.load(swept, ["candidate"])["candidate"].iloc[0]


VERBS = {
    "best": (lambda s: ("best", *OF_JOB, "--top", 3), lambda s: dsx.best(job(), top=3)),
    "best of a cut": (
        lambda s: ("best", *OF_JOB, "--partition", "optimal", "--set", "model.dimensions.f=2048"),
        lambda s: dsx.best(job(set={"model.dimensions.f": 2048}), partition="optimal"),
    ),
    "best of a framework and few choices": (
        lambda s: ("best", *OF_JOB, *FEW, "--limit", "tp<=4", "--limit", "tp>=2", "--framework", "any"),
        lambda s: dsx.best(job(), fix="pp=1,2 zero_stage=1", limit="tp<=4 tp>=2", framework="any"),
    ),
    "best with a margin": (
        lambda s: ("best", *OF_JOB, "--strategy", "1d,2d", "--memory-margin", 0, "--partition", "even"),
        lambda s: dsx.best(job(), strategy=["1d", "2d"], memory_margin=0, partition="even"),
    ),
    "best of several jobs": (
        lambda s: ("best", *OF_JOB[:4], *OF_SIZES, *OF_JOB[8:], *FEW, "--objective", "step_time_s"),
        lambda s: dsx.several_jobs(job(), [8, 16], [32, 64], fix="pp=1,2 zero_stage=1", objective="step_time_s"),
    ),
    "best of a training run": (
        lambda s: ("best", *OF_JOB[:5], "8,16", *OF_JOB[6:], *FEW, "--train-tokens", "2B", "--deadline", "30d"),
        lambda s: dsx.training_run(job(), "2B", [8, 16], fix="pp=1,2 zero_stage=1", deadline="30d"),
    ),
    "evaluate": (lambda s: ("evaluate", *OF_JOB, "tp=2", "dp=4"), lambda s: dsx.evaluate(job(), tp=2, dp=4)),
    "evaluate with measured times": (
        lambda s: ("evaluate", *OF_JOB, "dp=8", "--operator-times", "times.csv", "--sequence-length", 1024),
        lambda s: dsx.evaluate(job(operator_times="times.csv", sequence_length=1024), dp=8),
    ),
    "evaluate a cut": (
        lambda s: ("evaluate", *OF_JOB, "pp=2", "dp=4", "--partition", "optimal", "--framework", "megatron"),
        lambda s: dsx.evaluate(job(), pp=2, dp=4, partition="optimal", framework="megatron"),
    ),
    "evaluate with operators": (
        lambda s: ("evaluate", *OF_JOB, "tp=2", "dp=4", "nvs.tp=2", "--operators"),
        lambda s: dsx.evaluate(job(), tp=2, dp=4, tp_nvs=2, operators=True),
    ),
    "evaluate what is rejected": (
        lambda s: ("evaluate", *OF_JOB, "tp=8", "nvs.tp=3"),
        lambda s: dsx.evaluate(job(), "tp=8 nvs.tp=3"),
    ),
    "why": (lambda s: ("why", *OF_JOB, "tp=2", "dp=4"), lambda s: dsx.why(job(), ["tp=2", "dp=4"])),
    "why of a row": (lambda s: ("why", s, candidate(s)), lambda s: dsx.why_row(s, candidate(s))),
    "launch of a row": (
        lambda s: ("launch", s, "--candidate", candidate(s)),
        lambda s: dsx.launch(s, candidate(s)),
    ),
    "partition": (lambda s: ("partition", *OF_JOB, "tp=1,2"), lambda s: dsx.partition(job(), tp=[1, 2])),
    "partition of a table": (
        lambda s: ("partition", "--instance", "table.json", "--network", "networks.json:fast", "--devices", 8),
        lambda s: dsx.partition_table("table.json", "networks.json:fast", 8),
    ),
    "sweep": (lambda s: ("sweep", "sweep.yaml", "-o", "set"), lambda s: dsx.sweep("sweep.yaml", "set")),
    "show": (lambda s: ("show", s, "--per", "strategy"), lambda s: dsx.show(s, per="strategy")),
    "show one": (lambda s: ("show", s, "--candidate", candidate(s)), lambda s: dsx.show(s, candidate=candidate(s))),
    "compare": (lambda s: ("compare", s, s), lambda s: dsx.compare_sets(s, s)),
    "pareto": (
        lambda s: ("pareto", s, "--objective", "step_time_s", "--objective", "-mfu"),
        lambda s: dsx.front(s, ["step_time_s", "-mfu"]),
    ),
    "validate": (lambda s: ("validate", "runs.csv"), lambda s: dsx.validate("runs.csv")),
    "calibrate": (
        lambda s: ("calibrate", "runs.csv", "--specialise", "two.yaml", "-o", "own.yaml"),
        lambda s: dsx.calibrate("runs.csv", "own.yaml", specialise="two.yaml"),
    ),
    "layer": (
        lambda s: ("layer", "transformer", "gated", "--model", "small.yaml", "--set", "tp=2"),
        lambda s: dsx.layer("transformer", "gated", model="small.yaml", sizes={"tp": 2}),
    ),
    "clusters show": (
        lambda s: ("clusters", "show", "perlmutter", "--set", "cluster.network.net.bandwidth=50 GB/s"),
        lambda s: dsx.cluster_times("perlmutter", set={"cluster.network.net.bandwidth": "50 GB/s"}),
    ),
    "trace write": (
        lambda s: ("trace", "write", *OF_JOB, "dp=8", "--ranks", "stages", "-o", "traces"),
        lambda s: dsx.trace.write(job(), "dp=8", ranks="stages", out="traces"),
    ),
    "trace inspect": (lambda s: ("trace", "inspect", "traces"), lambda s: dsx.trace.inspect("traces")),
    "trace replay": (
        lambda s: ("trace", "replay", "traces", "--cluster", "b200-nvs8", "--slow", "0=2"),
        lambda s: dsx.trace.replay("traces", "b200-nvs8", slow="0=2"),
    ),
    "import-hf": (lambda s: ("import-hf", "config.json"), lambda s: dsx.import_hf("config.json")),
}


@pytest.fixture
def files(folder, request):
    write_instance(folder / "table.json", small())
    write_instance(folder / "networks.json", networks())
    write_runs(folder / "runs.csv", RUN | {"measured_iter_s": "0.2"})
    (folder / "two.yaml").write_text(SET)
    (folder / "times.csv").write_text(TIMES)
    shutil.copy(CONFIGS / "llama-3-8b.json", folder / "config.json")
    if "trace" in request.node.name:
        dsx.trace.write(job(), "dp=8", ranks="stages", out="traces")
    return folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[pytest.mark.slow] * (verb == "calibrate")) for verb in VERBS]
)
def test_a_verb_prints_what_its_answer_says(run, files, swept, verb):
    argv, ask = VERBS[verb]
    shown, written = run(*argv(swept)), run(*argv(swept), "--json")
    answer = ask(swept)
    assert shown.out == f"{answer}\n" and shown.code == written.code in (0, 3)
    # What is no number is null as JSON.
    assert json.loads(written.out) == json.loads(json.dumps(answer.to_data(), allow_nan=False))
    # A partition of a table is in a form of other tools, which has no version.
    assert answer.to_data().get("schema_version") == (None if verb == "partition of a table" else 1)


def test_remarks_and_names_of_verbs(run, files, caplog, folder):
    caplog.set_level("INFO", "dsx")
    dsx.import_hf("config.json", "own.yaml")
    assert caplog.messages == ["wrote own.yaml"]
    assert run("import-hf", "config.json", "-o", "own.yaml", "--overwrite").err == "dsx: wrote own.yaml\n"
    # A verb lists names.
    for kind in ("models", "clusters", "strategies", "layers", "assumptions"):
        lines = run("list", kind).out.splitlines()
        assert lines == dsx.names(kind)
        assert json.loads(run("list", kind, "--json").out) == {"schema_version": 1, kind: lines}


@pytest.mark.slow
def test_pictures_are_drawn_as_by_their_verb(run, swept, tmp_path):
    by_verb, by_function = tmp_path / "verb.png", tmp_path / "function.png"
    assert run("plot", swept, "--kind", "breakdown", "--x", "strategy", "-o", by_verb).code == 0
    dsx.draw(swept, by_function, "breakdown", x="strategy")
    assert by_verb.read_bytes() == by_function.read_bytes()
    assert Path(by_verb).stat().st_size > 5_000
