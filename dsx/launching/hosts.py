"""The processes of a run on its hosts: the lines of a script that `torchrun` reads them from, for every framework.

A fast domain of at most eight GPUs is one host. It starts as many processes as the plan uses GPUs of a domain, the last
host what is left. How many GPUs the hosts of a larger domain have is for the user to say.
"""

import math

from dsx.launching.request import Request, commented
from dsx.space.domain_fill import used_of_domain
from dsx.space.limits import PLACED
from dsx.space.tiers import axes_in

_HOST_GPUS = 8  # of the largest hosts whose GPUs are one fast domain


def processes_per_host(request: Request) -> int | None:
    """Return how many processes a host starts; None where a fast domain has several hosts."""
    return None if request.domain > _HOST_GPUS else _of_domain(request)


def _of_domain(request: Request) -> int | None:
    """Return how many consecutive ranks a fast domain has; if its groups are even, as many whole sets as fit."""
    num_gpus, plan = request.run.number("num_gpus"), request.run.plan
    degrees = {axis: request.run.number(axis) for axis in axes_in(str(plan["order"]))}
    shares = {axis: request.run.number(f"{axis}_nvs") for axis in PLACED}
    if any(degree % shares[axis] for axis, degree in degrees.items()):
        return used_of_domain(degrees, shares, request.domain)
    used = math.prod(shares.values())
    return next(count for count in range(min(request.domain, num_gpus), 0, -1) if num_gpus % count == count % used == 0)


def host_variables(request: Request) -> tuple[str, ...]:
    """Return the environment variables that say which host a script runs on, with examples; none for one host."""
    each = processes_per_host(request)
    if each == request.run.number("num_gpus"):
        return ()
    return (*(["GPUS_PER_NODE=4"] if each is None else []), "NODE_RANK=0", "MASTER_ADDR=first-node")


def host_lines(request: Request) -> list[str]:
    """Return that a fast domain runs fewer processes than it has GPUs, if it does."""
    each, num_gpus = _of_domain(request), request.run.number("num_gpus")
    if each is None or (each == min(request.domain, num_gpus) and not num_gpus % each):
        return []
    hosts, rest = divmod(num_gpus, each)
    last = f" and {rest} on the last" if rest else ""
    of = "a host" if request.domain <= _HOST_GPUS else "a fast domain"
    return [f"The plan uses {each} of the {request.domain} GPUs of {of}: {each} on each of {hosts}{last}."]


def torchrun(request: Request) -> str:
    """Return the lines of a script that say which processes run where."""
    each = processes_per_host(request)
    if each is None:
        gpus = f'"${{GPUS_PER_NODE:?a fast domain of {request.domain} GPUs has several hosts: GPUs of one host}}"'
    else:
        gpus = f'"${{GPUS_PER_NODE:-{each}}}"'
    num_gpus = request.run.number("num_gpus")
    hosts, own = "$((NUM_GPUS / GPUS_PER_NODE))", "$GPUS_PER_NODE"
    rest = (
        "if ((NUM_GPUS % GPUS_PER_NODE)); then\n"
        '    echo "GPUS_PER_NODE=$GPUS_PER_NODE: it must divide the $NUM_GPUS GPUs of the plan" >&2\n'
        "    exit 2\nfi\n"
    )
    if each is not None and num_gpus % each:
        hosts, own = "$(((NUM_GPUS + GPUS_PER_NODE - 1) / GPUS_PER_NODE))", "$OWN_GPUS"
        rest = (
            'OWN_GPUS="$((NUM_GPUS - ${NODE_RANK:-0} * GPUS_PER_NODE))"\n'
            'if ((OWN_GPUS > GPUS_PER_NODE)); then OWN_GPUS="$GPUS_PER_NODE"; fi\n'
        )
    return (
        f"{commented(host_lines(request))}NUM_GPUS={num_gpus}\nGPUS_PER_NODE={gpus}\n{rest}"
        f'HOSTS=(--nnodes "{hosts}" --nproc-per-node "{own}" --node-rank "${{NODE_RANK:-0}}"\n'
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}")\n'
    )
