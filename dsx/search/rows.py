"""Rows: candidates as columns, from keys and choices."""

from collections.abc import Iterator, Sequence

import numpy as np

from dsx.cost.columns import StepCosts
from dsx.search.problem import PRICED, Problem
from dsx.space.candidates import Candidates
from dsx.space.enumerate import CHOICE_COLUMNS, KEY_COLUMNS, Arrays, Block
from dsx.space.identity import candidate_ids


def column_names(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Return the names that the codes of the coded columns stand for."""
    return {
        "strategy": problem.strategies,
        "recompute": (str(PRICED["recompute"]),),
        "schedule": (str(PRICED["schedule"]),),
    }


def candidate_columns(problem: Problem, keys: Arrays, positions: np.ndarray, choices: Arrays) -> Arrays:
    """Return ``candidate`` and all columns of `Candidates` for [N] rows of keys and choices."""
    count = len(positions)
    columns: Arrays = {name: keys[name][positions] for name in KEY_COLUMNS}
    columns |= {name: choices[name] for name in CHOICE_COLUMNS}
    columns["sequence_length"] = np.full(count, problem.sequence_length)
    for name in Candidates.__dataclass_fields__:
        if name not in columns:
            value = PRICED[name]
            columns[name] = np.full(count, 0 if isinstance(value, str) else value)
    columns["candidate"] = candidate_ids(columns, column_names(problem))
    return columns


def cost_columns(costs: StepCosts) -> Arrays:
    """Return the cost columns of a record of [N] arrays."""
    return {name: getattr(costs, name) for name in StepCosts.__dataclass_fields__}


def no_rows(problem: Problem, keys: Arrays) -> Arrays:
    """Return all columns of a result set, without a row."""
    nothing = np.zeros(0, dtype=np.int64)
    choices = dict.fromkeys(CHOICE_COLUMNS, nothing)
    costs = dict.fromkeys(StepCosts.__dataclass_fields__, np.zeros(0))
    return candidate_columns(problem, keys, nothing, choices) | costs | {"reject": nothing}


def row_chunks(blocks: Iterator[Block], length: int) -> Iterator[tuple[np.ndarray, Arrays]]:
    """Yield (key positions, choices) of the rows of all blocks, in order, `length` rows at a time."""
    pending: list[tuple[np.ndarray, Arrays]] = []
    waiting = 0
    for block in blocks:
        for piece in _pieces(block, length):
            pending.append(piece)
            waiting += len(piece[0])
            while waiting >= length:
                positions, choices = _joined(pending)
                yield positions[:length], {name: column[:length] for name, column in choices.items()}
                pending = [(positions[length:], {name: column[length:] for name, column in choices.items()})]
                waiting -= length
    if waiting:
        yield _joined(pending)


def _pieces(block: Block, length: int) -> Iterator[tuple[np.ndarray, Arrays]]:
    """Yield the rows of a block, a few keys at a time so that no piece is much longer than `length`."""
    width = block.matrix.shape[1]
    step = max(1, length // width)
    for start in range(0, len(block.keys), step):
        keys = block.keys[start : start + step]
        yield np.repeat(keys, width), {name: np.tile(c, len(keys)) for name, c in block.choices.items()}


def _joined(pieces: Sequence[tuple[np.ndarray, Arrays]]) -> tuple[np.ndarray, Arrays]:
    if len(pieces) == 1:
        return pieces[0]
    return (
        np.concatenate([positions for positions, _ in pieces]),
        {name: np.concatenate([choices[name] for _, choices in pieces]) for name in pieces[0][1]},
    )
