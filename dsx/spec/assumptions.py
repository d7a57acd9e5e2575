"""An assumption set: every constant of the cost model that is a belief and not a fact.

The fields are read by space and cost; none of them, and not the name of the set, selects a formula by
its name alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from dsx.spec.load import Spec, load_spec
from dsx.spec.overrides import Assignment
from dsx.spec.quantities import Bytes, Choice, Count, Flag, Fraction, NonNegative, Seconds, Sourced


class AssumptionsSpec(Spec):
    """What is counted, with which efficiencies, and which choices are not searched."""

    name: str
    description: str
    source: str
    calibrated: Flag  # whether it stands for measurements

    layers: dict[str, str]  # layer kind of a model -> name of a layer text; a kind not listed is its own name
    operators: list[str]  # operator tables; a later one wins
    uncounted: list[str]  # operators that cost nothing
    default_strategy: str  # where a search names none
    fixed: dict[str, Choice]  # candidate columns that are not searched -> their value

    matrix_efficiency: Fraction  # of matrix_flops
    vector_efficiency: Fraction  # of vector_flops
    hbm_efficiency: Fraction  # of hbm_bandwidth
    network_efficiency: Fraction  # of the bandwidth of every tier
    launch_latency: Seconds  # of one kernel

    # What the backward of a fused kernel reads: the tensors that the forward saved, or those it consumed.
    fused_backward_reads: Annotated[Literal["stored", "consumed"], Sourced]
    # Whether gradients of parameters replicated over a tensor parallel axis are reduced at a cost.
    charge_replicated_gradients: Flag

    activation_bytes: Count  # bytes per element
    weight_bytes: Count  # bytes per element
    gradient_bytes: Count  # bytes per element
    optimizer_bytes_per_parameter: NonNegative  # bytes kept
    optimizer_traffic_per_parameter: NonNegative  # bytes read and written by one update
    overhead: Bytes  # what the framework keeps on every GPU beside the model


def load_assumptions(
    name_or_path: str | Path, overrides: Sequence[Assignment] = (), near: Path | None = None
) -> AssumptionsSpec:
    """Return the assumption set of that name or path; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError that lists all faults of the file.
    """
    return load_spec("assumptions", "assumptions", AssumptionsSpec, name_or_path, overrides, near)
