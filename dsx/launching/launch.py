"""The settings of a plan in the words of a framework, without its model: flags of a command, or a configuration."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsx.launching.option import Flag, Option


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan in the words of a framework; `str(launch)` of flags can be pasted behind a command."""

    options: tuple[Option, ...]  # of a command line; none for a framework that reads a configuration
    lost: tuple[str, ...]  # what the settings do not express, one thing each
    none_since: str = ""  # why there are no settings; empty if there are some
    left: tuple[str, ...] = ()  # what the program of the user does, one thing each
    framework: str = "megatron_lm"  # whose words they are
    title: str = "Megatron-LM flags"  # what they are, for people
    configuration: Mapping[str, Any] = field(default_factory=dict)  # sections of settings

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Pairs of a flag and its value, or of a setting and its value."""
        of_sections = _settings(self.configuration)
        return (*((option.flag, option.value) for option in self.options if option.flag), *of_sections)

    @property
    def arguments(self) -> list[str]:
        """The flags as words of a command line, or the settings as words."""
        return [word for flag in self.flags for word in words_of(flag)]

    def __str__(self) -> str:
        return shlex.join(self.arguments)


def words_of(flag: Flag) -> tuple[str, ...]:
    """Return a flag as words of a command line, and a setting as one word."""
    name, value = flag
    return (name, *value.split()) if name.startswith("-") else (f"{name}={value}",)


def _settings(configuration: Mapping[str, Any], above: str = "") -> list[Flag]:
    """Return the settings of a configuration by their path."""
    found: list[Flag] = []
    for name, value in configuration.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        found += _settings(value, f"{above}{name}.") if isinstance(value, Mapping) else [(f"{above}{name}", text)]
    return found
