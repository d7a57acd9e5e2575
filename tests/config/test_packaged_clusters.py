"""Packaged clusters beside the data sheets: peaks, memory and links as printed, and marks on what the sheets lack."""

import pytest

from dsx.config.cluster_file import GENERATIONS, ClusterSpec, load_cluster
from dsx.config.documents import merged
from dsx.config.load import extended
from dsx.config.search_path import names, packaged_data
from dsx.units import parse_quantity

# BF16 and FP8 TFLOP/s (none: not stated), memory as printed, TB/s of it, GB/s per direction of all links together;
# of how many devices of software. The documents are named in the files (stas00/ml-engineering 744d01e; Google Cloud).
SHEETS = {
    "b300-288-nvs8": (2250, 4500, "288 GB", 8.0, 900, 1), "gb300-nvl72": (2500, 5000, "288 GB", 8.0, 900, 1),
    "gh200-96-nvs4": (989, 1979, "96 GiB", 4.0, 450, 1), "mi250x-xgmi8": (383, None, "128 GiB", 3.28, 350, 2),
    "mi300x-xgmi8": (1307, 2614, "192 GiB", 5.3, 448, 1), "mi325x-xgmi8": (1307, 2614, "256 GiB", 6.0, 448, 1),
    "mi350x-xgmi8": (2300, 4600, "288 GiB", 8.0, 535.5, 1), "mi355x-xgmi8": (2500, 5000, "288 GiB", 8.0, 535.5, 1),
    "gaudi2-eth8": (432, 865, "96 GiB", 2.46, 300, 1), "gaudi3-eth8": (1677, 1677, "128 GiB", 3.7, 600, 1),
    "tpu-v5e": (197, None, "16 GiB", 0.819, 200, 1), "tpu-v5p": (459, 459, "95 GiB", 2.765, 600, 1),
    "tpu-v6e": (918, 918, "32 GiB", 1.638, 400, 1), "tpu-7x": (2307, 4614, "192 GiB", 7.37, 600, 2),
}  # fmt: skip
PODS = ("tpu-v5e-pod", "tpu-v5p-pod", "tpu-v6e-pod")
DOMAINS = {"tpu-v5e": 256, "tpu-v5p": 8960, "tpu-v6e": 256, "tpu-7x": 2 * 9216, "gb300-nvl72": 72, "gh200-96-nvs4": 4}
FP32_TFLOPS = {"mi250x-xgmi8": 47.9 / 2, "mi300x-xgmi8": 163.4, "mi325x-xgmi8": 163.4, "mi355x-xgmi8": 157.3}
FP16_TFLOPS = {"gh200-96-nvs4": 2 * 67, "b300-288-nvs8": 2 * 80, "gb300-nvl72": 2 * 80}
NICS_OF_THE_SHEETS = {"tpu-v5e"}
HOST_LINKS_OF_THE_SHEETS = {"mi250x-xgmi8": 36, "tpu-v5e": 15, "tpu-v5p": 15, "tpu-v6e": 32}  # GB/s per direction
DOMAIN_IN_NO_SHEET = {"gh200-96-nvs4"}
PORTS_OUT_OF_THE_NODE = {"gaudi2-eth8", "gaudi3-eth8"}  # 3 of the 24 that are printed together
TAKEN_OVER = ("as in ", "from memory", "in the ratio of")


def sources(name):
    """Return the source of each number of device, fast domain and NIC, as the file and what it extends have it."""
    stated = [document for _, document in extended(packaged_data() / "clusters" / f"{name}.yaml", ClusterSpec)]
    data = merged(stated).data
    network = data["network"]
    sections = {"device": data["device"], "nvs": network["nvs"], "net": network["net"]}
    sections["topology"] = network.get("topology", {})
    return {
        f"{section}.{key}": value["source"]
        for section, values in sections.items()
        for key, value in values.items()
        if isinstance(value, dict) and "source" in value
    }


@pytest.mark.parametrize("name", SHEETS)
def test_peaks_memory_and_links_are_those_of_the_data_sheet(name):
    bf16, fp8, memory, tb_s, gb_s, devices = SHEETS[name]
    cluster = load_cluster(name)
    device, network = cluster.device, cluster.network
    assert device.matrix_flops * devices == pytest.approx(bf16 * 1e12)
    assert (device.fp8_flops or 0.0) * devices == pytest.approx((fp8 or 0) * 1e12)
    assert device.hbm_capacity * devices == parse_quantity(memory, "bytes")
    assert device.hbm_bandwidth * devices == pytest.approx(tb_s * 1e12)
    out = network.net.bandwidth if name in PORTS_OUT_OF_THE_NODE else 0.0
    assert (network.nvs.bandwidth + out) * devices == pytest.approx(gb_s * 1e9)
    assert network.nvs.size == DOMAINS.get(name, 8)


@pytest.mark.parametrize(("name", "tflops"), [*FP32_TFLOPS.items(), *FP16_TFLOPS.items()])
def test_vector_units_where_the_sheet_has_them(name, tflops):
    assert load_cluster(name).device.vector_flops == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", SHEETS)
def test_what_the_sheet_lacks_is_marked_an_assumption(name):
    found = sources(name)
    lacking = {"device.num_sms", "nvs.latency", "net.latency"} & {*found}
    lacking |= set() if name in HOST_LINKS_OF_THE_SHEETS else {"device.host_bandwidth"} & {*found}
    lacking |= set() if name in NICS_OF_THE_SHEETS else {"net.bandwidth", "net.nic_bandwidth"} & {*found}
    lacking |= {"nvs.size", "nvs.mesh"} if name in DOMAIN_IN_NO_SHEET else set()
    lacking |= {"nvs.bandwidth", "nvs.mesh"} if name in PORTS_OUT_OF_THE_NODE else set()
    lacking |= {"device.sustained_share"} if name.startswith("tpu") else set()
    lacking |= set() if name in {**FP32_TFLOPS, **FP16_TFLOPS} else {"device.vector_flops"}
    assert {path for path, source in found.items() if source.startswith("assumption:")} == lacking
    assert all(any(words in found[path] for words in TAKEN_OVER) for path in lacking)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_the_torus_of_its_chips(name):
    flat, pod = load_cluster(name.removesuffix("-pod")), load_cluster(name)
    torus = pod.network.topology
    assert pod.device == flat.device and pod.network.net == flat.network.net
    assert torus is not None and torus.kind == "torus" and torus.gpus == flat.network.nvs.size
    assert len(torus.shape) * pod.network.nvs.bandwidth == flat.network.nvs.bandwidth
    assert sources(name)["topology.shape"].startswith("assumption:")


def test_meshes_and_volta():
    """AMD states links of a pair, a seventh of the total; the uneven links of the dies of an MI250X are no mesh."""
    for name in SHEETS:
        nvs = load_cluster(name).network.nvs
        assert nvs.mesh == (name.startswith(("mi3", "gaudi", "gh200")))
    assert load_cluster("mi300x-xgmi8").network.nvs.bandwidth / 7 == pytest.approx(64e9)
    assert load_cluster("mi355x-xgmi8").network.nvs.bandwidth / 7 == pytest.approx(76.5e9)
    # Volta alone multiplies 16 bits in fp16.
    formats = {name: load_cluster(name).device for name in names("clusters", ".yaml")}
    assert {name for name, device in formats.items() if device.half_format == "fp16"} == {
        name for name in formats if name.startswith("v100")
    }
    assert "half_format" not in load_cluster("h100-nvs8").model_dump(mode="json")["device"]
    copied = load_cluster(load_cluster("v100-16-nvs8").model_dump(mode="json"))
    assert copied.device.half_format == "fp16"


# Measured TFLOP/s of the best large multiply in BF16 and FP8 (devices.csv; none: not measured), of the peaks above.
MULTIPLIES = {
    "a100-80-nvs8": (271.2, None), "h100-nvs8": (794.5, 1402.6), "h200-141-nvs8": (794.5, 1453.4),
    "gh200-96-nvs4": (828.6, 1535.0), "b200-180-nvs8": (1745, 3432.5), "gb200-nvl72": (1822, 3615.6),
    "b300-288-nvs8": (1769, 3353.3), "mi300x-xgmi8": (668.4, None), "mi325x-xgmi8": (784.9, None),
    "mi355x-xgmi8": (1565, None), "gaudi2-eth8": (418.7, 826.5), "gaudi3-eth8": (1243, 1289.5),
}  # fmt: skip


@pytest.mark.parametrize("name", MULTIPLIES)
def test_what_a_large_multiply_sustains_is_measured(name):
    bf16, fp8 = MULTIPLIES[name]
    device = load_cluster(name).device
    assert device.sustained_share == pytest.approx(bf16 * 1e12 / device.matrix_flops, abs=0.006)
    if fp8:
        assert device.fp8_sustained_share == pytest.approx(fp8 * 1e12 / device.fp8_flops, abs=0.006)


@pytest.mark.parametrize("name", names("clusters", ".yaml"))
def test_a_device_has_a_generation_and_newer_attention_kernels_are_faster(name):
    device = load_cluster(name).device
    assert device.generation
    kernels = [device.attention[age] for age in GENERATIONS if age in device.attention]
    assert kernels == sorted(kernels, key=lambda kernel: kernel.forward)
    assert all(kernel.backward < kernel.forward for kernel in kernels)


def test_kernels_programs_and_chips_of_devices():
    for own, base in {"a800-nvs8": "a100-80-nvs8", "h800-nvs8": "h100-nvs8", "gh200-96-nvs4": "h100-nvs8"}.items():
        assert load_cluster(own).device.attention == load_cluster(base).device.attention
    # What is not made by nvidia says how it is programmed.
    others = {"mi": "rocm", "gaudi": "synapseai", "tpu": "xla"}
    for name in names("clusters", ".yaml"):
        expected = next((software for maker, software in others.items() if name.startswith(maker)), "cuda")
        assert load_cluster(name).device.software == expected, name
    # A chip of several devices is stated where the sheets count chips.
    labels = {name: load_cluster(name).label for name in names("clusters", ".yaml")}
    assert {name: label for name, label in labels.items() if label != name} == {
        "tpu-7x": "tpu-7x (TPU7x device, 2 to a chip)",
        "mi250x-xgmi8": "mi250x-xgmi8 (MI250X die, 2 to a module)",
        "gb200-nvl72": "gb200-nvl72 (GB200, 2 to a superchip)",
        "gb200-nvl72-rail": "gb200-nvl72-rail (GB200, 2 to a superchip)",
        "gb300-nvl72": "gb300-nvl72 (GB300, 2 to a superchip)",
    }
    halved = {name for name, (*_, devices) in SHEETS.items() if devices > 1}
    assert halved <= {name for name, label in labels.items() if label != name}


@pytest.mark.parametrize(("name", "gb_s"), HOST_LINKS_OF_THE_SHEETS.items())
def test_links_to_the_host_where_the_sheet_has_them(name, gb_s):
    assert load_cluster(name).device.host_bandwidth == pytest.approx(gb_s * 1e9)


# Link of a device to its host in GB/s per direction over the GPUs that share it: what each gets while all transfer.
HOST_GB_S = {
    "a100-80-nvs8": 32 / 2,
    "dgx-a100-superpod": 32 / 2,
    "perlmutter": 32,  # four GPUs on one CPU, without switches
    "v100-32-nvs8": 16 / 2,
    "v100-32-nvs16": 16 / 4,  # ZeRO-Infinity measured 3.0 of 12 GB/s
    "h100-nvl8-rail": 64,
    "h200-141-nvs8": 64,
    "b200-180-nvs8": 64,
    "mi300x-xgmi8": 64 / 2,
    "gb200-nvl72": 450 / 2,
    "gh200-96-nvs4": 450,
}


@pytest.mark.parametrize(("name", "gb_s"), HOST_GB_S.items())
def test_gpus_behind_one_switch_share_its_link_to_the_host(name, gb_s):
    cluster = load_cluster(name)
    assert cluster.device.host_bandwidth / cluster.node.gpus_per_host_link == pytest.approx(gb_s * 1e9)
    assert cluster.node.gpus % cluster.node.gpus_per_host_link == 0


@pytest.mark.parametrize("name", names("clusters", ".yaml"))
def test_a_node_is_stated_with_its_sources(name):
    assert load_cluster(name).node.assumed == ()
    stated = [document for _, document in extended(packaged_data() / "clusters" / f"{name}.yaml", ClusterSpec)]
    node = merged(stated).data["node"]
    known = ("assumption:", "from memory", "doc page", "as in")
    unsourced = [key for key, value in node.items() if not any(words in value["source"] for words in known)]
    assert not unsourced, f"{name}: each source of `node` says one of {known}, but not those of {unsourced}"
