"""A run table: published or own measurements of training runs, one row each.

A table is a CSV file with the columns of `MeasuredRun`; `n_gpus` and a few others may be called as in result sets
(`IN_PLANS`). A blank cell is a missing value: the source does not print it. Only the columns in `REQUIRED` must be
present; a column that is left out is blank in every row. A cell is a plain number in the unit of its column; the error
for a cell such as "26.5 s" says what to write.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from dsx.config.assumption_set import DISPATCHERS, Unfusable
from dsx.config.documents import CsvFormat, read_csv, whole_number
from dsx.config.search_path import find_path
from dsx.errors import RunTableError, SpecError, UnitError, did_you_mean
from dsx.plans.choices import BY_NAME, STEP_SEARCHED
from dsx.text import Data, DataView
from dsx.units import REAL, Dimension, parse_number, parse_quantity, written_out

Values = DataView  # the values of a row by column, None where missing

# Column of a plan -> its name in a run table, where the two differ; a table may have either.
IN_PLANS = {
    "num_gpus": "n_gpus",
    "global_batch_size": "global_batch",
    "sequence_length": "seq",
    "microbatch_size": "microbatch",
}
# A word of the column cross_entropy -> the bytes per logit that it keeps (data/operators/standard.yaml).
CROSS_ENTROPY = {"fused": 2, "unfused": 12}
FUSABLE: frozenset[Unfusable] = frozenset(get_args(Unfusable))  # operators that may run as one kernel or as several


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The bandwidth from a node to others, in bytes/s per direction."""

    bandwidth: float | None  # of all its NICs; None = as many NICs as in the cluster file
    nic_bandwidth: float | None  # of each; None = not stated


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
    head_dim: int | None
    seq: int | None  # tokens of a sequence
    vocab: int | None
    experts: int | None  # 0 = a dense model
    topk: int | None
    gated_mlp: bool | None
    gpu: str | None
    gpus_per_node: int | None
    node_network: NodeNetwork | None
    n_gpus: int | None
    tp: int | None
    sp: bool | None
    pp: int | None
    vpp: int | None
    dp: int | None  # replicas of the dense part
    cp: int | None
    ep: int | None  # divides tp * cp * dp
    etp: int | None  # ranks that divide each expert
    dispatcher: str | None  # of tokens to experts
    zero_stage: int | None
    microbatch: int | None  # sequences
    global_batch: int | None  # sequences
    recompute: str | None
    schedule: str | None
    stage_layers: str | None
    flash: bool | None  # False = unfused attention
    kernels: frozenset[str] | None  # operators that ran as one fused kernel
    cross_entropy: str | None  # fused or unfused
    gradient_bytes: int | None  # per element, 2 or 4
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
    # Other choices of the step, by name, as codes.
    further: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class UnmodelledReason:
    """Why a row cannot be modelled; reports count rows by `rule`."""

    rule: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.rule} ({self.detail})" if self.detail else self.rule


class UnmodelledError(Exception):
    """Raised while a row is read for the reason why it cannot be modelled."""

    def __init__(self, rule: str, detail: str = "") -> None:
        self.reason = UnmodelledReason(rule, detail)
        super().__init__(str(self.reason))


def read_runs(path: str | Path) -> list[MeasuredRun]:
    """Return the rows of a run table.

    Raises SpecError if the path is not a file, and RunTableError with file, line, column and value for anything that
    cannot be read: a required column that is missing, a cell that its column does not accept.
    """
    table = read_csv(find_path("run table", str(path)), str(path), FORMAT)
    if not any(name in table.header.cells for name in MEASUREMENTS):
        place, needed = table.header.place, ", ".join(MEASUREMENTS)
        raise RunTableError(f"{place}: has no measurement; it needs one of the columns {needed}")
    runs: list[MeasuredRun] = []
    for row in table.rows:
        cells: Data = {}
        for name, read in COLUMNS.items():
            text = row.cells.get(name, "")
            if not text and name in IDENTITY:
                raise RunTableError(f"{row.place}: {name}: is blank; every row needs one")
            try:
                cells[name] = read(text) if text else None
            except (ValueError, SpecError) as error:
                raise RunTableError(f"{row.place}: {name}: {without_unit(text, name) or error}") from None
        choices = tuple((name, code) for name in FURTHER if (code := cells.pop(name)) is not None)
        runs.append(MeasuredRun(line=row.line, **cells, further=choices))
    lines: dict[str, int] = {}
    for run in runs:
        if lines.setdefault(run.id, run.line) != run.line:
            raise RunTableError(f"{path}:{run.line}: id: {run.id!r} is already in line {lines[run.id]}")
    return runs


def node_network(text: str) -> NodeNetwork:
    """Return the network of "400 Gb/s" for a node, or "4x100 Gb/s" for its NICs; ValueError for another text."""
    nics = re.match(r"([0-9]{1,4})\s*x\s*", text)
    try:
        bandwidth = parse_quantity(text[nics.end() :] if nics else text, "bytes/s")
    except UnitError:
        bandwidth = math.nan
    total = bandwidth * int(nics[1]) if nics else bandwidth
    if not 0 < total < math.inf:
        raise ValueError(
            f"{text!r} is not the network of a node: write for example '400 Gb/s', or '4x100 Gb/s' for its NICs"
        )
    return NodeNetwork(total, bandwidth if nics else None)


def kernels(text: str) -> frozenset[Unfusable]:
    """Return the operators that `text` lists as fused: "norm", "norm + softmax", "none".

    A row without the column is assumed to fuse both, as most frameworks do: an RMS norm, and a softmax outside fused
    attention. An operator that is not fused runs step by step, in float32. Raises ValueError for any other word.
    """
    accepted = f"{', '.join(sorted(FUSABLE))}, both as {' + '.join(sorted(FUSABLE))!r}, or none"
    words = [word.strip().lower() for word in re.split(r"[+,]", text)]
    for word in words:
        if word not in (*FUSABLE, "none"):
            near = did_you_mean(word, [*FUSABLE, "none"])
            raise ValueError(f"{word!r} is not an operator of this column{near} ({accepted})")
    if "none" in words and len(words) > 1:
        raise ValueError(f"{text!r} lists none with other operators ({accepted})")
    return frozenset(operator for operator in FUSABLE if operator in words)


def _at_least(least: int) -> Callable[[str], int]:
    return lambda text: whole_number(text, least)


def _flag(text: str) -> bool:
    # pandas writes whole numbers as 0.0 and 1.0 where a column has missing values.
    flags = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
    if text.lower() not in flags:
        raise ValueError(f"{text!r} is neither 0 nor 1")
    return flags[text.lower()]


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


def _number_of(numbers: Sequence[int], fault: str) -> Callable[[str], int]:
    """Return the reader of one of a few numbers; `fault` ends the message about any other."""

    def read(text: str) -> int:
        number = parse_number(text)
        if number not in numbers:
            raise ValueError(f"{text!r} is not {fault}")
        return int(number)

    return read


def _cross_entropy(text: str) -> str:
    word = text.lower()
    if word not in CROSS_ENTROPY:
        raise ValueError(f"{text!r} is neither {' nor '.join(CROSS_ENTROPY)}{did_you_mean(word, CROSS_ENTROPY)}")
    return word


def _dispatcher(text: str) -> str:
    if text not in DISPATCHERS:
        raise ValueError(f"{text!r} is not one of {', '.join(DISPATCHERS)}{did_you_mean(text, DISPATCHERS)}")
    return text


def _code_of(name: str) -> Callable[[str], int]:
    choice = BY_NAME[name]
    return lambda text: choice.code(text if choice.names else whole_number(text, choice.least))


_BY_TYPE: dict[object, Callable[[str], object]] = {
    str: str,
    str | None: str,
    int | None: _at_least(1),
    bool | None: _flag,
    float | None: _positive,
}
_BY_COLUMN: dict[str, Callable[[str], object]] = {
    "experts": _at_least(0),
    "topk": _at_least(0),
    "zero_stage": _number_of((0, 1, 2, 3), "a ZeRO stage: 0, 1, 2 or 3"),
    "measured_mfu": _fraction,
    "kernels": kernels,
    "cross_entropy": _cross_entropy,
    "gradient_bytes": _number_of((2, 4), "the bytes of a gradient: 2 (BF16, FP16) or 4 (FP32)"),
    "dispatcher": _dispatcher,
    "node_network": node_network,
}
FURTHER = tuple(name for name in STEP_SEARCHED if name not in MeasuredRun.__dataclass_fields__)
# Column -> the function that reads its cells.
COLUMNS: dict[str, Callable[[str], object]] = {
    **{
        field.name: _BY_COLUMN.get(field.name) or _BY_TYPE[field.type]
        for field in fields(MeasuredRun)
        if field.name not in ("line", "further")
    },
    **{name: _code_of(name) for name in FURTHER},
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

# The unit of a column, in words.
_IN = {
    "measured_iter_s": "seconds",
    "measured_tokens_per_s_per_gpu": "tokens per second",
    "measured_tflops_per_gpu": "TFLOP/s",
    "measured_mfu": "fractions of 1",
    "measured_mem_gb": "the unit that mem_unit names",
}
# The dimension of a column, and the SI value of its unit.
_DIMENSIONS: dict[str, tuple[Dimension, float]] = {
    "measured_iter_s": ("s", 1.0),
    "measured_tflops_per_gpu": ("flop/s", 1e12),
}


def without_unit(text: str, column: str) -> str:
    """Return the error for a cell that is a number with a unit, with what to write; empty for any other text."""
    match = re.fullmatch(rf"({REAL})\s*([^\W\d_].*|%)", text)
    if match is None or column == "node_network":  # the one column whose cells have a unit
        return ""
    number, unit = match[1], match[2]
    if column == "measured_mem_gb":
        advice = f"{number}, and {unit} in the column mem_unit"
    elif unit == "%":
        advice = f"{float(number) / 100:.15g}"
    elif column not in _DIMENSIONS:
        advice = written_out(text) or number
    else:
        dimension, factor = _DIMENSIONS[column]
        try:
            advice = f"{parse_quantity(text, dimension) / factor:.15g}"
        except UnitError:
            advice = f"the number in {_IN[column]}"
    inside = f", in {_IN[column]}" if column in _IN else ""
    return f"{text!r} has a unit; this column holds plain numbers{inside}: write {advice}"
