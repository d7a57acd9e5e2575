r"""Values as text that a terminal shows, and answers as plain data, as Python returns and --json prints them.

The name of a model, a foreign manifest or a file may have characters that change colours, the title of the window or
the previous line, or that have no encoding. They are printed as Python escapes, `\x1b`.

Not covered: letters that look like others.
"""

import math
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
else:
    DataFrame = object  # pandas is loaded where a frame is made

Data = dict[str, Any]  # plain data, as JSON has it
DataView = Mapping[str, Any]  # the same, to read

# Control and format characters (which include changes of the writing direction), surrogates, line and paragraph
# separators.
_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str, keep: str = "") -> str:
    """Return `text` with control characters escaped, except those in `keep`."""
    # Nearly all strings need no escape.
    plain = text
    for char in keep:
        plain = plain.replace(char, "")
    if plain.isascii() and plain.isprintable():
        return text
    return "".join(
        char if char in keep or unicodedata.category(char) not in _CONTROLS else char.encode("unicode_escape").decode()
        for char in text
    )


_MOST_BITS = 10_000  # of a number that Python writes out; it refuses those of more than 4,300 digits


def whole_number_text(number: int) -> str:
    """Return a whole number as text; of one that is too long to write out, how many digits it has."""
    bits = number.bit_length()
    return str(number) if bits <= _MOST_BITS else f"a number of some {math.ceil(bits * math.log10(2)):,} digits"


WIDTH = 100  # columns of an answer


def wrapped(text: str, indent: str = "", hanging: str = "", width: int = WIDTH) -> str:
    """Return a line as lines of `width` columns, unless a word is longer; `hanging` indents all but the first."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


JSON_VERSION = 1  # of the form


def versioned(data: DataView) -> Data:
    """Return plain data as JSON has it: with the version of its form, and None in place of NaN and infinity."""
    return {"schema_version": JSON_VERSION} | {key: _finite(value) for key, value in data.items()}


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
