"""Regions of a table: neighbouring cells with the same text, which a heat map writes once and outlines together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Segments = list[tuple[tuple[float, float], tuple[float, float]]]  # ends as (column, row), cells are 1 apart


class Region(NamedTuple):
    """Neighbouring cells with the same text, and where it is written: in their middle if they fill a rectangle."""

    text: str
    row: float
    column: float
    cell: tuple[int, int]  # the one that is nearest to the middle


def regions(texts: Sequence[Sequence[str]], apart: NDArray[np.bool_]) -> list[Region]:
    """Return the regions of a table of texts, [rows][columns]; a cell that is `apart` is one of its own.

    Cells are neighbours along a row or a column. Cells without a text are of no region.
    """
    from scipy import ndimage

    table = np.asarray(texts, dtype=object)
    found: list[Region] = []
    for text in dict.fromkeys(one for row in texts for one in row if one):
        same = table == text
        labelled: Any = ndimage.label(same & ~apart)
        labels, count = labelled
        groups = [labels == number for number in range(1, count + 1)]
        groups += [_only(same.shape, cell) for cell in np.argwhere(same & apart)]
        found += [_region(text, np.argwhere(group)) for group in groups]
    return found


def _only(shape: tuple[int, ...], cell: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(shape, bool)
    mask[tuple(cell)] = True
    return mask


def _region(text: str, cells: NDArray[np.int64]) -> Region:
    middle = cells.mean(axis=0)
    row, column = cells[int(((cells - middle) ** 2).sum(axis=1).argmin())].tolist()
    full = len(cells) == int(np.prod(np.ptp(cells, axis=0) + 1))
    at = middle.tolist() if full else [row, column]
    return Region(text, at[0], at[1], (row, column))


def borders(texts: Sequence[Sequence[str]]) -> Segments:
    """Return the lines between neighbouring cells with different texts."""
    table = np.asarray(texts, dtype=object)
    found: Segments = []
    for row, column in np.argwhere(table[:, 1:] != table[:, :-1]):
        found.append(((column + 0.5, row - 0.5), (column + 0.5, row + 0.5)))
    for row, column in np.argwhere(table[1:] != table[:-1]):
        found.append(((column - 0.5, row + 0.5), (column + 0.5, row + 0.5)))
    return found
