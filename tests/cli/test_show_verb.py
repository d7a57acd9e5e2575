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
