"""Waves of a search with limits: the results of each wave limit what the next ones look at."""

from collections.abc import Iterator, Sequence

import numpy as np

from dsx.search.protocol import BlockRange

_FIRST, _GROWTH = 4, 3  # ranges of the first wave, and how much larger each wave is than the one before


def waves(ranges: Sequence[BlockRange]) -> Iterator[Sequence[BlockRange]]:
    """Yield all ranges of blocks in waves, a few ranges at first.

    They come in a mixed order, so that the first ones are like the others. The order, and so what the limits of a wave
    are, does not depend on the devices.
    """
    order = np.random.default_rng(0).permutation(len(ranges))
    start, size = 0, _FIRST
    while start < len(ranges):
        yield [ranges[number] for number in order[start : start + size]]
        start, size = start + size, size * _GROWTH
