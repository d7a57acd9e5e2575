"""Cluster files, and that every number of data/clusters says where it is from."""

import pytest

from dsx.config.cluster_file import ClusterSpec, load_cluster
from dsx.config.documents import merged
from dsx.config.load import extended
from dsx.config.search_path import names, packaged_data
from dsx.errors import SpecError

CLUSTERS = names("clusters", ".yaml")


def test_quantities_become_si_floats_and_read_back():
    cluster = load_cluster("b200-nvs64")
    assert cluster.device.matrix_flops == 2.5e15
    assert cluster.device.hbm_capacity == 192e9
    assert (cluster.network.nvs.size, cluster.network.nvs.bandwidth) == (64, 900e9)
    assert (cluster.network.net.bandwidth, cluster.network.net.latency) == (100e9, 5e-6)
    # The written form reads back.
    cluster = load_cluster("h100-nvs8")
    assert ClusterSpec.model_validate(cluster.model_dump(mode="json")) == cluster
    # An override replaces value and source.
    assert load_cluster("b200-nvs8", [("device.hbm_capacity", "141 GB")]).device.hbm_capacity == 141e9
    # What a device may leave out.
    paper, own = load_cluster("b200-nvs8").device, load_cluster("h100-nvs8").device
    assert (paper.fp8_flops, paper.num_sms, paper.host_bandwidth) == (None, None, None)
    assert (own.fp8_flops, own.num_sms, own.host_bandwidth) == (1.9789e15, 132, 64e9)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("device.hbm_capacity", "141", "--set cluster.device.hbm_capacity: device.hbm_capacity: 141 has no unit"),
        ("device.hbm_capacity", "0 GB", "input should be greater than 0, got '0 GB'"),
        ("device.hbm_bandwidth", "8 TB", "'TB' is a unit of bytes; expected a unit of bytes/s"),
        ("network.nvs.latency", "-1 us", "greater than or equal to 0"),
        ("network.nvs.size", "0", "0 is not a whole number from 1"),
        (
            "network.net",
            "{bandwith: 1 GB/s, latency: 1 us}",
            "network.net.bandwith: unknown key; did you mean 'bandwidth'?",
        ),
        (
            "device",
            "B200",
            "device: expected a section with the keys name, matrix_flops, vector_flops, hbm_bandwidth, ",
        ),
        (
            "network.net",
            "{bandwidth: 100 GB/s, latency: 1 us, nic_bandwidth: 1 GB/s}",
            "nic_bandwidth: 1e+09 B/s is less than bandwidth, 1e+11 B/s, one GPU's share of the NIC",
        ),
        ("network.nvs.siz", "8", "unknown path 'network.nvs.siz'; did you mean 'network.nvs.size'?"),
    ],
)
def test_a_fault_names_value_rule_and_place(path, value, says):
    with pytest.raises(SpecError) as caught:
        load_cluster("b200-nvs8", [(path, value)])
    assert says in str(caught.value)


def test_a_machine_of_run_tables_is_one_cluster():
    claims = [
        (gpu.lower(), nodes)
        for spec in map(load_cluster, CLUSTERS)
        if spec.run_tables
        for gpu in spec.run_tables.gpus
        for nodes in spec.run_tables.gpus_per_node
    ]
    assert len(claims) == len(set(claims)) > 30


def numbers(data, path=""):
    """What a section states, by path, without names."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, list) or (isinstance(value, dict) and "value" not in value):
            yield from numbers(value, f"{path}{key}.")
        elif value is not None and key not in ("name", "kind"):  # null takes back what the base states
            yield f"{path}{key}", value


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_number_of_the_packaged_clusters_has_a_source(name):
    spec = load_cluster(name)
    assert spec.name == name
    stated = [document for _, document in extended(packaged_data() / "clusters" / f"{name}.yaml", ClusterSpec)]
    data = merged(stated).data
    found = dict(numbers(data["device"])) | dict(numbers(data["network"]))
    assert len(found) >= 9
    for path, value in found.items():
        assert len(value["source"]) > 10, (name, path)


def test_what_a_gpu_costs_is_optional_and_reads_back():
    plain = load_cluster("h100-nvs8")
    assert (plain.price, plain.pue, plain.failures, plain.device.power) == (None, None, None, 700.0)
    failures = "{mtbf: 50000 h, restart: 10 min, checkpoint: 30 s}"
    stated = load_cluster("h100-nvs8", [("price", "2.5 USD/h"), ("pue", "1.2"), ("failures", failures)])
    assert stated.price == pytest.approx(2.5 / 3600)
    assert stated.failures is not None
    assert (stated.failures.mtbf, stated.failures.restart, stated.failures.checkpoint) == (50000 * 3600, 600, 30)
    assert ClusterSpec.model_validate(stated.model_dump(mode="json")) == stated
    # An optional field of a section can be set.
    assert load_cluster("tpu-v5p").device.power is None
    assert load_cluster("tpu-v5p", [("device.power", "400 W")]).device.power == 400.0


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("price", "2.5", "2.5 has no unit: write for example '2.5 USD/h'"),
        ("price", "2.5 EUR/h", "unknown unit 'EUR/h' for USD/s"),
        ("price", "-1 USD/h", "should be greater than 0, got '-1 USD/h'"),
        ("price", "{value: -1 USD/h, source: x}", "should be greater than 0, got '-1 USD/h'"),
        ("pue", "0.9", "should be greater than or equal to 1"),
        ("failures.mtbf", "50000 h", "failures.restart: is required, but missing"),
        ("failures", "{mtbf: 0 h, restart: 1 s, checkpoint: 1 s}", "should be greater than 0"),
        ("device.full_power", "700 W", "full_power"),
        ("prize", "2 USD/h", "unknown path 'prize'; did you mean 'price'?"),
        ("failure.mtbf", "2 h", "did you mean 'failures.mtbf'?"),
        ("power", "700 W", "did you mean 'device.power'?"),
    ],
)
def test_a_fault_of_what_a_gpu_costs_is_named(path, value, says):
    with pytest.raises(SpecError) as caught:
        load_cluster("tpu-v5p", [(path, value)])
    assert says in str(caught.value)


def test_a_node_that_no_file_states_is_assumed():
    content = load_cluster("h100-nvs8").model_dump(mode="json")
    del content["node"]
    bare = load_cluster(content)
    assert (bare.node.gpus, bare.node.host_memory, bare.node.host_memory_bandwidth) == (8, 1024e9, 409.6e9)
    assert bare.node.assumed == ("gpus", "gpus_per_host_link", "host_memory", "host_memory_bandwidth")
    part = load_cluster(content, [("node.host_memory", "512 GB")])
    assert part.node.host_memory == 512e9
    assert part.node.assumed == ("gpus", "gpus_per_host_link", "host_memory_bandwidth")
    assert load_cluster(part.model_dump(mode="json")).node.assumed == part.node.assumed  # a copy still says so
    # A node is no fast domain.
    tray = load_cluster("gb200-nvl72")
    assert (tray.node.gpus, tray.network.nvs.size, tray.node.host_memory) == (4, 72, 960e9)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("node.host_memory", "0 GB", "input should be greater than 0"),
        ("node.host_memory", "512", "512 has no unit"),
        ("node.gpus", "0", "0 is not a whole number from 1"),
        ("node.host_memry", "1 GB", "did you mean 'node.host_memory'?"),
    ],
)
def test_faults_of_a_node(path, value, says):
    with pytest.raises(SpecError) as caught:
        load_cluster("h100-nvs8", [(path, value)])
    assert says.lower() in str(caught.value).lower()
