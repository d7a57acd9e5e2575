"""``dsx place``: the operators of a training step on the GPUs of a small cluster."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.printing import print_answer
from dsx.errors import InputError


class Bandwidth(StrEnum):
    """How servers share what their network cards send."""

    uniform = "uniform"
    joint = "joint"


class Emit(StrEnum):
    """What a bandwidth allocation is written for."""

    ovs = "ovs"


def place(
    graph: Annotated[
        str | None,
        typer.Argument(
            metavar="[GRAPH]",
            help="Graph of operators: a JSON file, or FILE.py:NAME, a function that returns (step, shapes) of JAX. "
            "FILE.py is run as it is: give only one that you trust.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="In place of a graph: the layers of one microbatch of a model."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", parser=options.count, metavar="N", help="GPUs to place operators on.")
    ] = None,
    inter: Annotated[
        str | None, typer.Option("--inter", metavar="BANDWIDTH", help="Between any two servers, as in 25GB/s.")
    ] = None,
    intra: Annotated[
        str | None, typer.Option("--intra", metavar="BANDWIDTH", help="Between the GPUs of a server, as in 50GB/s.")
    ] = None,
    gpus_per_server: Annotated[
        int | None,
        typer.Option("--gpus-per-server", parser=options.count, metavar="N", help="GPUs of a server [default: 1]."),
    ] = None,
    latency: Annotated[
        str | None, typer.Option("--latency", metavar="TIME", help="Of each transfer, as in 5us [default: none].")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Of a GPU, as in 16GB [default: no limit].")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option("--speeds", metavar="LIST", help="Speed of each GPU, as in 1,1,0.5,0.5 [default: 1 each]."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="Cluster that gives links, latency, memory and operator times."),
    ] = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    bandwidth: Annotated[
        Bandwidth | None,
        typer.Option("--bandwidth", help="Share what servers send uniformly, or as the placement needs."),
    ] = None,
    nics: Annotated[
        int | None, typer.Option("--nics", parser=options.count, metavar="N", help="Network cards of a server.")
    ] = None,
    nic_bandwidth: Annotated[
        str | None,
        typer.Option("--nic-bandwidth", metavar="BANDWIDTH", help="Of a card, as in 10Gb/s [default: --inter]."),
    ] = None,
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="Of the search.")] = "60s",
    gap: Annotated[
        float,
        typer.Option(
            "--gap", parser=options.share, metavar="SHARE", help="Enough once within this share of the shortest step."
        ),
    ] = 0.05,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the search.")] = 0,
    emit: Annotated[
        Emit | None, typer.Option("--emit", help="Write commands that give servers their bandwidths: Open vSwitch.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="Folder of --emit.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw devices and transfers (such as .png, .svg).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Place the operators of a step on several GPUs.

    Operators that do not need each other then run at once.

    Prints the step time, a bound that no placement of the graph goes below, and what HEFT, METIS, MCMC and one device
    give. Ctrl-C ends the search and prints the best so far.
    """
    if (emit is None) != (out is None):
        raise InputError("--emit and -o belong together: what is written, and the folder")
    if emit is not None and nics is None:
        raise InputError("--emit ovs needs --nics, the network cards whose bandwidth is shared out")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"-o {str(out)!r} is a file: name a folder for the scripts")
    if plot is not None:
        dsx.image_format(plot)
    dsx.keep_compiled()
    found = dsx.place(
        graph,
        devices,
        inter,
        intra=intra,
        gpus_per_server=gpus_per_server,
        latency=latency,
        memory=memory,
        speeds=speeds,
        model=model,
        cluster=cluster,
        assumptions=assumptions,
        bandwidth=None if bandwidth is None else bandwidth.value,
        nics=nics,
        nic_bandwidth=nic_bandwidth,
        time_limit=time_limit,
        gap=gap,
        seed=seed,
    )
    print_answer(found, as_json)
    if plot is not None:
        found.plot(plot)
    if out is not None:
        found.write_ovs(out)
