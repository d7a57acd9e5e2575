"""A small sweep, and a few columns of a result set, for the specs that name them."""

from dsx.config.sweep_fields import Columns
from dsx.config.sweep_file import SweepSpec, sweep_from_data

COLUMNS = Columns(
    ("num_gpus", "global_batch_size", "sequence_length", "strategy", "tp", "pp", "recompute"),
    ("step_time_s", "peak_bytes", "mfu", "training_days", "gpu_hours", "cost_usd"),
    named=("strategy", "recompute"),
    larger=frozenset({"mfu"}),
    needs={name: ("train_tokens",) for name in ("training_days", "gpu_hours", "cost_usd")},
)
LEAST = {"model": "gpt3-1t", "cluster": "b200-nvs8", "num_gpus": 1024, "global_batch_size": 4096}


def sweep(**changes: object) -> SweepSpec:
    """Return the small sweep with `changes`."""
    return sweep_from_data(LEAST | changes, COLUMNS)


def read_again(spec: SweepSpec) -> SweepSpec:
    """Return what the JSON of `spec` reads as."""
    return sweep_from_data(spec.model_dump(mode="json"), COLUMNS)
