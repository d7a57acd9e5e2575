"""HTML of elements with escaped text, and Plotly, an extra that only reports need.

Names of models, strategies and files may hold anything, so plain text never becomes markup: only what these functions
return does.
"""

import html
import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from dsx.errors import InputError
from dsx.files import install_text
from dsx.text import printable


def check_plotly() -> None:
    """Raise InputError if plotly is not installed; a report checks it before it reads anything."""
    if find_spec("plotly") is None:
        raise InputError(f"a report needs plotly, which is not installed: {install_text('[report]')}")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str]  # text, or several; plain text is escaped


def markup(*children: Child) -> Markup:
    """Return children one after the other, plain text escaped and control characters written out."""
    return Markup("".join(_part(child) for child in children))


def _part(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(printable(child, keep="\n"))
    return "".join(map(_part, child))


def element(tag: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """Return an element; `class_` is the attribute class, `aria_label` aria-label, and None or False no attribute."""
    written = [
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    ]
    return Markup(f"<{tag}{''.join(written)}>{markup(*children)}</{tag}>")


def section(identity: str, title: str, *children: Child) -> Markup:
    """Return a section of the page with its heading, which names it for readers of screens."""
    heading = element("h2", title, id=f"{identity}-title")
    return element("section", heading, *children, id=identity, aria_labelledby=f"{identity}-title")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numbers: bool = True, prose: bool = True
) -> Markup:
    """Return a table whose first column heads its rows; `numbers` align right, a last column of `prose` left."""
    last = len(header) - 1
    side = [None, *("number" if numbers else None for _ in range(last - 1)), "prose" if prose else "number"]
    head = [element("th", title, scope="col", class_=side[at]) for at, title in enumerate(header)]
    body: list[Markup] = []
    for row in rows:
        cells = [element("td", cell, class_=side[at]) for at, cell in enumerate(row[1:], 1)]
        body.append(element("tr", element("th", row[0], scope="row"), cells))
    parts = element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    return element("div", element("table", *parts), class_="scroll", tabindex="0", role="region", aria_label=caption)


def described(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return terms with what they stand for as a list of descriptions; a pair without text has no entry."""
    return element("dl", [element("div", element("dt", term), element("dd", text)) for term, text in pairs if text])


def folded(summary: str, *children: Child) -> Markup:
    """Return what a reader opens by its summary."""
    return element("details", element("summary", summary), *children)


def data_block(identity: str, data: object) -> Markup:
    """Return plain data as JSON that scripts of the page read; nothing in it can end the block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" id="{html.escape(identity)}">{safe}</script>')
