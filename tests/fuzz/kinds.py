"""The kinds of files that dsx reads: good ones to begin with, how they are changed, and what reads them."""

import csv
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from config import instances
from config.hf.configs import CONFIGS
from fuzz import mutation
from runs.tables import ROW

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.config.hf_config import (
    ignored_keys,
    load_config,
    model_name,
    model_source,
    model_text,
    published_total,
    to_model,
)
from dsx.config.model_file import load_model
from dsx.config.operator_files import read_operator_times
from dsx.config.search_path import packaged_data
from dsx.config.sweep_fields import Columns
from dsx.config.sweep_file import load_sweep
from dsx.cost.context import StepCosts, assumptions_from_spec
from dsx.layer_table.instance import read_instance, read_network
from dsx.notation.library import load_definition, load_layer, load_operators
from dsx.notation.model import build_model
from dsx.notation.operators import load_tables
from dsx.notation.syntax import Settings
from dsx.notation.work import derive
from dsx.plans.choices import NAMED, PLAN_COLUMNS
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

DATA = packaged_data()
_SWEEPS = DATA.parent / "sweeps"
_LAYERS = DATA / "layers"
_COLUMNS = Columns(tuple(PLAN_COLUMNS), tuple(StepCosts.__dataclass_fields__), NAMED)
# Files that are long in the reading are left out: what is in them is in others.
_LONGEST = 20_000

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str
    file: str  # where a file of it is put, in a working directory
    good: Callable[[Path], list[bytes]]  # files that are taken; the folder holds a finished result set, `set`
    mutate: Mutate
    read: Callable[[Path], object]  # what reads the file, whose path it is given


def _files(*patterns: str, below: Path = DATA) -> Callable[[Path], list[bytes]]:
    def good(folder: Path) -> list[bytes]:
        found = [path.read_bytes() for pattern in patterns for path in sorted(below.glob(pattern))]
        return [text for text in found if len(text) < _LONGEST]

    return good


def _yaml(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return mutation.mutated_text(data.decode(), rng)
    return mutation.as_yaml(mutation.mutated_tree(yaml.safe_load(data), rng))


def _json(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return mutation.mutated_text(data.decode(), rng)
    return mutation.as_json(mutation.mutated_tree(json.loads(data), rng))


def _text(data: bytes, rng: random.Random) -> bytes:
    return mutation.mutated_text(data.decode(), rng)


def _table(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return mutation.mutated_text(data.decode(), rng)
    rows = list(csv.reader(io.StringIO(data.decode())))
    for _ in range(rng.randint(1, 4)):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(mutation.RAW)
    made = io.StringIO()
    csv.writer(made).writerows(rows)
    return made.getvalue().encode("utf-8", "surrogatepass")


def _csv(*rows: dict[str, str]) -> bytes:
    made = io.StringIO()
    writer = csv.DictWriter(made, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return made.getvalue().encode()


def _read_model(path: Path) -> object:
    assumed = load_assumptions("default")
    return build_model(load_model(path), assumed, assumed.default_strategy, path)


def _read_family(path: Path) -> object:
    os.environ["DSX_PATH"] = str(path.parent.parent)
    shutil.copytree(DATA / "families" / "shared", path.parent / "shared", dirs_exist_ok=True)
    try:
        shutil.copyfile(CONFIGS / "llama-3-8b.json", path.parent / "config.json")
        config = json.loads((path.parent / "config.json").read_text()) | {"model_type": path.stem}
        (path.parent / "config.json").write_text(json.dumps(config))
        return _read_config(path.parent / "config.json")
    finally:
        del os.environ["DSX_PATH"]
        (path.parent / "config.json").unlink()
        shutil.rmtree(path.parent / "shared")


def _read_config(path: Path) -> object:
    config = load_config(path)
    model = to_model(config, model_name(config, path, None), model_source(config, path))
    return model_text(model, published_total(config)), ignored_keys(config)


def _read_layer(path: Path, block: Path | None = None) -> object:
    """Build a layer without options, and with all of its own, or of a block, that do not exclude each other.

    The strategy of the second is the one that divides a block whose option copied_kv is set.
    """
    table, definition = load_operators(["standard"]), load_definition(str(block or path), path)
    excluded = {option for options in definition.exclusive.values() for option in options[1:]}
    every = Settings(frozenset(definition.options.keys() - excluded))
    ways = {"2d": Settings(), "2d-copied-kv": every}
    return [derive(load_layer(str(path), strategy, table, path, inherited=ways[strategy])) for strategy in ways]


def _read_block(path: Path) -> object:
    shutil.copyfile(_LAYERS / "transformer.layer", path.parent / "own.layer")
    try:
        return _read_layer(path.parent / "own.layer", path)
    finally:
        (path.parent / "own.layer").unlink()


def _read_strategy(path: Path) -> object:
    return derive(load_layer("transformer", str(path), load_operators(["standard"])))


def _read_set(path: Path) -> object:
    return dsx.load(path.parent)


def _in_set(pattern: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [path.read_bytes() for path in sorted((folder / "set").glob(pattern))]


KINDS = (
    Kind("model", "a.yaml", _files("models/*.yaml"), _yaml, _read_model),
    Kind("cluster", "a.yaml", _files("clusters/*.yaml"), _yaml, lambda path: cluster_from_spec(load_cluster(path))),
    Kind(
        "assumption set",
        "a.yaml",
        _files("assumptions/*.yaml"),
        _yaml,
        lambda path: assumptions_from_spec(load_assumptions(str(path))),
    ),
    Kind("operator table", "a.yaml", _files("operators/*.yaml"), _yaml, lambda path: load_tables([path])),
    Kind("layer", "a.layer", _files("*.layer", below=_LAYERS), _text, _read_layer),
    Kind("block", "self-attention.layer", _files("blocks/self-attention.layer", below=_LAYERS), _text, _read_block),
    Kind("strategy", "a.layer", _files("strategies/*.layer", below=_LAYERS), _text, _read_strategy),
    Kind("family", "families/mine.yaml", _files("families/llama.yaml", "families/qwen3.yaml"), _yaml, _read_family),
    Kind("config.json", "config.json", _files("*.json", below=CONFIGS), _json, _read_config),
    Kind("sweep", "a.yaml", _files("*.yaml", below=_SWEEPS), _yaml, lambda path: load_sweep(path, _COLUMNS)),
    Kind(
        "run table",
        "a.csv",
        lambda folder: [_csv(ROW, ROW | {"id": "b", "experts": "8", "topk": "2", "ep": "2"})],
        _table,
        lambda path: setups(read_runs(path)),
    ),
    Kind(
        "operator times",
        "a.csv",
        lambda folder: [
            _csv(
                {"operator": "einsum", "m": "4096", "n": "1024", "k": "64", "time": "5 us", "direction": "forward"},
                {"operator": "norm", "m": "4096", "n": "1024", "k": "", "time": "1 ms", "direction": ""},
            )
        ],
        _table,
        lambda path: read_operator_times(str(path)),
    ),
    Kind(
        "layer table",
        "a.json",
        lambda folder: [json.dumps(instances.small()).encode()],
        _json,
        lambda path: read_instance(str(path)),
    ),
    Kind(
        "networks",
        "a.json",
        lambda folder: [json.dumps(instances.networks()).encode()],
        _json,
        lambda path: read_network(f"{path}:fast", 8),
    ),
    Kind("manifest", "set/manifest.json", _in_set("manifest.json"), _json, _read_set),
    Kind("part", "set/part-00000.parquet", _in_set("*.parquet"), mutation.mutated_bytes, _read_set),
)
