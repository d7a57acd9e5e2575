"""What a new choice and a new schedule take: a copy of dsx with one of each, made as a newcomer would."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest

from dsx.config.search_path import packaged_data

PACKAGE = packaged_data().parent / "dsx"
# A schedule is one record. The choice, how gradients of activations are sent between stages, is a record and one line
# of what a step costs.
CHANGES = {
    "schedules/schedules.py": (
        '    Schedule("gpipe"',
        '    Schedule("half-bubble", gpipe, lambda ahead, _, __: ahead, filled_s(0.5), aliases=("hb",)),\n'
        '    Schedule("less-bubble", gpipe, lambda ahead, _, __: ahead, filled_s(1.0)),\n    Schedule("gpipe"',
    ),
    "plans/choices.py": (
        '    Choice(\n        "order",',
        '    Choice("sends", "step", "format", default="whole", values=("whole", "half"), searched=True, later=True),\n'
        '    Choice(\n        "order",',
    ),
    "cost/pipeline.py": (
        "    mean = next(iter(cuts.values())).mean.layers\n",
        "    each = [plans.by_code('sends', [one, 0.5 * one].__getitem__) for one in sends.of_tier]\n"
        "    sends = sends._replace(of_tier=tuple(each))\n"
        "    mean = next(iter(cuts.values())).mean.layers\n",
    ),
}
NAMES = ("whole", "half")
JOB = {"model": "llama-3-8b", "cluster": "h100-nvs8", "num_gpus": 16, "global_batch_size": 32}
ROW = {
    "id": "a", "source_id": "own", "layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8,
    "seq": 4096, "vocab": 128256, "gated_mlp": 1, "gpu": "H100", "gpus_per_node": 8, "n_gpus": 16,
    "precision": "bf16", "tp": 8, "pp": 2, "dp": 1, "microbatch": 1, "global_batch": 32, "measured_iter_s": 4.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def dsx(tmp_path_factory):
    """Run a command line of the changed copy; returns what it prints as JSON."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(PACKAGE, folder / "dsx", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "data").symlink_to(packaged_data())
    for name, (line, lines) in CHANGES.items():
        source = (folder / "dsx" / name).read_text(encoding="utf-8")
        assert source.count(line) == 1
        (folder / "dsx" / name).write_text(source.replace(line, lines), encoding="utf-8")

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(folder)}
        command = [sys.executable, "-m", "dsx", *map(str, arguments), "--json"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    run.folder = folder
    return run


def evaluated(dsx, *settings):
    job = [word for name, value in JOB.items() for word in (f"--{name.replace('_', '-')}", value)]
    return dsx("evaluate", *job, "tp=8", "pp=2", *settings)


@pytest.mark.slow
def test_a_schedule_or_a_choice_is_one_record(dsx):
    exposed = ("--set", "assumptions.pp_overlap=0")  # of 1F1B no sends are hidden
    one, half, less = (evaluated(dsx, f"schedule={name}", *exposed) for name in ("1f1b", "half-bubble", "less-bubble"))
    assert one["plan"]["schedule"] == "1f1b" and half["plan"]["schedule"] == "half-bubble"
    filled = [each["bubble_s"] for each in (one, half, less)]
    assert filled[0] - filled[1] == pytest.approx((filled[0] - filled[2]) / 2)
    assert half["peak_bytes"] == one["peak_bytes"]
    # A choice of the step is a record and what it costs.
    whole, half = evaluated(dsx), evaluated(dsx, "sends=half")
    assert (whole["plan"]["sends"], half["plan"]["sends"]) == ("whole", "half")
    assert half["pp_comm_s"] == pytest.approx(whole["pp_comm_s"] / 2)
    assert half["plan"]["candidate"] != whole["plan"]["candidate"]
    assert whole["plan"]["candidate"] == 1533774831267201162  # as before: a plan that does not use it keeps its id


@pytest.mark.slow
def test_sweeps_and_run_tables_have_the_new_choice(dsx):
    sweep = dsx.folder / "sends.yaml"
    fixed = {"tp": 8, "pp": 2, "dp": 1, "microbatch_size": 1, "sends": [*NAMES]}
    fixed |= {"vpp": 1, "zero_stage": 1, "recompute": "none"}
    sweep.write_text(json.dumps(JOB | {"strategy": "1d", "fix": fixed, "keep": "all"}), encoding="utf-8")
    swept = dsx("sweep", sweep, "-o", dsx.folder / "sends")
    assert {plan["plan"]["sends"] for plan in swept["plans"]} == {*NAMES}

    table, rows = dsx.folder / "runs.csv", dsx.folder / "rows.csv"
    lines = [",".join([*ROW, "sends"]), *(",".join(map(str, [name, *[*ROW.values()][1:], name])) for name in NAMES)]
    table.write_text("\n".join(lines), encoding="utf-8")
    dsx("validate", table, "-o", rows)
    priced = {
        row["id"]: float(row["predicted_s"]) for row in csv.DictReader(rows.read_text(encoding="utf-8").splitlines())
    }
    assert priced["half"] < priced["whole"]
