"""Measured seconds from tokens per second, FLOP/s and utilisation; measured bytes from their units."""

import dataclasses

import pytest

from dsx.runs.setups import counted_bytes, measured_bytes, measured_step_time, step_flops
from dsx.runs.table import UnmodelledReason

# Korthikanti et al., arXiv 2205.05198, Table 5: the 22B model on 8 GPUs, batch 4.
GPT = {
    "layers": "48", "hidden": "6144", "ffn_hidden": "24576", "heads": "64", "kv_heads": "64", "vocab": "51200",
    "gated_mlp": "0", "n_gpus": "8", "tp": "8", "pp": "1", "dp": "1", "microbatch": "4", "global_batch": "4",
    "measured_iter_s": "",
}  # fmt: skip
B, S, L, H, V = 4, 2048, 48, 6144, 51200


def test_the_formulas_are_those_of_the_papers(made):
    (setup,) = made(GPT)
    assert step_flops(setup, "model") == pytest.approx(
        72 * B * S * L * H**2 * (1 + S / (6 * H) + V / (12 * L * H)), rel=1e-12
    )
    assert step_flops(setup, "hardware, full") == pytest.approx(
        96 * B * S * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H)), rel=1e-12
    )
    assert step_flops(setup, "hardware, selective") == pytest.approx(
        72 * B * S * L * H**2 * (1 + S / (3 * H) + V / (12 * L * H)), rel=1e-12
    )
    parameters = 12 * L * H**2 + V * H
    assert step_flops(setup, "8N") == pytest.approx(8 * B * S * parameters, rel=1e-12)


def test_flops_of_queries_gates_and_active_experts(made):
    sizes = {"heads": "64", "kv_heads": "8", "hidden": "8192", "ffn_hidden": "1024", "experts": "16", "topk": "4"}
    (setup,) = made(sizes | {"gated_mlp": "1"})
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    mlp = 4 * 3 * 8192 * 1024 + 8192 * 16
    scores = 12 * 32 * 8192 * 2048
    assert step_flops(setup, "model") == pytest.approx(
        64 * 2048 * (6 * (32 * (attention + mlp) + 8192 * 32000) + scores), rel=1e-12
    )
    # A published utilisation gives the published seconds.
    assert measured_step_time(made(GPT | {"measured_mfu": "0.415"})[0]) == pytest.approx(1.10, rel=0.01)


def test_seconds_win_over_tokens_over_flops_over_utilisation(made):
    all_four = GPT | {
        "measured_iter_s": "1.5",
        "measured_tokens_per_s_per_gpu": "1024",
        "measured_tflops_per_gpu": "100",
        "measured_mfu": "0.5",
    }
    (setup,) = made(all_four)
    flops = step_flops(setup, "model")
    expected = [1.5, B * S / (1024 * 8), flops / (100e12 * 8), flops / (0.5 * 312e12 * 8), None]
    for column, seconds in zip([*list(all_four)[-4:], "oom"], expected, strict=True):
        assert measured_step_time(setup) == (seconds and pytest.approx(seconds, rel=1e-12))
        setup = dataclasses.replace(setup, run=dataclasses.replace(setup.run, **{column: None}))


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("model", 1.0),
        ("", 1.0),
        ("model, non-causal attention", 1.0),
        ("6N + attention", 1.0),
        ("model (recompute not counted; within 1 % of 6N+12Lhs)", 1.0),
        ("hardware(full recompute): 96BslH^2(1+s/6H+V/16lH)", 1.33),
        ("Hardware formula (4x fwd)", 1.33),
        ("hardware, selective", 1.05),
        ("8*N*tokens", 1.26),
        ("6N", 0.94),
    ],
)
def test_flops_by_their_kind(made, kind, factor):
    (setup,) = made(GPT | {"measured_tflops_per_gpu": "100", "flops_kind": kind})
    seconds = measured_step_time(setup)
    assert seconds == pytest.approx(factor * step_flops(setup, "model") / (100e12 * 8), rel=0.02)


def test_kinds_of_flops(made):
    (setup,) = made(GPT | {"measured_tflops_per_gpu": "100", "flops_kind": "model (MaxText, causal attention)"})
    without = step_flops(setup, "6N")
    flops = without + (step_flops(setup, "model") - without) / 2
    assert measured_step_time(setup) == pytest.approx(flops / (100e12 * 8))
    # An unknown kind is a reason.
    reason = measured_step_time(made(GPT | {"measured_tflops_per_gpu": "100", "flops_kind": "peak"})[0])
    assert reason == UnmodelledReason("flops_kind is not known", "'peak', known: model, hardware, 6N, 8N")
    # A long flops kind is refused at once.
    (setup,) = made(GPT | {"measured_tflops_per_gpu": "100", "flops_kind": "6" + " " * 100_000 + "x"})
    reason = measured_step_time(setup)
    assert isinstance(reason, UnmodelledReason)
    # Utilisation of fp8 refers to its own peak.
    row = GPT | {"gpu": "H100", "measured_mfu": "0.5"}
    halves = measured_step_time(made(row)[0]), measured_step_time(made(row | {"precision": "fp8"})[0])
    assert halves[0] / halves[1] == pytest.approx(1978.9 / 989.4, rel=1e-9)


@pytest.mark.parametrize(
    ("unit", "factor", "counted"),
    [
        ("", 1e9, "allocated"),
        ("GB peak", 1e9, "allocated"),
        ("GB(1e9) peak_memory_usage", 1e9, "allocated"),
        ("GiB peak reserved (max over ranks)", 2**30, "reserved"),
        ("GiB nvidia-smi (first GPU)", 2**30, "device"),
        ("MiB", 2**20, "allocated"),
    ],
)
def test_memory_by_its_unit(made, unit, factor, counted):
    run = made({"measured_mem_gb": "70.5", "mem_unit": unit})[0].run
    assert measured_bytes(run) == pytest.approx(70.5 * factor)
    assert counted_bytes(run) == counted


def test_memory_that_is_blank_or_of_an_unknown_unit(made):
    assert measured_bytes(made({})[0].run) is None
    assert isinstance(measured_bytes(made({"measured_mem_gb": "1", "mem_unit": "pages"})[0].run), UnmodelledReason)
