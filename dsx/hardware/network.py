"""The network: its tiers, from the fast domain of a few GPUs to the outermost one, derived from its topology.

The network: its tiers, from the fast domain of a few GPUs to the outermost one, which joins all GPUs.

Not modelled: routes that share a link by chance, failed links.

Derives the tiers of a network from its topology.

A message that leaves a unit of one tier crosses the next outer tier. The bandwidth of a tier is one GPU's share when
all GPUs send out of their units at once, its latency is that of a whole message, and its size is the number of GPUs in
one unit. No tier with NICs gives a GPU more bandwidth than its NIC or the tier below, since an outward message crosses
them all.

Not modelled: adaptive routing over idle links, other jobs on the same switches.
"""

from collections.abc import Iterator
from typing import Any

from dsx.config.cluster_file import NetworkSpec
from dsx.config.topology import (
    DragonflySpec,
    FatTreeSpec,
    FullyConnectedSpec,
    LevelsSpec,
    RailOptimizedSpec,
    SpineLeafSpec,
    Topology,
    TorusSpec,
    units_of,
)
from dsx.records import record, static


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: Any  # bytes/s, per GPU and direction, when all GPUs send at once
    latency: Any  # s, of one message that crosses it
    name: str = static()
    size: int = static()  # GPUs of one unit of this tier; 0 = unlimited
    peers: int = static(default=0)  # other units of the tier below to which a unit has direct links; 0 = a switch
    chain: int = static(default=0)  # units of the tier below in a row, linked to their neighbours alone; 0 = a switch
    wraps: bool = static(default=False)  # whether the first and the last unit of the row are linked: a ring


@record
class Network:
    """The tiers, innermost first; the first one is the fast domain."""

    tiers: tuple[Tier, ...]
    linked: int = static(default=1)  # tiers with direct links of the GPUs; the outer tiers use NICs
    gpus_per_nic: float = static(default=1.0)  # bandwidth of a NIC over one GPU's share of it
    nics: float = static(default=1.0)  # of a unit of GPUs with direct links, if GPUs share them

    @property
    def nvs(self) -> Tier:
        """The tier inside a fast domain."""
        return self.tiers[0]

    @property
    def net(self) -> Tier:
        """The first tier that uses NICs."""
        return self.tiers[self.linked]

    @property
    def middle(self) -> tuple[Tier, ...]:
        """The tiers between the fast domain and the outermost one; empty for a network of two tiers."""
        return self.tiers[1:-1]

    def oversubscription(self, tier: int) -> float:
        """Return the bandwidth of the NICs over that of a tier; 1 inside the tiers without NICs."""
        return self.net.bandwidth / self.tiers[tier].bandwidth if tier >= self.linked else 1.0


# (bandwidth for one GPU when all GPUs send, latency of a message that crosses it) of a tier outside the fast domain;
# lists of them have the innermost tier first.
_Level = tuple[float, float]


def tiers(spec: NetworkSpec) -> tuple[Tier, ...]:
    """Return the tiers of a network, innermost first; without a topology two, the outer one of unlimited size."""
    nvs, topology = spec.nvs, spec.topology
    torus = topology if isinstance(topology, TorusSpec) else None
    innermost = Tier(
        bandwidth=nvs.bandwidth,
        latency=nvs.latency,
        name="nvs",
        size=nvs.size,
        peers=nvs.size - 1 if nvs.mesh else 0,
        chain=nvs.size if torus else 0,
        wraps=bool(torus and torus.wrap),
    )
    if topology is None:
        return innermost, Tier(bandwidth=spec.net.bandwidth, latency=spec.net.latency, name="net", size=0)
    found, size = [innermost], nvs.size
    for (name, units), (bandwidth, latency) in zip(units_of(topology, nvs.size), _levels(spec, topology), strict=True):
        size *= units or 0
        dimension = torus if units is not None else None
        tier = Tier(
            bandwidth=bandwidth,
            latency=latency,
            name=name,
            size=size,
            peers=units - 1 if units and isinstance(topology, FullyConnectedSpec) else 0,
            chain=units if units and dimension else 0,
            wraps=bool(dimension and dimension.wrap),
        )
        found.append(tier)
    return tuple(found)


def linked_tiers(topology: Topology | None) -> int:
    """Return the number of tiers with direct links of the GPUs, without NICs: all dimensions of a torus, else 1."""
    return len(topology.shape) if isinstance(topology, TorusSpec) else 1


def _levels(spec: NetworkSpec, topology: Topology) -> list[_Level]:
    match topology:
        case FatTreeSpec():
            return list(_fat_tree(spec, topology))
        case SpineLeafSpec():
            return _spine_leaf(spec, topology)
        case RailOptimizedSpec():
            return _rail_optimized(spec, topology)
        case TorusSpec():
            return _torus(spec, topology)
        case DragonflySpec():
            return _dragonfly(spec, topology)
        case FullyConnectedSpec():
            return _fully_connected(spec, topology)
        case LevelsSpec():
            return list(_numbered(spec, topology))


def _fat_tree(spec: NetworkSpec, tree: FatTreeSpec) -> Iterator[_Level]:
    """Yield the levels of a fat tree: bandwidth = NIC / (product of the oversubscriptions of the levels below).

    Oversubscription limits the uplinks of a level, so the first level has the bandwidth of the NICs (Leiserson, IEEE
    Trans. Computers C-34, 1985; Al-Fares, Loukissas and Vahdat, SIGCOMM 2008).
    """
    bandwidth, latency = spec.net.bandwidth, spec.net.latency
    for level in tree.levels:
        latency = latency if level.latency is None else level.latency
        yield bandwidth, latency
        bandwidth = bandwidth / level.oversubscription


def _spine_leaf(spec: NetworkSpec, tree: SpineLeafSpec) -> list[_Level]:
    """Return leaf and spine: NIC, and a GPU's share of the uplinks, uplinks * bandwidth / (domains * GPUs per domain).

    The oversubscription is NIC over that share, at least 1 (Alizadeh and Edsall, HotI 2013: a two-stage Clos network).
    """
    nic, latency = spec.net.bandwidth, spec.net.latency
    share = tree.uplinks_per_leaf * tree.uplink_bandwidth / (tree.domains_per_leaf * spec.nvs.size)
    return [(nic, latency), (min(nic, share), latency if tree.spine_latency is None else tree.spine_latency)]


def _rail_optimized(spec: NetworkSpec, rails: RailOptimizedSpec) -> list[_Level]:
    """Return rail and spine: NIC, and NIC / oversubscription.

    Inside a unit, GPUs of the same position in their domains are one switch apart. A message between different
    positions crosses the fast domain first (PXN of NCCL 2.12); since that has more bandwidth, it adds one hop and no
    transfer time. A group with several members in a domain sends on the rail of each (NVIDIA DGX SuperPOD reference
    architecture, H100: from memory of it).
    """
    nic, latency = spec.net.bandwidth, spec.net.latency
    spine = latency if rails.spine_latency is None else rails.spine_latency
    return [(nic, latency), (nic / rails.oversubscription, spine)]


def _torus(spec: NetworkSpec, torus: TorusSpec) -> list[_Level]:
    """Return a level for each dimension after the first, and one for the NICs between tori.

    The bandwidth along a dimension is links * link_bandwidth. In a dimension that wraps around, a chip sends on two
    links, in both directions of its ring; in one that does not, a ring folds, with one link in each direction. A group
    on a part of a dimension has no wrap-around and half the bandwidth (Jouppi et al., arXiv 2304.01433, section 2;
    rings of one dimension after the other: Sack and Gropp, PPoPP 2012).
    """
    hop = spec.nvs.latency if torus.latency is None else torus.latency
    along = torus.link_bandwidth * (2 if torus.wrap else 1)
    return [*((along, hop) for _ in torus.shape[1:]), (spec.net.bandwidth, spec.net.latency)]


def _dragonfly(spec: NetworkSpec, fly: DragonflySpec) -> list[_Level]:
    """Return router, group and all groups: a GPU's share of the links of its router.

    With p GPUs per router and a routers per group it is (a - 1) local_bandwidth / p inside the group, and
    global_links_per_router * global_bandwidth / p between groups, under uniform traffic on shortest paths (Kim, Dally,
    Scott and Abts, ISCA 2008, section 3).

    Not modelled: traffic between two groups alone, which has one direct link and takes up to twice as many links on
    detours.
    """
    nic, per_gpu = spec.net.bandwidth, 1.0 / fly.gpus_per_router
    inside = spec.net.latency
    local = inside if fly.local_latency is None else fly.local_latency
    between = local if fly.global_latency is None else fly.global_latency
    in_group = nic
    if fly.routers_per_group > 1:
        in_group = min(nic, (fly.routers_per_group - 1) * fly.local_bandwidth * per_gpu)
    outside = min(in_group, fly.global_links_per_router * fly.global_bandwidth * per_gpu)
    return [(nic, inside), (in_group, local), (outside, between)]


def _fully_connected(spec: NetworkSpec, mesh: FullyConnectedSpec) -> list[_Level]:
    """Return one level: a GPU's share of its domain's links, (domains - 1) * link_bandwidth / GPUs of a domain.

    A group on some of the domains uses only the links among them, as in a fast domain that is a mesh.
    """
    share = (mesh.domains - 1) * mesh.link_bandwidth / spec.nvs.size
    return [(min(spec.net.bandwidth, share), spec.net.latency)]


def _numbered(spec: NetworkSpec, levels: LevelsSpec) -> Iterator[_Level]:
    """Yield the stated levels, none faster than the level below: a path has the least bandwidth of its levels."""
    least = spec.net.bandwidth
    for level in levels.levels:
        least = min(least, level.bandwidth)
        yield least, level.latency
