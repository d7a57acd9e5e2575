"""``dsx partition``: its tables and pictures, and what it says of bad input and of plans that do not fit."""

import pytest
from config.instances import changed, networks, small, write


@pytest.fixture
def files(folder):
    write(folder / "small.json", small())
    write(folder / "networks.json", networks())


def job(instance="small.json", network="networks.json:fast", devices=8):
    return ("partition", "--instance", instance, "--network", network, "--devices", devices)


def test_for_people(run, files):
    done = run(*job())
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "small.json on 8 devices of fast: step 15.0 ms, bottleneck 15.0 ms"
    assert lines[1] == "1 stage x 8 replicas, width=1 zero_stage=0 recompute=none"
    assert lines[4] == "stage layer layers device devices load memory parameters to producer"
    assert lines[5] == "1 -1 3 0 1 15.0 ms 2.84 kB 350 B -"
    assert len(lines) == 6


def test_nothing_fits(run, folder, files):
    write(folder / "small.json", small() | {"max_memory_bytes": 400})
    done = run(*job(), "--zero", 0, "--recompute", "none", "--json")
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


JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 12, "--global-batch-size", 24)


def test_a_picture_of_the_stages(run, folder):
    done = run("partition", *JOB, "pp=4", "zero_stage=1", "recompute=none", "--plot", "stages.png")
    assert done.code == 0
    assert "wrote stages.png" in done.err
    assert (folder / "stages.png").stat().st_size > 5000
    done = run("partition", *JOB, "--plot", "stages.txt")
    assert (done.code, done.out) == (2, "")
    assert "unknown image suffix '.txt'" in done.err
    for verb in (("sweep", "sweep.yaml", "--set", "sweep.partition=optmal"), ("best", *JOB, "--partition", "optmal")):
        done = run(*verb)
        assert done.code == 2 and "'optmal'" in done.err and "did you mean 'optimal'?" in done.err


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
def test_options_of_models_and_of_tables(run, folder, arguments, code, said):
    done = run("partition", *arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
