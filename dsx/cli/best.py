"""``dsx best``: the fastest plans of a model on a cluster."""

from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.output import print_json
from dsx.errors import NothingFeasible


def best(
    model: options.Model,
    cluster: options.Cluster,
    num_gpus: options.NumGpus,
    global_batch_size: options.GlobalBatchSize,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    partition: options.PartitionOption = options.Partition.even,
    top: Annotated[int, typer.Option("--top", parser=options.count, metavar="N", help="How many plans to show.")] = 5,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every plan of one strategy; print the fastest.

    The launch flags of the first one follow, for Megatron-LM. To compare strategies, sweep them: `dsx sweep` of a
    file with `strategy: [1d, 2d]`.

    Some choices are not searched but held fixed, as in --set assumptions.fixed.offload=optimizer: zero_stage,
    zero_replicas, recompute, stored_layers, schedule, vpp and offload. A sweep searches those that its `fix` lists.
    The order of ranks is searched where the network has tiers beyond fast domain and cluster.
    """
    job = options.job(
        model, cluster, num_gpus, global_batch_size, sequence_length, assumptions, assignments, operator_times
    )
    dsx.keep_compiled()
    found = dsx.best(job, top, strategy=strategy, partition=partition.value)
    if as_json:
        print_json(found.to_data())
    if not found.plans:
        raise NothingFeasible(found.infeasible)
    if not as_json:
        print(found)
