"""Frames as `dsx.load` gives them, of made-up candidates, and what is seen on a picture of one."""

import itertools

import numpy as np
import pandas as pd

from dsx.results.set_columns import COLUMNS

TIME_PARTS = [f"{part}_s" for part in "compute memory tp_comm cp_comm ep_comm pp_comm dp_comm bubble".split()]
TIME_PARTS += ["recompute_s", "optimizer_s"]
MEMORY_PARTS = [f"{part}_bytes" for part in "weight gradient optimizer activation overhead".split()]
NOT_PRICED = ("ep_comm_s", "recompute_s")


def candidates(copies=20, num_gpus=(1024, 2048, 4096), strategy=("flat", "grid"), cluster=("near",), what_if=None):
    """Return `copies` rows of random costs for each combination, as a sweep lists them: names are not sorted.

    A row is rejected if it takes more than 80 GB, or than the what-if says.
    """
    what_if = what_if or {}
    rng = np.random.default_rng(0)
    settings = {"cluster": cluster, "num_gpus": num_gpus, "strategy": strategy, **what_if}
    df = pd.DataFrame(list(itertools.product(*settings.values(), range(copies))), columns=[*settings, "copy"])
    df["candidate"] = rng.permutation(len(df)) + 2**40
    for name in ("cluster", "strategy"):
        df[name] = pd.Categorical(df[name], settings[name])
    for name in ("tp", "cp", "pp", "dp", "microbatch_size"):
        df[name] = (2 ** rng.integers(0, 6, len(df))).astype(np.int32)
    df["tp2"] = df["ep"] = df["panels"] = np.int32(1)
    for name in TIME_PARTS:
        random = rng.uniform(1, 10, len(df)) * 1e3 / df["num_gpus"]
        df[name] = (0.0 * random if name in NOT_PRICED else random).astype(np.float32)
    for name in MEMORY_PARTS:
        df[name] = (rng.uniform(1, 30, len(df)) * 1e9).astype(np.float32)
    df["step_time_s"] = df[TIME_PARTS].sum(axis=1)
    df["peak_bytes"] = df[MEMORY_PARTS].sum(axis=1)
    df["mfu"] = (1 / df["step_time_s"] / df["num_gpus"]).astype(np.float32)
    df["tokens_per_s"] = (1e7 / df["step_time_s"]).astype(np.float32)
    df["tokens_per_s_per_gpu"] = df["tokens_per_s"] / df["num_gpus"]
    df["training_days"] = (1e2 * df["step_time_s"]).astype(np.float32)
    df["reject"] = (df["peak_bytes"] > df.get("device.hbm_capacity", 80e9)).astype(np.int64)
    df.attrs = {"units": {column.name: column.unit for column in COLUMNS}, "spec": {}}
    return df


def feasible(df):
    return df[df["reject"] == 0]


def laid_out(ax):
    ax.get_figure(root=True).draw_without_rendering()
    return ax


def texts_of(ticks):
    return [label.get_text() for label in ticks if label.get_text()]


def overlapping(labels):
    """Return pairs of texts that share some ink; their figure is laid out."""
    shown = [(label.get_text(), label.get_window_extent()) for label in labels if label.get_text()]
    return [(a, b) for (a, box), (b, other) in itertools.combinations(shown, 2) if box.overlaps(other)]


def is_whole(ax):
    """Return whether all ink of a figure is on its paper; it is laid out."""
    figure = ax.get_figure(root=True)
    ink, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return ink.x0 > -0.01 and ink.y0 > -0.01 and ink.x1 < width + 0.01 and ink.y1 < height + 0.01


def title_of(ax):
    """What a picture shows, and the small print below it, as one line each."""
    small = " ".join(" ".join(text.get_text().split()) for text in ax.texts if text.get_gid() == "job")
    return " ".join(ax.get_title("left").split()), small


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]
