"""``dsx clusters show``: tiers, tables of collectives, and their picture."""

import json

import pytest


def test_tiers_and_tables_for_people(run):
    done = run("clusters", "show", "perlmutter")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].startswith("perlmutter: NERSC Perlmutter")
    assert "tier GPUs per GPU latency subscription" in lines
    assert "nvs 4 300 GB/s 2.50 us 1" in lines
    assert "global 7168 12.5 GB/s 6.00 us 2" in lines
    assert "all-reduce over groups of so many GPUs, under default" in lines
    assert "bytes 2 4 8 16 32 512 1024 7168" in lines
    tables = [line for line in lines if line.startswith(("1.00 kB", "1.00 GB"))]
    assert len(tables) == 4


def test_as_json(run):
    done = run("clusters", "show", "h100-nvs8", "--assumptions", "paper-2410.00273", "--json")
    data = json.loads(done.out)
    assert data["assumptions"] == "paper-2410.00273"
    assert [(tier["name"], tier["size"], tier["oversubscription"]) for tier in data["tiers"]] == [
        ("nvs", 8, 1.0),
        ("net", None, 1.0),
    ]
    times = {(time["kind"], time["num_gpus"], time["bytes"]): time["time_s"] for time in data["collectives"]}
    assert len(times) == 2 * 7 * 4
    # A ring of eight at 0.7 of 450 GB/s, twice around.
    assert times["all-reduce", 8, 1e9] == pytest.approx(2 * (7 * 2.5e-6 + 7 / 8 * 1e9 / (0.7 * 450e9)), rel=1e-12)


def test_a_field_may_be_set(run):
    tree = "{kind: fat_tree, levels: [{name: leaf, units: 4, oversubscription: 4}, {name: spine}]}"
    data = json.loads(run("clusters", "show", "h100-nvs8", "--set", f"cluster.network.topology={tree}", "--json").out)
    assert [(tier["name"], tier["oversubscription"]) for tier in data["tiers"]] == [
        ("nvs", 1.0),
        ("leaf", 1.0),
        ("spine", 4.0),
    ]


def test_a_picture(run, tmp_path):
    done = run("clusters", "show", "tpu-v4-pod", "--plot", tmp_path / "pod.svg")
    assert (done.code, done.err) == (0, "")
    drawn = (tmp_path / "pod.svg").read_text(encoding="utf-8")
    for text in ("tpu-v4-pod", "time of an all-reduce", "time of an all-to-all", "size of the tensor", "GPUs"):
        assert text in drawn


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("h100-nvs9",), "unknown cluster 'h100-nvs9'; did you mean 'h100-nvs8'?"),
        (("h100-nvs8", "--plot", "a.pgn"), "unknown image suffix '.pgn'; did you mean '.png'?"),
        (("h100-nvs8", "--set", "cluster.network.topology={kind: tree}"), "kind: 'tree' is not one of fat_tree, "),
        (("h100-nvs8", "--set", "model.dimensions.e=8"), "--set model.dimensions.e=8: clusters show reads no model"),
    ],
)
def test_bad_input_says_so_and_writes_nothing(run, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    done = run("clusters", "show", *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert not [*tmp_path.iterdir()]
