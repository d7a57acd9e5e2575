"""A page as a reader of it would have it: elements with their text, and the data that its scripts read."""

import base64
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser

import numpy as np

VOID = {"meta", "link", "input", "br"}
DTYPES = {"Int8": "<i1", "Int16": "<i2", "Int32": "<i4", "BigInt64": "<i8", "Float32": "<f4", "Float64": "<f8"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str) -> "list[Element]":
        inner = [child for child in self.children if isinstance(child, Element)]
        return [one for child in inner for one in ([child] if child.tag == tag else []) + child.all(tag)]

    def by_id(self, identity: str) -> "Element":
        (found,) = [one for one in self.every() if one.attributes.get("id") == identity]
        return found

    def every(self) -> "list[Element]":
        return [self, *(one for child in self.children if isinstance(child, Element) for one in child.every())]


class Parser(HTMLParser):
    """Fails on an element that is closed where another one is open."""

    def __init__(self):
        super().__init__()
        self.open = [Element("page", {})]

    def handle_starttag(self, tag, attrs):
        made = Element(tag, dict(attrs))
        self.open[-1].children.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parsed(text: str) -> Element:
    parser = Parser()
    parser.feed(text)
    parser.close()
    (page,) = parser.open
    return page


def data_of(page: Element, identity: str):
    return json.loads(page.by_id(identity).text)


def column_of(page: Element, name: str) -> list:
    """The values of a column of the table, as the script of the page decodes them."""
    (column,) = [one for one in data_of(page, "plans-data")["columns"] if one["name"] == name]
    values = np.frombuffer(base64.b64decode(column["data"]), DTYPES[column["array"]]).tolist()
    return [column["names"][code] for code in values] if "names" in column else values
