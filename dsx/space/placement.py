"""Which members of a group share a fast domain where a plan does not say: ranks in order fill it.

Launchers number ranks one axis after the other (`dsx.space.tiers.ORDERS`), and ranks that follow each other fill a
domain: the innermost axis has all of its members there if they fit, the next one as many as fit beside them, and so on.
A job takes equally many GPUs of each domain, so that the members of a group lie evenly. Of a degree that neither fits
nor is a multiple of the room there is it is the largest divisor that fits: of 6 in a domain of 4 there are 3, and of
256 in one of 72 there are 64. What is left of the domain other axes may fill, or other jobs.
"""

import math
from collections.abc import Mapping

from dsx.space.divisors import divisors

Degrees = Mapping[str, int]  # by axis, the one that changes fastest first


def fill_in_order(degrees: Degrees, size: int) -> dict[str, int]:
    """Return how many members of each axis share a domain of `size` GPUs, in the order of `degrees`."""
    left = max(size, 1)
    found: dict[str, int] = {}
    for axis, degree in degrees.items():
        found[axis] = max(share for share in divisors(degree).tolist() if share <= left)
        left //= found[axis]
    return found


def numbered_shares(degrees: Degrees, size: int) -> dict[str, int] | None:
    """Return how many members of each axis share `size` ranks that follow each other, numbered in order.

    None where these cut groups unevenly, so that no one number describes them.
    """
    shares = fill_in_order(degrees, size)
    taken = 1
    for axis, degree in degrees.items():
        taken *= shares[axis]
        if shares[axis] < degree:  # the ranks of outer axes are further apart than those of a whole group
            break
    return shares if taken == size else None


def exact_fill(degrees: Degrees, size: int) -> dict[str, int]:
    """Return shares that multiply to `size`, which divides the product of the degrees: as many of the first as can."""
    left, rest = size, math.prod(degrees.values())
    found: dict[str, int] = {}
    for axis, degree in degrees.items():
        rest //= degree
        fits = (share for share in divisors(math.gcd(degree, left)).tolist() if rest % (left // share) == 0)
        found[axis] = max(fits)
        left //= found[axis]
    return found
