"""Which values of the choices a search knows: what is not among them is not compiled."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsx.records import make_record, static
from dsx.space.choices import BY_NAME, OPEN, Choice

if TYPE_CHECKING:

    class Open:
        """The values that columns of the choices may take, as structure: one tuple for each of `OPEN`.

        Names are codes. No value of a number means every number that a plan may have there; what is not given is as
        usual.
        """

        def __init__(self, **values: tuple[int, ...]) -> None: ...
        def __getattr__(self, column: str) -> tuple[int, ...]: ...

else:
    Open = make_record(
        "Open", __name__, [(name, static(default=(BY_NAME[name].code(BY_NAME[name].usual),))) for name in OPEN]
    )

# How the layers are cut into the stages of a pipeline; no column of a plan, but what is made of one.
PARTITIONS = EVEN, OPTIMAL = ("even", "optimal")


def opened(values: Mapping[str, Iterable[Any]]) -> Open:
    """Return what is open where `values` lists the values of columns; a column that is not listed is open."""
    return Open(**{name: tuple(map(int, values.get(name, BY_NAME[name].codes))) for name in OPEN})


def first_open(known: Open, choice: Choice) -> int:
    """Return the code of a choice where a plan says nothing: the first one that is open."""
    return (getattr(known, choice.name) or (choice.least,))[0]
