"""Pricing shard keys and plans: from integer columns to layer costs and step costs, in float64.

Keys are padded to a few fixed lengths, so each strategy's layer is compiled once per length. Padding
repeats the last key and is cut off again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts, price_layer
from dsx.cost.step import StepChoices, step_costs
from dsx.cost.work import layer_work
from dsx.search.problem import Problem
from dsx.space.enumerate import KEY_COLUMNS, Arrays

_LENGTHS = (1, 64, 1024, 16384)
_GROUPED = ("weight_bytes", "group_size", "group_share")
# A weight group that a strategy does not have: nothing to reduce, over one rank.
_ABSENT = {"weight_bytes": 0.0, "group_size": 1.0, "group_share": 1.0}

price_steps = jax.jit(step_costs)


def padded_length(count: int) -> int:
    """Return the smallest fixed length that holds `count` rows, or the longest one."""
    return next((length for length in _LENGTHS if count <= length), _LENGTHS[-1])


def pad(column: np.ndarray, length: int) -> np.ndarray:
    """Return the column filled up to `length` with its last value."""
    return np.pad(column, (0, length - len(column)), mode="edge")


def pad_table(leaf: np.ndarray) -> np.ndarray:
    """Return a leaf of layer costs, [U] or [J, U], with U filled up to a power of two by its last value.

    Spaces of about the same size then share what is compiled for their table.
    """
    length = 1 << max(6, (leaf.shape[-1] - 1).bit_length())
    widths = [(0, 0)] * (leaf.ndim - 1) + [(0, length - leaf.shape[-1])]
    return np.pad(leaf, widths, mode="edge")


def price_keys(problem: Problem, keys: Arrays) -> LayerCosts:
    """Return the layer costs of a [U] key table as NumPy float64 arrays ([U], or [J, U])."""
    parts: list[LayerCosts] = []
    positions: list[np.ndarray] = []
    for code in range(len(problem.strategies)):
        rows = np.flatnonzero(keys["strategy"] == code)
        for start in range(0, len(rows), _LENGTHS[-1]):
            chunk = rows[start : start + _LENGTHS[-1]]
            positions.append(chunk)
            parts.append(_price_chunk(problem, code, {name: column[chunk] for name, column in keys.items()}))
    return _assembled(parts, np.concatenate(positions) if positions else np.zeros(0, dtype=np.int64))


def _price_chunk(problem: Problem, code: int, keys: Arrays) -> LayerCosts:
    count = len(keys["strategy"])
    length = padded_length(count)
    work = layer_work(
        problem.layers[code],
        problem.model.dimensions,
        problem.assumptions_spec,
        problem.sequence_length,
        {name: pad(column, length) for name, column in keys.items()},
    )
    with jax.enable_x64(True):
        costs = price_layer(work, problem.hardware, problem.assumptions)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[..., :count], costs)


def _assembled(parts: list[LayerCosts], positions: np.ndarray) -> LayerCosts:
    """Put chunks back in the order of the key table; all get the same number of weight groups."""
    groups = max((part.group_size.shape[0] for part in parts), default=1)
    order = np.argsort(positions, kind="stable")

    def joined(name: str) -> np.ndarray:
        leaves = [np.asarray(getattr(part, name)) for part in parts]
        if name in _GROUPED:
            leaves = [np.pad(leaf, ((0, groups - len(leaf)), (0, 0)), constant_values=_ABSENT[name]) for leaf in leaves]
        return np.concatenate(leaves, axis=-1)[..., order] if leaves else np.zeros(0)

    return LayerCosts(**{name: joined(name) for name in LayerCosts.__dataclass_fields__})


def step_choices(columns: Mapping[str, Any], as_array: Callable[[Any], Any]) -> StepChoices:
    """Return the choices record of integer columns, each turned into floats by `as_array`."""
    return StepChoices(**{name: as_array(columns[name]) for name in StepChoices.__dataclass_fields__})


def price_plans(problem: Problem, columns: Arrays) -> StepCosts:
    """Price [N] plans given by all columns of a candidate; NumPy float64 [N] arrays."""
    keys, positions = np.unique(np.stack([columns[name] for name in KEY_COLUMNS]), axis=1, return_inverse=True)
    table = price_keys(problem, dict(zip(KEY_COLUMNS, keys, strict=True)))
    return price_rows(problem, table, positions, columns)


def price_rows(problem: Problem, table: LayerCosts, positions: np.ndarray, choices: Arrays) -> StepCosts:
    """Price [N] rows in float64: `positions` in a table of layer costs, and the choices of each row."""
    results: list[StepCosts] = []
    for start in range(0, len(positions), _LENGTHS[-1]):
        chunk = slice(start, start + _LENGTHS[-1])
        here = len(positions[chunk])
        length = padded_length(here)
        rows = pad(positions[chunk], length)
        with jax.enable_x64(True):
            layer = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf[..., rows]), table)
            made = step_choices(choices, lambda c, at=chunk, n=length: jnp.asarray(pad(c[at], n).astype(np.float64)))
            priced = price_steps(layer, made, problem.workload, problem.hardware, problem.assumptions)
        results.append(jax.tree.map(lambda leaf, n=here: np.asarray(leaf)[:n], priced))
    if not results:
        return StepCosts(**dict.fromkeys(StepCosts.__dataclass_fields__, np.zeros(0)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
