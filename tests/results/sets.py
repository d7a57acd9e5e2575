"""Small result sets: specs, rows and counts to write, and how a folder looks."""

from pathlib import Path

import numpy as np

from dsx.results import manifest
from dsx.results.manifest import Counts, Manifest
from dsx.results.set_columns import ExtraColumn, columns_with

SPEC = {
    "model": "m",
    "num_gpus": [8, 16],
    "global_batch_size": [32],
    "precision": "float32",
    "keep": "all",
    "resolved": {
        "model": {"name": "m", "default_sequence_length": 2048},
        "clusters": [{"name": "near"}, {"name": "far"}],
        "assumptions": {"name": "few"},
        "strategy": ["flat", "grid"],
        "layers": {"flat": "0", "grid": "1"},
    },
}
NAMES = {
    "cluster": ("near", "far"),
    "strategy": ("flat", "grid"),
    "recompute": ("none", "full"),
    "schedule": ("one",),
    "offload": ("none", "both"),
    "order": ("tp-cp-ep-dp-pp",),
}
REASONS = [("memory", "peak_bytes is above the device's capacity"), ("layers", "pp does not divide them")]
WHAT_IF = (
    ExtraColumn("device.hbm_capacity", "bytes", "hbm_capacity of the device, varied by the sweep", integer=False),
    ExtraColumn("network.nvs.size", "", "size of the fast domain, varied by the sweep", integer=True),
)


def make_rows(n: int, first: int = 0, what_if: tuple[ExtraColumn, ...] = ()) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(first)
    rows = {}
    for column in columns_with(what_if):
        match column.kind:
            case "real":
                rows[column.name] = rng.random(n).astype(np.float32)
            case "given":
                rows[column.name] = rng.random(n)
            case "name":
                rows[column.name] = np.arange(n) % len(NAMES[column.name])
            case _:
                rows[column.name] = rng.integers(1, 100, n)
    rows["candidate"] = np.arange(first, first + n) + 2**40
    rows["reject"] = np.arange(n) % 3
    return rows


def make_counts(n: int) -> Counts:
    """What is counted of n rows and as many again that are not kept."""
    return Counts(candidates=2 * n, feasible=n, rejected={"memory": n, "layers": 1})


def begin_manifest(precision="float32", what_if=(), **changes) -> Manifest:
    varied = {"what_if": {extra.name: 8 if extra.integer else "80 GB" for extra in what_if}}
    return manifest.begin(SPEC | varied | changes, NAMES, REASONS, precision, what_if=what_if)


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
