"""Text that is shown: names of models and files without the characters that a terminal obeys.

A model's name, a manifest that somebody sent or a file name may hold characters that change colours, the title of the
window or the line before, or that no encoding has. They are shown as Python writes them, `\\x1b`.

Not covered: letters that look like others.
"""

import unicodedata

# Control, format (among them what turns the direction of writing), surrogate, line and paragraph separators.
_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str, keep: str = "") -> str:
    """Return `text` with all characters escaped that a terminal does not show as themselves, but those to `keep`."""
    # Of nearly all texts there is nothing to escape.
    plain = text
    for char in keep:
        plain = plain.replace(char, "")
    if plain.isascii() and plain.isprintable():
        return text
    return "".join(
        char if char in keep or unicodedata.category(char) not in _OBEYED else char.encode("unicode_escape").decode()
        for char in text
    )
