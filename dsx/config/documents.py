"""Documents: YAML, JSON and CSV as plain data, with the file and line of each part.

With these places, an error that the schema finds later can name file:line. Programs write JSON, often as one long line,
so its errors name the path of keys. The YAML is composed and not loaded, which keeps the line numbers. Scalars follow
YAML 1.2; in 1.1, which PyYAML follows, `no` is False, `1e12` is a string and `12:30` is 750. Keys are always strings.
Numbers are decimal, with optional _ between digits. Text is UTF-8 of limited size, with surrogate pairs joined.

Not supported: custom tags, merge keys (`<<`), several documents in a file.

ruamel.yaml (0.19), which keeps positions too, does not replace this module. It is pure Python and several times slower,
has no limit of depth (RecursionError at 1,000 levels) or of aliases, and accepts half characters and merge keys. It
reads `0x1F` as 31, `2024-01-01` as a date and the key in `1: a` as a number, so its scalars would need conversion.

A CSV file has named columns, read strictly: a misspelt optional column would otherwise count as missing. Columns may
come in any order. Unknown columns are allowed, unless their name resembles that of a missing optional column. A quoted
cell may span lines, so errors name a row by its first line. Each kind of table interprets the cells itself.
"""

import csv
import functools
import io
import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import yaml

from dsx.config.search_path import find_path, shown
from dsx.errors import InputError, SpecError, did_you_mean, nearest_names
from dsx.units import INTEGER, LARGEST_COUNT, REAL, WHOLE_NUMBER, parse_number

if TYPE_CHECKING:
    from _csv import Reader


KeyPath = tuple[str | int, ...]
Plain = Any  # plain data: a scalar, a list, or a mapping of strings

_OF_VALUES = {"value", "source", "between", "needs", "otherwise", "lost"}


@dataclass(frozen=True)
class Document:
    """Plain data (dicts, lists, scalars) and its places."""

    data: dict[str, Plain]
    places: dict[KeyPath, str]  # key path -> "file:line"; () is the document itself

    def place(self, path: KeyPath) -> str:
        """Return the place of `path`, or of the innermost section around it that has one."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path]

    def inside(self, *path: str) -> "Document":
        """Return the section at `path`, with the places of its parts, which are known by their paths inside it."""
        places = {at[len(path) :]: place for at, place in self.places.items() if at[: len(path)] == path}
        return Document(reduce(lambda part, key: part.get(key, {}), path, self.data), places)

    def message(self, path: KeyPath, text: object) -> str:
        """Return `text` with the place and the keys of `path` in front: "file:line: key.key: text"."""
        # A message about the whole document has no path.
        keys = [".".join(map(str, path))] if path else []
        return ": ".join([self.place(path), *keys, str(text)])

    def fault(self, path: KeyPath, text: object) -> SpecError:
        """Return the error with the message of `text` at `path`."""
        return SpecError(self.message(path, text))


def stated_in_code(content: Mapping[str, object], place: str) -> Document:
    """Return content that a program states as a document; `place` is the place of all of it."""
    data: dict[str, object] = _plain(content)
    return Document(data, dict.fromkeys(paths_of(data), place))


def _plain(value: Plain) -> Plain:
    """Return what a program states as a file would: tuples and arrays are lists, numbers of NumPy are Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple | range) else value


def paths_of(data: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of `data` and those of all its parts."""
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths_of(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from paths_of(value, (*path, index))


def is_sourced(value: object) -> TypeGuard[dict[str, Plain]]:
    """Return whether `value` is a value with its source, ``{value: ..., source: ...}``, and not a section.

    A fitted number also states its bounds, ``between: [..., ...]``, an effect what it needs and its value without that
    (`dsx.config.stack`).
    """
    return isinstance(value, dict) and "value" in value and value.keys() <= _OF_VALUES


def merged(documents: Sequence[Document]) -> Document:
    """Return documents as one, each merged over those after it: sections merge, any other value replaces."""

    def merged_over(base: Document, over: Document) -> Document:
        data, places = _merge(base.data, over.data), base.places | over.places
        return Document(data, {path: places[path] for path in paths_of(data)})

    return reduce(merged_over, reversed(documents))


def _merge(base: Plain, over: Plain) -> Plain:
    sections = isinstance(base, dict) and isinstance(over, dict)
    # A number replaces both value and source: the old source does not vouch for the new value.
    if not sections or is_sourced(base) or is_sourced(over):
        return over
    return base | {key: _merge(base[key], value) if key in base else value for key, value in over.items()}


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


_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may be half of a surrogate pair


def load_json(what: str, name: str) -> Document:
    """Return the document at the path `name`; `what` is its kind in messages.

    Raises SpecError if the file is not JSON, not an object, or has a key twice in one object.
    """
    path = find_path(what, name)
    file = shown(path)
    data = parse_json(read_text(path), file, lambda pairs: _object(pairs, file))
    if not isinstance(data, dict):
        raise SpecError(f"{file}: expected an object with keys, got {reprlib.repr(data)}")
    return Document(data, {(): file})


def parse_json(text: str, file: str, of_pairs: Callable[[list[tuple[str, object]]], object] = dict) -> Plain:
    """Return the data of a JSON string; errors name `file`, and `of_pairs` makes its objects.

    Raises SpecError, with line and column where known, for invalid JSON and for half surrogate pairs.
    """
    try:
        data = json.loads(text, object_pairs_hook=of_pairs)
    except json.JSONDecodeError as error:
        raise SpecError(f"{file}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise SpecError(f"{file}: lists and objects are nested too deeply") from None
    except ValueError as error:  # an integer of too many digits
        raise SpecError(f"{file}: is not JSON that can be read: {error}") from None
    pending: list[tuple[KeyPath, Plain]] = [((), data)] if _HALF.search(text) else []
    while pending:
        path, part = pending.pop()
        for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
            for word in (key, value):
                try:
                    whole_characters(word if isinstance(word, str) else "")
                except ValueError as error:
                    raise Document({}, {(): file}).fault(path, error) from None
            pending.append(((*path, key), value))
    return data


def _object(pairs: list[tuple[str, object]], file: str) -> dict[str, Plain]:
    """Return an object; raises SpecError for a repeated key, since either value could be meant."""
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            keys = ", ".join(dict(pairs))
            raise SpecError(f"{file}: an object has the key {key!r} twice (its keys: {keys})")
        members[key] = value
    return members


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

_RESOLVERS: dict[object, list[object]] = {}


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
    reading = _YamlReader(file)
    return Document(reading.plain(node), reading.places)


def parse_value(text: str, place: str) -> Plain:
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
    return _YamlReader(place).plain(node)


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


class _YamlReader:
    """Converts YAML nodes to plain data, and collects their places."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.left = _MOST
        self.places: dict[KeyPath, str] = {(): f"{file}:1"}

    def plain(self, node: Plain, path: KeyPath = (), around: tuple[yaml.Node, ...] = ()) -> Plain:
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

    def mapping(self, node: yaml.MappingNode, path: KeyPath, around: tuple[yaml.Node, ...]) -> dict[str, Plain]:
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

    def scalar(self, node: yaml.ScalarNode) -> Plain:
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


# The largest packaged table has 50 columns and 2,882 rows; one of its rows takes two kilobytes of memory.
_MOST_COLUMNS, _MOST_ROWS = 1_000, 200_000
_LONGEST = 50_000_000  # characters; the largest packaged table has a million


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The format of a kind of table."""

    subject: str  # of messages, with its verb: "a run table begins"
    error: type[InputError]  # raised for a fault of the file
    required: tuple[str, ...]
    optional: tuple[str, ...]
    comment: str = ""  # prefix of comment lines; "" for no comments
    hint: str = ""  # appended to the error of a missing column
    # Other name of a column -> the column, which is read in its place.
    also_called: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """The stripped cells of a row, by column."""

    line: int  # of the file, from 1
    place: str  # "file:line"
    cells: dict[str, str]


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A header and the rows below it, at least one."""

    header: CsvRow
    rows: tuple[CsvRow, ...]


def read_csv(path: Path, called: str, form: CsvFormat) -> CsvTable:
    """Return the table at `path`, which messages call `called`.

    Columns have the names of `form`, whichever of their names the file gives them. Raises the error of `form`, with
    file and line, for a file that is not CSV in UTF-8, a header with a missing,
    repeated or misspelt column, a row with more or fewer cells than the header, and a table without rows.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise form.error(f"{called}: has more than {_LONGEST:,} characters, the limit for a table")
        header, *rows = _rows(csv.reader(io.StringIO(text, newline=""), strict=True), called, form)
    except OSError as error:
        raise form.error(f"{called}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise form.error(f"{called}: is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise form.error(f"{called}: has no rows below its header")
    return CsvTable(header, tuple(rows))


def whole_number(text: str, least: int = 1) -> int:
    """Return a cell as a whole number from `least`; raises SpecError for no number, ValueError for any other number."""
    value = parse_number(text, WHOLE_NUMBER)
    if value != int(value) or not least <= value <= LARGEST_COUNT:
        raise ValueError(f"{text!r} is not a whole number from {least} to {LARGEST_COUNT}")
    return int(value)


def _rows(reader: "Reader", called: str, form: CsvFormat) -> Iterator[CsvRow]:
    """Yield the header, then the rows; blank lines and comments are left out."""

    def lines_of() -> Iterator[tuple[int, list[str]]]:
        """Yield (first line, cells) of each row."""
        line = 1
        for cells in reader:
            first_line, line = line, reader.line_num + 1
            commented = form.comment and cells and cells[0].lstrip().startswith(form.comment)
            if any(cell.strip() for cell in cells) and not commented:
                yield first_line, cells

    lines = lines_of()
    begin, names = next(lines, (1, []))
    titles = [name.strip() for name in names]
    header = [form.also_called.get(name, name) for name in titles]
    for name, column in form.also_called.items():
        if name in titles and column in titles:
            raise form.error(f"{called}:{begin}: has {column!r} and {name!r}, which are the same column: keep one")
    _check_header(header, f"{called}:{begin}", form)
    yield CsvRow(begin, f"{called}:{begin}", dict(zip(header, header, strict=True)))
    for number, (first_line, cells) in enumerate(lines, 1):
        if number > _MOST_ROWS:
            raise form.error(f"{called}:{first_line}: has more than {_MOST_ROWS:,} rows, the limit for a table")
        place = f"{called}:{first_line}"
        if len(cells) != len(header):
            count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
            raise form.error(f"{place}: has {count}, but the header has {len(header)} columns")
        yield CsvRow(first_line, place, {name: cell.strip() for name, cell in zip(header, cells, strict=True)})


def _check_header(header: list[str], place: str, form: CsvFormat) -> None:
    if not any(header):
        raise form.error(f"{place}: is empty: {form.subject} with the names of its columns")
    if len(header) > _MOST_COLUMNS:
        raise form.error(f"{place}: has {len(header):,} columns; at most {_MOST_COLUMNS:,} are allowed")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise form.error(f"{place}: has the column {twice[0]!r} twice")
    columns = (*form.required, *form.optional)
    unknown = [name for name in header if name not in columns]
    missing = [name for name in form.required if name not in header]
    if missing:
        lacking = ", ".join(f"{name!r}{did_you_mean(name, unknown)}" for name in missing)
        raise form.error(f"{place}: lacks the column{'s' if len(missing) > 1 else ''} {lacking}{form.hint}")
    absent = [name for name in form.optional if name not in header]
    for name in unknown:
        if near := nearest_names(name.lower(), absent, cutoff=0.8):
            raise form.error(f"{place}: column {name!r} is not known; did you mean {near[0]!r}?")
