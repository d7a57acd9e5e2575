"""The three plans of an answer side by side."""

import math

import pytest

import dsx
from dsx.tables.plans import (
    interval_text,
    mfu_of_peaks,
    precision_text,
    roles_of,
    selection_text,
    three_plans_text,
    tied_text,
)
from dsx.verbs.evaluate import as_row

PLANS = {
    "dense": ("llama-3-8b", "tp=2 dp=4 nvs.tp=2 nvs.dp=4", "pp=8 zero_stage=3 offload=optimizer nvs.pp=8"),
    "experts": (
        "mixtral-8x7b",
        "ep=8 dp=8 zero_stage=3 nvs.dp=8",
        "tp=4 dp=2 ep=8 recompute=norms+feed-forward offload=optimizer nvs.tp=4 nvs.dp=2",
    ),
    "long layout": (
        "llama-3-70b",
        "pp=8 nvs.pp=8 recompute=full vpp=2 stage_layers=4,5,6,5,6,5,4,5,5,6,5,4,5,6,5,6",
        "pp=8 nvs.pp=8 recompute=norms",
    ),
}


@pytest.mark.parametrize("of", PLANS)
def test_no_line_is_over_100_columns(of):
    model, *texts = PLANS[of]
    job = dsx.Job(model, "h100-nvs8", 8, 64)
    plans = [as_row(dsx.evaluate(job, f"{text} microbatch_size=1").priced, job.cluster.name) for text in texts]
    named = dict(zip(("fastest", "simplest", "leanest"), (plans[0], *plans), strict=True))
    lines = three_plans_text(named, job.cluster.device, job.assumptions).splitlines()
    assert max(map(len, lines)) <= 100
    assert [*roles_of(named)] == ["fastest, simplest", "leanest"]
    assert lines[0].split() == ["fastest,", "simplest", "leanest"]
    assert sum(line.startswith("    features: ") for line in lines) == 2
    assert any(line.startswith("MFU of BF16 peak") for line in lines)
    # As a plan takes it.
    assert ("    stage_layers=4,5,6,5,6,5,4,5*2,6,5,4,5,6,5,6" in lines) is (of == "long layout")


def test_a_narrow_type_says_of_which_peak_its_mfu_is():
    device = dsx.Job("llama-3-8b", "h100-nvs8", 8, 64).cluster.device
    assert mfu_of_peaks(0.4, device, "bf16") == {"MFU of BF16 peak": 0.4}
    older = dsx.Job("llama-3-8b", "v100-32-nvs8", 8, 64).cluster.device
    assert mfu_of_peaks(0.4, older, "bf16") == {"MFU of FP16 peak": 0.4}
    assert mfu_of_peaks(0.4, device, "fp8") == {
        "MFU of BF16 peak": 0.4,
        "MFU of FP8 peak": pytest.approx(0.2, rel=1e-3),
    }


def test_what_prices_8_bits_is_said_where_it_is_faster():
    devices = {name: dsx.Job("llama-3-8b", name, 8, 64).cluster.device for name in ("h100-nvs8", "a100-80-nvs8")}
    assert "--set assumptions.linear_dtype=fp8" in precision_text(devices["h100-nvs8"], "bf16")
    assert precision_text(devices["h100-nvs8"], "fp8") == precision_text(devices["a100-80-nvs8"], "bf16") == ""


def test_what_is_not_known_is_not_said():
    assert interval_text(math.nan, math.nan) == ""
    assert interval_text(5.21, 6.88) == "5.21 s to 6.88 s"
    assert "measurements" not in selection_text(None, 3, as_launched=False)
    said = (selection_text(0.18, 3, as_launched=some).replace("\n", " ") for some in (False, True))
    for text, which in zip(
        said, ("plans", "plans placed as launched, on the fewest nodes and fast domains, and"), strict=True
    ):
        assert f"Of the {which} within 18 % of the fastest, which measurements do not" in text


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([1.0, 1.002], ""),
        ([1.0, 1.0005, 1.002], "plans 1 and 2 tie: differences of up to 0.1 % count as equal"),
        ([1.0, 1.0, 1.0009, 1.0011], "plans 1 to 3 tie: differences of up to 0.1 % count as equal"),
    ],
)
def test_a_list_says_which_plans_tie(times, said):
    assert tied_text([{"step_time_s": time} for time in times]) == said


def test_top_says_that_its_plans_tie():
    """A ring of context parallelism hides its sends, so that it takes as long as more data parallelism."""
    found = dsx.best(dsx.Job("llama-3-8b", "h100-nvs8", 16, 64), 5, fix="tp=2 pp=1 recompute=none offload=none")
    assert tied_text(found.priced).startswith("plans 1 to 3 tie")
    assert tied_text(found.priced) in str(found)
