"""The unused keys of a config: those that would change the cost, and those that would not."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsx.spec.hf.config import MODEL_TYPE, Config, evaluate_at, stated_in


@dataclass(frozen=True)
class Ignored:
    """The unused keys of a config, by their effect on the cost."""

    unpriced: dict[str, str]  # key -> the cost that it changes
    unknown: dict[str, Any]  # key of unknown effect -> its value
    no_cost: dict[str, list[str]]  # topic -> keys without effect


def ignored_keys(config: Config) -> Ignored:
    """Return the unused keys; a key of a section is section.key."""
    topics = {key: topic for topic, keys in config.family.no_cost.items() for key in keys}
    unpriced: dict[str, str] = {}
    unknown: dict[str, object] = {}
    no_cost: dict[str, list[str]] = {}
    for shown, key, value in _not_read(config):
        spec = config.family.unpriced.get(key)
        if spec and value is not None and value not in spec.unless and evaluate_at(config, spec.when):
            unpriced[shown] = spec.what
        elif spec:
            no_cost.setdefault(_NEUTRAL, []).append(shown)
        elif key in topics:
            no_cost.setdefault(topics[key], []).append(shown)
        else:
            unknown[shown] = value
    return Ignored(unpriced, unknown, no_cost)


_NEUTRAL = "values that change nothing"


def _not_read(config: Config) -> Iterator[tuple[str, str, Any]]:
    """Yield (key with its section, key, value) of each key that the family does not read, or lists as unpriced."""
    keys = {key: spec for key, spec in config.family.keys.items() if key not in config.family.unpriced}
    read = {MODEL_TYPE, *(name for key, spec in keys.items() for name in (key, *spec.also))}
    for section, part in stated_in(config.document, config.section):
        prefix = "".join(f"{step}." for step in section)
        rest = {key: value for key, value in part.items() if key not in read and key not in config.section}
        yield from ((f"{prefix}{key}", key, value) for key, value in rest.items())
