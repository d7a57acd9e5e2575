"""The measured times of a layer: those of exactly its shapes, and interpolated ones between and beyond them.

A kernel that is measured as a whole, or else its single multiplies, take the place of the roofline: whichever is known
better, and the whole kernel where both are known alike. As for the work of a layer, NumPy does this once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.cost.between_shapes import Amounts, interpolated
from dsx.cost.operator_times import Measurable, TimesTable
from dsx.cost.override import share_of_kernel
from dsx.cost.work import LayerWork, MeasuredTimes
from dsx.hardware.device import Device
from dsx.records import Float, Int

NONE = -1  # no row has exactly that shape
# How well a time is known; more is better.
UNKNOWN, EXTRAPOLATED, INTERPOLATED, EXACT = range(4)


@dataclass(frozen=True, slots=True)
class Known:
    """What the rows of a file say about one kernel or multiply, for V works."""

    how: Int[np.ndarray, "works"]  # UNKNOWN to EXACT
    rows: Int[np.ndarray, "works"]  # position of the row of exactly that shape, or `NONE`
    seconds: Float[np.ndarray, "works"]  # NaN where UNKNOWN


def known_times(table: TimesTable, found: Sequence[Measurable], work: LayerWork, device: Device) -> list[Known]:
    """Return what a file says about each of `found`, the kernels of the work of a layer.

    Of a kernel and its multiplies, only those count whose times are used; the others are UNKNOWN.
    """
    share = share_of_kernel(work)
    known = [_known(table, one, _amounts(one, work, share), device) for one in found]
    multiplies: dict[tuple[int, int], np.ndarray] = {}
    for one, own in zip(found, known, strict=True):
        if one.multiply is not None:
            where = one.kernel, one.direction
            multiplies[where] = np.maximum(multiplies.get(where, UNKNOWN), own.how)
    whole = {
        where: own.how >= np.maximum(multiplies.get(where, UNKNOWN), EXTRAPOLATED)
        for one, own in zip(found, known, strict=True)
        if one.multiply is None and (where := (one.kernel, one.direction))
    }

    def used(one: Measurable, own: Known) -> Known:
        chosen = whole.get((one.kernel, one.direction), np.zeros(len(own.how), dtype=bool))
        chosen = chosen if one.multiply is None else ~chosen
        how = np.where(chosen, own.how, UNKNOWN)
        return Known(how, np.where(chosen, own.rows, NONE), np.where(how > UNKNOWN, own.seconds, np.nan))

    return [used(one, own) for one, own in zip(found, known, strict=True)]


def _amounts(one: Measurable, work: LayerWork, share: Float[np.ndarray, "multiplies"]) -> Amounts:
    """Return what a kernel, or one multiply of it, does."""
    num_bytes = np.asarray(work.bytes[one.direction, one.kernel])
    if one.multiply is not None:
        flops = np.asarray(work.multiplies.flops[one.multiply])
        return Amounts(one.shapes, flops, 0.0 * flops, num_bytes * share[one.multiply], one.inner)
    matrix, vector = (np.asarray(flops[one.direction, one.kernel]) for flops in (work.matrix, work.vector))
    return Amounts(one.shapes, matrix, vector, num_bytes, one.inner)


def _known(table: TimesTable, one: Measurable, amounts: Amounts, device: Device) -> Known:
    # Many works are alike.
    amount = np.stack([*amounts.sizes, amounts.matrix, amounts.vector, amounts.bytes])
    distinct, which = np.unique(amount, axis=1, return_inverse=True)
    which = which.reshape(-1)
    count = distinct.shape[1]
    named = table.named(one)
    if not named:
        return Known(np.full(len(which), UNKNOWN), np.full(len(which), NONE), np.full(len(which), np.nan))
    rows = np.array([named.get((int(m), int(n), int(k), int(batch)), NONE) for m, n, k, batch in distinct[:4].T])
    how, seconds = np.full(count, EXACT), np.array([table.rows[row].time_s for row in rows])
    others = rows == NONE
    if others.any():
        samples = table.samples(one)
        sizes, (matrix, vector, num_bytes) = distinct[:4, others], distinct[4:, others]
        how[others] = np.where(samples.beyond(sizes), EXTRAPOLATED, INTERPOLATED)
        seconds[others] = interpolated(samples, Amounts(sizes, matrix, vector, num_bytes, amounts.inner), device)
    return Known(how[which], rows[which], seconds[which])


def measured_times(table: TimesTable, found: Sequence[Measurable], work: LayerWork, device: Device) -> MeasuredTimes:
    """Return the times of the kernels and multiplies of a layer by a file; `found` are those that can have one."""
    kernels = np.full(work.matrix.shape, np.nan)
    multiplies = np.full(work.multiplies.flops.shape, np.nan)
    for one, known in zip(found, known_times(table, found, work, device), strict=True):
        if one.multiply is None:
            kernels[one.direction, one.kernel] = known.seconds
        else:
            multiplies[one.multiply] = known.seconds
    return MeasuredTimes(kernels, multiplies)
