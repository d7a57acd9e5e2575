"""What the measured runs have, in short: data/measured/runs.yaml."""

from functools import cache

from dsx.spec.load import Spec
from dsx.spec.locate import packaged_data
from dsx.spec.validated import validate
from dsx.spec.value_types import Count, Positive
from dsx.spec.yaml_text import load_document


class SizesSpec(Spec):
    """The least and the most of a size."""

    least: Positive
    most: Positive
    source: str


class ErrorsSpec(Spec):
    """How far off predictions of runs are that no number was fitted to."""

    median_error: Positive  # of step time, a share; the mean over sources
    sources: Count
    rows: Count
    date: str
    source: str


class MeasuredRunsSpec(Spec):
    """The sizes of measured runs, and errors by assumption set and kind of model ("dense", "experts")."""

    sizes: dict[str, SizesSpec]
    errors: dict[str, dict[str, ErrorsSpec]]


@cache
def measured_runs() -> MeasuredRunsSpec:
    """Return what the file has; SpecError for a faulty one."""
    return validate(load_document(packaged_data() / "measured" / "runs.yaml"), MeasuredRunsSpec)
