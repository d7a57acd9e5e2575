"""Words in the notes of a row for something that dsx prices, and whether the row was priced with it.

`dsx.runs.notes` reads a few forms, and a packaged model knows of its shared experts and windows. A word of this table
whose meaning came from neither says that the row was priced without a fact that people can read. It is counted and
shown, so that the fact can be moved into a column.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dsx.spec.model import ModelSpec

FFN_EXPERTS = "experts"  # the block of a layer with experts


@dataclass(frozen=True, slots=True)
class Word:
    """Something that dsx prices, as notes name it, and where a row that is priced with it has it."""

    name: str
    pattern: re.Pattern[str]
    columns: tuple[str, ...] = ()  # any of them stated or read from the notes
    option: str = ""  # or an option of a layer of the model
    in_model: Callable[[ModelSpec], bool] | None = None  # or another property of the model


def _word(
    name: str, pattern: str, *columns: str, option: str = "", model: Callable[[ModelSpec], bool] | None = None
) -> Word:
    return Word(name, re.compile(pattern, re.IGNORECASE), columns, option, model)


def _is_mixed(model: ModelSpec) -> bool:
    """Return whether some layers of the body have experts and some have none."""
    blocks = [dict(entry.layer.blocks) for entry in model.sequence[1:-1]]
    return len({FFN_EXPERTS in chosen.values() for chosen in blocks}) > 1


WORDS = (
    _word("bandwidth of NICs", r"[0-9] ?(?-i:[GT]b)(?:/s|ps|it/s)?\b", "node_network"),
    _word("interleaved pipeline", r"\binterleav(?:ed|ing)\b(?! attention| layers| sliding)", "vpp"),
    _word("expert tensor parallelism", r"\bexpert[- ](?:TP|tensor)|\bETP\b", "etp"),
    _word(
        "ZeRO groups",
        r"\bHSDP\b|\bshard[- ]group(?!: all)|\bZeRO-?[123]? group|FSDP group|FSDP[ =]?(?:[3-9]|[12][0-9])",
        "zero_replicas",
    ),
    _word("stages with fewer layers", r"\b(?:one|1|two|2) layers? (?:fewer|less)\b", "stage_layers"),
    _word("shared experts", r"\bshared expert", option="shared"),
    _word(
        "dense layers among experts",
        r"\b(?:first|dense) (?:[a-z0-9]+ )?layers? (?:dense|exist)|\bMoE (?:every|in)\b",
        model=_is_mixed,
    ),
    _word("sliding-window attention", r"\bsliding[- ]window", option="window"),
    _word("kind of cross-entropy", r"\bfused (?:linear )?cross[- ]entropy|\bcut cross[- ]entropy", "cross_entropy"),
    _word("expert dispatcher", r"\b(?:DeepEP|HybridEP|flex dispatcher)\b", "dispatcher"),
    _word("asynchronous tensor parallelism", r"\bAsync ?TP(?!=0)"),
    _word("CUDA graphs", r"\bCUDA graphs?\b"),
    _word("weights kept after the forward", r"\bwithout reshard|\breshard_after_forward=(?:False|0)"),
    _word("packed sequences", r"\bpacked\b|\bpack_[a-z_]+=True"),
    _word("prediction of further tokens", r"\bw/ MTP\b|\bmulti-token prediction"),
    _word("dropped tokens", r"(?<!says )\btoken[- ]?drop(?:ped|ping)?\b|\bcapacity factor"),
    _word("offload", r"\boffload(?:ed|ing)?\b", "offload"),
)


def unread_words(notes: str, known: Collection[str], model: ModelSpec) -> tuple[str, ...]:
    """Return the names of what the notes mention and the row is not priced with; `known` are its stated columns."""
    options = {option for entry in model.sequence for option in entry.layer.options}
    return tuple(
        word.name
        for word in WORDS
        if word.pattern.search(notes)
        and not any(column in known for column in word.columns)
        and word.option not in options
        and not (word.in_model and word.in_model(model))
    )
