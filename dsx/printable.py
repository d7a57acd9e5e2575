"""Escapes terminal control characters in names of models and files.

The name of a model, a foreign manifest or a file may have characters that change colours, the title of the window or
the previous line, or that have no encoding. They are printed as Python escapes, `\\x1b`.

Not covered: letters that look like others.
"""

import unicodedata

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
