"""What every answer can do: be printed as the shell prints it, be shown in a notebook, become plain data."""

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class Answer(ABC):
    """An answer of the API. `str(answer)` is what the shell prints, `to_data()` what it prints with --json."""

    __slots__ = ()

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def paragraphs(parts: Iterable[str]) -> str:
    """Return some texts with an empty line between them; empty ones are left out."""
    return "\n\n".join(filter(None, parts))
