"""Remarks on devices, software, GPUs and unusual values."""

import csv
import re
from pathlib import Path

import pytest
from verbs.small import model_of

import dsx
from dsx.config.assumption_set import load_assumptions, measured_runs
from dsx.config.cluster_file import load_cluster
from dsx.config.search_path import packaged_data
from dsx.cost.interval import Likeness
from dsx.tables.plans import less_sure_text
from dsx.verbs.job import (
    cluster_remarks,
    device_remarks,
    replicas_left_out,
    unfilled_domain,
    unusual_cluster,
    unusual_job,
    warn_of_unknown,
)


def remarks(cluster, assumptions="uncalibrated", changes=()):
    return device_remarks(load_cluster(cluster).device, load_assumptions(assumptions, changes))


def test_remarks_on_devices():
    assert remarks("h100-nvs8") == []
    # The share that is assumed.
    said = "device MI250X die states no sustained_share: 0.7 of its peak is assumed"
    assert remarks("mi250x-xgmi8")[0] == said
    assert said not in remarks("mi250x-xgmi8", changes=[("matrix_ceiling", "data_sheet")])
    # A precision that a device does not have.
    (said,) = remarks("a100-80-nvs8", changes=[("linear_dtype", "fp8")])
    assert said.endswith("states no fp8_flops: multiplies in fp8 take as long as in bf16")
    assert remarks("h100-nvs8", changes=[("linear_dtype", "fp8")]) == []
    # A device of which no attention is known.
    (said,) = remarks("v100-32-nvs8", changes=[("attention_efficiency", "0.5")])
    assert said == "device V100 states no attention: 0.5 of what other multiplies reach is assumed of fused kernels"
    assert remarks("v100-32-nvs8", changes=[("attention_kernels", "none")]) == []
    # A device that states no multiprocessors and no generation.
    bare = load_cluster("h100-nvs8").device.model_copy(update={"num_sms": None, "generation": None})
    assumed = load_assumptions("default")
    assert device_remarks(bare, assumed) == [
        f"device {bare.name} states no num_sms: every wave of tiles is taken as full",
        f"device {bare.name} states no generation: it counts as one of which nothing was measured",
    ]
    assert not any("states no" in said for said in device_remarks(load_cluster("tpu-v5p").device, assumed))
    # Numbers of another maker.
    (said,) = remarks("mi300x-xgmi8")
    assert "rocm" in said and "'uncalibrated' are from devices of cuda" in said
    assert remarks("mi300x-xgmi8", changes=[("platforms", "[cuda, rocm]")]) == []
    assert remarks("mi300x-xgmi8", changes=[("platforms", "[]")]) == []


def test_remarks_on_domains_and_nodes():
    assert [unfilled_domain(*sizes) for sizes in ((8, 8), (4, 8), (64, 8), (72, 72), (72, 8))] == [[]] * 5
    (said,) = unfilled_domain(512, 72)
    assert said.startswith(
        "512 GPUs do not fill fast domains of 72: one after the other, the last has 8; 504 or 576 GPUs would fill"
    )
    # The node that is assumed.
    content = load_cluster("h100-nvs8").model_dump(mode="json")
    del content["node"]["host_memory"]
    bare = load_cluster(content)
    (said,) = cluster_remarks(bare, load_assumptions("default"))
    assert (
        said == "cluster h100-nvs8 states no node.host_memory: for offload to the host host_memory=1.024 TB is assumed"
    )
    assert cluster_remarks(bare, load_assumptions("paper-2410.00273")) == []


@pytest.mark.parametrize(
    ("num_gpus", "batch", "says"),
    [
        (72, 512, "dp divides both, so it can be at most 8; a batch of 576 would allow 72, and 64 GPUs 64"),
        (20, 32, "can be at most 4; a batch of 40 would allow 20, and 16 GPUs 16"),
        (2304, 1024, "can be at most 256; a batch of 1,152 would allow 1,152, and 2,048 GPUs 1,024"),
        (3, 2, "at most 1; a batch of 3 would allow 3, and 2 GPUs 2"),
        (72, 1152, ""),
        (64, 512, ""),
        (1024, 8, ""),
    ],
)
def test_a_batch_that_leaves_gpus_without_a_replica_is_said(num_gpus, batch, says):
    said = replicas_left_out(num_gpus, batch)
    assert len(said) == bool(says) and says in " ".join(said)


@pytest.mark.parametrize(("node", "domain", "said"), [(3, 8, True), (8, 12, True), (8, 4, False), (4, 72, False)])
def test_nodes_that_fast_domains_cut(node, domain, said):
    changes = [("node.gpus", str(node)), ("network.nvs.size", str(domain))]
    remark = (
        f"cluster h100-nvs8 has node.gpus={node} and network.nvs.size={domain}: fast domains cut nodes, since neither "
        f"divides the other; nearest: node.gpus={2 if node == 3 else 6}"
    )
    assert (remark in cluster_remarks(load_cluster("h100-nvs8", changes), load_assumptions("default"))) is said


def test_no_more_gpus_than_those_of_a_node_share_a_link_to_the_host():
    def said(sharing):
        return cluster_remarks(
            load_cluster("h100-nvs8", [("node.gpus_per_host_link", sharing)]), load_assumptions("default")
        )

    assert said("8") == []
    (text,) = said("16")
    assert "has node.gpus_per_host_link=16 and node.gpus=8: all GPUs of a node are taken to share one link" in text


def test_a_few_names_of_unknown_software_are_said(caplog):
    warn_of_unknown({f"software {number}": number for number in range(5, 0, -1)})
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "software 5 (5 rows)"
    assert lines[3:] == ["and 2 more names of software are not known (3 rows)"]


SMALL = model_of(
    [{"kind": "embedding"}, {"kind": "transformer", "count": 4}, {"kind": "head"}],
    {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 32000},
    length=1024,
)
SAID = "mi250x-xgmi8 (MI250X die, 2 to a module)"


def job(cluster="mi250x-xgmi8"):
    return dsx.Job(SMALL, cluster, num_gpus=8, global_batch_size=8)


@pytest.mark.slow
def test_answers_and_result_sets_say_what_a_gpu_is(tmp_path):
    few = {"tp": 1, "pp": 1, "zero_stage": 1, "recompute": "none", "schedule": "1f1b", "offload": "none"}
    few |= {"zero_replicas": 1, "stored_layers": 0}
    found, several = dsx.best(job(), fix=few), dsx.several_jobs(job(), num_gpus=[4, 8], fix=few)
    for answer in (job(), dsx.evaluate(job(), "dp=8"), dsx.why(job(), "dp=8"), found, several):
        assert SAID in str(answer).splitlines()[0]
    assert str(job("h100-nvs8")).startswith("small on 8 x h100-nvs8: ")
    # A result set says it too.
    spec = {"model": SMALL, "cluster": "mi250x-xgmi8", "num_gpus": 8, "global_batch_size": 8, "fix": few}
    dsx.sweep(spec, out=tmp_path / "set")
    assert SAID in str(dsx.show(tmp_path / "set"))


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


def test_sizes_and_experts_as_they_were_measured():
    with (ROOT / "data" / "validation" / "runs.csv").open(encoding="utf-8") as table:
        rows = [*csv.DictReader(table)]
    for name, column in {"num_gpus": "n_gpus", "global_batch_size": "global_batch", "sequence_length": "seq"}.items():
        found = [float(row[column]) for row in rows if row[column]]
        known = measured_runs().sizes[name]
        assert (known.least, known.most) == (min(found), max(found))
    # Experts are predicted less surely as the document says.
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
