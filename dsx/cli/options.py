"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_STRATEGY = "1d"
DEFAULT_ASSUMPTIONS = "default"

Model = Annotated[str, typer.Option("--model", help="Model: a name of data/models, or a YAML file.")]
Cluster = Annotated[str, typer.Option("--cluster", help="Cluster: a name of data/clusters, or a YAML file.")]
NumGpus = Annotated[int, typer.Option("--num-gpus", min=1, help="GPUs of the job.")]
GlobalBatchSize = Annotated[int, typer.Option("--global-batch-size", min=1, help="Sequences of one step.")]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens of a sequence [default: the model's].")
]
AssumptionSet = Annotated[str, typer.Option("--assumptions", help="Assumption set: a name or a YAML file.")]
Strategy = Annotated[str, typer.Option("--strategy", help="Strategy: a name or a .layer file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field, as in cluster.device.hbm_capacity='141 GB' or model.dimensions.e=8192.",
    ),
]
ResultFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a result set.")]
