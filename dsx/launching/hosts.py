"""The ranks of a run on its hosts: whether their order places a plan as it was priced, and which host starts which.

The orders are Megatron-LM's (megatron.core, parallel_state.initialize_model_parallel): axes of the rank number, the
fastest first. A host starts a process for each of its GPUs, but no more than the plan uses of a fast domain. The last
host starts the remaining ones; so does the last of each domain of which the plan uses no whole hosts.
"""

import math
from collections.abc import Mapping, Sequence

from dsx.launching.request import Request, commented
from dsx.plans.placement import ORDERS, axes_in, numbered_shares, used_of_domain
from dsx.plans.rules import PLACED, placed

# The axes of the rank number, the fastest first; ep groups are ranks of tp, cp and dp.
_RANK_ORDERS = {order: tuple(axis for axis in order.split("-") if axis != "ep") for order in ORDERS}
RANK_ORDER = _RANK_ORDERS[ORDERS[0]]


def shares_of(plan: Mapping[str, int], order: Sequence[str] = RANK_ORDER) -> dict[str, int] | None:
    """Return how many members of each axis share a fast domain if ranks are numbered in `order`.

    A domain holds consecutive ranks, as many as the plan places on one. Returns None if domains cut groups unevenly, so
    that no single number describes them.
    """
    return numbered_shares({axis: plan[axis] for axis in order}, placed(plan, RANK_ORDER))


def other_placement(plan: Mapping[str, int]) -> list[str]:
    """Return how the placement of a plan differs from that of its rank order."""
    shares = {axis: plan[f"{axis}_nvs"] for axis in RANK_ORDER}
    by_order = {name: shares_of(plan, order) for name, order in _RANK_ORDERS.items()}
    order = str(plan["order"])
    numbered = by_order[order]
    # Where a share does not divide its degree, ranks are in the order of the plan: nothing else lays groups unevenly.
    if numbered == shares or any(plan[axis] % share for axis, share in shares.items()):
        return []
    does = f"puts {_shares_text(numbered)} there" if numbered else "cuts its groups unevenly"
    # On more than two tiers, where a plan has columns for those beyond the domain, another order is another plan.
    on_two_tiers = order == ORDERS[0] and {name for name in plan if name.startswith("dp_")} == {"dp_nvs"}
    equal = [name for name, other in by_order.items() if name != order and other == shares and on_two_tiers]
    better = [f"; the order {name} would do as priced" for name in equal]
    domains = f"fast domains of {placed(plan, RANK_ORDER)} GPUs"
    which = "default rank order" if order == ORDERS[0] else "rank order"
    return [
        f"the placement {_shares_text(shares)} on {domains}: the {which} "
        f"({order}, {RANK_ORDER[0]} innermost) {does}{''.join(better)}"
    ]


def _shares_text(shares: Mapping[str, int]) -> str:
    return " ".join(f"nvs.{axis}={shares[axis]}" for axis in PLACED if shares.get(axis, 1) > 1) or "of one GPU each"


_HOST_GPUS = 8  # a fast domain of at most so many is a host where the cluster does not say


def _of_domain(request: Request) -> int:
    """Return how many consecutive ranks a fast domain has; if its groups are even, as many whole sets as fit."""
    num_gpus, plan = request.run.number("num_gpus"), request.run.plan
    degrees = {axis: request.run.number(axis) for axis in axes_in(str(plan["order"]))}
    shares = {axis: request.run.number(f"{axis}_nvs") for axis in PLACED}
    most = min(request.domain, num_gpus)
    if any(degree % shares[axis] for axis, degree in degrees.items()):
        return used_of_domain(degrees, shares, request.domain) or most
    used = math.prod(shares.values())
    return next(count for count in range(most, 0, -1) if num_gpus % count == count % used == 0)


def _of_host(request: Request, used: int) -> int | None:
    """Return how many processes a host starts where a fast domain has `used`; None if that is for the user to say.

    A host of several domains starts those of all if the plan uses them whole.
    """
    domain, num_gpus = request.domain, request.run.number("num_gpus")
    host = request.host or (domain if domain <= _HOST_GPUS else None)
    if host is None or (domain % host and host % domain):
        return None
    return min(host, num_gpus if used == min(domain, num_gpus) else used)


def host_variables(request: Request) -> tuple[str, ...]:
    """Return the environment variables that say which host a script runs on, with examples; none for one host."""
    gpus = _of_host(request, _of_domain(request))
    if gpus == request.run.number("num_gpus"):
        return ()
    return (*(["GPUS_PER_NODE=4"] if gpus is None else []), "NODE_RANK=0", "MASTER_ADDR=first-node")


def host_lines(request: Request) -> list[str]:
    """Return that some fast domains run fewer processes than they have GPUs, if they do."""
    used, num_gpus = _of_domain(request), request.run.number("num_gpus")
    domains, remainder = divmod(num_gpus, used)
    unit = "host" if used == _of_host(request, used) else "fast domain"
    if used < min(request.domain, num_gpus):
        last = f", {remainder} on the last" if remainder else ""
        first = f"each of {domains}" if domains > 1 else "the first"
        return [f"The plan uses {used} of the {request.domain} GPUs of a {unit}: {used} on {first}{last}."]
    return [f"A {unit} runs {used} processes, the last one {remainder}."] if remainder else []


def script(lines: list[str], request: Request, text: str) -> str:
    """Return a script with a head of comments, the lines that say which processes run where, and then a text."""
    used, num_gpus = _of_domain(request), request.run.number("num_gpus")
    gpus = _of_host(request, used)
    ranks = (
        'if ((OWN_GPUS > GPUS_PER_NODE)); then OWN_GPUS="$GPUS_PER_NODE"; fi\n'
        'HOSTS=(--nnodes "$NODES" --nproc-per-node "$OWN_GPUS" --node-rank "${NODE_RANK:-0}"\n'
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}")\n'
    )
    if gpus is not None and used > gpus and used % gpus:
        hosts, rank = -(-used // gpus), "${NODE_RANK:-0}"
        remaining = f"NUM_GPUS - {rank} / {hosts} * {used}"
        processes = (
            f"GPUS_PER_NODE={gpus}\nNODES={num_gpus // used * hosts - -(num_gpus % used) // gpus}\n"
            f'OWN_GPUS="$((({remaining} < {used} ? {remaining} : {used}) - {rank} % {hosts} * GPUS_PER_NODE))"\n'
        )
    else:
        of_unit = max(used, gpus or 0)
        ask = ":?GPUs of one host, of which several make up a fast domain" if gpus is None else f":-{gpus}"
        processes = (
            f'GPUS_PER_NODE="${{GPUS_PER_NODE{ask}}}"\n'
            f"if (({of_unit} % GPUS_PER_NODE)); then\n"
            f'    echo "GPUS_PER_NODE=$GPUS_PER_NODE: it must divide the {of_unit} GPUs of a fast domain" >&2\n'
            "    exit 2\nfi\n"
            'NODES="$(((NUM_GPUS + GPUS_PER_NODE - 1) / GPUS_PER_NODE))"\n'
            'OWN_GPUS="$((NUM_GPUS - ${NODE_RANK:-0} * GPUS_PER_NODE))"\n'
        )
    return (
        f"#!/usr/bin/env bash\n{commented(lines)}set -euo pipefail\n\n"
        f"{commented(host_lines(request))}NUM_GPUS={num_gpus}\n{processes}{ranks}\n{text}"
    )
