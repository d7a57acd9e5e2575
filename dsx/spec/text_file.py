"""Reads a whole text file, of limited size and in UTF-8, and joins surrogate pairs."""

from pathlib import Path

from dsx.errors import SpecError
from dsx.spec.locate import shown

# The longest packaged YAML file has 8,554 characters; a table of 300,000 layers has some ten million.
LONGEST = 20_000_000


def read_text(path: Path, longest: int = LONGEST) -> str:
    """Return the text of the file at `path`.

    Raises SpecError if it cannot be read, is not UTF-8 or has more than `longest` characters.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(longest + 1)
    except OSError as error:
        raise SpecError(f"{shown(path)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown(path)}: is not UTF-8 text (byte {error.start})") from None
    if len(text) > longest:
        raise SpecError(f"{shown(path)}: has more than {longest:,} characters, the limit for a file")
    return text


def whole_characters(text: str) -> str:
    r"""Return `text` with the surrogate pairs of JSON escapes (``\ud83d\ude00``) joined to characters.

    Raises ValueError for half of a pair, which can neither be printed nor written to a file.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        half = int.from_bytes(error.object[error.start : error.start + 2], "little")
        raise ValueError(f"{text!r} has half a character, \\u{half:x}, which is not valid text") from None
