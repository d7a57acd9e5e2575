"""The default placement on fast domains: consecutive ranks fill a domain.

Launchers number ranks one axis after the other (`dsx.space.tiers.ORDERS`), and consecutive ranks fill a domain. The
innermost axis has all of its members in a domain if they fit, the next axis as many as the remaining GPUs hold, and so
on. A job uses the same number of GPUs of each domain, so that a group has the same number of members in each. That
number divides the degree: it is the largest divisor that fits, 3 for a degree of 6 in a domain of 4, and 64 for a
degree of 256 in a domain of 72. Other axes, or other jobs, may fill the remaining GPUs.
"""

import math
from collections.abc import Mapping

from dsx.space.divisors import divisors

Degrees = Mapping[str, int]  # by axis, the fastest-changing one first


def fill_in_order(degrees: Degrees, size: int) -> dict[str, int]:
    """Return the members of each axis that share a domain of `size` GPUs, filled in the order of `degrees`."""
    left = max(size, 1)
    found: dict[str, int] = {}
    for axis, degree in degrees.items():
        found[axis] = max(share for share in divisors(degree).tolist() if share <= left)
        left //= found[axis]
    return found


def numbered_shares(degrees: Degrees, size: int) -> dict[str, int] | None:
    """Return how many members of each axis are among `size` consecutive ranks, numbered in the order of `degrees`.

    None if groups have different numbers of members there.
    """
    shares = fill_in_order(degrees, size)
    taken = 1
    for axis, degree in degrees.items():
        taken *= shares[axis]
        if shares[axis] < degree:  # the ranks of outer axes are further apart than those of a whole group
            break
    return shares if taken == size else None


def exact_fill(degrees: Degrees, size: int) -> dict[str, int]:
    """Return the shares that multiply to `size`, a divisor of the product of degrees; the first axes get the most."""
    left, rest = size, math.prod(degrees.values())
    found: dict[str, int] = {}
    for axis, degree in degrees.items():
        rest //= degree
        fits = (share for share in divisors(math.gcd(degree, left)).tolist() if rest % (left // share) == 0)
        found[axis] = max(fits)
        left //= found[axis]
    return found
