"""An option of Megatron Core: the argument of Megatron-LM, and the field of a configuration that it sets.

Both frameworks on Megatron Core take the same settings, one as arguments and one as fields of Python objects, so each
setting is stated once.
"""

from typing import NamedTuple

Flag = tuple[str, str]  # (flag, value): "" for a flag without one, words for a flag with several


class Option(NamedTuple):
    """One setting."""

    flag: str  # "--tensor-model-parallel-size"
    value: str  # "" for a flag without one, words for a flag with several
    field: str  # "model.tensor_model_parallel_size", of Megatron-Bridge's ConfigContainer; "" if it has none
    setting: object = True  # the value of the field


Settings = tuple[list[Option], list[str]]  # options, and what they cannot express


def switch(flag: str, field: str, setting: object = True) -> Option:
    """Return a flag without a value."""
    return Option(flag, "", field, setting)


def valued(flag: str, value: float | str, field: str) -> Option:
    """Return a flag with one value, which its field has too."""
    return Option(flag, str(value), field, value)


def words(flag: str, values: list[str], field: str) -> Option:
    """Return a flag with several words, which its field has as a list."""
    return Option(flag, " ".join(values), field, values)
