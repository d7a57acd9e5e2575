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
    from dsx import errors as errors
    from dsx.api import trace as trace
    from dsx.api.best import BestPlans as BestPlans
    from dsx.api.best import best as best
    from dsx.api.calibrate import Calibrated as Calibrated
    from dsx.api.calibrate import calibrate as calibrate
    from dsx.api.cluster_collectives import ClusterTimes as ClusterTimes
    from dsx.api.cluster_collectives import cluster_times as cluster_times
    from dsx.api.comparison import Comparison as Comparison
    from dsx.api.comparison import compare_sets as compare_sets
    from dsx.api.compiled import keep_compiled as keep_compiled
    from dsx.api.evaluation import Evaluation as Evaluation
    from dsx.api.evaluation import evaluate as evaluate
    from dsx.api.front_of_set import Front as Front
    from dsx.api.front_of_set import front as front
    from dsx.api.import_hf import Imported as Imported
    from dsx.api.import_hf import import_hf as import_hf
    from dsx.api.job import Job as Job
    from dsx.api.launch import LaunchFiles as LaunchFiles
    from dsx.api.launch import check_launch as check_launch
    from dsx.api.launch import launch as launch
    from dsx.api.layer_description import LayerDescription as LayerDescription
    from dsx.api.layer_description import layer as layer
    from dsx.api.layer_table import TablePartition as TablePartition
    from dsx.api.layer_table import partition_table as partition_table
    from dsx.api.measure import Measured as Measured
    from dsx.api.measure import measure as measure
    from dsx.api.names import names as names
    from dsx.api.parameters import parameters as parameters
    from dsx.api.partition import Partition as Partition
    from dsx.api.partition import partition as partition
    from dsx.api.picture import draw as draw
    from dsx.api.place import place as place
    from dsx.api.report import Report as Report
    from dsx.api.report import report as report
    from dsx.api.several_jobs import SeveralJobs as SeveralJobs
    from dsx.api.several_jobs import several_jobs as several_jobs
    from dsx.api.show import ShownSet as ShownSet
    from dsx.api.show import show as show
    from dsx.api.sweep_verbs import Swept as Swept
    from dsx.api.sweep_verbs import SweptShard as SweptShard
    from dsx.api.sweep_verbs import finish_sweep as finish_sweep
    from dsx.api.sweep_verbs import sweep as sweep
    from dsx.api.sweep_verbs import sweep_shard as sweep_shard
    from dsx.api.training_run import TrainingRun as TrainingRun
    from dsx.api.training_run import training_run as training_run
    from dsx.api.validate import Validation as Validation
    from dsx.api.validate import validate as validate
    from dsx.api.why import Explanation as Explanation
    from dsx.api.why import why as why
    from dsx.api.why_row import why_row as why_row
    from dsx.results import plot as plot
    from dsx.results.pareto_rows import pareto as pareto
    from dsx.results.plot.file import image_format as image_format
    from dsx.results.set_comparison import compare as compare
    from dsx.results.store import load as load
    from dsx.space.plan import Plan as Plan

    __version__: str

# Each name with the module that has it.
_HOMES = {
    "BestPlans": "dsx.api.best",
    "Calibrated": "dsx.api.calibrate",
    "ClusterTimes": "dsx.api.cluster_collectives",
    "Comparison": "dsx.api.comparison",
    "Evaluation": "dsx.api.evaluation",
    "Explanation": "dsx.api.why",
    "Front": "dsx.api.front_of_set",
    "Imported": "dsx.api.import_hf",
    "Job": "dsx.api.job",
    "LaunchFiles": "dsx.api.launch",
    "LayerDescription": "dsx.api.layer_description",
    "Measured": "dsx.api.measure",
    "Partition": "dsx.api.partition",
    "Plan": "dsx.space.plan",
    "Report": "dsx.api.report",
    "ShownSet": "dsx.api.show",
    "Swept": "dsx.api.sweep_verbs",
    "SweptShard": "dsx.api.sweep_verbs",
    "TablePartition": "dsx.api.layer_table",
    "SeveralJobs": "dsx.api.several_jobs",
    "TrainingRun": "dsx.api.training_run",
    "Validation": "dsx.api.validate",
    "best": "dsx.api.best",
    "calibrate": "dsx.api.calibrate",
    "cluster_times": "dsx.api.cluster_collectives",
    "compare": "dsx.results.set_comparison",
    "compare_sets": "dsx.api.comparison",
    "draw": "dsx.api.picture",
    "evaluate": "dsx.api.evaluation",
    "finish_sweep": "dsx.api.sweep_verbs",
    "front": "dsx.api.front_of_set",
    "image_format": "dsx.results.plot.file",
    "import_hf": "dsx.api.import_hf",
    "keep_compiled": "dsx.api.compiled",
    "launch": "dsx.api.launch",
    "check_launch": "dsx.api.launch",
    "layer": "dsx.api.layer_description",
    "load": "dsx.results.store",
    "measure": "dsx.api.measure",
    "names": "dsx.api.names",
    "parameters": "dsx.api.parameters",
    "pareto": "dsx.results.pareto_rows",
    "partition": "dsx.api.partition",
    "partition_table": "dsx.api.layer_table",
    "place": "dsx.api.place",
    "report": "dsx.api.report",
    "show": "dsx.api.show",
    "sweep": "dsx.api.sweep_verbs",
    "sweep_shard": "dsx.api.sweep_verbs",
    "several_jobs": "dsx.api.several_jobs",
    "training_run": "dsx.api.training_run",
    "validate": "dsx.api.validate",
    "why": "dsx.api.why",
    "why_row": "dsx.api.why_row",
}

# Those that are modules.
_MODULES = {"errors": "dsx.errors", "plot": "dsx.results.plot", "trace": "dsx.api.trace"}

__all__ = sorted(("__version__", *_MODULES, *_HOMES))  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value = importlib.import_module("dsx.installed").distribution().version
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
