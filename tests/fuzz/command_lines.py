"""Command lines of every verb, for a small job in a sandbox, to begin with."""

import os
from collections.abc import Sequence
from pathlib import Path

JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", "8", "--global-batch-size", "8")
# The default set compiles much more; all mutations of this one share what they compile.
CHEAP = ("--assumptions", "paper-2410.00273")

LINES: tuple[tuple[str, ...], ...] = (
    ("best", *JOB, *CHEAP, "--top", "3"),
    ("best", *JOB, *CHEAP, "--set", "cluster.device.hbm_capacity=1 GB", "--json"),
    ("evaluate", *JOB, *CHEAP, "tp=2", "dp=4", "nvs.tp=2", "nvs.dp=4"),
    ("evaluate", *JOB, *CHEAP, "pp=2", "dp=4", "nvs.pp=2", "nvs.dp=4", "--json"),
    ("why", *JOB, *CHEAP, "tp=16"),
    ("why", "set", "1"),
    ("layer", "transformer", "--strategy", "2d", "--model", "gpt3-1t", "--set", "tp=4"),
    ("show", "set", "--top", "2", "--per", "tp"),
    ("show", "set", "--candidate", "1", "--json"),
    ("compare", "set", "set", "--per", "num_gpus"),
    ("pareto", "set", "--objective", "step_time_s", "--objective", "peak_bytes"),
    ("plot", "set", "--kind", "scaling", "--x", "tp", "--by", "strategy", "-o", "picture.txt"),
    ("list", "models", "--json"),
    ("list", "strategies"),
    ("clusters", "show", "perlmutter"),
    ("import-hf", "config.json", "-o", "model.yaml"),
    ("import-hf", "config.json", "--json"),
    ("sweep", "sweep.yaml", "-o", "set"),
    ("sweep", "sweep.yaml", "-o", "set", "--set", "sweep.num_gpus=8", "--shard", "1/2"),
    ("sweep", "sweep.yaml", "-o", "set", "--finish", "--json"),
    ("partition", "--instance", "layers.json", "--network", "networks.json:fast", "--devices", "8", "--zero", "1"),
    ("validate", "bad.csv", "-o", "rows.csv"),
    ("calibrate", "bad.csv", "-o", "mine.yaml"),
    ("--version",),
)
OPTIONS = tuple(dict.fromkeys(word for line in LINES for word in line))

_OUTPUTS = ("-o", "--output", "--plot")


def outputs(arguments: Sequence[str]) -> list[Path]:
    """Return the files and folders that a command line may write: those that its options name, and where sets go."""
    found = [Path("results")]
    for at, argument in enumerate(arguments):
        for option in _OUTPUTS:
            if argument == option and at + 1 < len(arguments):
                found.append(Path(arguments[at + 1]))
            elif argument.startswith(option) and argument != option:
                # A short option takes all that stands behind it, the equals sign too.
                rest = argument.removeprefix(option)
                found.append(Path(rest.removeprefix("=") if option.startswith("--") else rest))
    # A folder that has to be made for an output is part of it.
    return [made for path in found for made in (Path(os.path.normpath(path)), *_folders(path))]


def _folders(path: Path) -> list[Path]:
    """Return the folders on the way to a path that are not there."""
    return [folder for folder in path.parents if folder.parts and not os.path.lexists(folder)]
