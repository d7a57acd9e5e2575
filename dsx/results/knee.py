"""The knee of a Pareto front: the row after which less of one objective costs most of the other.

Both objectives are scaled to 0 at their best and 1 at their worst on the front. The knee is the row that is farthest
below the line between the ends of the front: the bulge of Das, "On characterizing the knee of the Pareto curve based on
normal-boundary intersection" (Structural Optimization 18, 1999). A front whose rows are all on that line, or above it,
has none.
"""

import numpy as np
from numpy.typing import NDArray


def knee(x: NDArray[np.float64], y: NDArray[np.float64]) -> int | None:
    """Return the position of the knee of a front of two minimised objectives, [n] each; None if it has none."""
    if len(x) < 3:
        return None
    ranges = x.max() - x.min(), y.max() - y.min()
    if min(ranges) <= 0.0:
        return None
    below = 1.0 - (x - x.min()) / ranges[0] - (y - y.min()) / ranges[1]
    place = int(below.argmax())
    return place if below[place] > 1e-9 else None
