"""Codes and ids of candidates: the values that a search may take, as static structure, and a stable id for each.

The id is the same in every run and on every machine. It hashes the choices alone, strategies by name and not by code.
It hashes nothing of the hardware, so result sets of different clusters join on it. It has 63 bits: among 10^8
candidates the chance of a collision is 1 in 2000.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dsx.config.framework_file import FrameworkSpec
from dsx.plans.choices import BY_NAME, CHOICES, NAMED, SEARCHED_COLUMNS, Choice
from dsx.plans.frameworks import codes_of, plans_of
from dsx.records import Int, Shaped, make_record, record, static

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
