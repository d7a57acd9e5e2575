"""The base of all answers: printed as in the shell, shown in a notebook, converted to plain data."""

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property

from dsx.plans.plan import Plan
from dsx.text import Data, DataFrame, versioned


class Answer(ABC):
    """An answer of the API. `str(answer)` is what the shell prints, `to_data()` what it prints with --json.

    Two answers are equal if their plain data are.
    """

    __slots__ = ()

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def _data(self) -> Data:
        """Return the answer as plain data, without a version."""

    def to_data(self) -> Data:
        """Return the answer as plain data with its `schema_version`; times in seconds, sizes in bytes.

        What is no finite number is None.
        """
        return versioned(self._data())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and type(self) is type(other) and self.to_data() == other.to_data()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>\n{self}"

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class PricedPlans(Answer):
    """An answer that has plans with their costs."""

    __slots__ = ()

    priced: Sequence[Data]  # each plan, under `plan`, and its costs by column

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, the best first; `frame` has their costs too."""
        return tuple(priced["plan"] for priced in self.priced)

    @cached_property
    def frame(self) -> DataFrame:
        """The plans as rows, in the order of `plans`, with the columns of a result set; units in `attrs`."""
        from dsx.tables.plans import plans_frame

        return plans_frame(self.priced)

    def _plans_data(self) -> list[Data]:
        """Return the plans with their costs as plain data."""
        return [{**priced, "plan": dict(priced["plan"])} for priced in self.priced]


def paragraphs(parts: Iterable[str]) -> str:
    """Join texts with an empty line between them; empty ones are left out."""
    return "\n\n".join(filter(None, parts))


def with_units(rows: object, flops: str = "FLOP") -> DataFrame:
    """Return rows or columns as a DataFrame, whose `attrs` have the units that the names of its columns end in."""
    import pandas as pd

    frame = pd.DataFrame(rows)  # pyright: ignore[reportArgumentType]
    of_endings = {"s": "s", "bytes": "bytes", "flops": flops}
    units = {name: of_endings.get(str(name).rpartition("_")[2]) for name in frame.columns}
    frame.attrs["units"] = {name: unit for name, unit in units.items() if unit}
    return frame
