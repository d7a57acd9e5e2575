"""Placement of groups of GPUs on the tiers of a network, as the factors that the cost of collectives needs.

Axes of a job contend for oversubscribed tiers. Beyond the NICs a tier may give a GPU less bandwidth than its NIC has,
and one collective that crosses the tier takes all of it. So two collectives do not cross it at the same time. The
data-parallel reduction and the sends of the pipeline, which overlap with a layer, proceed only while no collective of
the layer uses the tier. An outward message crosses all tiers on its way, so collectives that cross any oversubscribed
tier contend for the innermost one. Without oversubscription the assumption set states the overlap, fitted to runs whose
axes shared the NICs.

An all-to-all over N fast domains moves k copies of each token, one to each of its experts. A dispatcher that sends a
token once to each domain that needs it sends E <= k copies, E the expected number of distinct domains
(arXiv 2412.19437, section 3.2.2; released as DeepEP). With choices that are independent and uniform

    E = N (1 - (1 - 1/N)^k).

Limited routing chooses the k experts from M of G groups of experts (ibid., section 2.1.2: a token goes to at most M
nodes). Groups are divided over the domains in order, and the M groups are uniform. With at least one domain for each
group the choices are uniform over D = M N/G domains, so N is D above. With c = G/N groups in a domain, J of the M are
its own, J hypergeometric, and the k choices miss it with (1 - J/M)^k, so

    E = N (1 - sum over j of P(J = j) (1 - j/M)^k).

Not modelled: experts that are more popular than others, and copies of one expert on several ranks.
"""

from typing import NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.arrays import PerPlan
from dsx.config.cluster_file import Network
from dsx.records import ArrayLike, record, static


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
            tuple(units.times(more) for units, more in zip(self.outer, other.outer, strict=True)),
        )


def group(size: PerPlan, share: PerPlan, *outer: PerPlan) -> Group:
    """Return the group of `size` GPUs, at most `share` of them in each fast domain; floats that broadcast.

    `outer` has the number of them in one unit of each tier between the fast domain and the outermost one. The last
    domain has what is left where a share does not divide the size; the group has the NICs of so many GPUs.
    """
    ones = xp.ones_like(size)
    domains = xp.ceil(size / share)
    share = size - (domains - ones) * share
    return Group(
        size,
        domains,
        1.0 / size,
        1.0 / share,
        share,
        xp.log2(domains),
        tuple(group(size, members) for members in outer),
    )


def may_contend(network: Network) -> bool:
    """Return whether the network has tiers that can be oversubscribed."""
    return len(network.tiers) > network.linked + 1


def crosses(members: Group, network: Network) -> PerPlan:
    """Return 1.0 where a group crosses an oversubscribed tier, else 0.0, in the broadcast shape of its fields."""
    ones, crossing = xp.ones_like(members.size), xp.zeros_like(members.size)
    for below, tier in enumerate(network.tiers[network.linked + 1 :], network.linked):
        oversubscribed = tier.bandwidth < network.net.bandwidth
        crossing = xp.where(oversubscribed & (members.by_tier[below].domains > ones), ones, crossing)
    return crossing


@record
class Routing:
    """How a token chooses its experts; counts that broadcast."""

    choices: PerPlan  # k
    groups: PerPlan | None = None  # G; None: not limited
    groups_of_token: PerPlan | None = None  # M
    most_groups: int = static(default=0)  # the largest M, for which code is compiled


def routing_of(choices: PerPlan, groups: PerPlan | None = None, groups_of_token: PerPlan | None = None) -> Routing:
    """Return a routing from its counts, which are NumPy arrays; without groups the choices are not limited."""
    most = 0 if groups_of_token is None else int(np.max(groups_of_token, initial=0))
    return Routing(choices, groups, groups_of_token, most)


class SentToDomains(NamedTuple):
    """What a dispatcher sends over the network."""

    once: ArrayLike  # 1 where it sends a token once to each domain, 0 where it sends each copy
    share: PerPlan  # of the copies' bytes for other domains


def sent_to_domains(routing: Routing, domains: PerPlan, once: ArrayLike) -> SentToDomains:
    """Return what a dispatcher sends over the network in a group that spans N `domains`; `once` is 0 or 1."""
    merged = distinct_domains(routing, domains) / routing.choices
    return SentToDomains(once, 1.0 - once * (1.0 - merged))


def distinct_domains(routing: Routing, domains: PerPlan) -> PerPlan:
    """Return E, the expected number of distinct domains of a token's choices, of N `domains`; at least 1."""

    def hit(domains: PerPlan) -> PerPlan:
        """Return how many of some domains uniform choices hit."""
        return domains * (1.0 - (1.0 - 1.0 / domains) ** routing.choices)

    if routing.groups is None or routing.groups_of_token is None:
        return hit(domains)
    allowed = xp.minimum(routing.groups_of_token, routing.groups)
    per_domain = routing.groups / domains
    reached = xp.maximum(allowed / per_domain, xp.ones_like(per_domain))
    # The probability that no choice of a token falls in a domain with `per_domain` groups.
    in_domain: list[PerPlan] = [xp.ones_like(per_domain)]  # probability of each number of its groups among those drawn
    for drawn in range(routing.most_groups):
        # Groups are drawn without replacement, as many as are allowed.
        undrawn = xp.maximum(routing.groups - drawn, 1.0)
        gained = [p * xp.clip((per_domain - j) / undrawn, 0.0, 1.0) for j, p in enumerate(in_domain)]
        gained = [xp.where(drawn < allowed, more, xp.zeros_like(more)) for more in gained]
        kept = [p - more for p, more in zip(in_domain, gained, strict=True)]
        in_domain = [kept[0], *(stay + more for stay, more in zip(kept[1:], gained, strict=False)), gained[-1]]
    missed = [p * xp.maximum(1.0 - j / allowed, 0.0) ** routing.choices for j, p in enumerate(in_domain)]
    missed = sum(missed[1:], start=missed[0])
    return xp.where(per_domain <= 1.0, hit(reached), domains * (1.0 - missed))
