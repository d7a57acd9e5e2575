"""A word of a plan that means another thing in the software that prices it, as `selective` does in TorchTitan.

A stack says which values of a column its software uses for what else (`words`); the entries of
data/runs/recompute-words.yaml say what that is.
"""

from collections.abc import Mapping

from dsx.errors import InputError, SpecError, did_you_mean
from dsx.runs.recompute_words import recompute_words
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.stack import StackSpec, load_stack

_HERE = {"selective": "core-attention"}  # the same as here, in words that are of no framework


def check_words(settings: Mapping[str, str], assumptions: AssumptionsSpec) -> None:
    """Raise InputError for a setting whose value means another thing in the stack of an assumption set.

    `settings` are columns with their values, one or several with commas. Raises SpecError for a word of the stack that
    is not known, or that has no other name here.
    """
    stack = _stack_of(assumptions)
    if stack is None:
        return
    for column, meanings in stack.words.items():
        for value, word in meanings.items():
            _check_word(f"stack {stack.name!r}: words.{column}", value, word)
        for value in settings.get(column, "").split(","):
            if value in meanings:
                raise InputError(_fault(f"{column}={value}", stack.name, meanings[value]))


def _check_word(place: str, value: str, word: str) -> None:
    if value not in _HERE:
        raise SpecError(
            f"{place}: {value!r} has no other name here{did_you_mean(value, _HERE)} (known: {', '.join(_HERE)})"
        )
    if word not in recompute_words():
        known = recompute_words()
        raise SpecError(
            f"{place}.{value}: unknown word {word!r}{did_you_mean(word, known)} (known: {', '.join(known)})"
        )


def _stack_of(assumptions: AssumptionsSpec) -> StackSpec | None:
    try:
        return None if assumptions.stack is None else load_stack(assumptions.stack)
    except InputError:  # a file of its own that is not here
        return None


def _fault(setting: str, stack: str, word: str) -> str:
    """Return what a setting means there and here, and what to write for both."""
    meant = recompute_words()[word]
    column, _, value = setting.partition("=")
    share = 100 * meant.stored_share
    kept = f" with {share:.0f} % of the layers of a stage as stored_layers" if share else ""
    return (
        f"{setting}: in the software {stack} that is {word!r} ({meant.source}), and here the recomputation of core "
        f"attention alone, as in Megatron-LM; nearest: {column}={meant.recompute}{kept} for the one, "
        f"{column}={_HERE[value]} for the other"
    )
