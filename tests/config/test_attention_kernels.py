"""Generations of attention kernels: the newest that a software has, as a word."""

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster, peak_flops
from dsx.errors import SpecError


@pytest.mark.parametrize(("word", "number"), [("none", 0.0), ("flash-1", 1.0), ("flash-4", 4.0), ("2", 2.0)])
def test_a_word_is_its_place_in_the_order(word, number):
    assert load_assumptions("uncalibrated", [("attention_kernels", word)]).attention_kernels == number


def test_an_unknown_kernel_names_the_nearest():
    with pytest.raises(SpecError, match=r"attention_kernels: 'flash-5' is none of none, flash-1.*did you mean"):
        load_assumptions("uncalibrated", [("attention_kernels", "flash-5")])


def test_a_set_writes_the_word():
    spec = load_assumptions("uncalibrated", [("attention_kernels", "flash-3")])
    assert spec.model_dump(mode="json")["attention_kernels"] == "flash-3"
    assert type(spec).model_validate(spec.model_dump(mode="json")) == spec


def test_a_device_without_a_peak_in_fewer_bits_multiplies_in_16():
    device = load_cluster("tpu-v6e").device
    assert peak_flops(device, "bf16") == peak_flops(device, "fp4") == 918e12
    assert peak_flops(device, "int8") == 1836e12
