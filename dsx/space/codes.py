"""The values of the choices that a search may take. Only these are compiled."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsx.records import make_record, static
from dsx.space.choices import BY_NAME, SEARCHED_COLUMNS, Choice

if TYPE_CHECKING:

    class Searched:
        """The values of a search for each of `SEARCHED_COLUMNS`: a tuple of codes, as static structure.

        An empty tuple of a number means every number that a plan may have. A column that is not given has its default.
        """

        def __init__(self, **values: tuple[int, ...]) -> None: ...
        def __getattr__(self, column: str) -> tuple[int, ...]: ...

else:
    Searched = make_record(
        "Searched",
        __name__,
        [(name, tuple[int, ...], static(default=(BY_NAME[name].default_code,))) for name in SEARCHED_COLUMNS],
    )


def searched_values(values: Mapping[str, Iterable[Any]]) -> Searched:
    """Return the choices of a search from the values of some columns; every other column is free."""
    return Searched(**{name: tuple(map(int, values.get(name, BY_NAME[name].codes))) for name in SEARCHED_COLUMNS})


def with_values(searched: Searched, values: Mapping[str, tuple[int, ...]]) -> Searched:
    """Return the choices of a search with other values of some columns."""
    return Searched(**{**{name: getattr(searched, name) for name in SEARCHED_COLUMNS}, **values})


def first_searched(known: Searched, choice: Choice) -> int:
    """Return the code that a plan has where it does not state a choice: the default, if the search may take it."""
    codes = getattr(known, choice.name)
    return choice.default_code if not codes or choice.default_code in codes else codes[0]
