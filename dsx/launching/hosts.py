"""The processes of a run on its hosts: the lines of a script that `torchrun` reads them from, for every framework.

Each host starts as many processes as the others, so their number divides that of all GPUs. A fast domain of at most
eight GPUs is one host; how many GPUs the hosts of a larger one have is for the user to say.
"""

from dsx.launching.request import Request, commented

_HOST_GPUS = 8  # of the largest hosts whose GPUs are one fast domain


def processes_per_host(request: Request) -> int | None:
    """Return how many processes a host starts; None where a fast domain has several hosts."""
    if request.domain > _HOST_GPUS:
        return None
    num_gpus = request.run.number("num_gpus")
    return next(count for count in range(min(request.domain, num_gpus), 0, -1) if num_gpus % count == 0)


def host_variables(request: Request) -> tuple[str, ...]:
    """Return the environment variables that say which host a script runs on, with examples; none for one host."""
    each = processes_per_host(request)
    if each == request.run.number("num_gpus"):
        return ()
    return (*(["GPUS_PER_NODE=4"] if each is None else []), "NODE_RANK=0", "MASTER_ADDR=first-node")


def host_lines(request: Request) -> list[str]:
    """Return that hosts start fewer processes than a fast domain has GPUs, if they do."""
    each, num_gpus = processes_per_host(request), request.run.number("num_gpus")
    if each is None or each == min(request.domain, num_gpus):
        return []
    return [
        f"{num_gpus} GPUs are no multiple of the {request.domain} of a host, and torchrun starts as many processes on "
        f"each: {each} on each of {num_gpus // each}."
    ]


def torchrun(request: Request) -> str:
    """Return the lines of a script that say which processes run where."""
    each = processes_per_host(request)
    if each is None:
        gpus = f'"${{GPUS_PER_NODE:?a fast domain of {request.domain} GPUs has several hosts: GPUs of one host}}"'
    else:
        gpus = f'"${{GPUS_PER_NODE:-{each}}}"'
    return (
        f"{commented(host_lines(request))}NUM_GPUS={request.run.number('num_gpus')}\nGPUS_PER_NODE={gpus}\n"
        "if ((NUM_GPUS % GPUS_PER_NODE)); then\n"
        '    echo "GPUS_PER_NODE=$GPUS_PER_NODE: it must divide the $NUM_GPUS GPUs of the plan" >&2\n'
        "    exit 2\nfi\n"
        'HOSTS=(--nnodes "$((NUM_GPUS / GPUS_PER_NODE))" --nproc-per-node "$GPUS_PER_NODE" '
        '--node-rank "${NODE_RANK:-0}"\n    --master-addr "${MASTER_ADDR:-localhost}" '
        '--master-port "${MASTER_PORT:-29500}")\n'
    )
