"""``dsx import-hf``: a model file from the config.json of a Hugging Face checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.output import note, print_json, share
from dsx.printable import printable

if TYPE_CHECKING:
    from dsx.spec.hf.config import Config
    from dsx.spec.hf.family import PublishedSpec
    from dsx.spec.hf.ignored import Ignored
    from dsx.spec.model import ModelSpec

_LONGEST = "max_position_embeddings"  # the key of the longest sequence that a model can read


def import_hf(
    config_file: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The config.json of a checkpoint for the transformers library.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Model file to write [default: print it].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make a model file of a Hugging Face config.json.

    The keys that were not used are listed, those that would change the cost first, and the parameters of the model
    are counted and compared with the published total where one is known.
    """
    from dsx.spec.hf.config import load_config
    from dsx.spec.hf.convert import model_name, model_source, published_total, to_model
    from dsx.spec.hf.ignored import ignored_keys
    from dsx.spec.hf.write import check_target, model_text, write
    from dsx.spec.locate import find_path

    if output is not None:
        check_target(output, overwrite)
    file = find_path("config", config_file)
    config = load_config(file)
    model = to_model(config, model_name(config, file, output), model_source(config, file))
    published, ignored = published_total(config), ignored_keys(config)
    counted = _count(model)
    text = model_text(model, published)
    if output is not None:
        write(text, output)
        note(f"wrote {output}")
    if as_json:
        print_json(_as_data(model, config.model_type, output, counted, published, ignored))
        return
    if output is None:
        print(text, end="")
    for line in _report(model, config, counted, published, ignored):
        # What is not the model itself is data only where the model went to a file.
        print(line) if output is not None else note(line)


def _count(model: "ModelSpec") -> int:
    from dsx.graph.model import build_model, parameters
    from dsx.spec.assumptions import load_assumptions

    believed = load_assumptions(options.DEFAULT_ASSUMPTIONS)
    return parameters(build_model(model, believed, believed.default_strategy))


def _as_data(
    model: "ModelSpec",
    family: str,
    output: Path | None,
    counted: int,
    published: "PublishedSpec | None",
    ignored: "Ignored",
) -> dict[str, Any]:
    return {
        "family": family,
        "model": model.model_dump(mode="json", exclude_none=True),
        "output": str(output) if output else None,
        "parameters": {
            "counted": counted,
            "published": published and published.total,
            "difference": published and counted - published.total,
            "rounding": published and published.rounding,
            "source": published and published.source,
        },
        "ignored": {"changes_cost": ignored.unpriced, "unknown": ignored.unknown, "no_cost": ignored.no_cost},
    }


def _report(
    model: "ModelSpec", config: "Config", counted: int, published: "PublishedSpec | None", ignored: "Ignored"
) -> list[str]:
    sizes = " ".join(f"{letter}={size}" for letter, size in model.dimensions.items())
    lines = [f"{printable(model.name)}, of the family {config.model_type}: {sizes}", _check(counted, published)]
    lines.append(_length(model.default_sequence_length, config.values.get(_LONGEST)))
    if ignored.unpriced:
        lines += ["not used, though it changes the cost:", *_listed(ignored.unpriced)]
    if ignored.unknown:
        values = {key: f"{value!r:.60}" for key, value in ignored.unknown.items()}
        lines += ["not used, and not known whether it changes the cost:", *_listed(values)]
    if ignored.no_cost:
        topics = {topic: ", ".join(keys) for topic, keys in ignored.no_cost.items()}
        lines += ["not used, and without effect on the cost:", *_listed(topics)]
    return lines


def _length(assumed: int, longest: int | None) -> str:
    """Return which sequences the verbs take, since no config says which ones a model is trained with."""
    read = f"; the model reads up to {longest:,} tokens" if longest not in (None, assumed) else ""
    return (
        f"sequences of {assumed:,} tokens, unless --sequence-length or a sweep says otherwise: the config does not say "
        f"how long those of the training were{read}"
    )


def _listed(entries: dict[str, str]) -> list[str]:
    return [f"  {key}: {text}" for key, text in entries.items()]


def _check(counted: int, published: "PublishedSpec | None") -> str:
    if published is None:
        return f"{counted:,} parameters; no published total is known"
    difference = counted - published.total
    if 2 * abs(difference) < published.rounding:
        stated = "as published" if not difference else f"which rounds to the published {published.total:,}"
        return f"{counted:,} parameters, {stated} ({published.source})"
    off = f"{abs(difference):,} ({share(abs(difference), published.total, 2)}) {'more' if difference > 0 else 'fewer'}"
    return f"{counted:,} parameters, {off} than the published {published.total:,} ({published.source})"
