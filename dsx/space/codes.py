"""The values of the choices that a search may take. Only these are compiled."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsx.records import make_record, static
from dsx.space.choices import BY_NAME, OPEN, Choice

if TYPE_CHECKING:

    class Open:
        """The values that columns of the choices may take: one tuple of codes for each of `OPEN`, as static structure.

        An empty tuple of a number means every number that a plan may have. A column that is not given has its default.
        """

        def __init__(self, **values: tuple[int, ...]) -> None: ...
        def __getattr__(self, column: str) -> tuple[int, ...]: ...

else:
    Open = make_record("Open", __name__, [(name, static(default=(BY_NAME[name].default_code,))) for name in OPEN])


def opened(values: Mapping[str, Iterable[Any]]) -> Open:
    """Return the choices of a search from the values of some columns; every other column is free."""
    return Open(**{name: tuple(map(int, values.get(name, BY_NAME[name].codes))) for name in OPEN})


def first_open(known: Open, choice: Choice) -> int:
    """Return the code that a plan has where it does not state a choice: the first one that the search may take."""
    return (getattr(known, choice.name) or (choice.least,))[0]
