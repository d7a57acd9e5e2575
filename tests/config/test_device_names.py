"""Devices by the names of packaged files and run tables, and the attention kernels that they have."""

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import begins_with, clusters_of_device, load_cluster, peak_flops
from dsx.config.search_path import names
from dsx.errors import SpecError, UnknownNameError

CLUSTERS = names("clusters", ".yaml")
H100 = ["h100-nvs8"]


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        *((name, H100) for name in ("H100", "h100", "NVIDIA H100", "DGX H100", "HGX-H100", "8x H100", "H100 SXM5")),
        ("NVIDIA H100 80GB HBM3", H100),
        ("GB200", ["gb200-nvl72"]),
        ("B200", ["b200-180-nvs8"]),
        ("AMD Instinct MI300X", ["mi300x-xgmi8"]),
        ("MI300X", ["mi300x-xgmi8"]),
        ("Ironwood", ["tpu-7x"]),
        ("A100", ["a100-80-nvs4", "a100-80-nvs8"]),
        ("A100-SXM4-40GB", ["a100-40-nvs4", "a100-40-nvs8"]),
    ],
)
def test_a_device_has_usual_machines(name, usual):
    found = clusters_of_device(name)
    assert found is not None and [*found.usual] == usual
    assert not {*found.usual} & {*found.further} and {*found.usual, *found.further} <= {*CLUSTERS}
    with pytest.raises(UnknownNameError) as caught:
        load_cluster(name)
    assert f"unknown cluster {name!r}: it is a device" in str(caught.value)
    assert all(f"\n  {one}: " in str(caught.value) for one in usual)


def test_lists_others_and_own_clusters_of_a_device(tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match=r"^cluster 'h100-nvs8,a100-80-nvs8': one cluster is wanted here, such"):
        load_cluster("h100-nvs8,a100-80-nvs8")
    # The other clusters of a device are named too.
    with pytest.raises(UnknownNameError, match=r"\nothers: h100-96-nvs8, h100-nvl8-rail, h100-spine-leaf$"):
        load_cluster("H100")
    # A cluster of a users own is found and one with faults left out.
    (tmp_path / "ours.yaml").write_text(
        "extends: h100-nvs8\nname: ours\nrun_tables: {gpus: [X9], gpus_per_node: [8]}\n"
    )
    (tmp_path / "wrong.yaml").write_text("extends: nothing\n")
    (tmp_path / "odd.yaml").write_text("device: 3\nrun_tables: {gpus: [7, '']}\n")
    monkeypatch.setenv("DSX_PATH", str(tmp_path))
    found = clusters_of_device("x9")
    assert found is not None and [*found.usual] == ["ours"] and "h100-nvs8" in found.further
    # A prefix ends where a part of a name ends.
    assert begins_with("NVIDIA A100-SXM-80GB", "a100 sxm 80") and begins_with("A100 80g", "A100-80")
    assert not begins_with("A100-800", "A100-80") and not begins_with("H100X", "H100")


@pytest.mark.parametrize(
    ("name", "meant"), [("H100-NVS8", "h100-nvs8"), ("h100-nvs", "h100-nvs8"), ("GB200-NVL72", "gb200-nvl72")]
)
def test_a_misspelt_cluster_is_no_device(name, meant):
    with pytest.raises(UnknownNameError, match=f"did you mean '{meant}'"):
        load_cluster(name)


@pytest.mark.parametrize("name", ["H1000", "cluster", "", "8x", "h100x"])
def test_a_name_of_neither_is_unknown(name):
    assert clusters_of_device(name) is None


@pytest.mark.parametrize(("word", "number"), [("none", 0.0), ("flash-1", 1.0), ("flash-4", 4.0), ("2", 2.0)])
def test_a_word_is_its_place_in_the_order(word, number):
    assert load_assumptions("uncalibrated", [("attention_kernels", word)]).attention_kernels == number


def test_an_unknown_kernel_names_the_nearest_and_a_known_one_is_written_as_its_word():
    with pytest.raises(SpecError, match=r"attention_kernels: 'flash-5' is none of none, flash-1.*did you mean"):
        load_assumptions("uncalibrated", [("attention_kernels", "flash-5")])
    # A set writes the word.
    spec = load_assumptions("uncalibrated", [("attention_kernels", "flash-3")])
    assert spec.model_dump(mode="json")["attention_kernels"] == "flash-3"
    assert type(spec).model_validate(spec.model_dump(mode="json")) == spec
    # A device without a peak in fewer bits multiplies in 16.
    device = load_cluster("tpu-v6e").device
    assert peak_flops(device, "bf16") == peak_flops(device, "fp4") == 918e12
    assert peak_flops(device, "int8") == 1836e12
