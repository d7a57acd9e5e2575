"""The tiers of a network, derived from how it was built.

A tier is what a message crosses that leaves a unit of the tier below: its bandwidth is one GPU's share where all GPUs
send out of their units at once, its latency that of a whole message, and its size the GPUs that one unit of it joins.
Behind a NIC no tier carries more for a GPU than that, or than the tier below: a message outward crosses them all.

Not modelled: adaptive routing that finds idle links, and jobs of others on the same switches.
"""

from collections.abc import Iterator

from dsx.hardware.network import Tier
from dsx.spec.cluster import NetworkSpec
from dsx.spec.topology import (
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

# What a tier carries for one GPU where all send, and the latency of a message that crosses it; of the tiers behind
# the fast domain, innermost first.
_Level = tuple[float, float]


def tiers(spec: NetworkSpec) -> tuple[Tier, ...]:
    """Return the tiers of a network, innermost first; without a topology two, the outer one unbounded."""
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
    """Return how many tiers are made of links of the GPUs themselves, without a NIC: all dimensions of a torus."""
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
    """Yield the levels of a fat tree: NIC / (product of the oversubscriptions of the levels below).

    A level's uplinks carry what comes from below over its oversubscription, so the first level runs at the speed of
    the NICs (Leiserson, IEEE Trans. Computers C-34, 1985; Al-Fares, Loukissas and Vahdat, SIGCOMM 2008).
    """
    bandwidth, latency = spec.net.bandwidth, spec.net.latency
    for level in tree.levels:
        latency = latency if level.latency is None else level.latency
        yield bandwidth, latency
        bandwidth = bandwidth / level.oversubscription


def _spine_leaf(spec: NetworkSpec, tree: SpineLeafSpec) -> list[_Level]:
    """Return leaf and spine: a GPU's share of its leaf's uplinks, uplinks * bandwidth / (domains * GPUs of each).

    Oversubscription is NIC over that share, at least 1 (Alizadeh and Edsall, HotI 2013: a two-stage Clos network).
    """
    nic, latency = spec.net.bandwidth, spec.net.latency
    share = tree.uplinks_per_leaf * tree.uplink_bandwidth / (tree.domains_per_leaf * spec.nvs.size)
    return [(nic, latency), (min(nic, share), latency if tree.spine_latency is None else tree.spine_latency)]


def _rail_optimized(spec: NetworkSpec, rails: RailOptimizedSpec) -> list[_Level]:
    """Return rail and spine: NIC, and NIC / oversubscription.

    GPUs of one position in their domains are one switch apart, in a whole unit. A message between positions crosses
    the fast domain first (PXN of NCCL 2.12), whose bandwidth is larger, so its own hop there is all that it adds; a
    group with several members in a domain sends each on its own rail (NVIDIA DGX SuperPOD reference architecture,
    H100: from memory of it).
    """
    nic, latency = spec.net.bandwidth, spec.net.latency
    spine = latency if rails.spine_latency is None else rails.spine_latency
    return [(nic, latency), (nic / rails.oversubscription, spine)]


def _torus(spec: NetworkSpec, torus: TorusSpec) -> list[_Level]:
    """Return a level for each dimension behind the first, and the NICs between tori.

    Along a dimension that wraps around a chip sends on two links, both ways around its ring; along one that does not,
    a ring folds, with one link there and one back: links * link_bandwidth. What a group takes of a dimension but not
    the whole of it has no wrap-around: half of that (Jouppi et al., arXiv 2304.01433, section 2; rings of one
    dimension after the other: Sack and Gropp, PPoPP 2012).
    """
    hop = spec.nvs.latency if torus.latency is None else torus.latency
    along = torus.link_bandwidth * (2 if torus.wrap else 1)
    return [*((along, hop) for _ in torus.shape[1:]), (spec.net.bandwidth, spec.net.latency)]


def _dragonfly(spec: NetworkSpec, fly: DragonflySpec) -> list[_Level]:
    """Return router, group and all groups: a GPU's share of the links of its router.

    p GPUs of a router, a routers of a group: (a - 1) local_bandwidth / p inside the group, and
    global_links_per_router * global_bandwidth / p between groups, under uniform traffic on shortest paths (Kim, Dally,
    Scott and Abts, ISCA 2008, section 3). Traffic between neighbours alone finds one link of these and goes around by
    others, which takes up to twice as much of them; that is not counted.
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

    A group on some of the domains has the links among those alone, as in a fast domain that is a mesh.
    """
    share = (mesh.domains - 1) * mesh.link_bandwidth / spec.nvs.size
    return [(min(spec.net.bandwidth, share), spec.net.latency)]


def _numbered(spec: NetworkSpec, levels: LevelsSpec) -> Iterator[_Level]:
    """Yield levels as stated, none faster than the one below: a path runs at the least bandwidth of its levels."""
    least = spec.net.bandwidth
    for level in levels.levels:
        least = min(least, level.bandwidth)
        yield least, level.latency
