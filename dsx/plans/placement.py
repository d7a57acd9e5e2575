"""Placements: which shares of fast domains and of the tiers beyond them a plan has, and which a search tries.

Launchers number ranks one axis after the other (`ORDERS`, Megatron-LM's rank orders), and consecutive ranks fill a
domain: the last domain of a job may have fewer of them, and a domain may end within a group. A share is the most
members of a group in one domain. A group of d members with a share of t spans ceil(d / t) domains; the last of them has
what is left, which is as many as its other domains have where t divides d. A group that does not lie so counts as the
nearest that is no better than its worst-placed group: it spans no fewer domains, and has no more members in that with
the fewest.

A plan may also leave GPUs of each domain free, for other jobs. Then consecutive ranks fill what it uses: with groups of
16 in domains of 72, 64 GPUs of each. Those may be whole nodes, as racks of 18 nodes of 4 have them. Where they are not,
the plan needs more whole nodes than its GPUs fill: 20 GPUs as 7 + 7 + 6 need three nodes of 8, as 8 + 8 + 4 two and a
half. And they may be on more domains than hold all: 288 GPUs as 48 of 72 on six, where four are enough.

A fast domain may hold any members of any axes. Beyond it consecutive ranks fill a unit of each tier. This decides how
many members of a group share a unit. Let an axis have d domains at a stride of s domains: a unit of u domains holds
gcd(d, u / s) of them, and one if s does not divide u. A group that a unit cuts unevenly, or whose stride does not
divide the unit, straddles units. It then counts as crossing the tier with the smallest number of members that any of
its units has. Where groups lie unevenly on domains already, ranks are numbered through, and a group counts as
`laid_share` says, or as apart beyond its domains where those cut inner groups. A job that fits into one unit has all
stages and replicas there. Groups of the axes of a replica count as in a larger job, because a shard key does not know
the size of its job.

The axes of a replica come first in every order, and ep nests in the ranks that follow them. So the shard key does not
depend on the order.
"""

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from dsx import arrays as xp
from dsx.config.sweep_fields import divisors_of
from dsx.plans.experts import REPLICA_AXES, Columns, Truth, W, Whole, nesting_ranks, share_of_row, share_of_shares
from dsx.records import Array, ArrayLike, Bool, Float, Int, Real, Shaped

if TYPE_CHECKING:
    from dsx.config.cluster_file import Network

T = TypeVar("T")
_Ints = Int[Array, "*#plans"]
_Numbers = Real[Array, "*#plans"]
_Truths = Bool[Array, "*#plans"]
_IntColumn = Int[np.ndarray, "*#plans"]
_Shares = dict[str, _IntColumn]  # by axis

# Rank orders, the fastest-changing axis first.
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")

Degrees = Mapping[str, int]  # by axis, the fastest-changing one first
_COUNTED = 4  # groups that follow each other are counted one by one
MANY = _COUNTED + 1  # more of them may begin at any multiple in a unit


def axes_in(order: str) -> tuple[str, ...]:
    """Return the axes that a rank order numbers; tp2 follows tp, and ep is left out because it nests in others."""
    first, *outer = (axis for axis in order.split("-") if axis != "ep")
    return (first, "tp2", *outer)


@functools.cache
def divisors(number: int) -> Int[np.ndarray, "divisors"]:
    """Return the divisors of a number in increasing order, as a read-only array."""
    increasing = np.array(divisors_of(number), dtype=np.int64)
    increasing.flags.writeable = False
    return increasing


def all_divisors(numbers: Sequence[int]) -> Int[np.ndarray, "divisors"]:
    """Return the divisors of any of `numbers`, in increasing order."""
    return np.unique(np.concatenate([divisors(number) for number in numbers]))


def shares_of(columns: Mapping[str, T], axes: Sequence[str]) -> dict[str, T]:
    """Return the members of a group that share a fast domain, by axis."""
    return {axis: columns[f"{axis}_nvs"] for axis in axes}


def placed(columns: Mapping[str, W], axes: Sequence[str]) -> W:
    """Return the GPUs of a fast domain that the groups of some axes take: the product of their shares."""
    return math.prod(columns[f"{axis}_nvs"] for axis in axes)  # pyright: ignore[reportReturnType]


def even_shares(columns: Columns, axes: Sequence[str]) -> Truth:
    """Return whether the shares of all of some axes divide their degrees."""
    return functools.reduce(operator.and_, [columns[axis] % columns[f"{axis}_nvs"] == 0 for axis in axes])


def laid_share(degree: Whole, stride: Whole, unit: Whole, groups: Whole = MANY) -> _IntColumn:
    """Return the share of groups whose members are `stride` ranks apart, in units of `unit` consecutive ranks.

    So many `groups` follow each other, of `MANY` at any offset that repeats.
    """
    values = (np.asarray(value, dtype=np.int64) for value in (degree, stride, unit, groups))
    degree, stride, unit, groups = np.broadcast_arrays(*values)
    ones = np.ones_like(degree)
    crossed, least = _laid(Runs(degree, stride, ones, degree * stride, ones), groups, unit)
    return np.where(crossed == 1, degree, nearest_share(degree, crossed, least, unit // stride))


class Runs(NamedTuple):
    """Groups of `copies` of `runs` runs of `members` ranks.

    Several runs alternate with those of the other copy. Groups lie in blocks of `runs * apart` ranks, one after the
    other; two copies of a single run may be anywhere in theirs.
    """

    members: _Numbers
    stride: Real[ArrayLike, "*#plans"]  # ranks from one member of a run to the next
    runs: _Numbers
    apart: _Numbers  # ranks from one run to the next, and from the last one to the end of the block
    copies: _Numbers


def share_of_runs(ranks: Runs, world: _Ints, unit: _Ints, ends: Sequence[_Ints] | None = None) -> _Ints:
    """Return the share of groups of a job of `world` ranks in units of `unit` consecutive ranks, as `laid_share` does.

    Of groups that follow each other from the first rank of the job on, so many of the first ones and of the last ones
    count, or all without `ends`.
    """
    members, stride, runs, apart, copies = ranks
    span, block = members * stride, runs * apart
    ranks = ranks._replace(apart=xp.where(runs == 1, span, apart))
    groups = xp.where(runs == 1, world // span, apart // (copies * span))
    skipped = None
    if ends is not None:
        first = xp.minimum(ends[0], groups)
        skipped = first, groups - first - xp.minimum(ends[1], groups - first)
        groups = groups - skipped[1]
    groups = xp.where((runs == 1) | (runs * apart == world), groups, MANY)
    crossed, least = _laid(ranks, groups, unit, skipped)
    crossed = xp.minimum(crossed * xp.where(runs == 1, copies, 1), -(-world // unit))
    crossed = xp.minimum(crossed, (unit - xp.gcd(block, unit) + block - 1) // unit + 1)
    size = members * runs * copies
    most = xp.minimum(unit // stride, size - (crossed - 1) * least)
    return xp.where(crossed == 1, size, nearest_share(size, crossed, least, most))


def _laid(ranks: Runs, groups: _Ints, unit: _Ints, skipped: tuple[_Ints, _Ints] | None = None) -> tuple[_Ints, _Ints]:
    """Return how many units a group spans, the most of any, and the members in the one with the fewest.

    `groups` follow each other, each time as many interleaved ones as a stride has ranks. Others come between them,
    after so many so many, if some are `skipped`.
    """
    members, stride, runs, apart, copies = ranks
    span, ones = members * stride, xp.ones_like(members)
    folded = xp.where(runs == 1, 0, copies - 1)  # whether runs of two copies alternate
    in_period = members * (1 + folded)

    def held(length: _Ints, further: _Ints) -> _Ints:
        """Return how many members so many ranks at an end of a group have, where the other copy is `further` on."""
        remainder = length % apart
        reached = xp.where(
            (folded > 0) & (remainder > further), remainder - further + span, xp.minimum(remainder, span)
        )
        return xp.maximum(length // apart * in_period + xp.minimum(reached // stride, in_period), ones)

    step = xp.gcd(span, unit)  # runs begin at multiples of it in a unit
    latest = unit - step + xp.minimum(stride, step) - 1
    extent = runs * apart - (apart - span) * (1 - folded)
    crossed, least = (latest + extent - stride) // unit + 1, xp.maximum(step // stride, ones)
    # Units between the ends have what the longest gap leaves there.
    between = unit // apart * in_period + xp.maximum(unit % apart + in_period * stride - apart, 0) // stride
    between = xp.maximum(between, least)
    most_crossed, fewest = ones, in_period * runs
    offset = None if skipped is None else xp.gcd(apart, unit)
    for counted in range(_COUNTED):
        number = counted if skipped is None else counted + xp.where(counted < skipped[0], 0, skipped[1])
        begin, length = number * span % unit, extent - 2 * number * span * folded
        over = (xp.minimum(begin + stride, unit) - 1 + length - stride) // unit + 1
        further = apart - (2 * number + 1) * span
        ends = xp.minimum(held(unit - begin, further), held((begin + length - 1) % unit + 1, further))
        within = between
        if offset is not None:
            # Where no run is cut, a unit that has members has a run of them. Those of all stages are seldom so.
            uncut = begin % offset + span <= offset
            over = xp.where(uncut, xp.minimum(over, in_period // members * runs), over)
            within = xp.where(uncut, xp.maximum(between, members), between)
        inside = xp.where(over > 2, xp.minimum(ends, within), ends)
        exists = groups > counted
        most_crossed = xp.where(exists, xp.maximum(most_crossed, over), most_crossed)
        fewest = xp.where(exists & (over > 1), xp.minimum(fewest, inside), fewest)
    all_counted, apart_each = groups <= _COUNTED, in_period // members * runs * ((latest + span - stride) // unit + 1)
    crossed = xp.minimum(xp.where(all_counted, most_crossed, crossed), apart_each)
    least = xp.where(all_counted, fewest, least)
    return xp.where(stride >= unit, in_period * runs, crossed), xp.where(stride >= unit, ones, least)


def nearest_share(degree: _Ints, crossed: _Ints, least: _Ints, most: _Ints) -> _Ints:
    """Return the share of the best group that is no better than one on `crossed` units, with `least` members in one.

    It spans no fewer units, and has no more members in the one with the fewest. `most` members are in a whole unit.
    """
    best = ones = xp.ones_like(degree)
    best_least, best_crossed = xp.zeros_like(degree), xp.zeros_like(degree)
    other_units = xp.maximum(crossed - 1, ones)
    # The smallest that leaves `least` or fewer on so many units, of those that span as many.
    exact = xp.minimum(-((least - degree) // other_units), (degree - 1) // other_units)
    for share in (least, most, exact):
        share = xp.minimum(xp.maximum(share, ones), degree)
        over, fewest = units_spanned(degree, share)
        better = (fewest > best_least) | ((fewest == best_least) & (over < best_crossed))
        better = better & (over >= crossed) & (fewest <= least)
        best, best_least, best_crossed = (
            xp.where(better, new, old) for new, old in ((share, best), (fewest, best_least), (over, best_crossed))
        )
    return best


def units_spanned(degree: _Ints, share: _Ints) -> tuple[_Ints, _Ints]:
    """Return how many units a group spans, and how many members the one with the fewest has."""
    spanned = -(-degree // share)
    return spanned, degree - (spanned - 1) * share


def rank_order_shares(
    degrees: Columns, size: int, world: Whole | None = None, stride: Whole = 1, taken: Whole = 1
) -> _Shares:
    """Return the shares of ranks that fill domains of `size` GPUs one after the other, in the order of `degrees`.

    `world` has the ranks of the job; without it the job is larger than a domain, and more groups follow. Axes before
    those of `degrees` have `stride` ranks, `taken` of them in a domain. All shares multiply to at most `size`.
    """
    shares: dict[str, np.ndarray] = {}
    for axis, degree in degrees.items():
        # A shard key does not know its job, so any number of groups may follow those of the axes of a replica.
        groups = MANY if world is None or axis in REPLICA_AXES else world // (stride * degree)
        share = laid_share(degree, stride, size, groups)
        share = np.where(taken * share <= size, share, 1)
        shares[axis] = share if world is None else np.where(world <= size, degree, share)
        taken, stride = taken * share, stride * degree
    return shares


def in_order(
    degrees: Columns, shares: Columns, size: int, world: Whole | None = None, stride: Whole = 1, taken: Whole = 1
) -> Truth:
    """Return whether the shares of the axes of `degrees` are those of `rank_order_shares`."""
    of_ranks = rank_order_shares(degrees, size, world, stride, taken)
    return functools.reduce(operator.and_, [shares[axis] == share for axis, share in of_ranks.items()])


_Number = Real[ArrayLike, "*#plans"]


def consecutive(
    degrees: Mapping[str, _Number],
    shares: Mapping[str, _Number],
    world: _Number | None = None,
    stride: _Number = 1,
    filled: bool | _Truths = True,
) -> _Truths:
    """Return whether shares are those of domains of consecutive ranks, as many as the shares multiply to.

    The innermost axes have whole groups in a domain, the next one some members, the others one. Where that share does
    not divide its degree, each group must lie as the first one does, or none follow. Axes before those of `degrees`
    have `stride` ranks; `filled` says whether a domain has all of them.
    """
    conditions: list[_Truths] = []
    for axis, degree in degrees.items():
        share = shares[axis]
        alone = False if axis in REPLICA_AXES else stride * degree == world
        repeats = alone | (share % xp.maximum(degree % share, 1) == 0)
        conditions += [share <= degree, xp.where(filled, repeats, share == 1)]
        filled = filled & (share == degree)
        stride = stride * degree
    return functools.reduce(operator.and_, conditions)


def used_of_domain(degrees: Degrees, shares: Degrees, size: int) -> int | None:
    """Return the GPUs of a fast domain of `size` that a plan uses; None if no ranks lie as the shares say."""
    used, world = math.prod(shares[axis] for axis in degrees), math.prod(degrees.values())
    if all(degree % shares[axis] == 0 for axis, degree in degrees.items()) or consecutive(degrees, shares, world):
        return used
    return size if in_order(degrees, shares, size, world) else None


def fills_nodes(num_gpus: Whole, used: Whole, node: int, size: int) -> Truth:
    """Return whether a job that uses `used` GPUs of each domain needs the fewest domains and nodes of `node` GPUs.

    It fills all of the nodes but the last. `node` divides `size`, the GPUs of a domain.
    """
    domains, remainder = num_gpus // used, num_gpus % used
    filled = domains * (used // node) + remainder // node
    needed = domains * -(-used // node) - (-remainder // node)
    few_domains = -(-num_gpus // used) == -(-num_gpus // size)
    return (filled == num_gpus // node) & (needed == -(-num_gpus // node)) & few_domains


class PartlyFilled(NamedTuple):
    """Nodes or domains that a plan uses and does not fill, more of them than its GPUs make necessary."""

    used: int  # GPUs of each domain but the last one
    last: int  # GPUs of the last domain
    needed: int  # nodes, or domains where it fills its nodes
    of: int  # GPUs of one of these
    free: int  # GPUs of these that stay free


def partly_filled(degrees: Degrees, shares: Degrees, size: int, node: int) -> PartlyFilled | None:
    """Return the nodes of `node` GPUs, or the domains, in which a plan leaves GPUs free; None if it needs the fewest.

    `node` divides `size`, the GPUs of a domain.
    """
    used, world = used_of_domain(degrees, shares, size), math.prod(degrees.values())
    # Ranks that fill domains one after the other may have the shares of ranks that leave GPUs free.
    if used is None or in_order(degrees, shares, size, world) or fills_nodes(world, used, node, size):
        return None
    domains, last = divmod(world, used)
    nodes, domains = domains * -(-used // node) - (-last // node), -(-world // used)
    needed, of = (domains, size) if nodes == -(-world // node) else (nodes, node)
    return PartlyFilled(used, last or used, needed, of, needed * of - world)


def uneven_shares(
    degree: Int[np.ndarray, "plans"], room: Int[np.ndarray, "plans"], alone: Shaped[np.ndarray, "plans"]
) -> tuple[Int[np.ndarray, "kept"], Int[np.ndarray, "kept"]]:
    """Return (rows, shares): the shares of an axis of plans that a search tries and that do not divide their degrees.

    A domain has room for `room` members; `alone` says that no other group follows. A share is left out if another one
    spans no more domains and has no fewer members in each.
    """
    cases, of_row = np.unique(np.stack([degree, room, alone]), axis=1, return_inverse=True)
    tried = [_uneven_shares(*case) for case in cases.T.tolist()]
    of_rows = [tried[case] for case in of_row.ravel().tolist()]
    rows = np.repeat(np.arange(len(degree)), np.array([len(shares) for shares in of_rows], dtype=np.int64))
    return rows, np.array([share for shares in of_rows for share in shares], dtype=np.int64)


@functools.cache
def _uneven_shares(degree: int, room: int, alone: int) -> tuple[int, ...]:
    shares = np.arange(1, min(degree - 1, room) + 1)
    even = degree % shares == 0
    shares = shares[even | bool(alone) | (degree % shares == np.gcd(degree, shares))]
    spanned, least = units_spanned(np.asarray(degree), shares)
    no_worse = (spanned <= spanned[:, None]) & (least >= least[:, None])
    return tuple(shares[(no_worse.sum(axis=1) == 1) & (degree % shares != 0)].tolist())


def fill_in_order(degrees: Degrees, size: int) -> dict[str, int]:
    """Return the members of each axis that share a domain of `size` GPUs, filled in the order of `degrees`."""
    room = max(size, 1)
    shares: dict[str, int] = {}
    for axis, degree in degrees.items():
        shares[axis] = max(share for share in divisors(degree).tolist() if share <= room)
        room //= shares[axis]
    return shares


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
    outer = math.prod(degrees.values())
    shares: dict[str, int] = {}
    for axis, degree in degrees.items():
        outer //= degree
        fits = (share for share in divisors(math.gcd(degree, size)).tolist() if outer % (size // share) == 0)
        shares[axis] = max(fits)
        size //= shares[axis]
    return shares


def units(network: "Network") -> tuple[int, ...]:
    """Return the fast domains in a unit of each tier between fast domain and outermost tier."""
    return tuple(tier.size // network.nvs.size for tier in network.middle)


def _steps(unit: Whole, stride: Whole) -> _IntColumn:
    """Return how many strides of `stride` domains a unit holds; 1 where the stride does not divide it."""
    return np.where(unit % stride == 0, unit // stride, 1)


class Replica(NamedTuple):
    """A stage of a replica."""

    ranks: Whole
    share: Whole  # of them in a fast domain
    even: Truth  # whether shares divide the degrees of all its axes


def replica_of(keys: Columns) -> Replica:
    """Return the stages of replicas of shard keys."""
    ranks = math.prod(keys[axis] for axis in REPLICA_AXES)
    return Replica(ranks, placed(keys, REPLICA_AXES), even_shares(keys, REPLICA_AXES))


def in_a_row(keys: Columns) -> _Truths:
    """Return whether the axes of the replicas of shard keys lie on domains of consecutive ranks."""
    return consecutive({axis: keys[axis] for axis in REPLICA_AXES}, shares_of(keys, REPLICA_AXES))


def rank_placement(keys: Columns, network: "Network") -> tuple[Float[np.ndarray, "*#plans"], ...]:
    """Return what the placement of the ranks of shard keys on the units of tiers has in common, as floats.

    In order: 1.0 where shares divide the degrees of all axes, else 0.0; how many ranks of a stage of a replica are in a
    fast domain, where they follow each other, else its GPUs; its GPUs; and for each tier between the domain and the
    outermost one, the domains of a unit.
    """
    _, share, even = replica_of(keys)
    size = float(network.nvs.size)
    values = (np.where(even, 1.0, 0.0), np.where(in_a_row(keys), share, size), size, *map(float, units(network)))
    return tuple(np.broadcast_to(value, np.shape(keys["tp"])) for value in values)


def may_cut_two_axes(keys: Columns, size: int) -> bool:
    """Return whether domains of `size` GPUs may cut groups of axes of a replica, and those of the replicas, unevenly.

    They do not where the ranks inside a group that is cut divide a domain, and a domain divides those of the group.
    """
    inside: Whole = 1
    cut: Truth = False
    chained: Truth = True
    for axis in REPLICA_AXES:
        cut_axis = keys[f"{axis}_nvs"] < keys[axis]
        around = inside * keys[axis]
        cut = cut | cut_axis
        chained = chained & (np.logical_not(cut_axis) | ((size % inside == 0) & (around % size == 0)))
        inside = around
    if np.any(cut & np.logical_not(even_shares(keys, REPLICA_AXES))):
        return True
    # How ranks lie takes longer to tell than all else, and matters to few keys.
    at = np.flatnonzero(cut & np.logical_not(chained))
    few = {axis: np.atleast_1d(keys[axis])[at] for axis in REPLICA_AXES}
    shares = {axis: np.atleast_1d(share)[at] for axis, share in shares_of(keys, REPLICA_AXES).items()}
    return bool(np.any(in_order(few, shares, size)))


def key_shares(keys: Columns, unit: Whole, expert_axes: Collection[str]) -> _Shares:
    """Return, per model axis, how many members of a group share a unit of `unit` domains."""
    shares: _Shares = {}
    inside: _Shares = {}
    stride: Whole = 1
    for axis in REPLICA_AXES:
        domains = keys[axis] // keys[f"{axis}_nvs"]
        inside[axis] = np.gcd(domains, _steps(unit, stride))
        shares[axis] = keys[f"{axis}_nvs"] * inside[axis]
        stride = stride * domains
    nested = math.prod(inside[axis] for axis in REPLICA_AXES if axis not in expert_axes)
    shares["ep"] = keys["ep_nvs"] * np.gcd(keys["ep"] // keys["ep_nvs"], nested * _steps(unit, stride))
    _, share, even = replica_of(keys)
    if np.all(even):
        return shares
    laid = {"ep": np.asarray(keys["ep_nvs"])}
    lies = in_a_row(keys)
    between: Whole = 1
    for axis in REPLICA_AXES:
        # Where groups straddle domains, their shares do not tell the ranks of a domain.
        laid[axis] = np.where(lies, laid_share(keys[axis], between, unit * share), keys[f"{axis}_nvs"])
        between = between * keys[axis]
    return {axis: np.where(even, of_even, laid[axis]) for axis, of_even in shares.items()}


def choice_shares(choices: Columns, replica: Replica, unit: Whole) -> _Shares:
    """Return how many members of pp and dp share a unit."""
    ranks, share, even = replica
    stride = ranks // share
    stages, replicas = (choices[axis] // choices[f"{axis}_nvs"] for axis in ("pp", "dp"))
    replicas_first = np.asarray(choices["order"]) == 0
    pp = np.gcd(stages, _steps(unit, np.where(replicas_first, stride * replicas, stride)))
    dp = np.gcd(replicas, _steps(unit, np.where(replicas_first, stride, stride * stages)))
    one_unit = stride * stages * replicas <= unit  # the job fits into one
    pp, dp = np.where(one_unit, stages, pp), np.where(one_unit, replicas, dp)
    shares = {"pp": choices["pp_nvs"] * pp, "dp": choices["dp_nvs"] * dp}
    even = even & even_shares(choices, ("pp", "dp"))
    if np.all(even):
        return shares
    held = unit * share * choices["pp_nvs"] * choices["dp_nvs"]
    job = ranks * choices["pp"] * choices["dp"]
    for axis, inner, first in (("pp", "dp", ~replicas_first), ("dp", "pp", replicas_first)):
        degree, inner_degree = choices[axis], choices[inner]
        stride, groups = np.where(first, ranks, ranks * inner_degree), np.where(first, inner_degree, 1)
        laid = laid_share(degree, stride, held, groups)
        laid = np.where(ranks == share, np.where(job <= held, degree, laid), choices[f"{axis}_nvs"])
        shares[axis] = np.where(even, shares[axis], laid)
    return shares


def of_order(plan: Columns, of_degrees: Callable[[Columns], Truth | _Truths]) -> Bool[np.ndarray, "*#plans"]:
    """Return what holds for the degrees of plans in the order in which their ranks are numbered."""
    by_order = [np.asarray(of_degrees({axis: plan[axis] for axis in axes_in(order)})) for order in ORDERS]
    return np.choose(plan["order"], by_order)


def lies_consecutively(plan: Columns, world: Whole) -> Bool[np.ndarray, "*#plans"]:
    """Return whether plans of `world` ranks lie on domains of consecutive ranks, in their order."""
    shares = shares_of(plan, axes_in(ORDERS[0]))
    return of_order(plan, lambda degrees: consecutive(degrees, shares, world))


def expert_share(plan: Columns, expert_axes: Collection[str], size: int) -> _IntColumn:
    """Return how many members of an ep group share a fast domain of `size` GPUs, the fewest of any group.

    A domain has the ranks that the shares multiply to, or as many consecutive ones as fit.
    """
    axes = axes_in(ORDERS[0])
    shares_tell = even_shares(plan, axes) | lies_consecutively(plan, math.prod(plan[axis] for axis in axes))
    of_shares = share_of_shares(plan, expert_axes, plan["dp_nvs"])
    return np.where(shares_tell, of_shares, share_of_row(plan, expert_axes, size))


def shares_on_tiers(plan: Columns, network: "Network", expert_axes: Collection[str]) -> dict[str, int]:
    """Return the columns ``<axis>_<tier>`` of a plan for each tier between fast domain and outermost tier."""
    columns: dict[str, int] = {}
    for tier, unit in zip(network.middle, units(network), strict=True):
        shares = key_shares(plan, unit, expert_axes) | choice_shares(plan, replica_of(plan), unit)
        columns |= {f"{axis}_{tier.name}": int(share) for axis, share in shares.items()}
    return columns


def straddling(plan: Mapping[str, int], network: "Network") -> list[tuple[str, str]]:
    """Return the (axis, tier) whose groups straddle units of the tier; they count as crossing it."""
    axes = axes_in(ORDERS[plan["order"]])
    if not even_shares(plan, axes):
        return []  # each group counts as it lies
    domains = {axis: plan[axis] // plan[f"{axis}_nvs"] for axis in axes}
    straddled: list[tuple[str, str]] = []
    for tier, unit in zip(network.middle, units(network), strict=True):
        stride = 1
        one_unit = math.prod(domains.values()) <= unit
        for axis, degree in domains.items():
            steps, uneven = divmod(unit, stride)
            shares_unit = stride < unit and not (one_unit and axis not in REPLICA_AXES)
            if degree > 1 and shares_unit and (uneven or (degree % steps and steps % degree)):
                straddled.append((axis, tier.name))
            stride *= degree
    return straddled


def distinct_order(
    choices: Mapping[str, Int[np.ndarray, "plans"]],
    orders: Sequence[int],
    replica: Replica,
    unit_sizes: Sequence[int],
) -> Bool[np.ndarray, "plans"]:
    """Return which plans a search tries: those whose order differs in effect from the first of `orders`.

    Two orders that place pp and dp in the same way on every tier are equivalent.
    """
    first = min(orders)
    distinct = choices["order"] == first
    for unit in unit_sizes:
        shares = choice_shares(choices, replica, unit)
        of_first = choice_shares({**choices, "order": np.full_like(choices["order"], first)}, replica, unit)
        distinct = distinct | (shares["pp"] != of_first["pp"]) | (shares["dp"] != of_first["dp"])
    return distinct


def ep_ranks_adjacent(order: Whole, spanned: Whole) -> Bool[np.ndarray, "*#plans"]:
    """Return whether an order numbers the ranks of an ep group over `spanned` replicas consecutively."""
    return (np.asarray(order) == 0) | (np.asarray(spanned) == 1)


def replicas_spanned(plan: Columns, expert_axes: Collection[str]) -> Whole:
    """Return how many replicas an ep group spans."""
    return plan["ep"] // np.gcd(plan["ep"], nesting_ranks(plan, expert_axes))
