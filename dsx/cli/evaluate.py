"""``dsx evaluate``: the cost of one plan."""

import sys
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import show
from dsx.errors import NothingFeasible


def evaluate(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="COLUMN=VALUE", help="The plan, as in tp=8 pp=64 dp=32 nvs.tp=8."),
    ] = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    operators: Annotated[bool, typer.Option("--operators", help="Show every operator of a layer.")] = False,
    partition: options.PartitionOption = options.Partition.even,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price one plan, even if it breaks rules or does not fit.

    The exit code of such a plan is 3.

    A plan has degrees (tp, tp2, cp, ep, pp, dp), microbatch_size and panels, 1 by default, and the share of each degree
    in a fast domain (nvs.tp). By default the shares are filled in rank order, tp innermost, as far as the domain has
    room, unless the assumption set says otherwise. For the other choices the assumption set has the defaults: vpp,
    zero_stage (0 to 3), zero_replicas (replicas of what ZeRO divides), recompute (none, selective, full), stored_layers
    (layers of a stage that are not recomputed), schedule (1f1b, gpipe, zb-h1, zb-h2), offload (none, optimizer,
    activations, both), order (of ranks: tp-cp-ep-dp-pp, tp-cp-ep-pp-dp).
    """
    sizes = (num_gpus, global_batch_size, sequence_length)
    job = dsx.Job(model, cluster, *sizes, assumptions, set=assignments, operator_times=operator_times)
    dsx.keep_compiled()
    found = dsx.evaluate(job, settings, strategy=strategy, partition=partition.value, operators=operators)
    show(found, as_json)
    if found.reject:
        sys.stdout.flush()
        raise NothingFeasible(f"the plan is rejected: {', '.join(found.reject)}")
