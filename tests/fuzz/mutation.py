"""Seeded mutations of files and command lines: a few edits of something good, which get far before they fail."""

import copy
import json
import os
import random
import re
from collections.abc import Sequence
from typing import Any

import yaml

TOKEN = re.compile(r"[A-Za-z0-9_]+|\n|[ \t]+|.", re.DOTALL)
_PLACEHOLDER = re.compile(r"""['"]?@RAW(\d+)@['"]?""")
_MOST_EDITS = 4
_LONGEST = 500_000  # characters: a repetition of a repetition would fill the memory
_LONGEST_ARGUMENT = 50_000

# What a person types by mistake, and what somebody types on purpose; as it stands in a file or an argument.
RAW = (
    *("", "0", "-1", "1.5", "1e999", "-1e-999", ".inf", "-.inf", ".nan", "NaN", "Infinity", "null", "~", "true", "no"),
    *("1" * 5000, "9" * 400, "9223372036854775808", "4_096", "0x10", "0b1", "1:30", "2026-11-22", "1e12"),
    *("80 GB", "80" + " " * 20_000 + "x", "GB", "1 GiB/s", "-5 us", "900 GB", "5 %", "1/0", "9**9**9", "2**2**2**2"),
    *("a" * 10_000, "\x00", "\x1b[31m", "\ud800", "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{ARABIC-INDIC DIGIT THREE}", "é"),
    *("../x", "/etc/passwd", ".", "..", "x/", "a\\b", "con", "$HOME", "$(x)", "`x`", "%s%n", "{0}", "=1+1", "'", '"'),
    *("[" * 2000, "{a: " * 2000, "(" * 5000, "*x", "&x [*x, *x]", "!!python/name:os.system x", "<<: *x", "- - - -"),
    *("[1, 2]", "{}", "[]", "{a: 1}", "[[[[1]]]]", "all", "tp", "tp-cp", "h/tp/tp", "x/dp", "s", "~s", "@*", "$wf"),
    *("8", "7", "1", "2", "64", "1000000007", "1d", "2d", "none", "full", "b200-nvs8", "small.yaml", "step_time_s"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 10**18, 2**63, 1e308, float("inf"), float("nan"), "", "a", "1"),
    *([], {}, [[]], [None], {"": None}, {"value": 1, "source": "x"}, {"value": "80 GB"}, ["a"] * 50, list(range(300))),
)


def mutated_text(text: str, rng: random.Random) -> bytes:
    """Return a text with a few tokens dropped, doubled, exchanged or replaced, or lines moved."""
    for _ in range(rng.randint(1, _MOST_EDITS)):
        glue = rng.choice(("", "", "\n"))
        parts = text.split("\n") if glue else TOKEN.findall(text)
        if not parts:
            return rng.choice(RAW).encode("utf-8", "surrogatepass")
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        match rng.randrange(6):
            case 0:
                del parts[at]
            case 1:
                parts.insert(at, parts[at])
            case 2:
                parts[at] = parts[other]
            case 3:
                parts[at], parts[other] = parts[other], parts[at]
            case 4:
                parts[at] = rng.choice(RAW)
            case _:
                parts[at:at] = [parts[other]] * min(rng.choice((2, 30, 1000)), 1 + _LONGEST // (1 + len(parts[other])))
        text = glue.join(parts)[:_LONGEST]
    return text.encode("utf-8", "surrogatepass")


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, cut out or repeated; sometimes cut off."""
    made = bytearray(data)
    for _ in range(rng.randint(1, _MOST_EDITS)):
        at = rng.randrange(len(made) + 1)
        length = rng.choice((1, 2, 8, 100))
        match rng.randrange(5):
            case 0:
                made[at : at + length] = b""
            case 1:
                made[at:at] = made[at : at + length] * rng.choice((1, 50))
            case 2:
                made[at : at + length] = rng.randbytes(length)
            case 3:
                made[at:at] = rng.choice(RAW).encode("utf-8", "surrogatepass")
            case _:
                del made[at:]
    return bytes(made)


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """Return plain data with a few of its parts replaced, left out, doubled, exchanged or nested."""
    tree = json.loads(json.dumps(tree, default=str))
    for _ in range(rng.randint(1, _MOST_EDITS)):
        places = list(_places(tree))
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        owner, key = rng.choice(places)
        match rng.randrange(7):
            case 0:
                del owner[key]
            case 1:
                owner[key] = [owner[key]]
            case 2:
                owner[key] = {"value": owner[key], "source": "x"}
            case 3:
                elsewhere, name = rng.choice(places)
                # A copy: data that holds itself is no file.
                owner[key] = json.loads(json.dumps(elsewhere[name]))
            case 4:
                _rename(owner, key, rng)
            case 5:
                owner[key] = f"@RAW{rng.randrange(len(RAW))}@"
            case _:
                owner[key] = copy.deepcopy(rng.choice(VALUES))
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [tree]
    while pending:
        part = pending.pop()
        keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        found += [(part, key) for key in keys]
        pending += [part[key] for key in keys]
    return found


def _rename(owner: Any, key: Any, rng: random.Random) -> None:
    if isinstance(owner, dict):
        owner[rng.choice((f"{key}s", str(key)[:-1], f"@RAW{rng.randrange(len(RAW))}@", *owner))] = owner.pop(key)
    else:
        owner.insert(key, copy.deepcopy(owner[key]))


def as_yaml(tree: Any) -> bytes:
    """Return plain data as a YAML file, raw pieces as they are."""
    return _with_raw(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10_000))


def as_json(tree: Any) -> bytes:
    """Return plain data as a JSON file, raw pieces as they are."""
    return _with_raw(json.dumps(tree))


def _with_raw(text: str) -> bytes:
    return _PLACEHOLDER.sub(lambda found: RAW[int(found[1])], text).encode("utf-8", "surrogatepass")


def mutated_arguments(arguments: Sequence[str], others: Sequence[str], rng: random.Random) -> list[str]:
    """Return a command line with a few arguments left out, doubled, exchanged, replaced, or taken from `others`."""
    made = list(arguments)
    for _ in range(rng.randint(1, _MOST_EDITS)):
        if len(made) < 2:
            return made
        at, other = rng.randrange(1, len(made)), rng.randrange(1, len(made))
        match rng.randrange(7):
            case 0:
                del made[at]
            case 1:
                made.insert(at, made[at])
            case 2:
                made[at], made[other] = made[other], made[at]
            case 3:
                made[at] = rng.choice(RAW)
            case 4:
                made[at] = f"{made[at].partition('=')[0]}={rng.choice(RAW)}"
            case 5:
                made[at] = mutated_text(made[at], rng).decode("utf-8", "surrogateescape")
            case _:
                made.insert(at, rng.choice(others))
    return [_as_argument(argument) for argument in made]


def _as_argument(argument: str) -> str:
    """Return a text as a process is given it: no NUL, bytes that are not UTF-8 as halves of characters."""
    short = argument.replace("\x00", "")[:_LONGEST_ARGUMENT]
    return os.fsdecode(short.encode("utf-8", "surrogatepass"))
