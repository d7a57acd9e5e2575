"""The text of a file that people or programs wrote, read whole: at most so long, in UTF-8, and no half characters."""

from pathlib import Path

from dsx.errors import SpecError
from dsx.spec.locate import shown

# The longest packaged YAML file has 8,554 characters; a table of 300,000 layers has some ten million.
LONGEST = 20_000_000


def read_text(path: Path, longest: int = LONGEST) -> str:
    """Return the text of the file at `path`.

    Raises SpecError if it cannot be read, is not UTF-8 or has more than `longest` characters, of which no more are
    read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(longest + 1)
    except OSError as error:
        raise SpecError(f"{shown(path)}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown(path)}: is not UTF-8 text (byte {error.start})") from error
    if len(text) > longest:
        raise SpecError(f"{shown(path)}: has more than {longest:,} characters, the most that are read")
    return text


def whole_characters(text: str) -> str:
    r"""Return `text` with surrogate pairs, as JSON escapes write them (``\ud83d\ude00``), put together.

    Raises ValueError for half of a pair, which can be neither printed nor written to a file.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        half = int.from_bytes(error.object[error.start : error.start + 2], "little")
        raise ValueError(f"{text!r} has half a character, \\u{half:x}, which no text can hold") from None
