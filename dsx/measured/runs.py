"""A run table: published or own measurements of training runs, one row each.

A table is a CSV file with the columns of `Run`, in any order; further columns are allowed and ignored. A blank cell is
a value that the source does not print. Of the columns only `REQUIRED` must be there: a column that is left out is
blank in every row. Reading is strict, since a misspelt column would be a blank one.
"""

import csv
import difflib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dsx.errors import RunTableError, SpecError, did_you_mean
from dsx.spec.locate import find_path
from dsx.spec.quantities import LARGEST_COUNT
from dsx.units import parse_number


@dataclass(frozen=True, slots=True)
class Run:
    """One row as it was printed; None is a blank cell. Degrees are bare, batches are in sequences."""

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
    n_gpus: int | None
    tp: int | None
    sp: bool | None
    pp: int | None
    vpp: int | None
    dp: int | None  # replicas of the dense part
    cp: int | None
    ep: int | None  # expert groups lie inside tp x cp x dp
    zero_stage: int | None
    microbatch: int | None  # sequences
    global_batch: int | None  # sequences
    recompute: str | None
    schedule: str | None  # an addition to the published format
    flash: bool | None  # False = unfused attention
    precision: str | None
    framework: str | None
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


def read_runs(path: str | Path) -> list[Run]:
    """Return the rows of a run table.

    Raises SpecError for a path that is no file, RunTableError with file, line, column and value for anything
    that cannot be read: a required column that is missing, a cell that is no value of its column.
    """
    file = find_path("run table", str(path))
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            runs = list(_rows(csv.reader(text, strict=True), str(path)))
    except OSError as error:
        raise RunTableError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunTableError(f"{path}: is no CSV file in UTF-8: {error}") from error
    if not runs:
        raise RunTableError(f"{path}: has no rows below its header")
    first: dict[str, int] = {}
    for run in runs:
        if run.id in first:
            raise RunTableError(f"{path}:{run.line}: id: {run.id!r} stands in line {first[run.id]} already")
        first[run.id] = run.line
    return runs


def _rows(reader: Any, path: str) -> Iterator[Run]:
    header = [name.strip() for name in next(reader, [])]
    _check_header(header, path)
    places = {name: header.index(name) for name in COLUMNS if name in header}
    line = reader.line_num + 1
    for cells in reader:
        # A quoted cell may span lines: a row is named by the line that it begins in.
        here, line = line, reader.line_num + 1
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise RunTableError(f"{path}:{here}: has {len(cells)} cells, but the header has {len(header)} columns")
        values: dict[str, Any] = dict.fromkeys(COLUMNS)
        for name, place in places.items():
            values[name] = _cell(cells[place].strip(), name, f"{path}:{here}")
        yield Run(line=here, **values)


def _cell(text: str, name: str, place: str) -> Any:
    if not text:
        if name in IDENTITY:
            raise RunTableError(f"{place}: {name}: is blank; every row needs one")
        return None
    try:
        return COLUMNS[name](text)
    except (ValueError, SpecError) as error:
        raise RunTableError(f"{place}: {name}: {error}") from None


def _check_header(header: list[str], path: str) -> None:
    if not any(header):
        raise RunTableError(f"{path}:1: is empty: a run table begins with the names of its columns")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise RunTableError(f"{path}:1: column {twice[0]!r} stands there twice")
    others = [name for name in header if name not in COLUMNS]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        said = ", ".join(f"{name!r}{did_you_mean(name, others)}" for name in missing)
        raise RunTableError(f"{path}:1: lacks the column{'s' if len(missing) > 1 else ''} {said}")
    if not any(name in header for name in MEASUREMENTS):
        raise RunTableError(f"{path}:1: has no measurement: one of the columns {', '.join(MEASUREMENTS)} is needed")
    absent = [name for name in COLUMNS if name not in header and name not in ADDITIONS]
    for name in others:
        if near := difflib.get_close_matches(name, absent, n=1, cutoff=0.8):
            raise RunTableError(f"{path}:1: column {name!r} is not known; did you mean {near[0]!r}?")


def _integer(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = parse_number(text)
        if value != int(value) or not least <= value <= LARGEST_COUNT:
            raise ValueError(f"{text!r} is not a whole number from {least} to {LARGEST_COUNT}")
        return int(value)

    return read


def _flag(text: str) -> bool:
    known = {"0": False, "1": True, "false": False, "true": True}
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
    if text not in ("0", "1", "2", "3"):
        raise ValueError(f"{text!r} is no ZeRO stage: 0, 1, 2 or 3")
    return int(text)


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
}

# Every column with what reads its cells.
COLUMNS: dict[str, Callable[[str], Any]] = {
    field.name: _OWN_READERS.get(field.name) or _READERS[field.type] for field in fields(Run) if field.name != "line"
}
IDENTITY = ("id", "source_id")
REQUIRED = (
    *IDENTITY,
    *("layers", "hidden", "ffn_hidden", "heads", "seq", "vocab"),
    *("gpu", "gpus_per_node", "n_gpus", "precision"),
    *("tp", "pp", "dp", "microbatch", "global_batch"),
)
MEASUREMENTS = (
    *("measured_iter_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu", "measured_mfu"),
    *("measured_mem_gb", "oom"),
)
ADDITIONS = ("head_dim", "schedule")
