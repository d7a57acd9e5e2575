"""``dsx partition``: its JSON, its tables, what it says of bad input and of plans that do not fit."""

import json
from pathlib import Path

import pytest
from config.instances import changed, networks, small, write

DATA = Path(__file__).resolve().parent.parent / "data" / "partition"
KEYS = ["t_step_s", "bottleneck_s", "stages", "replicas", "width", "zero_stage", "recompute"]
STAGE = {
    *("layers", "first_layer", "devices", "first_device"),
    *("load_s", "memory_bytes", "parameter_bytes", "producer_level"),
}


@pytest.fixture
def files(folder):
    write(folder / "small.json", small())
    write(folder / "networks.json", networks())


def job(instance="small.json", network="networks.json:fast", devices=8):
    return ("partition", "--instance", instance, "--network", network, "--devices", devices)


def published(name, machine, devices):
    return job(DATA / f"{name}.json", f"{DATA / 'networks.json'}:{machine}", devices)


def test_json(run):
    arguments = published("llama2_tpuv4_mbs1", "tpuv4_fatTree", 256)
    done = run(*arguments, "--zero", 0, "--recompute", "full", "--json")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    assert list(data) == KEYS
    # A row of tests/data/partition/solutions.csv.
    assert data["t_step_s"] == pytest.approx(268.5312705890686, rel=1e-6)
    assert data["bottleneck_s"] == pytest.approx(1.9886889172222222, rel=1e-6)
    assert [stage["layers"] for stage in data["stages"]] == [5, 4, 4, 4, 4, 4, 4, 4]
    assert all(set(stage) == STAGE for stage in data["stages"])
    assert [stage["first_layer"] for stage in data["stages"]] == [-1, 4, 8, 12, 16, 20, 24, 28]
    assert [stage["first_device"] for stage in data["stages"]] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [stage["producer_level"] for stage in data["stages"]] == [None, 0, 0, 0, 0, 0, 0, 0]
    assert max(stage["load_s"] for stage in data["stages"]) == data["bottleneck_s"]
    assert (data["replicas"], data["width"], data["zero_stage"], data["recompute"]) == (32, 1, 0, "full")


def test_for_people(run, files):
    done = run(*job())
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "small.json on 8 devices of fast: step 15.0 ms, bottleneck 15.0 ms"
    assert lines[1] == "1 stage x 8 replicas, width=1 zero_stage=0 recompute=none"
    assert lines[4] == "stage layer layers device devices load memory parameters to producer"
    assert lines[5] == "1 -1 3 0 1 15.0 ms 2.84 kB 350 B -"
    assert len(lines) == 6


@pytest.mark.slow
def test_choices_are_kept_to(run, files):
    def plan(*arguments):
        return json.loads(run(*job(), *arguments, "--json").out)

    assert plan("--width", 2)["width"] == 2
    assert plan("--width", 2)["stages"][0]["devices"] == 2
    for stage in range(4):
        assert plan("--zero", stage)["zero_stage"] == stage
    assert plan("--recompute", "full")["recompute"] == "full"
    assert plan("--recompute", "none") == plan()
    memory = [plan("--optimizer", name)["stages"][0]["memory_bytes"] for name in ("adam", "none")]
    assert memory == [8 * 350 + 35, 2 * 350 + 35]


def test_nothing_fits(run, folder, files):
    write(folder / "small.json", small() | {"max_memory_bytes": 400})
    for more in ((), ("--json",)):
        done = run(*job(), "--zero", 0, "--recompute", "none", *more)
        assert (done.code, done.out) == (3, "")
        # The last layer alone, eight bytes for each of its parameters; one microbatch of it.
        assert "no plan fits: the one that needs least memory needs 1.62 kB on a device, which has 400 B" in done.err
        assert "1.22 kB short, 1620 bytes against 400 (2 stages x " in done.err
        assert "zero_stage=0 recompute=none" in done.err
    # Too few devices.
    write(folder / "small.json", changed(small(), "devices_per_stage", "2", to=16))
    done = run(*job(), "--width", 2)
    assert (done.code, done.out) == (3, "")
    assert "no plan: a stage takes 16 devices at least, and there are 8" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (job(devices=0), "'--devices': 0 is not a whole number from 1"),
        ((*job(), "--zero", 4), "'4' is not one of '0', '1', '2', '3'"),
        ((*job(), "--recompute", "some"), "'some' is not one of 'none', 'full', 'best'"),
        ((*job(), "--optimizer", "adamw"), "'adamw' is not one of 'none', 'adam'"),
        ((*job(), "--instances", "x"), "No such option: --instances"),
    ],
)
def test_bad_options(run, files, arguments, says):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "Traceback" not in done.err
    assert "internal error" not in done.err


def test_a_table_with_too_many_layers(run, files, folder):
    rows = [[row, 2.0, 4.0, 100, 10] for row in range(1025)]
    document = small()
    document["layers"] = {"b": {"1": rows}}
    document["edges"] = {"1": [[row, row + 1, 8] for row in range(1024)]}
    document["devices_per_stage"] = {"1": 1}
    write(folder / "long.json", document)
    done = run(*job("long.json"))
    assert done.code == 2
    assert "long.json has 1,025 layers, but an optimal cut takes at most 1,024" in done.err
    assert "merge neighbouring layers into one row" in done.err
