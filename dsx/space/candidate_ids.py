"""Stable ids: a candidate has the same id in every run and on every machine.

The id hashes the choices alone, strategies by name and not by code. It hashes nothing of the hardware, so result sets
of different clusters join on it. It has 63 bits: among 10^8 candidates the chance of a collision is 1 in 2000.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dsx.space.choices import CHOICES, NAMED

# A choice that was added later is hashed only where it differs from its default, so that older ids stay the same.
_COLUMNS = tuple(choice.name for choice in CHOICES if choice.name not in NAMED and not choice.later)
_LATER = {choice.name: choice.default_code for choice in CHOICES if choice.later}


def _mix(state: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 finaliser of each word (Steele, Lea and Flood, 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _word(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def candidate_ids(columns: Mapping[str, np.ndarray], names: Mapping[str, Sequence[str]]) -> np.ndarray:
    """Return the [N] int64 ids of candidates; `names` gives the names of the coded columns."""
    state = np.zeros(len(columns["tp"]), dtype=np.uint64)
    for column, known in sorted((column, known) for column, known in names.items() if column not in _LATER):
        words = np.array([_word(name) for name in known], dtype=np.uint64)
        state = _mix(state ^ words[columns[column]])
    for column in _COLUMNS:
        state = _mix(state * np.uint64(0x9E3779B97F4A7C15) + columns[column].astype(np.uint64) + np.uint64(1))
    for column, default in _LATER.items():
        known = names.get(column)
        words = np.array([_word(name) for name in known], dtype=np.uint64) if known else None
        value = columns[column]
        word = value.astype(np.uint64) if words is None else words[value]
        changed = value != default
        mixed = _mix((state ^ np.uint64(_word(column))) * np.uint64(0x9E3779B97F4A7C15) + word + np.uint64(1))
        state = np.where(changed, mixed, state)
    return (state >> np.uint64(1)).astype(np.int64)
