"""Placement of groups of GPUs on the tiers of a network, as the factors that the cost of collectives needs."""

from typing import NamedTuple

from dsx.cost import xp
from dsx.cost.shapes import PerPlan


class Group(NamedTuple):
    """A group of n GPUs on N fast domains, at least t of them in each.

    The group over several axes is the product of their groups. A record keeps reciprocals and the logarithm because a
    search multiplies groups of keys by groups of choices: a division for each pair would take most of its time.
    """

    size: PerPlan  # n, GPUs
    domains: PerPlan  # N, fast domains that it spans
    per_gpu: PerPlan  # 1 / n
    per_share: PerPlan  # 1 / t
    share: PerPlan  # t, its GPUs in the fast domain that has the fewest
    depth: PerPlan  # log2(N), levels of a binary tree over its domains
    outer: "tuple[Group, ...]" = ()  # likewise, for the units of each tier between domain and outermost

    @property
    def by_tier(self) -> "tuple[Group, ...]":
        """The group with the units of each tier as its domains, innermost first, without the outermost tier."""
        return (self._replace(outer=()), *self.outer)

    def times(self, other: "Group") -> "Group":
        """Return the group over the axes of both."""
        return Group(
            self.size * other.size,
            self.domains * other.domains,
            self.per_gpu * other.per_gpu,
            self.per_share * other.per_share,
            self.share * other.share,
            self.depth + other.depth,
            tuple(left.times(right) for left, right in zip(self.outer, other.outer, strict=True)),
        )


def group(size: PerPlan, share: PerPlan, *outer: PerPlan) -> Group:
    """Return the group of `size` GPUs, at most `share` of them in each fast domain; floats that broadcast.

    `outer` has the number of them in one unit of each tier between the fast domain and the outermost one. The last
    domain has what is left where a share does not divide the size; the group has the NICs of so many GPUs.
    """
    one = xp.ones_like(size)
    domains = xp.ceil(size / share)
    share = size - (domains - one) * share
    return Group(
        size,
        domains,
        1.0 / size,
        1.0 / share,
        share,
        xp.log2(domains),
        tuple(group(size, members) for members in outer),
    )
