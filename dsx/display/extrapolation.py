"""What a prediction extrapolates: the measurements behind an assumption set have nothing like it."""

from dsx.cost.interval import Likeness, unlike
from dsx.printable import printable
from dsx.spec.known_errors import TrainedOnSpec

_OF_KIND = {"dense": "a dense model", "experts": "experts"}
_WORDS = {"stack": "the stack {}", "generation": "a device of the family {}", "kind": "{}"}


def extrapolated_text(likeness: Likeness, trained_on: TrainedOnSpec) -> str:
    """Return a sentence on what no measured run has; empty if every part has some, or if there are no measurements."""
    said = [_said(part, value) for part, value in unlike(likeness, trained_on).items()]
    return f"extrapolated: no measured run has {' or '.join(said)}" if said else ""


def _said(part: str, value: str) -> str:
    return _WORDS[part].format(_OF_KIND.get(value, printable(value)))
