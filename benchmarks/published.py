"""Write docs/published.md: plans of published training runs, the prediction of each, and the fastest plan for its job.

    python benchmarks/published.py [--write docs/published.md]

The published plans and figures are stated here, with their sources. Every prediction comes from this run: the step time
of the published plan, the fastest plan that Megatron-LM runs, and the terms of the step in which the two differ.
"""

import argparse
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sections import table

import dsx

TERMS = ("compute", "memory", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "bubble", "recompute", "optimizer")
_WORTH_SAYING = 0.01  # of the step time


@dataclass(frozen=True)
class Published:
    """A training run whose plan is published."""

    name: str
    source: str
    job: dsx.Job
    plan: str
    measured_s: float  # seconds of a step
    measured: str  # what the source states
    remark: str = ""


def _llama(num_gpus: int, dp: int, tflops: int, mfu: str) -> Published:
    job = dsx.Job("llama-3-405b", "h100-nvs8", num_gpus, 2048, 8192)
    flops = dsx.evaluate(job, f"tp=8 pp=16 vpp=8 dp={dp}").to_data()
    step_flops = flops["mfu"] * flops["step_time_s"] * num_gpus * job.cluster.device.matrix_flops
    return Published(
        f"Llama-3 405B on {num_gpus:,} H100",
        "Llama 3 (arXiv 2407.21783), table 4",
        job,
        f"tp=8 pp=16 vpp=8 dp={dp}",
        step_flops / (num_gpus * tflops * 1e12),
        f"{tflops} TFLOP/s per GPU, MFU {mfu}",
        "126 layers, embedding and head are 128 chunks of one layer. The source shards gradients too (ZeRO 2), which "
        "dsx prices with a reduction for every microbatch; here they are not sharded.",
    )


def published() -> list[Published]:
    """Return the runs."""
    deepseek = dsx.Job("deepseek-v3", "h800-nvs8", 2048, 15360, 4096, set={"assumptions.linear_dtype": "fp8"})
    tokens = 15360 * 4096
    return [
        _llama(16384, 128, 400, "41 %"),
        _llama(8192, 64, 430, "43 %"),
        Published(
            "DeepSeek-V3 on 2,048 H800",
            "DeepSeek-V3 (arXiv 2412.19437), sections 1, 3.2 and 3.3",
            deepseek,
            "ep=64 pp=16 dp=128 recompute=norms+latent-up-projection+expert-activation schedule=dualpipe",
            tokens / (1e12 / (180_000 * 3600) * 2048),
            "180,000 GPU hours for 10^12 tokens, FP8",
            "The source runs DualPipe. It also keeps activations in 8 bits (section 3.3.2) that dsx keeps in 16, and "
            "gives 20 of 132 multiprocessors to the exchange of experts, which dsx does not charge. Megatron-LM has no "
            "DualPipe, so the fastest plan is another one.",
        ),
        Published(
            "Nemotron-4 340B on 6,144 H100",
            "Nemotron-4 340B (arXiv 2406.11704), table 2",
            dsx.Job("nemotron-4-340b", "h100-nvs8", 6144, 2304, 4096),
            "tp=8 pp=12 vpp=8 dp=64",
            8.0,
            "8.0 s, MFU 41.0 %",
        ),
    ]


def section(one: Published) -> str:
    """Return what the document says of a run."""
    partition = "even" if "vpp" in one.plan or "schedule" in one.plan else "optimal"
    priced = dsx.evaluate(one.job, one.plan, partition=partition).to_data()
    answer = dsx.best(one.job)
    best = answer.to_data()["plans"][0]
    capacity = one.job.cluster.device.hbm_capacity
    rows = [
        ["published", one.plan, f"{one.measured_s:.2f} s", "", one.measured],
        ["its prediction", one.plan, *_figures(priced, capacity)],
        ["fastest", f"{answer.plan['strategy']}: {answer.plan.text}", *_figures(best, capacity)],
    ]
    head = f"## {one.name}\n\n{_paragraph(f'{one.source}. {one.remark}'.rstrip())}"
    parts = [head, table(["", "plan", "step", "memory", ""], rows).rstrip(), _differences(priced, best)]
    if priced["peak_bytes"] > capacity:
        parts.append(_too_large(priced, capacity))
    return "\n\n".join(parts)


def _figures(priced: Mapping[str, float], capacity: float) -> list[str]:
    share = 100 * priced["peak_bytes"] / capacity
    return [
        f"{priced['step_time_s']:.2f} s",
        f"{priced['peak_bytes'] / 1e9:.1f} GB, {share:.0f} %",
        f"MFU {100 * priced['mfu']:.1f} %",
    ]


def _differences(priced: Mapping[str, float], best: Mapping[str, float]) -> str:
    """Return the terms in which the fastest plan differs from the published one."""
    found = {term: best[f"{term}_s"] - priced[f"{term}_s"] for term in TERMS}
    worth = _WORTH_SAYING * priced["step_time_s"]
    said = [f"`{term}_s` {seconds:+.2f} s" for term, seconds in found.items() if abs(seconds) > worth]
    return _paragraph(
        f"Where the fastest one differs from that prediction: {', '.join(said)}."
        if said
        else "The fastest one differs from that prediction in no term by more than 1 %."
    )


def _too_large(priced: Mapping[str, float], capacity: float) -> str:
    parts = {name: priced[f"{name}_bytes"] for name in ("weight", "gradient", "optimizer", "activation", "overhead")}
    most = max(parts, key=lambda name: parts[name])
    said = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in parts.items())
    excess = (priced["peak_bytes"] - capacity) / 1e9
    return _paragraph(
        f"The published plan is predicted not to fit, though it ran: {excess:.1f} GB too much ({said}). The largest "
        f"term, {most}, is the one to suspect."
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def document() -> str:
    """Return the document."""
    head = """\
# Published plans

<!-- Written by benchmarks/published.py; change it there. -->

Plans of published training runs: what was measured, what dsx predicts for the same plan, and the fastest plan that
`dsx best` finds for the same job with no option but the job (and the precision: DeepSeek-V3 was trained in FP8,
`--set assumptions.linear_dtype=fp8`). Predictions are those of the assumption set `default`. Of the 2,719 rows that it
was fitted to three are of Llama 3 405B, on 8,192 and 16,384 H100; it has not seen the runs of DeepSeek-V3 and
Nemotron-4. Plans are priced with the software of its stack, which is newer than these runs.
[validation.md](validation.md) has the errors over thousands of runs.
"""
    return "\n\n".join([head.rstrip(), *map(section, published())]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE")
    file = parser.parse_args().write
    text = document()
    if file is None:
        print(text)
    else:
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
