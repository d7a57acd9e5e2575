"""``dsx show``: what a result set is, its fastest plans, and one candidate of it."""

import json
import re
import shutil

import pytest
from cli.conftest import STRATEGY

import dsx

SWEEP = """model: small.yaml
cluster: [a100-nvs8, b200-nvs8]
what_if: {device.hbm_capacity: [3 GB, 80 GB]}
num_gpus: 8
global_batch_size: 32
strategy: [1d, 2d]
assumptions: paper-2410.00273
keep: all
"""
HARDWARE = [(cluster, capacity) for cluster in ("a100-nvs8", "b200-nvs8") for capacity in (3e9, 80e9)]


@pytest.fixture(scope="module")
def points(swept, command):
    """A result set of two clusters with two capacities each."""
    sweep = swept.parent / "shown.yaml"
    sweep.write_text(SWEEP)
    assert command("sweep", sweep, "-o", swept.parent / "shown") == 0
    return swept.parent / "shown"


def table_of(out: str) -> list[list[str]]:
    """The words of the lines of the table behind the description of the set."""
    return [line.split() for line in out.split("\n\n")[1].splitlines()]


def test_the_set(run, swept):
    done = run("show", swept)
    assert (done.code, done.err) == (0, "")
    title, *about = done.out.partition("\n\n")[0].splitlines()
    assert title == "small on b200-nvs8"
    about = dict(re.split("  +", line.strip()) for line in about)
    rows = len(dsx.load(swept))
    assert about["num_gpus"] == "8"
    assert about["sequence_length"] == "2,048 tokens"
    assert about["tokens a step"] == f"{32 * 2048:,}"
    assert about["strategy"] == "1d"
    assert about["assumptions"] == "paper-2410.00273, in float32"
    assert about["sweep file"] == str(swept.parent / "sweep.yaml")
    assert about["state"].startswith("finished 20")
    assert about["candidates"].startswith(f"{rows} candidates, ")
    assert about["kept"].startswith(f"all: {rows} rows in ")


def test_the_fastest_for_people_and_as_json(run, swept, folder):
    frame = dsx.load(swept)
    fits = frame[frame["reject"] == 0].nsmallest(3, "step_time_s")
    done = run("show", swept, "--top", 3)
    header, *rows = table_of(done.out)
    assert header == "GPUs batch strategy step MFU memory compute communication bubble plan".split()
    assert [row[3] for row in rows] == list(fits["strategy"])
    assert "\n\nMegatron-LM flags of plan 1:" in done.out
    assert len(table_of(run("show", swept).out)) == 1 + 10
    # As json.
    data = json.loads(run("show", swept, "--top", 2, "--json").out)
    assert (data["model"], data["clusters"], data["strategies"]) == ("small", ["b200-nvs8"], ["1d"])
    assert (data["complete"], data["keep"], data["what_if"]) == (True, "all", {})
    assert data["rows"] == data["candidates"] == len(dsx.load(swept)) == data["feasible"]
    assert [plan["hardware"] for plan in data["plans"]] == [{"cluster": "b200-nvs8"}] * 2
    flags = data["plans"][0]["launch"]["megatron_lm"]["flags"]
    assert flags[:2] == ["--tensor-model-parallel-size", str(data["plans"][0]["plan"]["tp"])]


@pytest.mark.slow
def test_flags_follow_the_hardware_point_of_a_row(run, folder):
    varied = SWEEP.replace("a100-nvs8", "tpu-v4").replace("[1d, 2d]", "1d").replace("keep: all", "keep: {top: 1}")
    what_if = "what_if: {assumptions.tp_overlap: [0, 0.5]}"
    (folder / "points.yaml").write_text(re.sub("what_if: .*", what_if, varied) + "fix: {tp: 8}\n")
    assert run("sweep", "points.yaml", "-o", "points").code == 0
    plans = json.loads(run("show", "points", "--json", "--top", 9).out)["plans"]
    asked = {
        (plan["hardware"]["cluster"], plan["hardware"]["assumptions.tp_overlap"]): (
            "--bf16" in plan["launch"]["megatron_lm"]["flags"],
            "--tp-comm-overlap" in plan["launch"]["megatron_lm"]["flags"],
        )
        for plan in plans
    }
    assert asked == {
        ("b200-nvs8", 0): (True, False),
        ("b200-nvs8", 0.5): (True, True),
        ("tpu-v4", 0): (False, False),
        ("tpu-v4", 0.5): (False, False),
    }


@pytest.mark.slow
def test_hardware_is_shown(run, points):
    done = run("show", points, "--top", 3)
    assert done.out.startswith("small on a100-nvs8, b200-nvs8, 2 what-if points\n")
    assert "device.hbm_capacity  3.00 GB, 80.0 GB\n" in done.out
    assert re.search("^ *strategy +1d, 2d$", done.out, re.MULTILINE)
    above, header, first, *_ = table_of(done.out)
    assert above == ["device."]
    assert header[:5] == ["cluster", "hbm_capacity", "GPUs", "batch", "strategy"]
    assert first[1] == "b200-nvs8"  # all three are on it, and it is said
    assert first[3] == "GB"
    data = json.loads(run("show", points, "--json").out)
    assert data["what_if"] == {"device.hbm_capacity": [3e9, 80e9]}
    assert set(data["plans"][0]["hardware"]) == {"cluster", "device.hbm_capacity"}


@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ("{top: 1}", "the fastest at each of 8 hardware points: 8 rows in 1 file"),
        ("{top: 2, per: [tp, cluster]}", "the 2 fastest for each tp at each of 8 hardware points: "),
        ("{pareto: [step_time_s, peak_bytes]}", "the Pareto front of step_time_s, peak_bytes at each of 8 hardware"),
        ("feasible", "feasible: "),
    ],
)
def test_what_is_kept_of_several_hardware_points(run, folder, keep, says):
    (folder / "points.yaml").write_text(SWEEP.replace("keep: all", f"keep: {keep}"))
    what_if = "sweep.what_if={network.nvs.bandwidth: [300 GB/s, 900 GB/s], device.hbm_capacity: [40 GB, 80 GB]}"
    assert run("sweep", "points.yaml", "-o", "out", "--set", what_if).code == 0
    about = [line.strip() for line in run("show", "out").out.partition("\n\n")[0].splitlines()]
    assert re.split("  +", about[-1])[0] == "kept"
    assert re.split("  +", about[-1])[1].startswith(says)
    assert [line.split()[0] for line in about if "." in line.split()[0]] == [
        "network.nvs.bandwidth",
        "device.hbm_capacity",
    ]


@pytest.mark.slow
def test_per_group(run, points):
    columns = ("--per", "cluster", "--per", "device.hbm_capacity")
    plans = json.loads(run("show", points, *columns, "--json").out)["plans"]
    assert [tuple(plan["hardware"].values()) for plan in plans] == HARDWARE
    frame = dsx.load(points)
    best = frame[frame["reject"] == 0].groupby(["cluster", "device.hbm_capacity"], observed=True)["step_time_s"].min()
    assert [plan["step_time_s"] for plan in plans] == list(best)
    twice = json.loads(run("show", points, *columns, "--top", 2, "--json").out)["plans"]
    assert twice[::2] == plans
    assert len(twice) == 8


def test_one_candidate(run, swept, points):
    frame = dsx.load(points)
    rejected = frame[(frame["reject"] != 0) & (frame["device.hbm_capacity"] == 3e9)]
    candidate = int(rejected["candidate"].iloc[0])
    data = json.loads(run("show", points, "--candidate", candidate, "--json").out)["plans"]
    assert [tuple(plan["hardware"].values()) for plan in data] == HARDWARE
    assert {plan["plan"]["candidate"] for plan in data} == {candidate}
    assert [plan["reject"] for plan in data if plan["hardware"]["device.hbm_capacity"] == 3e9] == [["memory"]] * 2
    assert [plan["fits"] for plan in data] == [not plan["reject"] for plan in data]
    people = run("show", points, "--candidate", candidate)
    assert people.code == 0
    assert "\n1 is rejected: memory\n" in people.out
    alone = run("show", swept, "--candidate", candidate).out
    assert "step_time_s" in alone
    assert "100.0 %" in alone


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--candidate", 1), "no candidate '1' among the"),
        (("--candidate", "first"), "no candidate 'first' among the"),
        (("--candidate", 1, "--top", 2), "--candidate 1 shows that candidate alone: leave out --top and --per"),
        (("--top", 0), "--top"),
    ],
)
def test_bad_input(run, swept, arguments, says):
    done = run("show", swept, *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_sets_without_a_plan_incomplete_or_without_texts(run, nothing_fits, swept, tmp_path):
    done = run("show", nothing_fits)
    assert done.code == 3
    assert "0 of them feasible (0.0 %)" in done.out
    assert "is feasible" in done.err
    done = run("show", nothing_fits, "--json")
    assert (done.code, json.loads(done.out)["plans"]) == (3, [])
    # A set that is not complete.
    copied = shutil.copytree(swept, tmp_path / "copied")
    manifest = json.loads((copied / "manifest.json").read_text())
    changes = {"complete": False, "finished": "", "num_parts": 3}
    (copied / "manifest.json").write_text(json.dumps(manifest | changes))
    done = run("show", copied)
    assert done.code == 0
    assert f"incomplete, 1 of 3 parts; begun {manifest['started']}, by dsx " in done.out
    assert json.loads(run("show", copied, "--json").out)["complete"] is False
    assert run("compare", swept, copied).err == "dsx: B is not complete: 1 of 3 parts are there\n"


def test_layer_texts_that_are_gone_cost_only_the_flags(run, folder):
    (folder / "mine.layer").write_text(STRATEGY)
    assert run("sweep", "sweep.yaml", "-o", "out", "--set", "sweep.strategy=[mine.layer]").code == 0
    assert "flags of plan 1" in run("show", "out").out
    (folder / "mine.layer").unlink()
    done = run("show", "out", "--json")
    assert done.code == 0
    assert {plan["launch"] for plan in json.loads(done.out)["plans"]} == {None}
    assert "no launch flags under mine: " in done.err
    assert done.err.count("no launch flags") == 1


@pytest.mark.slow
def test_flags_are_those_of_the_effects_that_a_row_has(run, folder):
    """CUDA graphs are priced, and set, for ZeRO up to stage 1."""
    of_both = SWEEP.replace("paper-2410.00273", "uncalibrated").replace("keep: all", "keep: {top: 1}")
    (folder / "effects.yaml").write_text(
        re.sub("what_if: .*\n", "", of_both).replace("[a100-nvs8, b200-nvs8]", "b200-nvs8").replace("[1d, 2d]", "1d")
        + "fix: {tp: 1, pp: 1, recompute: none, offload: none, zero_stage: 3}\n"
    )
    for stage, graphs in ((3, False), (1, True)):
        assert run("sweep", "effects.yaml", "-o", f"zero-{stage}", "--set", f"sweep.fix.zero_stage={stage}").code == 0
        (plan,) = json.loads(run("show", f"zero-{stage}", "--json").out)["plans"]
        launch = plan["launch"]["megatron_lm"]
        assert ("--cuda-graph-impl" in launch["flags"]) is graphs
        assert not [lost for lost in launch["lost"] if "CUDA graphs" in lost]
