"""Lines of text that fit a terminal."""

import textwrap

WIDTH = 100  # columns of an answer


def wrapped(text: str, indent: str = "", after: str = "") -> str:
    """Return a line as lines of at most `WIDTH` columns, unless a word is longer; `after` indents all but the first."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + after,
        break_long_words=False,
        break_on_hyphens=False,
    )
