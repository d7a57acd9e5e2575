"""dsx: a design-space explorer for distributed training.

    import dsx
    job = dsx.Job(model="llama-3-70b", cluster="h100-nvs8", num_gpus=512, global_batch_size=1024)
    found = dsx.best(job)                                   # the fastest plans; found.frame is a DataFrame
    print(dsx.evaluate(job, found.plan))                    # one of them, part by part
    more = dsx.best(job.replace(set={"cluster.device.hbm_capacity": "141 GB"}))
    df = dsx.sweep("sweep.yaml", out="results/sweep").frame # every configuration; units in df.attrs
    front = dsx.pareto(df, "step_time_s", "peak_bytes")     # the feasible rows that nothing beats
    dsx.plot.save(dsx.plot.front(df), "front.png")

An answer prints as the shell prints it, and `to_data()` is what the shell prints with --json. Remarks go to the logger
"dsx". The names are resolved when they are first used, so that `import dsx` alone loads neither JAX nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # isort: off
    from dsx import errors as errors
    from dsx import pictures as plot  # noqa: F401
    from dsx.pictures.figure import image_format as image_format
    from dsx.plans.plan import Plan as Plan
    from dsx.verbs.compare import compare as compare
    from dsx.results.frames import pareto as pareto
    from dsx.results.frames import load as load
    from dsx.verbs import trace as trace
    from dsx.verbs.arguments import keep_compiled as keep_compiled
    from dsx.verbs.best import BestPlans as BestPlans, best as best
    from dsx.verbs.calibrate import Calibrated as Calibrated, calibrate as calibrate
    from dsx.verbs.clusters import ClusterTimes as ClusterTimes, cluster_times as cluster_times
    from dsx.verbs.compare import Comparison as Comparison, compare_sets as compare_sets
    from dsx.verbs.evaluate import Evaluation as Evaluation, evaluate as evaluate
    from dsx.verbs.import_hf import Imported as Imported, import_hf as import_hf
    from dsx.verbs.job import Job as Job
    from dsx.verbs.launch import LaunchFiles as LaunchFiles, check_launch as check_launch, launch as launch
    from dsx.verbs.layer import LayerDescription as LayerDescription, layer as layer
    from dsx.verbs.list import names as names, parameters as parameters
    from dsx.verbs.measure import Measured as Measured, measure as measure
    from dsx.verbs.pareto import Front as Front, front as front
    from dsx.verbs.partition import Partition as Partition, TablePartition as TablePartition, partition as partition
    from dsx.verbs.partition import partition_table as partition_table
    from dsx.verbs.place import place as place
    from dsx.verbs.plot import draw as draw
    from dsx.verbs.report import Report as Report, report as report
    from dsx.verbs.several_jobs import SeveralJobs as SeveralJobs, several_jobs as several_jobs
    from dsx.verbs.show import ShownSet as ShownSet, show as show
    from dsx.verbs.sweep import Swept as Swept, SweptShard as SweptShard, finish_sweep as finish_sweep, sweep as sweep
    from dsx.verbs.sweep import sweep_shard as sweep_shard
    from dsx.verbs.training_run import TrainingRun as TrainingRun, training_run as training_run
    from dsx.verbs.validate import Validation as Validation, validate as validate
    from dsx.verbs.why import Explanation as Explanation, why as why, why_row as why_row
    # isort: on

    __version__: str

# The names of each module.
_NAMES = {
    "pictures.figure": "image_format",
    "plans.plan": "Plan",
    "results.frames": "load pareto",
    "verbs.arguments": "keep_compiled",
    "verbs.best": "BestPlans best",
    "verbs.calibrate": "Calibrated calibrate",
    "verbs.clusters": "ClusterTimes cluster_times",
    "verbs.compare": "Comparison compare compare_sets",
    "verbs.evaluate": "Evaluation evaluate",
    "verbs.import_hf": "Imported import_hf",
    "verbs.job": "Job",
    "verbs.launch": "LaunchFiles check_launch launch",
    "verbs.layer": "LayerDescription layer",
    "verbs.list": "names parameters",
    "verbs.measure": "Measured measure",
    "verbs.pareto": "Front front",
    "verbs.partition": "Partition TablePartition partition partition_table",
    "verbs.place": "place",
    "verbs.plot": "draw",
    "verbs.report": "Report report",
    "verbs.several_jobs": "SeveralJobs several_jobs",
    "verbs.show": "ShownSet show",
    "verbs.sweep": "Swept SweptShard finish_sweep sweep sweep_shard",
    "verbs.training_run": "TrainingRun training_run",
    "verbs.validate": "Validation validate",
    "verbs.why": "Explanation why why_row",
}
_HOMES = {name: f"dsx.{module}" for module, names in _NAMES.items() for name in names.split()}

# Those that are modules.
_MODULES = {"errors": "dsx.errors", "plot": "dsx.pictures", "trace": "dsx.verbs.trace"}

__all__ = sorted(("__version__", *_MODULES, *_HOMES))  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value = importlib.import_module("dsx.files").distribution().version
        elif name in _MODULES:
            value = importlib.import_module(_MODULES[name])
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            from dsx.errors import did_you_mean

            raise AttributeError(f"module 'dsx' has no attribute {name!r}{did_you_mean(name, __all__)}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
