"""``dsx import-hf``: a model file from the config.json of a Hugging Face checkpoint."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dsx.config.assumption_set import load_assumptions
from dsx.config.hf_config import (
    Config,
    Ignored,
    check_target,
    ignored_keys,
    load_config,
    model_name,
    model_source,
    model_text,
    published_total,
    to_model,
    write,
)
from dsx.config.hf_family import PublishedSpec
from dsx.config.model_file import ModelSpec
from dsx.config.search_path import find_path
from dsx.errors import file_path
from dsx.notation.model import build_model, parameters
from dsx.progress import remark
from dsx.tables.format import share
from dsx.text import Data, printable
from dsx.verbs.arguments import Answer, optional_path
from dsx.verbs.job import DEFAULT_ASSUMPTIONS

_LONGEST = "max_position_embeddings"  # the key of the longest sequence that a model can read


@dataclass(frozen=True, eq=False, repr=False)
class Imported(Answer):
    """The model of a checkpoint, and the keys of its config.json that were not used."""

    model: ModelSpec  # a job takes it as `model`
    config: Config
    published: PublishedSpec | None
    ignored: Ignored
    out: Path | None  # the file that it was written to, if one was given

    @property
    def text(self) -> str:
        """The model file."""
        return model_text(self.model, self.published)

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, counted from the layer definitions."""
        assumed = load_assumptions(DEFAULT_ASSUMPTIONS)
        return parameters(build_model(self.model, assumed, assumed.default_strategy))

    @property
    def report(self) -> list[str]:
        """The lines of a report on the conversion."""
        model, config, ignored = self.model, self.config, self.ignored
        published, number = self.published, self.parameters
        sizes = " ".join(f"{letter}={size}" for letter, size in model.dimensions.items())
        check = "unchecked: no published total is known"
        if published is not None:
            off = number - published.total
            check = f"{abs(off):,} ({share(abs(off), published.total, 2)}) {'more' if off > 0 else 'fewer'} than the "
            check = f"{check}published {published.total:,} ({published.source})"
            if 2 * abs(off) < published.rounding:
                as_published = "as published" if not off else f"which rounds to the published {published.total:,}"
                check = f"{as_published} ({published.source})"
        length, longest = model.default_sequence_length, config.values.get(_LONGEST)
        read = f"; the model reads up to {longest:,} tokens" if longest not in (None, length) else ""
        lines = [
            f"{printable(model.name)}, of the family {config.model_type}: {sizes}",
            f"{number:,} parameters, {check}",
            # No config has the sequence length of the training.
            f"sequences of {length:,} tokens, unless --sequence-length or a sweep says otherwise: the config does not "
            f"say how long those of the training were{read}",
        ]
        unknown = {key: f"{value!r:.60}" for key, value in ignored.unknown.items()}
        no_cost = {topic: ", ".join(keys) for topic, keys in ignored.no_cost.items()}
        listed = {
            "not used, though it changes the cost:": ignored.unpriced,
            "not used, and not known whether it changes the cost:": unknown,
            "not used, and without effect on the cost:": no_cost,
        }
        for title, entries in listed.items():
            lines += [title, *(f"  {key}: {text}" for key, text in entries.items())] if entries else []
        return lines

    def _data(self) -> Data:
        counted, published, ignored = self.parameters, self.published, self.ignored
        return {
            "family": self.config.model_type,
            "model": self.model.model_dump(mode="json", exclude_none=True),
            "output": str(self.out) if self.out else None,
            "parameters": {"counted": counted, "published": published and published.total}
            | {"difference": published and counted - published.total}
            | {name: published and getattr(published, name) for name in ("rounding", "source")},
            "ignored": {"changes_cost": ignored.unpriced, "unknown": ignored.unknown, "no_cost": ignored.no_cost},
        }

    def __str__(self) -> str:
        return self.text.rstrip("\n") if self.out is None else "\n".join(self.report)


def import_hf(config: str | Path, out: str | Path | None = None, *, overwrite: bool = False) -> Imported:
    """Make a model file from a Hugging Face config.json.

        job = dsx.Job(dsx.import_hf("config.json").model, "h100-nvs8", num_gpus=64, global_batch_size=512)

    Args:
        config: the config.json of a checkpoint for the transformers library.
        out: model file to write.
        overwrite: replace it if it exists.

    Raises InputError for a config that cannot be read or has an unknown family, StoreError if `out` cannot be written.
    """
    path, output = file_path("config", config), optional_path("out", out)
    if output is not None:
        check_target(output, overwrite)
    file = find_path("config", str(path))
    read = load_config(file)
    model = to_model(read, model_name(read, file, output), model_source(read, file))
    imported = Imported(model, read, published_total(read), ignored_keys(read), output)
    _ = imported.parameters  # a model that cannot be built is not written
    if output is not None:
        write(imported.text, output)
        remark(f"wrote {output}")
    return imported
