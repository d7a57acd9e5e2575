"""A run table: published or own measurements of training runs, one row each.

Advice for cells of a run table that have a unit, such as "26.5 s".

The name of a column implies its unit, so its cells are plain numbers. A number in another unit of the same dimension is
converted, so that the advice means the value that was written.

The column `kernels`: which operators ran as one fused kernel.

Most frameworks fuse an RMS norm, and a softmax outside fused attention; a row without a value is assumed to fuse both.
An operator that is not fused runs step by step, in float32. Fused attention has its own column (`flash`).

The network of a node that a row states; it replaces the one in the cluster file of the GPU.

Nodes with the same GPU are sold and rented with one NIC or with eight, and a run table says which. If the cluster has a
topology, its other links do not change.

A run table: published or own measurements of training runs, one row each.

A table is a CSV file with the columns of `Run`; `n_gpus` and a few others may be called as in result sets (`IN_PLANS`).
A blank cell is a missing value: the source does not print it. Only the columns in `REQUIRED` must be present; a column
that is left out is blank in every row.

Why a row cannot be modelled: the rule that it breaks, and the values that break it.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from dsx.config.assumption_set import DISPATCHERS, Unfusable
from dsx.config.cluster_file import ClusterSpec
from dsx.config.csv_table import CsvFormat, CsvRow, read_csv, whole_number
from dsx.config.search_path import find_path
from dsx.config.topology import changed_network
from dsx.errors import RunTableError, SpecError, UnitError, did_you_mean
from dsx.plans.choices import BY_NAME, STEP_SEARCHED
from dsx.units import REAL, Dimension, format_quantity, parse_number, parse_quantity, written_out

_NUMBER_AND_UNIT = re.compile(rf"({REAL})\s*([^\W\d_].*|%)")

# The unit of a column, in words.
_IN = {
    "measured_iter_s": "seconds",
    "measured_tokens_per_s_per_gpu": "tokens per second",
    "measured_tflops_per_gpu": "TFLOP/s",
    "measured_mfu": "fractions of 1",
    "measured_mem_gb": "the unit that mem_unit names",
}
_WITH_UNIT = ("node_network",)  # columns whose cells have one
# The dimension of a column, and the SI value of its unit.
_DIMENSIONS: dict[str, tuple[Dimension, float]] = {
    "measured_iter_s": ("s", 1.0),
    "measured_tflops_per_gpu": ("flop/s", 1e12),
}


def without_unit(text: str, column: str) -> str:
    """Return the error for a cell that is a number with a unit, with what to write; empty for any other text."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or column in _WITH_UNIT:
        return ""
    number, unit = match[1], match[2]
    inside = f", in {_IN[column]}" if column in _IN else ""
    return f"{text!r} has a unit; this column holds plain numbers{inside}: write {_advised(number, unit, text, column)}"


def _advised(number: str, unit: str, text: str, column: str) -> str:
    if column == "measured_mem_gb":
        return f"{number}, and {unit} in the column mem_unit"
    if unit == "%":
        return f"{float(number) / 100:.15g}"
    if column not in _DIMENSIONS:
        return written_out(text) or number
    dimension, factor = _DIMENSIONS[column]
    try:
        return f"{parse_quantity(text, dimension) / factor:.15g}"
    except UnitError:
        return f"the number in {_IN[column]}"


FUSABLE: frozenset[Unfusable] = frozenset(get_args(Unfusable))  # operators that may run as one kernel or as several
_NONE = "none"
_KNOWN = f"{', '.join(sorted(FUSABLE))}, both as {' + '.join(sorted(FUSABLE))!r}, or none"


def kernels(text: str) -> frozenset[Unfusable]:
    """Return the operators that `text` lists as fused: "norm", "norm + softmax", "none".

    Raises ValueError for any other word.
    """
    words = [word.strip().lower() for word in re.split(r"[+,]", text)]
    for word in words:
        if word not in (*FUSABLE, _NONE):
            near = did_you_mean(word, [*FUSABLE, _NONE])
            raise ValueError(f"{word!r} is not an operator of this column{near} ({_KNOWN})")
    if _NONE in words and len(words) > 1:
        raise ValueError(f"{text!r} lists none with other operators ({_KNOWN})")
    return frozenset(operator for operator in FUSABLE if operator in words)


_NICS = re.compile(r"([0-9]{1,4})\s*x\s*")


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The bandwidth from a node to others, in bytes/s per direction."""

    bandwidth: float | None  # of all its NICs; None = as many NICs as in the cluster file
    nic_bandwidth: float | None  # of each; None = not stated


def node_network(text: str) -> NodeNetwork:
    """Return the network that `text` states: "400 Gb/s" for the node, or "4x100 Gb/s" for its NICs.

    Raises ValueError for any other text.
    """
    nics = _NICS.match(text)
    try:
        each = parse_quantity(text[nics.end() :] if nics else text, "bytes/s")
    except UnitError:
        each = math.nan
    total = each * int(nics[1]) if nics else each
    if not 0 < total < math.inf:
        raise ValueError(
            f"{text!r} is not the network of a node: write for example '400 Gb/s', or '4x100 Gb/s' for its NICs"
        )
    return NodeNetwork(total, each if nics else None)


def with_node_network(cluster: ClusterSpec, network: NodeNetwork, gpus_per_node: int) -> ClusterSpec:
    """Return the cluster with this network for its nodes, shared equally by the GPUs of a node.

    If the NIC bandwidth is not stated, the cluster's own applies, up to the bandwidth of the node. If the NIC bandwidth
    alone is stated, the number of NICs is the cluster's own.
    """
    known = cluster.network.net.nic_bandwidth or cluster.network.net.bandwidth
    stated = network.bandwidth
    if stated is None:
        stated = gpus_per_node * cluster.network.net.bandwidth * (network.nic_bandwidth or known) / known
    share = stated / gpus_per_node
    nic = network.nic_bandwidth or min(known, stated)
    changed = changed_network(cluster.network, {"net.bandwidth": share, "net.nic_bandwidth": max(nic, share)})
    name = f"{cluster.name}, {format_quantity(stated, 'bytes/s')} to a node"
    return cluster.model_copy(update={"name": name, "network": changed})


# Column of a plan -> its name in a run table, where the two differ; a table may have either.
IN_PLANS = {
    "num_gpus": "n_gpus",
    "global_batch_size": "global_batch",
    "sequence_length": "seq",
    "microbatch_size": "microbatch",
}
# A word of the column cross_entropy -> the bytes per logit that it keeps (data/operators/standard.yaml).
CROSS_ENTROPY = {"fused": 2, "unfused": 12}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One row as printed; None is a blank cell. Batches are in sequences."""

    line: int  # of the file, from 1; the header is line 1
    id: str
    source_id: str
    source: str | None
    year: int | None
    model: str | None
    layers: int | None  # without embedding and head
    hidden: int | None
    ffn_hidden: int | None  # of one expert where there are experts
    heads: int | None
    kv_heads: int | None
    head_dim: int | None  # an addition to the published format
    seq: int | None  # tokens of a sequence
    vocab: int | None
    experts: int | None  # 0 = a dense model
    topk: int | None
    gated_mlp: bool | None
    gpu: str | None
    gpus_per_node: int | None
    node_network: NodeNetwork | None  # an addition to the published format
    n_gpus: int | None
    tp: int | None
    sp: bool | None
    pp: int | None
    vpp: int | None
    dp: int | None  # replicas of the dense part
    cp: int | None
    ep: int | None  # divides tp * cp * dp
    etp: int | None  # ranks that divide each expert; an addition to the published format
    dispatcher: str | None  # of tokens to experts; an addition to the published format
    zero_stage: int | None
    microbatch: int | None  # sequences
    global_batch: int | None  # sequences
    recompute: str | None
    schedule: str | None  # an addition to the published format
    stage_layers: str | None  # an addition to the published format
    flash: bool | None  # False = unfused attention
    kernels: frozenset[str] | None  # operators that ran as one fused kernel; an addition to the published format
    cross_entropy: str | None  # fused or unfused; an addition to the published format
    gradient_bytes: int | None  # per element, 2 or 4; an addition to the published format
    precision: str | None
    framework: str | None
    software: str | None  # framework and release, or the name of a stack
    measured_iter_s: float | None
    measured_tokens_per_s_per_gpu: float | None
    measured_tflops_per_gpu: float | None
    flops_kind: str | None
    measured_mfu: float | None  # a fraction
    measured_mem_gb: float | None  # in the unit that mem_unit names
    mem_unit: str | None
    oom: bool | None
    trust: str | None
    source_confidence: str | None
    notes: str | None
    # Other choices of the step, by name, as codes; an addition to the published format.
    further: tuple[tuple[str, int], ...] = ()


def read_runs(path: str | Path) -> list[MeasuredRun]:
    """Return the rows of a run table.

    Raises SpecError if the path is not a file, and RunTableError with file, line, column and value for anything that
    cannot be read: a required column that is missing, a cell that its column does not accept.
    """
    file = find_path("run table", str(path))
    table = read_csv(file, str(path), FORMAT)
    if not any(name in table.header.cells for name in MEASUREMENTS):
        place, needed = table.header.place, ", ".join(MEASUREMENTS)
        raise RunTableError(f"{place}: has no measurement; it needs one of the columns {needed}")
    runs = [_run(row) for row in table.rows]
    first: dict[str, int] = {}
    for run in runs:
        if run.id in first:
            raise RunTableError(f"{path}:{run.line}: id: {run.id!r} is already in line {first[run.id]}")
        first[run.id] = run.line
    return runs


def _run(row: CsvRow) -> MeasuredRun:
    cells = {name: _cell(row.cells.get(name, ""), name, row.place) for name in COLUMNS}
    further = tuple((name, cells.pop(name)) for name in FURTHER)
    return MeasuredRun(
        line=row.line, **cells, further=tuple((name, code) for name, code in further if code is not None)
    )


def _cell(text: str, name: str, place: str) -> Any:
    if not text:
        if name in IDENTITY:
            raise RunTableError(f"{place}: {name}: is blank; every row needs one")
        return None
    try:
        return COLUMNS[name](text)
    except (ValueError, SpecError) as error:
        raise RunTableError(f"{place}: {name}: {without_unit(text, name) or error}") from None


def _integer(least: int) -> Callable[[str], int]:
    return lambda text: whole_number(text, least)


def _flag(text: str) -> bool:
    # pandas writes whole numbers as 0.0 and 1.0 where a column has missing values.
    known = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
    if text.lower() not in known:
        raise ValueError(f"{text!r} is neither 0 nor 1")
    return known[text.lower()]


def _positive(text: str) -> float:
    value = float(parse_number(text))
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{text!r} is not above 0")
    return value


def _fraction(text: str) -> float:
    value = _positive(text)
    if value > 1:
        raise ValueError(f"{text!r} is not a fraction of at most 1; {text} % is {value / 100:g}")
    return value


def _stage(text: str) -> int:
    stage = parse_number(text)
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"{text!r} is not a ZeRO stage: 0, 1, 2 or 3")
    return int(stage)


def _cross_entropy(text: str) -> str:
    if text.lower() not in CROSS_ENTROPY:
        raise ValueError(
            f"{text!r} is neither {' nor '.join(CROSS_ENTROPY)}{did_you_mean(text.lower(), CROSS_ENTROPY)}"
        )
    return text.lower()


def _gradient_bytes(text: str) -> int:
    size = parse_number(text)
    if size not in (2, 4):
        raise ValueError(f"{text!r} is not the bytes of a gradient: 2 (BF16, FP16) or 4 (FP32)")
    return int(size)


def _dispatcher(text: str) -> str:
    if text not in DISPATCHERS:
        raise ValueError(f"{text!r} is not one of {', '.join(DISPATCHERS)}{did_you_mean(text, DISPATCHERS)}")
    return text


_READERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    str | None: str,
    int | None: _integer(1),
    bool | None: _flag,
    float | None: _positive,
}
_OWN_READERS = {
    "experts": _integer(0),
    "topk": _integer(0),
    "zero_stage": _stage,
    "measured_mfu": _fraction,
    "kernels": kernels,
    "cross_entropy": _cross_entropy,
    "gradient_bytes": _gradient_bytes,
    "dispatcher": _dispatcher,
    "node_network": node_network,
}

_OWN = [field for field in fields(MeasuredRun) if field.name not in ("line", "further")]
FURTHER = tuple(name for name in STEP_SEARCHED if name not in MeasuredRun.__dataclass_fields__)


def _coded(name: str) -> Callable[[str], int]:
    choice = BY_NAME[name]
    return lambda text: choice.code(text if choice.names else whole_number(text, choice.least))


# Column -> the function that reads its cells.
COLUMNS: dict[str, Callable[[str], Any]] = {
    **{field.name: _OWN_READERS.get(field.name) or _READERS[field.type] for field in _OWN},
    **{name: _coded(name) for name in FURTHER},
}
IDENTITY = ("id", "source_id")
REQUIRED = (
    *IDENTITY,
    *("layers", "hidden", "ffn_hidden", "heads", "seq", "vocab"),
    *("gpu", "gpus_per_node", "n_gpus", "precision"),
    *("tp", "pp", "dp", "microbatch", "global_batch"),
)
TIMES = ("measured_iter_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu", "measured_mfu")
MEASUREMENTS = (*TIMES, "measured_mem_gb", "oom")
FORMAT = CsvFormat(
    subject="a run table begins",
    error=RunTableError,
    required=REQUIRED,
    optional=tuple(name for name in COLUMNS if name not in REQUIRED),
    also_called=IN_PLANS,
)


@dataclass(frozen=True, slots=True)
class UnmodelledReason:
    """Why a row cannot be modelled; reports count rows by `rule`."""

    rule: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.rule} ({self.detail})" if self.detail else self.rule


@dataclass(frozen=True, slots=True)
class RowRule:
    """A condition on the columns of a row, which its message shows with their values."""

    reason: str  # if it does not hold
    columns: tuple[str, ...]
    holds: Callable[[Mapping[str, Any]], bool]


NEEDED = ("layers", "hidden", "seq", "gpu", "n_gpus", "global_batch")  # they have no default


def _divides(part: int, whole: int) -> bool:
    return whole % part == 0


# Embedding and head count as layers of a pipeline here, since stages may be uneven.
RULES = (
    RowRule(
        "tp * pp * cp * dp is not n_gpus",
        ("tp", "pp", "cp", "dp", "n_gpus"),
        lambda v: v["tp"] * v["pp"] * v["cp"] * v["dp"] == v["n_gpus"],
    ),
    RowRule(
        "ep does not divide tp * cp * dp",
        ("ep", "tp", "cp", "dp"),
        lambda v: _divides(v["ep"], v["tp"] * v["cp"] * v["dp"]),
    ),
    RowRule("etp is neither 1 nor tp", ("etp", "tp"), lambda v: v["etp"] in (1, v["tp"])),
    RowRule(
        "ep * etp does not divide tp * cp * dp",
        ("ep", "etp", "tp", "cp", "dp"),
        lambda v: _divides(v["ep"] * v["etp"], v["tp"] * v["cp"] * v["dp"]),
    ),
    RowRule("ep without experts", ("ep", "experts"), lambda v: v["ep"] == 1 or v["experts"] > 1),
    RowRule("ep does not divide experts", ("ep", "experts"), lambda v: _divides(v["ep"], v["experts"])),
    RowRule("experts without a topk", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] > 0),
    RowRule("topk is more than experts", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] <= v["experts"]),
    RowRule(
        "microbatch * dp does not divide global_batch",
        ("microbatch", "dp", "global_batch"),
        lambda v: _divides(v["microbatch"] * v["dp"], v["global_batch"]),
    ),
    RowRule(
        "pp * vpp is more than layers with embedding and head",
        ("pp", "vpp", "layers"),
        lambda v: v["pp"] * v["vpp"] <= v["layers"] + 2,
    ),
    RowRule("vpp without pp", ("vpp", "pp"), lambda v: v["vpp"] == 1 or v["pp"] > 1),
    RowRule("kv_heads does not divide heads", ("kv_heads", "heads"), lambda v: _divides(v["kv_heads"], v["heads"])),
    RowRule("tp does not divide heads", ("tp", "heads"), lambda v: _divides(v["tp"], v["heads"])),
    RowRule(
        "neither of tp and kv_heads divides the other",
        ("tp", "kv_heads"),
        lambda v: _divides(v["tp"], v["kv_heads"]) or _divides(v["kv_heads"], v["tp"]),
    ),
    RowRule(
        "tp does not divide ffn_hidden",
        ("tp", "ffn_hidden"),
        lambda v: bool(v["experts"]) or _divides(v["tp"], v["ffn_hidden"]),
    ),
    RowRule("cp does not divide seq", ("cp", "seq"), lambda v: _divides(v["cp"], v["seq"])),
    RowRule(
        "tp * cp does not divide seq, with sp",
        ("tp", "cp", "seq"),
        lambda v: not v["sp"] or _divides(v["tp"] * v["cp"], v["seq"]),
    ),
    RowRule(
        "tp * cp does not divide the tokens that are routed to experts",
        ("tp", "cp", "microbatch", "seq"),
        lambda v: v["experts"] <= 1 or _divides(v["tp"] * v["cp"], v["microbatch"] * v["seq"]),
    ),
    RowRule(
        "out of memory, but with a time",
        ("oom", *TIMES),
        lambda v: not v["oom"] or all(v[column] is None for column in TIMES),
    ),
)


def impossible(values: Mapping[str, Any]) -> UnmodelledReason | None:
    """Return why a filled row cannot be a training run; None if it can."""
    blank = [column for column in NEEDED if values[column] is None]
    if blank:
        return UnmodelledReason("a column without a default is blank", ", ".join(blank))
    for rule in RULES:
        if not rule.holds(values):
            return UnmodelledReason(rule.reason, ", ".join(f"{column}={values[column]}" for column in rule.columns))
    return None
