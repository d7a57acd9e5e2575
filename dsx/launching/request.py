"""What a writer of launch files is given, and what it returns."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dsx.launching.architecture import Architecture
from dsx.launching.launch import Launch
from dsx.launching.run import Run
from dsx.printable import printable
from dsx.spec.cluster import HALF_FORMATS, DeviceSpec, HalfFormat
from dsx.spec.model import ModelSpec

_WIDTH = 110  # columns of a comment


SCRIPT = "launch.sh"  # what starts a run, with any framework


class Refused(NamedTuple):
    """A part of a plan that a framework cannot run."""

    part: str  # the value, and why not
    nearest: str  # the nearest that it can; "" if nothing is near


@dataclass(frozen=True, slots=True)
class Request:
    """A plan to be launched."""

    run: Run
    shape: Architecture
    title: str  # the model, the GPUs and the plan, in a line
    domain: int  # GPUs of a fast domain
    host: int | None = None  # GPUs of a host; None if the cluster does not state them


@dataclass(frozen=True, slots=True)
class Written:
    """Launch files by name, the one that starts the run first, and what they leave to a program or do not express."""

    files: dict[str, str]
    lost: tuple[str, ...]
    left: tuple[str, ...] = ()  # to the program of the user


# Takes the request and the lines that are already known to belong at the head.
Writer = Callable[[Request, "list[str]"], Written]


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that has launch files."""

    title: str  # as people write it
    limits: str  # its file in data/frameworks
    software: tuple[str, ...]  # platforms of devices that it runs on
    refused: Callable[[Request], list[Refused]]  # beyond `limits`, `software` and `no_model`
    no_model: Callable[[Architecture], list[Refused]]  # what of a model it has in none
    write: Writer
    settings: Callable[[Run, ModelSpec], Launch]  # of a plan alone
    half_formats: tuple[HalfFormat, ...] = HALF_FORMATS  # that it trains in
    needs: tuple[str, ...] = ()  # environment variables without which the script does not start, with examples

    def without_format(self, device: DeviceSpec) -> list[Refused]:
        """Return the 16-bit numbers of a device, if the framework does not train in them."""
        if device.half_format in self.half_formats:
            return []
        known = " and ".join(self.half_formats).upper()
        part = f"{device.name}, whose numbers of 16 bits are {device.half_format.upper()}: {self.title} has {known}"
        return [Refused(part, f"a device with {known}")]


def uneven_sequence(run: Run, parts: int, why: str) -> list[Refused]:
    """Return that the tokens of a sequence are no multiple of `parts`, if they are none."""
    length = run.number("sequence_length")
    if length % parts == 0:
        return []
    nearest = max(round(length / parts), 1) * parts
    return [Refused(f"sequence_length={length}, which must be a multiple of {why}", f"sequence_length={nearest}")]


def exported(variables: Mapping[str, str]) -> str:
    """Return environment variables as lines of a script."""
    return "".join(f"export {name}={value}\n" for name, value in variables.items())


def commented(lines: list[str]) -> str:
    """Return lines as comments of a script, wrapped; names of files cannot end a comment."""
    wrapped = [part for line in lines for part in _wrapped(printable(" ".join(line.split("\n"))))]
    return "".join(f"# {line}".rstrip() + "\n" for line in wrapped)


def _wrapped(line: str) -> list[str]:
    deeper = "    " if line.startswith("  - ") else "  "
    return textwrap.wrap(line, _WIDTH, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False) or [""]


def lost_lines(title: str, lost: tuple[str, ...]) -> list[str]:
    """Return what a framework does not express as lines of a head."""
    if not lost:
        return [f"{title} expresses everything of the plan."]
    return [f"{title} does not express, so that the run differs from the one that was priced:"] + [
        f"  - {part}" for part in lost
    ]
