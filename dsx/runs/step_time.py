"""The measured seconds of a step, from whatever a row prints.

Seconds win, then tokens per second, then FLOP/s by the formula that `flops_kind` names, then model FLOPs utilisation.
N tokens and F FLOPs of a step over n GPUs: seconds = N / (tokens_per_s_per_gpu * n) = F / (tflops_per_gpu * 1e12 * n)
= F / (mfu * peak * n). The formulas, per step of B sequences of s tokens, with l layers, h hidden, V vocabulary:

    model                 72 B l s h^2 (1 + s/6h + V/12lh), and for other models what their layer texts say: three
                          times the forward's multiplies, of head and active experts too, attention without a mask
    hardware, full        96 B l s h^2 (1 + s/6h + V/16lh): the layers' forward once more
    hardware, selective   72 B l s h^2 (1 + s/3h + V/12lh): attention once more, as its authors count it
    8N, 6N                that many times the parameters per token, attention left out

Sources: Narayanan et al., arXiv 2104.04473, equation 3; Korthikanti et al., arXiv 2205.05198, appendix A.
"""

import re

from dsx.runs.reasons import Reason
from dsx.runs.setups import Setup
from dsx.runs.table import Run
from dsx.runs.token_flops import token_flops


def measured_step_time(setup: Setup) -> float | Reason | None:
    """Return the measured seconds of a step; None where the row has none, a Reason where they cannot be told."""
    run = setup.run
    if run.measured_iter_s is not None:
        return run.measured_iter_s
    if run.measured_tokens_per_s_per_gpu is not None:
        tokens = setup.plan["global_batch_size"] * setup.plan["sequence_length"]
        return tokens / (run.measured_tokens_per_s_per_gpu * setup.plan["num_gpus"])
    if run.measured_tflops_per_gpu is None and run.measured_mfu is None:
        return None
    if run.measured_tflops_per_gpu is None:
        return step_flops(setup, "model") / ((run.measured_mfu or 0.0) * peak_flops(setup) * setup.plan["num_gpus"])
    kind = flops_kind(run)
    if isinstance(kind, Reason):
        return kind
    return step_flops(setup, kind) / (run.measured_tflops_per_gpu * 1e12 * setup.plan["num_gpus"])


def peak_flops(setup: Setup) -> float:
    """Return the FLOP/s of one GPU that a utilisation refers to: its dense matrix peak at the precision of the run."""
    device = setup.cluster.device
    return device.fp8_flops or device.matrix_flops if setup.precision == "fp8" else device.matrix_flops


def flops_kind(run: Run) -> str | Reason:
    """Return which formula a row's FLOP/s follow, a key of the table in `step_flops`; blank is "model"."""
    text = (run.flops_kind or "model").strip().lower()
    if text.startswith("model"):
        return "model"
    if text.startswith("hardware"):
        return "hardware, selective" if "selective" in text else "hardware, full"
    if match := re.match(r"([68])\s*(?:\*\s*)?n\b", text):
        return f"{match[1]}N"
    return Reason("flops_kind is not known", f"{run.flops_kind!r}, known: model, hardware, 6N, 8N")


def step_flops(setup: Setup, kind: str) -> float:
    """Return the FLOPs of a step as the formula `kind` counts them."""
    once = token_flops(setup.model, setup.plan["sequence_length"])
    tokens = setup.plan["global_batch_size"] * setup.plan["sequence_length"]
    per_token = {
        "model": 3 * (once.layers + once.head + once.attention),
        "hardware, full": 4 * once.layers + 3 * once.head + 4 * once.attention,
        "hardware, selective": 3 * (once.layers + once.head) + 6 * once.attention,
        "6N": 3 * (once.layers + once.head),
        "8N": 4 * (once.layers + once.head),
    }
    return tokens * per_token[kind]
