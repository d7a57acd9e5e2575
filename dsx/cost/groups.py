"""Groups of GPUs that lie on the tiers of a network, as the factors that their collectives need."""

from typing import NamedTuple

import jax.numpy as jnp

from dsx.cost.shapes import PerPlan


class Group(NamedTuple):
    """A group of n GPUs, t of them in each fast domain.

    A group over several axes is the product of theirs. The reciprocals are kept because in the hot loop axes
    of a key meet axes of a choice, and a division for each pair would be most of the work; so is the logarithm,
    which a product adds up.
    """

    size: PerPlan  # n, GPUs
    domains: PerPlan  # n / t, fast domains that it lies on
    per_gpu: PerPlan  # 1 / n
    per_share: PerPlan  # 1 / t
    share: PerPlan  # t, GPUs of it in one fast domain
    depth: PerPlan  # log2(n / t), levels of a binary tree over its domains
    outer: "tuple[Group, ...]" = ()  # the same, with the units of each tier between domain and outermost as domains

    @property
    def lying(self) -> "tuple[Group, ...]":
        """The group as it lies on the units of each tier but the outermost, innermost first."""
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
            tuple(mine.times(others) for mine, others in zip(self.outer, other.outer, strict=True)),
        )

    def whole(self) -> "Group":
        """Return the group without what is left of rounding in a product with parts of ranks."""
        one = jnp.ones_like(self.size)
        size, domains, share = (jnp.maximum(jnp.round(count), one) for count in (self.size, self.domains, self.share))
        outer = tuple(group.whole() for group in self.outer)
        return self._replace(size=size, domains=domains, share=share, outer=outer)


def group(size: PerPlan, share: PerPlan, *outer: PerPlan) -> Group:
    """Return the group of `size` GPUs, `share` of them in each fast domain; floats that broadcast.

    `outer` are how many of them share a unit of each tier between the fast domain and the outermost one.
    """
    domains = size / share
    return Group(
        size,
        domains,
        1.0 / size,
        1.0 / share,
        share,
        jnp.log2(domains),
        tuple(group(size, members) for members in outer),
    )
