"""A row of a run table completed: defaults for its missing values, and the rules that a training run obeys.

Each default is what most frameworks do by themselves, the same for every source. Uses are counted and shown, so that an
error can be traced to a default.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from dsx.runs.notes import names_interleaving
from dsx.runs.table import FUSABLE, TIMES, UnmodelledError, Values
from dsx.text import Data


@dataclass(frozen=True, slots=True)
class Default:
    """The default of a column, and the rows in which the column matters."""

    rule: str  # in words
    value: Callable[[Values], object]  # from the values of earlier columns in DEFAULTS; None = stays missing
    matters: Callable[[Values], bool] = lambda values: True


def _has_experts(values: Values) -> bool:
    return (values["experts"] or 0) > 1  # one expert is a dense model


def _virtual_stages(values: Values) -> int:
    """Return the chunks of a stage; in an interleaved schedule without a degree, chunks have two layers if possible.

    Published interleaved plans have chunks of one to four layers, most of them two (MegaScale, arXiv 2402.15627,
    section 6: six chunks on each of eight stages of 96 layers; NVIDIA's recipes of NeMo). Embedding and head count as
    layers where the layers alone do not divide.
    """
    layers, pp = values["layers"], values["pp"]
    if not layers or pp == 1 or not names_interleaving(values):
        return 1
    per_stage = next((count // pp for count in (layers, layers + 2) if count % pp == 0), layers // pp)
    chunks = [count for count in range(2, per_stage + 1) if per_stage % count == 0]
    return max((count for count in chunks if 2 * count <= per_stage), default=chunks[0] if chunks else 1)


def _expert_tensor_parallel(values: Values) -> int:
    """Return tp where it can divide the experts too, which is Megatron-Core's default, else 1."""
    tp, ranks = values["tp"], values["tp"] * values["cp"] * (values["dp"] or 1)
    divides = (values["ffn_hidden"] or 0) % tp == 0 and ranks % (values["ep"] * tp) == 0
    return tp if values["sp"] and divides else 1


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
    # Layers with neither gates nor experts have layer norms, and every framework has a fused kernel for those.
    "kernels": Default(
        "a fused one for each norm and softmax",
        lambda v: FUSABLE,
        matters=lambda v: v["gated_mlp"] or _has_experts(v) or not v["flash"],
    ),
    "tp": Default("1", lambda v: 1),
    "pp": Default("1", lambda v: 1),
    "cp": Default("1", lambda v: 1, matters=lambda v: (v["n_gpus"] or 1) > 1),
    # With a remainder the product of the degrees is not n_gpus, which a rule below reports.
    "dp": Default(
        "n_gpus / (tp * pp * cp)", lambda v: v["n_gpus"] and max(v["n_gpus"] // (v["tp"] * v["pp"] * v["cp"]), 1)
    ),
    "ep": Default("1", lambda v: 1, matters=_has_experts),
    "vpp": Default(
        "1; with an interleaved schedule chunks of two layers", _virtual_stages, matters=lambda v: v["pp"] > 1
    ),
    "sp": Default(
        "1 where tp > 1 and tp * cp divides seq",
        lambda v: v["tp"] > 1 and (v["seq"] or 0) % (v["tp"] * v["cp"]) == 0,
        matters=lambda v: v["tp"] > 1,
    ),
    "etp": Default(
        "tp where sp, ffn_hidden and the ranks allow it, else 1",
        _expert_tensor_parallel,
        matters=lambda v: _has_experts(v) and v["tp"] > 1,
    ),
    "zero_stage": Default("1, a distributed optimizer", lambda v: 1, matters=lambda v: (v["dp"] or 1) > 1),
    # Sharded weights in a pipeline are PyTorch's parallelisms: torch.distributed.pipelining cuts a batch into as many
    # microbatches as there are chunks, unless a configuration states the number (TorchTitan, ParallelismConfig).
    "microbatch": Default(
        "1; with zero_stage 3 and pp > 1 as many microbatches as pp * vpp chunks",
        lambda v: (
            1
            if v["zero_stage"] < 3 or v["pp"] == 1
            else max((v["global_batch"] or 0) // (v["dp"] * v["pp"] * v["vpp"]), 1)
        ),
    ),
    # dsx.runs.predict infers it.
    "recompute": Default("the fastest value under which the run fits", lambda v: "none"),
}


def fill(values: Values) -> tuple[Data, tuple[str, ...]]:
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


@dataclass(frozen=True, slots=True)
class RowRule:
    """A condition on the columns of a row, which its message shows with their values."""

    reason: str  # if it does not hold
    columns: tuple[str, ...]
    holds: Callable[[Values], bool]


NEEDED = ("layers", "hidden", "seq", "gpu", "n_gpus", "global_batch")  # they have no default


def _divides(parts: str, multiple: str, unless: Callable[[Values], bool] = lambda values: False) -> RowRule:
    """Return the rule that the product of `parts` divides the product of `multiple`, as in "ep * etp", "experts"."""
    columns, multiples = parts.split(" * "), multiple.split(" * ")

    def holds(values: Values) -> bool:
        return unless(values) or prod(map(values.__getitem__, multiples)) % prod(map(values.__getitem__, columns)) == 0

    return RowRule(f"{parts} does not divide {multiple}", (*columns, *multiples), holds)


# Embedding and head count as layers of a pipeline here, since stages may be uneven.
RULES = (
    RowRule(
        "tp * pp * cp * dp is not n_gpus",
        ("tp", "pp", "cp", "dp", "n_gpus"),
        lambda v: v["tp"] * v["pp"] * v["cp"] * v["dp"] == v["n_gpus"],
    ),
    _divides("ep", "tp * cp * dp"),
    RowRule("etp is neither 1 nor tp", ("etp", "tp"), lambda v: v["etp"] in (1, v["tp"])),
    _divides("ep * etp", "tp * cp * dp"),
    RowRule("ep without experts", ("ep", "experts"), lambda v: v["ep"] == 1 or v["experts"] > 1),
    _divides("ep", "experts"),
    RowRule("experts without a topk", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] > 0),
    RowRule("topk is more than experts", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] <= v["experts"]),
    _divides("microbatch * dp", "global_batch"),
    RowRule(
        "pp * vpp is more than layers with embedding and head",
        ("pp", "vpp", "layers"),
        lambda v: v["pp"] * v["vpp"] <= v["layers"] + 2,
    ),
    RowRule("vpp without pp", ("vpp", "pp"), lambda v: v["vpp"] == 1 or v["pp"] > 1),
    _divides("kv_heads", "heads"),
    _divides("tp", "heads"),
    RowRule(
        "neither of tp and kv_heads divides the other",
        ("tp", "kv_heads"),
        lambda v: v["kv_heads"] % v["tp"] == 0 or v["tp"] % v["kv_heads"] == 0,
    ),
    _divides("tp", "ffn_hidden", unless=lambda v: bool(v["experts"])),
    _divides("cp", "seq"),
    RowRule(
        "tp * cp does not divide seq, with sp",
        ("tp", "cp", "seq"),
        lambda v: not v["sp"] or v["seq"] % (v["tp"] * v["cp"]) == 0,
    ),
    RowRule(
        "tp * cp does not divide the tokens that are routed to experts",
        ("tp", "cp", "microbatch", "seq"),
        lambda v: v["experts"] <= 1 or v["microbatch"] * v["seq"] % (v["tp"] * v["cp"]) == 0,
    ),
    RowRule(
        "out of memory, but with a time",
        ("oom", *TIMES),
        lambda v: not v["oom"] or all(v[column] is None for column in TIMES),
    ),
)


def check_possible(values: Values) -> None:
    """Raise UnmodelledError if a filled row cannot be a training run."""
    if blank := [column for column in NEEDED if values[column] is None]:
        raise UnmodelledError("a column without a default is blank", ", ".join(blank))
    for rule in RULES:
        if not rule.holds(values):
            raise UnmodelledError(rule.reason, ", ".join(f"{column}={values[column]}" for column in rule.columns))
