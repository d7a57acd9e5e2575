"""What a prediction extrapolates: the measurements behind an assumption set have nothing like it."""

from dsx.cost.interval import Likeness, unlike
from dsx.display.quantities import share
from dsx.printable import printable
from dsx.spec.known_errors import TrainedOnSpec
from dsx.spec.measured_runs import measured_runs
from dsx.units import counted

_OF_KIND = {"dense": "a dense model", "experts": "experts"}
_WORDS = {"stack": "the stack {}", "generation": "a device of the family {}", "kind": "{}"}


def extrapolated_text(likeness: Likeness, trained_on: TrainedOnSpec) -> str:
    """Return a sentence on what no measured run has; empty if every part has some, or if there are no measurements."""
    said = [_said(part, value) for part, value in unlike(likeness, trained_on).items()]
    return f"extrapolated: no measured run has {' or '.join(said)}" if said else ""


def less_sure_text(likeness: Likeness, assumptions: str) -> str:
    """Return how far off predictions of a kind of model are, where another kind is predicted more surely."""
    errors = measured_runs().errors.get(assumptions, {})
    own, least = errors.get(likeness.kind), min(errors.values(), key=lambda one: one.median_error, default=None)
    if own is None or least is None or own is least:
        return ""
    rows = f"{counted(own.rows, 'row')} of {counted(own.sources, 'source')}, {own.date}"
    return (
        f"Predicted less surely: {_OF_KIND[likeness.kind]} of sources that no number was fitted to are off by "
        f"{share(own.median_error, 1)} in the median ({rows}), other models by {share(least.median_error, 1)}"
    )


def _said(part: str, value: str) -> str:
    return _WORDS[part].format(_OF_KIND.get(value, printable(value)))
