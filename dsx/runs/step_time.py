"""The measured seconds of a step, from whichever measurement a row has.

Seconds win, then tokens per second, then FLOP/s by the formula that `flops_kind` names, then model FLOPs utilisation.
With N tokens and F FLOPs of a step over n GPUs, seconds = N / (tokens_per_s_per_gpu * n) =
F / (tflops_per_gpu * 1e12 * n) = F / (mfu * peak * n). F of B sequences of s tokens, l layers, h hidden, V vocabulary:

    model                 72 B l s h^2 (1 + s/6h + V/12lh) for GPT; for other models, by their layer definitions, three
                          times the multiplies of the forward, with head and active experts, attention without a mask
    model, causal         the same with half of the attention, which a causal mask leaves
    hardware, full        96 B l s h^2 (1 + s/6h + V/16lh): the forward of the layers is recomputed
    hardware, selective   72 B l s h^2 (1 + s/3h + V/12lh): attention is recomputed, as the authors count it
    8N, 6N                8 or 6 FLOPs per parameter and token, without attention

Sources: Narayanan et al., arXiv 2104.04473, equation 3; Korthikanti et al., arXiv 2205.05198, appendix A.
"""

import re

from dsx.runs.reasons import Reason
from dsx.runs.run_table import Run
from dsx.runs.setups import Setup
from dsx.runs.token_flops import token_flops
from dsx.spec.cluster import peak_flops as device_peak

_CAUSAL = re.compile(r"(?<!non-)(?<!non )\bcausal")


def measured_step_time(setup: Setup) -> float | Reason | None:
    """Return the measured seconds of a step; None if nothing gives them, a Reason if `flops_kind` is unknown."""
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
    """Return the FLOP/s of one GPU that an MFU refers to: its dense matrix peak at the precision of the run."""
    return device_peak(setup.cluster.device, setup.precision)


def flops_kind(run: Run) -> str | Reason:
    """Return the formula of a row's FLOP/s, a key of the table in `step_flops`; a blank cell means "model"."""
    text = (run.flops_kind or "model").strip().lower()
    if text.startswith("model") or re.match(r"6\s*(?:\*\s*)?n\s*\+\s*attention", text):
        return "model, causal" if _CAUSAL.search(text) else "model"
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
        "model, causal": 3 * (once.layers + once.head + 0.5 * once.attention),
        "hardware, full": 4 * once.layers + 3 * once.head + 4 * once.attention,
        "hardware, selective": 3 * (once.layers + once.head) + 6 * once.attention,
        "6N": 3 * (once.layers + once.head),
        "8N": 4 * (once.layers + once.head),
    }
    return tokens * per_token[kind]
