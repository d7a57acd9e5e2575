"""Tokens of the layer notation, each with its place, and the parser of expressions."""

import re
from dataclasses import dataclass
from typing import Any

from dsx.errors import NotationError
from dsx.graph.expressions import Name, Operation

_TOKEN = re.compile(
    r"(?P<space>[ \t]+)|(?P<comment>#.*)|(?P<word>[0-9]+[A-Za-z_][A-Za-z0-9_]*)|(?P<int>[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><=|>=|==|!=|[\[\](){},/@*~=+\-%<>$|])"
)
# More parts would exhaust the stack of recursive functions over expressions; no size needs as many parts or digits.
_MOST_PARTS, _MOST_DIGITS = 100, 18
_LONGEST_LINE, _LONGEST_NAME = 20_000, 300  # characters; packaged definitions have up to 132 and 29
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a definition: line and column count from 1."""

    file: str
    line: int
    column: int

    def error(self, message: str) -> NotationError:
        """Return the error that says `message` with this place in front."""
        return NotationError(message, self.file, self.line, self.column)


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `kind` is "int", "name", "word" (a name that begins with digits), "sign" or "end"."""

    kind: str
    text: str
    place: Place


class Line:
    """A cursor over the tokens of one line."""

    def __init__(self, source: str, file: str, number: int) -> None:
        self.source, self.file, self.number = source, file, number
        self.parts = 0  # numbers and names of expressions, so far
        self._position = 0
        if len(source) > _LONGEST_LINE:
            raise Place(file, number, _LONGEST_LINE + 1).error(f"the line has more than {_LONGEST_LINE:,} characters")
        self._next = self._scan()

    def _scan(self) -> Token:
        while self._position < len(self.source):
            match = _TOKEN.match(self.source, self._position)
            place = Place(self.file, self.number, self._position + 1)
            if match is None:
                raise place.error(f"unexpected character {self.source[self._position]!r}")
            self._position = match.end()
            kind = match.lastgroup or ""
            if kind in ("name", "word") and len(match.group()) > _LONGEST_NAME:
                raise place.error(f"the name has more than {_LONGEST_NAME} characters")
            if kind not in ("space", "comment"):
                return Token(kind, match.group(), place)
        return Token("end", "end of line", Place(self.file, self.number, len(self.source) + 1))

    def peek(self) -> Token:
        """Return the next token and stay in front of it."""
        return self._next

    def take(self) -> Token:
        """Return the next token and advance."""
        token, self._next = self._next, self._scan()
        return token

    def accept(self, *texts: str) -> Token | None:
        """Take the next token if its text is one of `texts`."""
        return self.take() if self._next.kind in ("sign", "name") and self._next.text in texts else None

    def expect(self, text: str, why: str = "") -> Token:
        """Take the token `text` or raise."""
        token = self.take()
        if token.text != text:
            raise token.place.error(f"expected {text!r}{why}, found {token.text!r}")
        return token

    def name(self, what: str) -> Token:
        """Take a name; raise an error that expected `what` at any other token."""
        token = self.take()
        if token.kind != "name":
            raise token.place.error(f"expected {what}, found {token.text!r}")
        return token

    def word(self, what: str) -> Token:
        """Take the name of a definition or block, which may hold digits, dots and dashes: ``2d``, ``feed-forward``."""
        start = self._next.place.column - 1
        match = _WORD.match(self.source, start)
        if match is None or self._next.kind == "end":
            raise self._next.place.error(f"expected {what}, found {self._next.text!r}")
        place = self._next.place
        self._position = match.end()
        self._next = self._scan()
        return Token("name", match.group(), place)

    def rest(self) -> str:
        """Take the rest of the line without its comment."""
        start = self._next.place.column - 1
        self._position = len(self.source)
        self._next = self._scan()
        return self.source[start:].split("#")[0].strip()

    def done(self) -> bool:
        """Return whether no token is left."""
        return self._next.kind == "end"

    def finish(self) -> None:
        """Raise if a token is left."""
        if not self.done():
            raise self._next.place.error(f"unexpected {self._next.text!r}")


def parse_expression(line: Line, functions: dict[str, Any] | None = None) -> Any:
    """Parse an expression of the grammar; `functions` adds functions by name.

    Each of them takes the name of its single argument and returns an expression, or raises KeyError.
    """
    result = _term(line, functions or {})
    while sign := line.accept("+", "-"):
        result = Operation(sign.text, result, _term(line, functions or {}))
    return result


def _term(line: Line, functions: dict[str, Any]) -> Any:
    result = _factor(line, functions)
    while sign := line.accept("*", "/", "%"):
        right = _factor(line, functions)
        if right == 0 and sign.text != "*":
            raise sign.place.error(f"'{sign.text} 0' divides by zero")
        result = Operation(sign.text, result, right)
    return result


def _factor(line: Line, functions: dict[str, Any]) -> Any:
    token = line.take()
    line.parts += 1
    if line.parts > _MOST_PARTS:
        raise token.place.error(f"the expressions of the line have more than {_MOST_PARTS} numbers and names")
    if token.kind == "int":
        if len(token.text) > _MOST_DIGITS:
            raise token.place.error(f"the number has more than {_MOST_DIGITS} digits")
        return int(token.text)
    if token.text == "(":
        inner = parse_expression(line, functions)
        line.expect(")")
        return inner
    if token.text in ("min", "max") and line.accept("("):
        left = parse_expression(line, functions)
        line.expect(",", f": {token.text} takes two values")
        right = parse_expression(line, functions)
        line.expect(")")
        return Operation(token.text, left, right)
    if token.text in functions and line.accept("("):
        argument = line.name("an argument of the operator")
        line.expect(")")
        try:
            return functions[token.text](argument.text)
        except KeyError:
            raise argument.place.error(f"{token.text}({argument.text}): no such argument or result") from None
    if token.kind == "name":
        return Name(token.text)
    raise token.place.error(f"expected a number or a name, found {token.text!r}")
