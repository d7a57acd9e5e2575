"""Groups of GPUs that lie on two tiers, as the factors that their collectives need."""

from typing import Any, NamedTuple

import jax.numpy as jnp


class Group(NamedTuple):
    """A group of n GPUs, t of them in each fast domain.

    A group over several axes is the product of theirs. The reciprocals are kept because in the hot loop axes
    of a key meet axes of a choice, and a division for each pair would be most of the work; so is the logarithm,
    which a product adds up.
    """

    size: Any  # n, GPUs
    domains: Any  # n / t, fast domains that it lies on
    per_gpu: Any  # 1 / n
    per_share: Any  # 1 / t
    share: Any  # t, GPUs of it in one fast domain
    depth: Any  # log2(n / t), levels of a binary tree over its domains

    def times(self, other: "Group") -> "Group":
        """Return the group over the axes of both."""
        return Group(
            self.size * other.size,
            self.domains * other.domains,
            self.per_gpu * other.per_gpu,
            self.per_share * other.per_share,
            self.share * other.share,
            self.depth + other.depth,
        )

    def whole(self) -> "Group":
        """Return the group without what is left of rounding in a product with parts of ranks."""
        one = jnp.ones_like(self.size)
        size, domains, share = (jnp.maximum(jnp.round(count), one) for count in (self.size, self.domains, self.share))
        return self._replace(size=size, domains=domains, share=share)


def group(size: Any, share: Any) -> Group:
    """Return the group of `size` GPUs, `share` of them in each fast domain; floats that broadcast."""
    domains = size / share
    return Group(size, domains, 1.0 / size, 1.0 / share, share, jnp.log2(domains))
