"""The candidates of a space: codes of the values that they take, shard keys, and an id for each.

Shard keys are the choices that decide what a layer costs. A key is a strategy, a microbatch size, the model-parallel
degrees with their shares of a fast domain, and the panels (rules: arXiv 2410.00273, released code). `dsx.plans.blocks`
combines keys to candidates.

A degree is any divisor of the GPU count. Panels are the largest degree times a power of two. Shares divide their
degrees and fill fast domains as far as the GPU count allows (`dsx.plans.rules.fills`), or are those of consecutive
ranks (`dsx.plans.placement`).

Codes are static structure. An id is the same in every run and on every machine. It hashes the choices alone, strategies
by name and not by code. It hashes nothing of the hardware, so result sets of different clusters join on it. It has 63
bits: among 10^8 candidates the chance of a collision is 1 in 2000.
"""

import functools
import hashlib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsx.config.framework_file import FrameworkSpec
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import BY_NAME, CHOICES, KEY_COLUMNS, MODEL_AXES, NAMED, SEARCHED_COLUMNS, Choice
from dsx.plans.experts import REPLICA_AXES, nesting_ranks, share_of_row, share_of_shares
from dsx.plans.frameworks import EVERYTHING, Boxes, Filter, codes_of, plans_of
from dsx.plans.placement import all_divisors, even_shares, rank_order_shares, uneven_shares
from dsx.plans.rules import Limits, fills, may_lie_unevenly, placed
from dsx.plans.violations import allowed
from dsx.records import Bool, Int, Over, Shaped, make_record, record, static

if TYPE_CHECKING:

    @record
    class SearchedCodes:
        """The values of a search for each of `SEARCHED_COLUMNS`: a tuple of codes, as static structure.

        An empty tuple of a number means every number that a plan may have. A column that is not given has its default.
        """

        ep: tuple[int, ...] = ()
        vpp: tuple[int, ...] = ()
        zero_stage: tuple[int, ...] = ()
        zero_replicas: tuple[int, ...] = ()
        recompute: tuple[int, ...] = ()
        stored_layers: tuple[int, ...] = ()
        schedule: tuple[int, ...] = ()
        offload: tuple[int, ...] = ()
        order: tuple[int, ...] = ()

else:
    SearchedCodes = make_record(
        "SearchedCodes",
        __name__,
        [(name, tuple[int, ...], static(default=(BY_NAME[name].default_code,))) for name in SEARCHED_COLUMNS],
    )


def searched_values(values: Mapping[str, Iterable[int | str]]) -> SearchedCodes:
    """Return the choices of a search from the values of some columns; every other column is free."""
    return SearchedCodes(**{name: tuple(map(int, values.get(name, BY_NAME[name].codes))) for name in SEARCHED_COLUMNS})


def with_values(searched: SearchedCodes, values: Mapping[str, tuple[int, ...]]) -> SearchedCodes:
    """Return the choices of a search with other values of some columns."""
    return SearchedCodes(**{**{name: getattr(searched, name) for name in SEARCHED_COLUMNS}, **values})


def first_searched(searched: SearchedCodes, choice: Choice) -> int:
    """Return the code that a plan has where it does not state a choice: the default, if the search may take it."""
    codes = getattr(searched, choice.name)
    return choice.default_code if not codes or choice.default_code in codes else codes[0]


def run_by(
    framework: FrameworkSpec, strategies: Sequence[str], experts: bool, searched: SearchedCodes
) -> SearchedCodes:
    """Return searched values without those that a framework runs with none of some strategies.

    A column of which it runs none is left alone: the search has no plan, and says why.
    """
    boxes = [codes_of(box) for box in plans_of(framework, strategies, experts)]
    values: dict[str, tuple[int, ...]] = {}
    for column in (name for name in SEARCHED_COLUMNS if all(name in box for box in boxes)):
        run = {code for box in boxes for code in box[column]}
        codes: tuple[int, ...] = getattr(searched, column) or tuple(sorted(run))
        values[column] = tuple(code for code in codes if code in run) or codes
    return with_values(searched, values)


_NUMBERS = tuple(choice.name for choice in CHOICES if choice.name not in NAMED and not choice.later)
# A choice that was added later is hashed only where it differs from its default, so that older ids stay the same.
_LATER = {choice.name: choice.default_code for choice in CHOICES if choice.later}
_Words = Shaped[np.ndarray, "words"]  # of 64 bits
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: _Words) -> _Words:
    """Return the SplitMix64 finaliser of each word (Steele, Lea and Flood, 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _words(names: Sequence[str]) -> _Words:
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


def candidate_ids(
    columns: Mapping[str, Int[np.ndarray, "plans"]], names: Mapping[str, Sequence[str]]
) -> Int[np.ndarray, "plans"]:
    """Return the int64 ids of candidates; `names` gives the names of the coded columns."""
    state = np.zeros(len(columns["tp"]), dtype=np.uint64)
    for column in sorted(names.keys() - _LATER.keys()):
        state = _mix(state ^ _words(names[column])[columns[column]])
    for column in _NUMBERS:
        state = _mix(state * _GOLDEN + columns[column].astype(np.uint64) + np.uint64(1))
    for column, default in _LATER.items():
        value = columns[column]
        word = _words(names[column])[value] if names.get(column) else value.astype(np.uint64)
        mixed = _mix((state ^ _words([column])[0]) * _GOLDEN + word + np.uint64(1))
        state = np.where(value != default, mixed, state)
    return (state >> np.uint64(1)).astype(np.int64)


Arrays = dict[str, Shaped[np.ndarray, "plans *_"]]  # columns of plans; one may have the layers of their chunks
Kept = Over[Arrays, "... kept"]  # some rows of such a table
Keys = dict[str, Int[np.ndarray, "keys"]]  # the columns of a key table

_CROSSED = 1 << 17  # degrees times microbatch sizes that are crossed at once
BOXES = "boxes"  # the column of a key table with the boxes that have a key, as bits


@dataclass(frozen=True, slots=True)
class SpaceBounds:
    """What is enumerated: the settings of a search, and the filters of `fix:` and `limit:`.

    A filter takes a table with some of the columns and returns the mask of rows to keep.
    """

    num_gpus: tuple[int, ...]
    global_batch_size: tuple[int, ...]
    sequence_length: int
    limits: Limits  # of any strategy
    searched: SearchedCodes
    keep_keys: Filter
    keep_choices: Filter
    expert_axes: tuple[tuple[str, ...], ...]  # per strategy: other axes that shard experts, besides ep
    tiers: tuple[str, ...] = ()  # names of the tiers between fast domain and outermost tier
    units: tuple[int, ...] = ()  # fast domains in a unit of each of these tiers
    boxes: Boxes = EVERYTHING  # of the framework

    @property
    def uneven(self) -> bool:
        """Whether shares of some plans may not divide their degrees."""
        return any(may_lie_unevenly(number, self.limits) for number in self.num_gpus)


def grid(*axes: Shaped[np.ndarray, "_"]) -> list[Shaped[np.ndarray, "product"]]:
    """Return the Cartesian product of some axes as flat columns, the last axis fastest."""
    return [part.ravel() for part in np.meshgrid(*axes, indexing="ij")]


def cross(table: Arrays, name: str, values: Int[np.ndarray, "values"]) -> Over[Arrays, "... plans*values"]:
    """Return the table with each row repeated for each of `values`, which become the column `name`."""
    rows = len(next(iter(table.values())))
    if len(values) != 1:  # most choices of a search of few have one
        table = {key: np.repeat(column, len(values)) for key, column in table.items() if key != name}
    return table | {name: np.tile(values, rows)}


def take(table: Arrays, where: bool | Bool[np.ndarray, "plans"] | Int[np.ndarray, "kept"] | np.bool | slice) -> Kept:
    """Return some rows of a table."""
    return {key: column[where] for key, column in table.items()}


def changes(*columns: Shaped[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Return where a row of columns differs from the row before it; True for the first row."""
    differs = functools.reduce(operator.or_, [column[1:] != column[:-1] for column in columns])
    return np.concatenate([np.ones(min(len(columns[0]), 1), dtype=bool), differs])


def distinct_rows(
    rows: Shaped[np.ndarray, "rows columns"],
) -> tuple[Int[np.ndarray, "distinct"], Int[np.ndarray, "rows"]]:
    """Return the first of each of the distinct rows, and which of them each row is."""
    # Rows as bytes are sorted several times as fast as rows of numbers.
    rows = np.ascontiguousarray(rows)
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, which


def shard_keys(strategies: Sequence[tuple[Sequence[DerivedLayer], Mapping[str, int]]], bounds: SpaceBounds) -> Keys:
    """Return the key table of all strategies; each is given by its (layer kinds, dimensions).

    Beside `KEY_COLUMNS` it has the column `BOXES`.
    """
    tables = [_strategy_keys(code, layers, dims, bounds) for code, (layers, dims) in enumerate(strategies)]
    keys = {name: np.concatenate([table[name] for table in tables]) for name in KEY_COLUMNS}
    return keys | {BOXES: bounds.boxes.of_keys(keys)}


def _strategy_keys(
    code: int, layers: Sequence[DerivedLayer], dimensions: Mapping[str, int], bounds: SpaceBounds
) -> Keys:
    used = [axis for axis in MODEL_AXES if any(axis in layer.axes for layer in layers)]
    axes = [axis for axis in used if axis in REPLICA_AXES]
    degrees = _degrees(len(axes), bounds.num_gpus)
    table = {axis: np.ones(degrees.shape[1], dtype=np.int64) for axis in MODEL_AXES}
    table |= dict(zip(axes, degrees, strict=True))
    table["panels"] = np.ones_like(table["tp"])
    if any(layer.panelled for layer in layers):  # the largest degree times powers of two, up to the longest dimension
        longest = max(dimensions.values())
        table = cross(table, "panels", 2 ** np.arange(int(np.log2(longest)) + 1, dtype=np.int64))
        table["panels"] = table["panels"] * np.max(np.stack([table[axis] for axis in axes]), axis=0)
        table = take(table, table["panels"] <= longest)
    experts = bounds.expert_axes[code] if "ep" in used else None
    if experts is not None:
        table = _with_experts(table, experts, bounds)
    sizes = all_divisors(bounds.global_batch_size)
    parts = [{name: np.zeros(0, dtype=np.int32) for name in KEY_COLUMNS}]
    # A few degrees at a time: the rules leave only a small part of the crossed table.
    step = max(1, _CROSSED // len(sizes))
    for start in range(0, len(table["tp"]), step):
        part = cross(take(table, slice(start, start + step)), "microbatch_size", sizes)
        for layer in layers:
            part = take(part, allowed(layer, dimensions, bounds.sequence_length, part))
        part = _with_shares(part, axes, bounds)
        if experts is not None:
            part = _with_expert_shares(part, experts, bounds)
        part["strategy"] = np.full(len(part["tp"]), code, dtype=np.int64)
        part = take(part, bounds.keep_keys(part))
        parts.append({name: column.astype(np.int32) for name, column in part.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in KEY_COLUMNS}


def _degrees(count: int, num_gpus: Sequence[int]) -> Int[np.ndarray, "{count} plans"]:
    """Return all degrees, in rows, whose product divides one of the GPU counts."""
    degrees = np.ones((0, 1), dtype=np.int64)
    for _ in range(count):
        column, degree = grid(np.arange(degrees.shape[1]), all_divisors(num_gpus))
        degrees = np.concatenate([degrees[:, column], degree[None]])
        product = degrees.prod(axis=0)
        degrees = degrees[:, np.any([number % product == 0 for number in num_gpus], axis=0)]
    return degrees


def even_domains(bounds: SpaceBounds) -> list[int]:
    """Return the GPUs of a fast domain that jobs use where shares divide their degrees, in increasing order."""
    return sorted({domain for number in bounds.num_gpus for domain in fills(number, bounds.limits)})


def _with_shares(table: Arrays, axes: list[str], bounds: SpaceBounds) -> Kept:
    """Add, per axis, the members of a group that share a fast domain."""
    possible = all_divisors(even_domains(bounds))
    table = table | {f"{axis}_nvs": np.ones_like(table["tp"]) for axis in MODEL_AXES}
    table["row"] = np.arange(len(table["tp"]))
    laid = _with_laid_shares(table, axes, bounds, possible)
    for axis in axes:
        table = cross(table, f"{axis}_nvs", possible)
        fits = (table[axis] % table[f"{axis}_nvs"] == 0) & (placed(table, REPLICA_AXES) <= bounds.limits.nvs_size)
        table = take(table, fits)
    if len(laid["row"]):
        table = {name: np.concatenate([column, laid[name]]) for name, column in table.items()}
        # Keys that differ only in their shares follow each other: their layers have the same work.
        table = take(table, np.argsort(table["row"], kind="stable"))
    del table["row"]
    return table


def _with_laid_shares(table: Arrays, axes: list[str], bounds: SpaceBounds, possible: Int[np.ndarray, "shares"]) -> Kept:
    """Return the rows whose groups consecutive ranks lay as no divisors of the degrees do."""
    size = bounds.limits.nvs_size
    if not axes or not bounds.uneven:
        return take(table, slice(0))
    degrees = {axis: table[axis] for axis in axes}
    in_order = rank_order_shares(degrees, size)
    parts = [table | {f"{axis}_nvs": share for axis, share in in_order.items()}]
    stride = np.ones_like(table["tp"])
    for position, axis in enumerate(axes):
        rows = np.flatnonzero((stride <= size) & (stride * table[axis] > size))
        at, share = uneven_shares(table[axis][rows], size // stride[rows], np.zeros_like(rows))
        part = take(table, rows[at]) | {f"{axis}_nvs": share}
        parts.append(part | {f"{inner}_nvs": part[inner] for inner in axes[:position]})
        stride = stride * table[axis]
    names = ("row", *(f"{axis}_nvs" for axis in axes))
    laid = {name: np.concatenate([part[name] for part in parts]) for name in table}
    first = np.unique(np.stack([laid[name] for name in names]), axis=1, return_index=True)[1]
    laid = take(laid, np.sort(first))
    possible_shares = np.isin([laid[f"{axis}_nvs"] for axis in axes], possible).all(axis=0)
    return take(laid, ~(even_shares(laid, axes) & possible_shares))


def _with_experts(table: Arrays, expert_axes: Sequence[str], bounds: SpaceBounds) -> Kept:
    """Add the degrees of ep that nest in the ranks of some number of replicas."""
    degrees = np.array(bounds.searched.ep, dtype=np.int64) if bounds.searched.ep else all_divisors(bounds.num_gpus)
    table = cross(table, "ep", degrees)
    replica, ranks = math.prod(table[axis] for axis in REPLICA_AXES), nesting_ranks(table, expert_axes)
    fits = [(number % replica == 0) & (number // replica * ranks % table["ep"] == 0) for number in bounds.num_gpus]
    return take(table, np.logical_or.reduce(fits))


def _with_expert_shares(table: Arrays, expert_axes: Sequence[str], bounds: SpaceBounds) -> Kept:
    """Replace the ep share of 1 by each share that some placement of replicas gives."""
    domains = even_domains(bounds)
    shares = {*all_divisors(domains).tolist()}
    if bounds.limits.uneven:  # of consecutive ranks an ep group has as many as the common divisor of both
        of_ep = all_divisors([1, *np.unique(table["ep"]).tolist()])
        shares |= {*of_ep[of_ep <= bounds.limits.nvs_size].tolist()}
    in_row = share_of_row(table, expert_axes, bounds.limits.nvs_size)
    by_row = np.where(bounds.limits.uneven, in_row, 0)[None]
    for dp_nvs in sorted(shares):
        taken = placed(table, REPLICA_AXES) * dp_nvs
        fits = np.any([domain % taken == 0 for domain in domains], axis=0)
        if bounds.limits.uneven:
            fits |= taken <= bounds.limits.nvs_size
        share = np.where(fits, share_of_shares(table, expert_axes, dp_nvs), 0)
        by_row = np.concatenate([by_row, np.where((by_row == share).any(axis=0), 0, share)[None]])
    row, which = np.nonzero(by_row.T)
    return take(table, row) | {"ep_nvs": by_row.T[row, which]}
