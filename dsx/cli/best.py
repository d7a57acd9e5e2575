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

    The Megatron-LM launch flags of the first plan follow. To compare strategies, use `dsx sweep` with a file that has
    `strategy: [1d, 2d]`.

    Some choices are fixed, not searched: zero_stage, zero_replicas, recompute, stored_layers, schedule, vpp and
    offload. Set them as in --set assumptions.fixed.offload=optimizer. A sweep searches those that its `fix` lists. The
    order of ranks is searched if the network has tiers beyond the fast domain and the cluster.
    """
    sizes = (num_gpus, global_batch_size, sequence_length)
    job = dsx.Job(model, cluster, *sizes, assumptions, set=assignments, operator_times=operator_times)
    dsx.keep_compiled()
    found = dsx.best(job, top, strategy=strategy, partition=partition.value)
    if as_json:
        print_json(found.to_data())
    if not found.plans:
        raise NothingFeasible(found.infeasible)
    if not as_json:
        print(found)
