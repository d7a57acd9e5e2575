"""A run table: published or own measurements of training runs, one row each.

A table is a CSV file with the columns of `Run`; `n_gpus` and a few others may be called as in result sets (`IN_PLANS`).
A blank cell is a missing value: the source does not print it. Only the columns in `REQUIRED` must be present; a column
that is left out is blank in every row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dsx.errors import RunTableError, SpecError, did_you_mean
from dsx.runs.cell_units import without_unit
from dsx.runs.fused_kernels import kernels
from dsx.runs.node_network import NodeNetwork, node_network
from dsx.space.choices import BY_NAME, STEP_SEARCHED
from dsx.spec.assumptions import DISPATCHERS
from dsx.spec.csv_table import CsvFormat, CsvRow, read_csv, whole_number
from dsx.spec.locate import find_path
from dsx.units import parse_number

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
class Run:
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


def read_runs(path: str | Path) -> list[Run]:
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


def _run(row: CsvRow) -> Run:
    cells = {name: _cell(row.cells.get(name, ""), name, row.place) for name in COLUMNS}
    further = tuple((name, cells.pop(name)) for name in FURTHER)
    return Run(line=row.line, **cells, further=tuple((name, code) for name, code in further if code is not None))


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

_OWN = [field for field in fields(Run) if field.name not in ("line", "further")]
FURTHER = tuple(name for name in STEP_SEARCHED if name not in Run.__dataclass_fields__)


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
