"""What a blank cell of a run table stands for: one table, the same for every source.

Each default is what most frameworks do where nobody says otherwise. Where one was used is counted and shown, so that
an error can be traced to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsx.runs.kernels import ALL

Values = Mapping[str, Any]  # the cells of a row by column, None where blank


@dataclass(frozen=True, slots=True)
class Default:
    """What is taken for a blank cell, and in which rows the column says anything at all."""

    rule: str  # for people
    value: Callable[[Values], Any]  # from the cells before it in the table; None = it stays blank
    matters: Callable[[Values], bool] = lambda values: True


def _has_experts(values: Values) -> bool:
    return (values["experts"] or 0) > 1  # one expert is a dense model


def _norm_or_softmax_of_its_own(values: Values) -> bool:
    # Plain layers without experts have layer norms, which have a kernel everywhere.
    return values["gated_mlp"] or _has_experts(values) or not values["flash"]


def _replicas(values: Values) -> int | None:
    # A remainder shows in the product of the degrees, which is then not n_gpus.
    model_parallel = values["tp"] * values["pp"] * values["cp"]
    return values["n_gpus"] and max(values["n_gpus"] // model_parallel, 1)


def _sequence_parallel(values: Values) -> bool:
    return values["tp"] > 1 and (values["seq"] or 0) % (values["tp"] * values["cp"]) == 0


# In this order: a later one may use an earlier one.
DEFAULTS: dict[str, Default] = {
    "heads": Default("hidden / 128", lambda v: v["hidden"] and max(v["hidden"] // 128, 1)),
    "kv_heads": Default("heads", lambda v: v["heads"]),
    "experts": Default("0, a dense model", lambda v: 0, matters=lambda v: bool(v["topk"])),
    "topk": Default("2", lambda v: 2, matters=_has_experts),
    "gated_mlp": Default("1 with experts, else 0", _has_experts),
    "ffn_hidden": Default("4 * hidden", lambda v: v["hidden"] and 4 * v["hidden"]),
    "vocab": Default("51200, that of GPT-2 padded", lambda v: 51200),
    "gpus_per_node": Default("8", lambda v: 8),
    "precision": Default("bf16", lambda v: "bf16"),
    # Scores of a short sequence are few, and kernels that never store them came with long ones.
    "flash": Default("1 where seq > 2048, else 0", lambda v: (v["seq"] or 0) > 2048),
    "kernels": Default("one for each norm and softmax", lambda v: ALL, matters=_norm_or_softmax_of_its_own),
    "tp": Default("1", lambda v: 1),
    "pp": Default("1", lambda v: 1),
    "cp": Default("1", lambda v: 1, matters=lambda v: (v["n_gpus"] or 1) > 1),
    "dp": Default("n_gpus / (tp * pp * cp)", _replicas),
    "ep": Default("1", lambda v: 1, matters=_has_experts),
    "vpp": Default("1", lambda v: 1, matters=lambda v: v["pp"] > 1),
    "sp": Default("1 where tp > 1 and tp * cp divides seq", _sequence_parallel, matters=lambda v: v["tp"] > 1),
    "zero_stage": Default("1, a distributed optimizer", lambda v: 1, matters=lambda v: (v["dp"] or 1) > 1),
    "microbatch": Default("1", lambda v: 1),
    "recompute": Default("none where it fits so, else full", lambda v: "none"),  # dsx.predict.unstated
}


def fill(values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a row's cells with the blank ones filled, and the columns whose default matters there."""
    filled, used = dict(values), []
    for column, default in DEFAULTS.items():
        if filled[column] is None:
            filled[column] = default.value(filled)
            if filled[column] is not None and default.matters(filled):
                used.append(column)
    if not _has_experts(filled):
        filled |= {"experts": 0, "topk": 1}
    return filled, tuple(used)
