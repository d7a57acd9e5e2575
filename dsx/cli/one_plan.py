"""``dsx evaluate`` and ``dsx why``: the cost of one plan, and the rules that it breaks."""

import sys
from typing import Annotated

import typer

import dsx
from dsx.cli import options
from dsx.cli.plan_or_row import MaybeCluster, MaybeModel, check_no_plan, is_row, job_of_plan
from dsx.cli.printing import print_answer
from dsx.errors import InputError, NothingFeasible


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
    partition: options.PartitionOption = None,
    framework: options.FrameworkOfPlan = None,
    operator_times: options.OperatorTimes = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price one plan, even if it breaks rules or does not fit.

    The exit code of such a plan is 3.

    A plan has degrees (tp, tp2, cp, ep, pp, dp), microbatch_size and panels, 1 by default, and the share of each degree
    in a fast domain (nvs.tp). By default the shares are filled in rank order, tp innermost, as far as the domain has
    room, unless the assumption set says otherwise. For the other choices the assumption set has the defaults: vpp,
    zero_stage (0 to 3), zero_replicas (replicas of what ZeRO divides), recompute (none, selective, full, or regions
    joined with +: core-attention, norms, latent-up-projection, expert-activation, shared-experts, feed-forward,
    experts), stored_layers (layers of a stage that are not recomputed), schedule (1f1b, gpipe, zb-h1, zb-h2,
    dualpipe, zb-v), offload (none, optimizer, activations, both) and the order of ranks, order (tp-cp-ep-dp-pp,
    tp-cp-ep-pp-dp).

    stage_layers states the layers of each stage, embedding and head included (stage_layers=21,20,20,21), or is
    Megatron-LM's layout, quoted ('stage_layers=Et*20|t*20|t*20|t*20L'). With vpp chunks per stage, it has pp * vpp
    entries, those of the first chunks of all stages first.
    """
    sizes = (num_gpus, global_batch_size, sequence_length)
    job = dsx.Job(model, cluster, *sizes, assumptions, set=assignments, operator_times=operator_times)
    dsx.keep_compiled()
    cut = None if partition is None else partition.value
    found = dsx.evaluate(job, settings, strategy=strategy, partition=cut, operators=operators, framework=framework)
    print_answer(found, as_json)
    if found.reject:
        sys.stdout.flush()
        raise NothingFeasible(f"the plan is rejected: {', '.join(found.reject)}")


def why(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN=VALUE... | DIR CANDIDATE [COLUMN=VALUE...]",
            help="The plan, as in tp=8 pp=64 dp=32; or a result folder and one of its candidate ids, and, if the sweep "
            "varies the hardware, its values, as in device.hbm_capacity='80 GB'.",
        ),
    ] = None,
    model: MaybeModel = None,
    cluster: MaybeCluster = None,
    num_gpus: options.MaybeNumGpus = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
    sequence_length: options.SequenceLength = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    strategy: options.Strategy = None,
    partition: options.PartitionOption = None,
    framework: options.Framework = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Explain a plan: the rules that it breaks, its time, its memory.

    Give the plan as settings, with model, cluster, GPUs and batch as options, or as a row of a result set.
    """
    given = list(settings or [])
    if is_row(given, model):
        if len(given) < 2 or "=" in given[1] or not all("=" in choice for choice in given[2:]):
            raise InputError(
                f"{' '.join(given)!r}: give a result folder and one candidate id, or a plan as in tp=8 pp=64"
            )
        of_a_job = {"--cluster": cluster, "--num-gpus": num_gpus, "--global-batch-size": global_batch_size}
        of_a_job |= {"--sequence-length": sequence_length, "--set": assignments}
        of_a_plan = {"--strategy": strategy, "--partition": partition, "--framework": framework}
        check_no_plan(of_a_job | of_a_plan, assumptions)
        dsx.keep_compiled()
        print_answer(dsx.why_row(given[0], given[1], given[2:]), as_json)
        return
    sizes = (num_gpus, global_batch_size, sequence_length)
    job = job_of_plan(model, cluster, *sizes, assumptions, assignments, row="only DIR CANDIDATE")
    dsx.keep_compiled()
    cut = None if partition is None else partition.value
    print_answer(dsx.why(job, given, strategy=strategy, partition=cut, framework=framework), as_json)
