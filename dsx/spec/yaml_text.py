"""YAML text to a document: plain data with a line number for every key path.

The text is composed, not loaded, so that the marks stay; scalars are read by the rules of YAML 1.2. Under
1.1, which PyYAML follows, `no` is False, `1e12` is a string and `12:30` is 750. Keys are always text. Numbers are
decimal, with _ between digits to read them by. Not supported: tags of one's own, merge keys (`<<`), several
documents in a file.

ruamel.yaml (0.19), which keeps positions too, does not replace this: it is all Python and several times slower, has
no limit of depth (RecursionError at 1,000 levels) or of aliases, and lets half characters and merge keys through. It
also reads `0x1F` as 31, `2024-01-01` as a date and the key in `1: a` as a number, so its values would be read again.
"""

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
# Keys and values, of which some 100,000 are read in a second; aliases of aliases make more of a few lines. The largest
# packaged file has 673, a config.json that names 20,000 classes both ways 80,000.
_MOST = 200_000
_SLOW = 100_000  # characters that PyYAML without libyaml takes seconds for
_TOO_DEEP = "lists and mappings are nested too deeply"
_TOO_MANY = f"there are more than {_MOST:,} keys and values, counted through aliases"
_HINT = "; a text that starts with this character needs quotes"

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
    """Return the mapping that the YAML file at `path` holds.

    Raises SpecError, with file:line:column where there is one, for a file that cannot be read, is not
    YAML, is empty, is not a mapping, or has a key twice.
    """
    return parse_document(read_text(path), shown(path))


def parse_document(text: str, file: str) -> Document:
    """Return the mapping that a YAML text holds; `file` names it in errors, which are those of `load_document`."""
    node = _compose(text, file)
    if node is None:
        raise SpecError(f"{file}:1: the file is empty: expected keys and values")
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{_place(node, file)}: expected keys and values at top level, such as 'name: ...'")
    reading = _Reading(file)
    return Document(reading.plain(node), reading.places)


def parse_value(text: str, place: str) -> Any:
    """Return the scalar, list or mapping that `text` writes on one line; `place` names it in errors.

    Only what starts like a list, a mapping or a quoted text is YAML syntax: ">=2" is just that text.
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


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        try:
            return _composed(text, file, _FastLoader)
        except yaml.YAMLError:
            # What is wrong is said in PyYAML's own words on any machine, unless that takes long.
            if len(text) > _SLOW:
                raise
            return _composed(text, file, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise SpecError(f"{place}: {_problem(error)}") from error
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, text.find(chr(error.character)))
        raise SpecError(f"{file}:{line}: the character {error.character:#x} cannot stand in YAML") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{file}: is not YAML: {str(error).splitlines()[0]}") from error


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong in PyYAML's words, with where the part begins that it is wrong in."""
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
    """Return the root of a text that is neither nested too deeply nor too long: libyaml would end the process."""
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
    """Turns the nodes of one text into plain data, and collects their places."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.left = _MOST
        self.places: dict[KeyPath, str] = {(): f"{file}:1"}

    def plain(self, node: Any, path: KeyPath = (), around: tuple[yaml.Node, ...] = ()) -> Any:
        """Return the data of `node`, which lies at `path`, inside the nodes `around`."""
        if node in around:
            raise SpecError(f"{_place(node, self.file)}: an alias refers to the part that it stands in")
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
        data: dict[str, Any] = {}
        for key, value in node.value:
            place = _place(key, self.file)
            self.left -= 1
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError(f"{place}: a key must be a text, not a list or a mapping")
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
            raise SpecError(f"{_place(node, self.file)}: {error}") from error

    def characters(self, node: yaml.ScalarNode) -> str:
        try:
            return whole_characters(node.value)
        except ValueError as error:
            raise SpecError(f"{_place(node, self.file)}: {error}") from None
