"""Defaults for missing values of a run table, the same for every source.

Each default is what most frameworks do unless told otherwise. Uses are counted and shown, so that an error can be
traced to a default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsx.runs.fused_kernels import FUSABLE
from dsx.runs.notes import names_interleaving

Values = Mapping[str, Any]  # the values of a row by column, None where missing


@dataclass(frozen=True, slots=True)
class Default:
    """The default of a column, and the rows in which the column matters."""

    rule: str  # in words
    value: Callable[[Values], Any]  # from the values of earlier columns in DEFAULTS; None = stays missing
    matters: Callable[[Values], bool] = lambda values: True


def _has_experts(values: Values) -> bool:
    return (values["experts"] or 0) > 1  # one expert is a dense model


def _has_unfused_variants(values: Values) -> bool:
    # Layers with neither gates nor experts have layer norms, and every framework has a fused kernel for those.
    return values["gated_mlp"] or _has_experts(values) or not values["flash"]


def _replicas(values: Values) -> int | None:
    # With a remainder the product of the degrees is not n_gpus, which `dsx.runs.reasons` reports.
    model_parallel = values["tp"] * values["pp"] * values["cp"]
    return values["n_gpus"] and max(values["n_gpus"] // model_parallel, 1)


def _microbatch(values: Values) -> int:
    # Sharded weights in a pipeline are PyTorch's parallelisms: torch.distributed.pipelining cuts a batch into as many
    # microbatches as there are chunks, unless it is told a number (TorchTitan, ParallelismConfig).
    if values["zero_stage"] < 3 or values["pp"] == 1:
        return 1
    return max((values["global_batch"] or 0) // (values["dp"] * values["pp"] * values["vpp"]), 1)


def _virtual_stages(values: Values) -> int:
    """Return the chunks of a stage: those of an interleaved schedule without a degree have two layers if possible.

    Published interleaved plans have chunks of one to four layers, most of them two (MegaScale, arXiv 2402.15627,
    section 6: six chunks on each of eight stages of 96 layers; NVIDIA's recipes of NeMo). Embedding and head count as
    layers where the layers alone do not divide.
    """
    layers, pp = values["layers"], values["pp"]
    if not layers or pp == 1 or not names_interleaving(values):
        return 1
    per_stage = next((total // pp for total in (layers, layers + 2) if total % pp == 0), layers // pp)
    chunks = [count for count in range(2, per_stage + 1) if per_stage % count == 0]
    return max((count for count in chunks if 2 * count <= per_stage), default=chunks[0] if chunks else 1)


def _expert_tensor_parallel(values: Values) -> int:
    """Return tp where it can divide the experts too, which is Megatron-Core's default, else 1."""
    tp, ranks = values["tp"], values["tp"] * values["cp"] * (values["dp"] or 1)
    divides = (values["ffn_hidden"] or 0) % tp == 0 and ranks % (values["ep"] * tp) == 0
    return tp if values["sp"] and divides else 1


def _sequence_parallel(values: Values) -> bool:
    return values["tp"] > 1 and (values["seq"] or 0) % (values["tp"] * values["cp"]) == 0


# In this order: a default may use the columns above it.
DEFAULTS: dict[str, Default] = {
    "heads": Default("hidden / 128", lambda v: v["hidden"] and max(v["hidden"] // 128, 1)),
    "kv_heads": Default("heads", lambda v: v["heads"]),
    "experts": Default("0, a dense model", lambda v: 0, matters=lambda v: bool(v["topk"])),
    "topk": Default("2", lambda v: 2, matters=_has_experts),
    "gated_mlp": Default("1 with experts, else 0", _has_experts),
    "ffn_hidden": Default("4 * hidden", lambda v: v["hidden"] and 4 * v["hidden"]),
    "vocab": Default("51200, the padded vocabulary of GPT-2", lambda v: 51200),
    "gpus_per_node": Default("8", lambda v: 8),
    "precision": Default("bf16", lambda v: "bf16"),
    # Short sequences have small score matrices; fused attention, which never stores them, came with long sequences.
    "flash": Default("1 where seq > 2048, else 0", lambda v: (v["seq"] or 0) > 2048),
    "kernels": Default("a fused one for each norm and softmax", lambda v: FUSABLE, matters=_has_unfused_variants),
    "tp": Default("1", lambda v: 1),
    "pp": Default("1", lambda v: 1),
    "cp": Default("1", lambda v: 1, matters=lambda v: (v["n_gpus"] or 1) > 1),
    "dp": Default("n_gpus / (tp * pp * cp)", _replicas),
    "ep": Default("1", lambda v: 1, matters=_has_experts),
    "vpp": Default(
        "1; with an interleaved schedule chunks of two layers", _virtual_stages, matters=lambda v: v["pp"] > 1
    ),
    "sp": Default("1 where tp > 1 and tp * cp divides seq", _sequence_parallel, matters=lambda v: v["tp"] > 1),
    "etp": Default(
        "tp where sp, ffn_hidden and the ranks allow it, else 1",
        _expert_tensor_parallel,
        matters=lambda v: _has_experts(v) and v["tp"] > 1,
    ),
    "zero_stage": Default("1, a distributed optimizer", lambda v: 1, matters=lambda v: (v["dp"] or 1) > 1),
    "microbatch": Default("1; with zero_stage 3 and pp > 1 as many microbatches as pp * vpp chunks", _microbatch),
    # dsx.predict.missing_recompute infers it.
    "recompute": Default("the fastest value under which the run fits", lambda v: "none"),
}


def fill(values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a row's values with the missing ones filled, and the columns whose default matters in this row."""
    filled, used = dict(values), []
    for column, default in DEFAULTS.items():
        if filled[column] is None:
            filled[column] = default.value(filled)
            if filled[column] is not None and default.matters(filled):
                used.append(column)
    if not _has_experts(filled):
        filled |= {"experts": 0, "topk": 1, "etp": 1}
    return filled, tuple(used)
