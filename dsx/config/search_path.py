"""The search path: the file of a name is at a path, or in the first folder that has a file of that name.

The order is: each folder of DSX_PATH, the packaged data, the folder of the file that mentions the name. This last
folder comes first for layer definitions. For YAML files it comes last, since it may hold files of any kind: a sweep
called gpt3-1t needs the model of that name, not itself. A folder of DSX_PATH has the subfolders of data/, or is flat.
Only data/layers is searched recursively.

Names of checkpoints on the Hugging Face hub, ORGANISATION/NAME, are met here too: dsx downloads nothing and says what
to do with one. A packaged model is that of a checkpoint if all parts of its name are in that of the checkpoint, as
those of llama-3-70b are in meta-llama/Llama-3.1-70B-Instruct; of several, the one with most parts.
"""

import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from dsx.errors import SpecError, UnknownNameError, did_you_mean

_NAME = r"((?![.]+(?:/|$))[\w.-]{1,100})"
_OF_HUB = re.compile(rf"(?:https?:/+(?:www\.)?huggingface\.co/)?{_NAME}/{_NAME}(?:/(?:tree|blob|resolve)/.*)?")
_OF_FILE = re.compile(r".*\.(ya?ml|json)")
_BETWEEN_PARTS = re.compile(r"[-_.]")


def hint_of_checkpoint(name: str, models: Iterable[str]) -> str:
    """Return how to get a model from a name that is no file, with the packaged model among `models`; "" if unknown.

    `name` may be that of a checkpoint, its address, or the name of a model without an organisation.
    """
    parts = _OF_HUB.fullmatch(name)
    packaged = packaged_model(parts[2] if parts else name, models) if parts or "/" not in name else None
    hint = f"; did you mean the packaged model {packaged!r}?" if packaged else ""
    if parts and not _OF_FILE.fullmatch(parts[2]):
        hint += (
            f"; dsx downloads no checkpoint: 'hf download {parts[1]}/{parts[2]} config.json --local-dir .', then "
            f"'dsx import-hf config.json -o {parts[2].lower()}.yaml'"
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


Folder = Literal["models", "clusters", "assumptions", "stacks", "frameworks", "operators", "layers", "families"]

_SINGULAR: dict[Folder, str] = {
    "models": "model",
    "clusters": "cluster",
    "assumptions": "assumption set",
    "stacks": "stack",
    "frameworks": "framework",
    "operators": "operator table",
    "layers": "layer",
    "families": "model family",
}

_OTHER_ENDINGS = (".json", ".yml")  # no name has them; a file here that has one is meant
_OF_CHECKPOINTS = ("model", "config")  # files in whose place people give the name of a checkpoint


def find(kind: Folder, name: str, suffix: str, near: Path | None = None) -> Path:
    """Return the file of the `kind` called `name`; `near` is the file that mentions it.

    A name with a path separator, or with the ending `suffix`, is a path: relative to the folder of `near`, then to the
    working directory. So is that of a file with another ending of YAML and JSON. Raises UnknownNameError for an unknown
    name, SpecError for a path that is not a file.
    """
    if is_path(name, suffix) or (name.endswith(_OTHER_ENDINGS) and os.path.isfile(name)):
        return find_path(_SINGULAR[kind], name, near)
    beside = [near.parent / f"{name}{suffix}"] if near is not None else []
    named = [Path(file) for file in _files(kind, suffix) if os.path.basename(file) == f"{name}{suffix}"]
    candidates = [*beside, *named] if kind == "layers" else [*named, *beside]
    existing = [file for file in candidates if os.path.isfile(file)]
    if not existing:
        searched = dict.fromkeys(str(file.parent) for file in beside)
        hint = f"; also searched: {', '.join(searched)}" if searched else ""
        if kind == "models" and name.endswith(".json"):
            hint += f"; 'dsx import-hf {name} -o model.yaml' makes a model of a config.json"
        raise UnknownNameError(_SINGULAR[kind], name, names(kind, suffix), hint)
    # A file seldom means itself: a sweep named after its model means the model, and a user's b200-nvs8 that extends
    # b200-nvs8 means the packaged one.
    except_itself = [file for file in existing if near is None or file.resolve() != near.resolve()]
    return (except_itself or existing)[0]


def is_path(name: str, suffix: str) -> bool:
    """Return whether `name` is a path, and not a name to search for."""
    return "/" in name or os.sep in name or name.endswith(suffix)


def find_path(what: str, name: str, near: Path | None = None) -> Path:
    """Return the file at the path `name`, relative to the folder of `near` or to the working directory.

    Raises SpecError if there is no such file; its message calls the file a `what`.
    """
    path = Path(name)
    candidates = [path] if near is None else [near.parent / path, path]
    for candidate in candidates:
        if os.path.isfile(candidate):
            return candidate
    siblings = [os.path.basename(file) for file in _entries(candidates[0].parent, path.suffix)]
    tried = " and ".join(dict.fromkeys(shown(candidate) for candidate in candidates))
    near_it = did_you_mean(path.name, [name for name in siblings if name != path.name])
    if what in _OF_CHECKPOINTS and not os.path.isdir(path):
        near_it = near_it or hint_of_checkpoint(name, names("models", ".yaml"))
    raise SpecError(f"{what} {name!r}: {tried} is not a file{near_it}")


def names(kind: Folder, suffix: str) -> list[str]:
    """Return the sorted names of the `kind` in DSX_PATH and the packaged data."""
    files = filter(os.path.isfile, _files(kind, suffix))
    return sorted({os.path.basename(file).removesuffix(suffix) for file in files})


@functools.cache
def packaged_data() -> Path:
    """Return the data folder of an installed dsx, or of the repository in an editable install."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "data"
    return inside if inside.is_dir() else package.parent / "data"


def shown(path: Path) -> str:
    """Return `path` as messages show it: relative if it is inside the working directory."""
    absolute = path.absolute()
    folder = Path.cwd()
    return str(absolute.relative_to(folder) if absolute.is_relative_to(folder) else path)


def _files(kind: Folder, suffix: str) -> Iterator[str]:
    folders = [Path(folder) for folder in os.environ.get("DSX_PATH", "").split(os.pathsep) if folder]
    for folder in [*folders, packaged_data()]:
        of_kind = folder / kind
        if of_kind.is_dir():
            yield from _entries(of_kind, suffix, recursive=kind == "layers")
        elif folder in folders:
            yield from _entries(folder, suffix)


def _entries(folder: Path, suffix: str, recursive: bool = False) -> list[str]:
    """Return the sorted paths of a folder that end so; a command looks up hundreds of names, so these are no `Path`."""
    paths: list[str] = []
    for place, _, files in os.walk(folder):
        paths += [os.path.join(place, name) for name in files if name.endswith(suffix)]
        if not recursive:
            break
    return sorted(paths)
