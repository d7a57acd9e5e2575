"""Reads YAML as a document: plain data with a line number for every key path.

The YAML is composed and not loaded, which keeps the line numbers. Scalars follow YAML 1.2; in 1.1, which PyYAML
follows, `no` is False, `1e12` is a string and `12:30` is 750. Keys are always strings. Numbers are decimal, with
optional _ between digits.

Not supported: custom tags, merge keys (`<<`), several documents in a file.

ruamel.yaml (0.19), which keeps positions too, does not replace this module. It is pure Python and several times slower,
has no limit of depth (RecursionError at 1,000 levels) or of aliases, and accepts half characters and merge keys. It
reads `0x1F` as 31, `2024-01-01` as a date and the key in `1: a` as a number, so its scalars would need conversion.
"""

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from dsx.errors import SpecError
from dsx.spec.document import Document, KeyPath
from dsx.spec.locate import shown
from dsx.spec.text_file import read_text, whole_characters
from dsx.units import INTEGER, REAL, parse_number

_STR, _NULL, _BOOL, _INT, _FLOAT, _MAP, _SEQ = map(
    "tag:yaml.org,2002:{}".format, ("str", "null", "bool", "int", "float", "map", "seq")
)

_DEEPEST = 50  # levels; no schema has more than five
# Keys and values; reading takes a second for 100,000. Aliases of aliases can make many from a few lines. The largest
# packaged file has 673, a config.json that maps 20,000 class names both ways has 80,000.
_MOST = 200_000
_SLOW = 100_000  # characters for which PyYAML without libyaml takes seconds
_TOO_DEEP = "lists and mappings are nested too deeply"
_TOO_MANY = f"there are more than {_MOST:,} keys and values, counted through aliases"
_HINT = "; a string that starts with this character needs quotes"

_RESOLVERS: dict[Any, list[Any]] = {}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


# libyaml, where PyYAML has it, is many times as fast.
_FastLoader: Any = type(
    "_FastLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": _RESOLVERS}
)

for _tag, _pattern in (
    (_NULL, r"(~|null|Null|NULL|)\Z"),
    (_BOOL, r"(true|True|TRUE|false|False|FALSE)\Z"),
    (_INT, rf"{INTEGER}\Z"),
    (_FLOAT, rf"{REAL}\Z"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), None)


def load_document(path: Path) -> Document:
    """Return the mapping in the YAML file at `path`.

    Raises SpecError, with file:line:column where known, for a file that cannot be read, is not YAML, is empty, is not a
    mapping, or has a key twice.
    """
    return parse_document(read_text(path), shown(path))


def parse_document(text: str, file: str) -> Document:
    """Return the mapping in a YAML string; errors, as those of `load_document`, name `file`."""
    node = _compose(text, file)
    if node is None:
        raise SpecError(f"{file}:1: the file is empty: expected keys and values")
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{_place(node, file)}: expected keys and values at top level, such as 'name: ...'")
    reading = _Reading(file)
    return Document(reading.plain(node), reading.places)


def parse_value(text: str, place: str) -> Any:
    """Return the scalar, list or mapping in one line; errors name `place`.

    Only a list, a mapping or a quoted string is read as YAML: ">=2" is a plain string.
    """
    try:
        stripped = whole_characters(text).strip()
    except ValueError as error:
        raise SpecError(f"{place}: {error}") from None
    if not stripped:
        raise SpecError(f"{place}: no value is given")
    if stripped[0] in "[{\"'":
        node = _compose(stripped, place)
    else:
        loader = _Loader("")
        node = yaml.ScalarNode(loader.resolve(yaml.ScalarNode, stripped, (True, False)), stripped)
    return _Reading(place).plain(node)


@functools.lru_cache(maxsize=50)
def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        try:
            return _composed(text, file, _FastLoader)
        except yaml.YAMLError:
            # Without libyaml the messages are the same on any machine; a long text would take too long.
            if len(text) > _SLOW:
                raise
            return _composed(text, file, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise SpecError(f"{place}: {_problem(error)}") from None
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, text.find(chr(error.character)))
        raise SpecError(f"{file}:{line}: the character {error.character:#x} cannot stand in YAML") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{file}: is not YAML: {str(error).splitlines()[0]}") from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return PyYAML's message, with the place where the faulty part begins."""
    problem, context, begun = error.problem or "is not YAML", error.context, error.context_mark
    if "\\t" in problem:
        return f"{problem}; lines are indented by spaces"
    if re.search("chomping|start any token", problem):
        return f"{problem}{_HINT}"
    if not context or not begun:
        return problem
    place = f"{begun.line + 1}:{begun.column + 1}"
    if context.startswith("while"):  # "while scanning a quoted scalar"
        return f"{problem} ({context} that begins at {place})"
    return f"{context} at {place}, {problem}"


def _composed(text: str, file: str, loader: Any) -> yaml.Node | None:
    """Return the root node; refuses text of too many levels or nodes, on which libyaml would end the process."""
    level = nodes = 0
    for event in yaml.parse(text, Loader=loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        if level > _DEEPEST:
            raise SpecError(f"{_place(event, file)}: {_TOO_DEEP}")
        if nodes > _MOST:
            raise SpecError(f"{_place(event, file)}: {_TOO_MANY}")
    return yaml.compose(text, Loader=loader)


def _place(node: yaml.Node | yaml.Event, file: str) -> str:
    # A value given on the command line has no mark of its own.
    return f"{file}:{node.start_mark.line + 1}" if node.start_mark else file


class _Reading:
    """Converts YAML nodes to plain data, and collects their places."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.left = _MOST
        self.places: dict[KeyPath, str] = {(): f"{file}:1"}

    def plain(self, node: Any, path: KeyPath = (), around: tuple[yaml.Node, ...] = ()) -> Any:
        """Return the data of `node` at `path`; `around` are the nodes that contain it."""
        if node in around:
            raise SpecError(f"{_place(node, self.file)}: an alias refers to a part that contains it")
        if len(path) > _DEEPEST:
            raise SpecError(f"{_place(node, self.file)}: {_TOO_DEEP}")
        self.left -= 1
        if self.left < 0:
            raise SpecError(f"{_place(node, self.file)}: {_TOO_MANY}")
        around = (*around, node)
        if isinstance(node, yaml.MappingNode | yaml.SequenceNode) and node.tag not in (_MAP, _SEQ):
            raise SpecError(f"{_place(node, self.file)}: the tag {node.tag!r} is not supported")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, around)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.places[*path, index] = _place(item, self.file)
            return [self.plain(item, (*path, index), around) for index, item in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: yaml.MappingNode, path: KeyPath, around: tuple[yaml.Node, ...]) -> dict[str, Any]:
        data: dict[str, object] = {}
        for key, value in node.value:
            place = _place(key, self.file)
            self.left -= 1
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError(f"{place}: a key must be a string, not a list or a mapping")
            name = self.characters(key)
            if name in data:
                raise SpecError(f"{place}: the key {name!r} is given twice; first at {self.places[*path, name]}")
            self.places[*path, name] = place
            data[name] = self.plain(value, (*path, name), around)
        return data

    def scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag == _STR:
            return self.characters(node)
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL and node.value.lower() in ("true", "false"):
            return node.value.lower() == "true"
        if node.tag not in (_INT, _FLOAT):
            raise SpecError(f"{_place(node, self.file)}: the tag {node.tag!r} of {node.value!r} is not supported")
        try:
            return parse_number(node.value)
        except SpecError as error:
            raise SpecError(f"{_place(node, self.file)}: {error}") from None

    def characters(self, node: yaml.ScalarNode) -> str:
        try:
            return whole_characters(node.value)
        except ValueError as error:
            raise SpecError(f"{_place(node, self.file)}: {error}") from None
