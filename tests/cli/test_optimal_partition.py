"""`partition: optimal` from the shell: sweeps, best, evaluate, why, and `dsx partition --model`."""

import json
import re

import pytest

MODEL = """name: heavy-head
source: made up
default_sequence_length: 2048
dimensions: {e: 1024, h: 8, g: 8, k: 128, f: 4096, v: 100000}
layers:
  - {kind: embedding, count: 1}
  - {kind: transformer, count: 6}
  - {kind: head, count: 1}
"""
SWEEP = """model: heavy-head.yaml
cluster: b200-nvs8
num_gpus: [8, 12]
global_batch_size: 24
strategy: 1d
partition: optimal
fix: {vpp: 1, zero_stage: 1, recompute: none}
keep: all
"""
JOB = ("--model", "heavy-head.yaml", "--cluster", "b200-nvs8", "--num-gpus", 12, "--global-batch-size", 24)
JOB += ("--strategy", "1d")
FLAG = "--pipeline-model-parallel-layout"


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "heavy-head.yaml").write_text(MODEL)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def swept(tmp_path_factory, command):
    """The result set of that sweep; not to be changed."""
    place = tmp_path_factory.mktemp("optimal")
    (place / "heavy-head.yaml").write_text(MODEL)
    (place / "sweep.yaml").write_text(SWEEP)
    assert command("sweep", place / "sweep.yaml", "-o", place / "set") == 0
    return place / "set"


def test_the_cut_of_each_row_is_in_the_set(swept):
    import dsx

    rows = dsx.load(swept)
    sizes = [[*map(int, text.split(","))] for text in rows.stage_layers]
    assert [len(row) for row in sizes] == rows.pp.tolist()
    assert {sum(row) for row in sizes} == {8}
    assert min(min(row) for row in sizes) == 1
    assert "layers of each pipeline stage" in rows.attrs["descriptions"]["stage_layers"]


@pytest.mark.slow
def test_an_even_set_has_no_cuts_and_another_hash(run, swept, place):
    import dsx
    from dsx.results.frames import read_manifest

    assert run("sweep", "sweep.yaml", "-o", "even", "--set", "sweep.partition=even").code == 0
    assert "stage_layers" not in dsx.load("even").columns
    even, optimal = read_manifest("even"), read_manifest(swept)
    assert "partition" not in even.spec
    assert even.spec_hash != optimal.spec_hash
    assert "partition" in run("sweep", "sweep.yaml", "-o", "even").err  # of another sweep
    # The candidates join: a plan is the same plan however it is cut.
    both = dsx.load("even").merge(dsx.load(swept), on="candidate", suffixes=("_even", ""))
    assert len(both) == len(dsx.load("even"))
    fits = both.reject_even == 0
    assert (both.reject[fits] == 0).all()
    assert (both.step_time_s[fits] <= both.step_time_s_even[fits] * (1 + 1e-6)).all()


@pytest.mark.slow
def test_a_row_is_explained_with_its_own_cut(run, swept):
    import dsx

    rows = dsx.load(swept)
    row = rows[rows.pp == 4].iloc[0]
    found = json.loads(run("why", swept, row.candidate, "--json").out)
    assert [stage["num_layers"] for stage in found["stages"]] == [*map(int, row.stage_layers.split(","))]
    assert found["step_time_s"] == pytest.approx(row.step_time_s, rel=1e-5)
    text = run("why", swept, row.candidate).out
    assert text.count("<- bottleneck") == 1
    slowest = max(range(4), key=lambda index: found["stages"][index]["load_s"])
    assert f"{slowest + 1}" == next(line for line in text.splitlines() if "<- bottleneck" in line).split()[0]


@pytest.mark.slow
def test_best_shows_stages_and_flags(run, place):
    data = json.loads(run("best", *JOB, "--partition", "optimal", "--json", "--top", 40).out)
    for plan in data["plans"]:
        flags = plan["launch"]["megatron_lm"]["flags"]
        sizes = [*map(int, plan["plan"]["stage_layers"].split(","))]
        body = [size - (index == 0) - (index == len(sizes) - 1) for index, size in enumerate(sizes)]
        assert (FLAG in flags) == (len(set(body)) > 1)
        if FLAG in flags:
            layout = flags[flags.index(FLAG) + 1]
            assert layout[0] == "E"
            assert layout[-1] == "L"
            whole = re.sub(r"\(([^)]+)\)\*(\d+)", lambda run: run[1] * int(run[2]), layout)
            assert len(whole.split("|")) == plan["plan"]["pp"]
    piped = ("best", *JOB, "--limit", "pp>=2", "--top", 5)
    assert "stage_layers=" in run(*piped, "--partition", "optimal").out
    assert "stage_layers=" not in run(*piped, "--partition", "even").out


@pytest.mark.slow
def test_best_cuts_of_plans_their_picture_and_unknown_ones(run, place):
    plan = ("pp=3", "dp=4", "nvs.dp=4")
    found = json.loads(run("evaluate", *JOB, *plan, "--partition", "optimal", "--json").out)
    even = json.loads(run("evaluate", *JOB, *plan, "--json").out)
    assert found["step_time_s"] < even["step_time_s"]
    assert len(found["stages"]) == 3
    assert "stages" not in even
    assert "commu-" in run("evaluate", *JOB, *plan, "--partition", "optimal").out
    rejected = json.loads(run("evaluate", *JOB, *plan, "--partition", "optimal", "schedule=zb-h1", "--json").out)
    assert "cut_not_covered" in rejected["reject"]
    # Its picture.
    done = run("partition", *JOB, "pp=4", "zero_stage=1", "recompute=none", "--plot", "stages.png")
    assert done.code == 0
    assert "wrote stages.png" in done.err
    assert (place / "stages.png").stat().st_size > 5000
    done = run("partition", *JOB, "--plot", "stages.txt")
    assert (done.code, done.out) == (2, "")
    assert "unknown image suffix '.txt'" in done.err
    # An unknown partition.
    done = run("sweep", "sweep.yaml", "--set", "sweep.partition=optmal")
    assert done.code == 2
    assert "partition: 'optmal' is not one of even, optimal; did you mean 'optimal'?" in done.err
    assert run("best", *JOB, "--partition", "optmal").code == 2


@pytest.mark.slow
def test_the_best_partition_is_the_best_plan(run, place):
    few = ("zero_stage=0,1", "recompute=none,full", "zero_replicas=1", "stored_layers=0", "offload=none")
    fixed = [word for values in few for word in ("--fix", values)]
    best = json.loads(run("best", *JOB, *fixed, "--partition", "optimal", "--json", "--top", 1).out)["plans"][0]
    found = json.loads(run("partition", *JOB, *few, "--json").out)
    assert found["plan"] == best["plan"]
    assert found["step_time_s"] == best["step_time_s"]
    assert max(stage["load_s"] for stage in found["stages"]) == found["bottleneck_s"]
    held = json.loads(run("partition", *JOB, *few, "pp=4", "tp=1", "--json").out)
    assert (held["plan"]["pp"], held["plan"]["tp"]) == (4, 1)
    assert held["step_time_s"] >= found["step_time_s"]
    text = run("partition", *JOB, *few, "pp=4").out
    assert "bottleneck" in text
    assert "zero_stage=1" in text
    assert "recompute=none" in text


@pytest.mark.slow
def test_the_order_of_ranks_is_part_of_the_plan(run, place):
    tree = "{kind: fat_tree, levels: [{name: leaf, units: 2, oversubscription: 4}, {name: spine}]}"
    job = ("--model", "heavy-head.yaml", "--cluster", "b200-nvs8", "--num-gpus", 64, "--global-batch-size", 64)
    job += ("--strategy", "1d", "--set", f"cluster.network.topology={tree}")
    job += ("pp=4", "vpp=1", "tp=8", "microbatch_size=1", "nvs.tp=8", "--json")
    found = {
        order: json.loads(run("partition", *job, f"order={order}").out)
        for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    }
    for order, plan in found.items():
        assert plan["plan"]["order"] == order
        assert max(stage["load_s"] for stage in plan["stages"]) == plan["bottleneck_s"]
    # Either the replicas of a stage share a leaf, or the stages of a replica do.
    links = [[stage["link"] for stage in plan["stages"]] for plan in found.values()]
    assert links == [[None, "spine", "spine", "spine"], [None, "leaf", "spine", "leaf"]]
    assert len({plan["step_time_s"] for plan in found.values()}) == 2
    free = json.loads(run("partition", *job).out)
    assert free["step_time_s"] == min(plan["step_time_s"] for plan in found.values())
    # The stages are those of the same plan where it is evaluated.
    same = (*job, "dp=2", f"order={free['plan']['order']}", "--partition", "optimal")
    assert free["stages"] == json.loads(run("evaluate", *same).out)["stages"]
    shown = [line.split() for line in run("partition", *job[:-1], "order=tp-cp-ep-pp-dp").out.splitlines()]
    at = next(number for number, words in enumerate(shown) if words[:2] == ["ranks", "numbered"])
    assert shown[at][2] == "tp-cp-ep-pp-dp;"
    assert shown[at + 1 : at + 5] == [
        ["tp", "pp", "dp"],
        ["nvs", "8", "1", "1"],
        ["leaf", "8", "2", "1"],
        ["spine", "8", "4", "2"],
    ]
    assert found["tp-cp-ep-pp-dp"]["plan"]["pp_leaf"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((*JOB, "vpp=99"), 3, "the command: vpp = 99: vpp above 1 needs pp above 1, at most"),
        (
            (*JOB, "schedule=zb-h1"),
            2,
            "schedule=zb-h1: optimal cuts are known for 1f1b only; 'best' searches it with even cuts",
        ),
        ((*JOB, "--set", "cluster.device.hbm_capacity=1 GB"), 3, "too little"),
        ((*JOB, "--width", 2), 2, "--width does not go with --model; write the width as a setting, as in tp=8"),
        ((*JOB, "--zero", 3), 2, "--zero does not go with --model; write the ZeRO stage as a setting"),
        ((*JOB, "--recompute", "full"), 2, "--recompute does not go with --model; write the recomputation as"),
        ((*JOB, "--recompute", "best"), 2, "as in recompute=full"),
        ((*JOB, "--optimizer", "none"), 2, "--optimizer does not go with --model; the assumption set states"),
        (("--model", ""), 2, "missing: --cluster, --num-gpus, --global-batch-size; --model needs them"),
        ((), 2, "neither is given, give one of them"),
        (("--instance", "a.json", "--num-gpus", 4), 2, "--num-gpus does not go with --instance"),
        (("--instance", "a.json", "--assumptions", "default"), 2, "--assumptions does not go with --instance"),
        (("--instance", "a.json", "pp=2"), 2, "settings fix columns of a --model"),
        (("--instance", "a.json"), 2, "missing: --network, --devices; --instance needs them"),
    ],
)
def test_bad_input(run, place, arguments, code, said):
    done = run("partition", *arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
