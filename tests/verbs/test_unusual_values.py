"""Values far beyond any machine's or any run's are remarked on, and refused nowhere."""

import csv
import re
from pathlib import Path

import pytest

import dsx
from dsx.config.cluster_file import load_cluster
from dsx.config.evidence import measured_runs
from dsx.config.search_path import packaged_data
from dsx.cost.interval import Likeness
from dsx.tables.plans import less_sure_text
from dsx.verbs.job import unusual_cluster, unusual_job

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("network.net.bandwidth", "400 GB/s", "is 400 GB/s (3.20 Tb/s in bits): packaged clusters have 1.56 GB/s to "),
        ("network.net.bandwidth", "400 MB/s", "is 400 MB/s"),
        ("device.hbm_capacity", "8 TB", "is 8.00 TB: packaged clusters have 17.2 GB to "),
        ("device.matrix_flops", "9.9 TFLOP/s", "is 9.90 TFLOP/s: packaged clusters have "),
        ("network.nvs.latency", "2.5 ms", "is 2.50 ms: packaged clusters have "),
        ("network.net.bandwidth", "400 Gb/s", ""),
        ("device.hbm_capacity", "400 GB", ""),
    ],
)
def test_a_number_of_no_machine(path, value, says):
    section, value = path.rpartition("."), value
    cluster = load_cluster("h100-nvs8", [(path, value)])
    said = unusual_cluster(cluster)
    assert [one.startswith(f"cluster.{section[0]}.{section[2]} {says}") for one in said] == ([True] if says else [])


def test_no_packaged_cluster_is_unusual():
    for file in (packaged_data() / "clusters").glob("*.yaml"):
        assert unusual_cluster(load_cluster(file.stem)) == []


def test_a_remark_is_no_error(caplog):
    dsx.Job("llama-3-8b", "h100-nvs8", 8, 8, set={"cluster.device.hbm_capacity": "8 TB"})
    assert "cluster.device.hbm_capacity is 8.00 TB" in caplog.text
    dsx.evaluate(dsx.Job("gpt3-5b", "h100-nvs8", 100_000, 100_000), dp=100_000)
    assert re.search(r"parameters_per_gpu is 5\d,\d{3}: measured runs have 1,950,000 to", caplog.text)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((8_000_000_000, 1024, 1024, 8192), []),
        ((5_000_000_000, 100_000, 1024, 2048), ["parameters_per_gpu"]),
        ((400_000_000_000, 1_000_000, 1024, 8192), ["num_gpus"]),
        ((8_000_000_000, 8, 1_000_000, 1_000_000_000), ["global_batch_size", "sequence_length"]),
    ],
)
def test_sizes_of_no_run(sizes, names):
    assert [one.split()[0] for one in unusual_job(*sizes)] == names


def test_the_sizes_are_those_of_the_measured_runs():
    with (ROOT / "data" / "validation" / "runs.csv").open(encoding="utf-8") as table:
        rows = [*csv.DictReader(table)]
    for name, column in {"num_gpus": "n_gpus", "global_batch_size": "global_batch", "sequence_length": "seq"}.items():
        found = [float(row[column]) for row in rows if row[column]]
        known = measured_runs().sizes[name]
        assert (known.least, known.most) == (min(found), max(found))


def test_experts_are_predicted_less_surely_as_the_document_says():
    table = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8").partition("## By kind of model")[2]
    for kind, known in measured_runs().errors["default"].items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {kind} |")).split(" | ")
        assert row[1:3] == [f"{known.sources}", f"{known.rows:,}"] and row[5] == f"{100 * known.median_error:.1f} %"
    said = less_sure_text(Likeness("", "hopper", "experts"), "default")
    experts, dense = (measured_runs().errors["default"][kind] for kind in ("experts", "dense"))
    rows = f"({experts.rows} rows of {experts.sources} sources, {experts.date})"
    off, others = (f"{100 * kind.median_error:.0f} %" for kind in (experts, dense))
    assert f"off by {off} in the median {rows}, other models by {others}" in said
    assert less_sure_text(Likeness("", "hopper", "dense"), "default") == ""
    assert less_sure_text(Likeness("", "hopper", "experts"), "uncalibrated") == ""
