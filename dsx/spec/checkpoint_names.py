"""Names of checkpoints on the Hugging Face hub, ORGANISATION/NAME, and what to do with one: dsx downloads nothing.

A packaged model is that of a checkpoint if all parts of its name are in that of the checkpoint, as those of llama-3-70b
are in meta-llama/Llama-3.1-70B-Instruct; of several, the one with most parts.
"""

import re
from collections.abc import Iterable

_NAME = r"((?![.]+(?:/|$))[\w.-]{1,100})"
_OF_HUB = re.compile(rf"(?:https?:/+(?:www\.)?huggingface\.co/)?{_NAME}/{_NAME}(?:/(?:tree|blob|resolve)/.*)?")
_OF_FILE = re.compile(r".*\.(ya?ml|json)")
_BETWEEN_PARTS = re.compile(r"[-_.]")


def hint_of_checkpoint(name: str, models: Iterable[str]) -> str:
    """Return how to get a model from a name that is no file, with the packaged model among `models`; "" if unknown.

    `name` may be that of a checkpoint, its address, or the name of a model without an organisation.
    """
    found = _OF_HUB.fullmatch(name)
    packaged = packaged_model(found[2] if found else name, models) if found or "/" not in name else None
    hint = f"; did you mean the packaged model {packaged!r}?" if packaged else ""
    if found and not _OF_FILE.fullmatch(found[2]):
        hint += (
            f"; dsx downloads no checkpoint: 'hf download {found[1]}/{found[2]} config.json --local-dir .', then "
            f"'dsx import-hf config.json -o {found[2].lower()}.yaml'"
        )
    return hint


def packaged_model(checkpoint: str, models: Iterable[str]) -> str | None:
    """Return the name among `models` whose parts are all in the name of a checkpoint, or None."""
    parts = _parts(checkpoint)
    return max(
        (model for model in models if _parts(model) <= parts), key=lambda model: len(_parts(model)), default=None
    )


def _parts(name: str) -> set[str]:
    return {*_BETWEEN_PARTS.split(name.lower())}
