"""``dsx plot``: what it draws, from what it is told by the sweep and by its options."""

import matplotlib.image
import numpy as np
import pytest
from results.frames import candidates, title_of
from results.sets import SPEC

from dsx import pictures
from dsx.config.what_if import varied_field
from dsx.errors import InputError, UnknownNameError
from dsx.pictures import figure as files
from dsx.plans.choices import BY_NAME
from dsx.results import frames as store
from dsx.results import manifest as manifests
from dsx.results import writer as writing
from dsx.results.set_columns import NAME_COLUMNS, ExtraColumn
from dsx.verbs import plot as picture
from dsx.verbs.plot import check_picture, draw_picture

CAPACITY, BANDWIDTH = "device.hbm_capacity", "device.hbm_bandwidth"
SETTINGS = ("cluster", "num_gpus", "global_batch_size", "sequence_length", CAPACITY)
ASKED = {"kind": "heatmap", "x": [CAPACITY], "y": "num_gpus", "value": "training_days", "by": None, "baseline": None}


def write_set(folder, df, **spec):
    """Write a frame as the complete result set of a sweep."""
    what_if = [
        ExtraColumn(path, varied_field(path).unit, "", integer=False) for path in (CAPACITY,) if path in df.columns
    ]
    names = {
        name: list(df[name].cat.categories) if name in df.columns else [BY_NAME[name].default] for name in NAME_COLUMNS
    }
    resolved = SPEC["resolved"] | {
        "clusters": [{"name": name, "device": {"name": name, "hbm_capacity": "80e9 B"}} for name in names["cluster"]],
        "strategy": names["strategy"],
        "layers": dict.fromkeys(names["strategy"], "0"),
    }
    varied = {"what_if": {extra.name: ["60 GB", "80 GB"] for extra in what_if}}
    stated = SPEC | {"resolved": resolved} | varied | spec
    begun = manifests.begin(stated, names, [("memory", "")], "float32", what_if=what_if)
    zeros = np.zeros(len(df), np.int64)
    rows = {column.name: df.get(column.name, zeros + (column.kind == "integer")) for column in begun.columns}
    rows |= {name: df[name].cat.codes.to_numpy() for name in NAME_COLUMNS if name in df.columns}
    feasible = int((df["reject"] == 0).sum())
    with writing.create(folder, begun, 2) as writer:
        for number, here in enumerate((zeros == 1, zeros == 0)):
            part = {name: np.asarray(column)[here] for name, column in rows.items()}
            counts = manifests.Counts(int(here.sum()), feasible if number else 0, {"memory": 0})
            writer.write(number, part, counts)
        writer.finish()
    return folder


@pytest.fixture(scope="module")
def df():
    return candidates(what_if={CAPACITY: (60e9, 80e9)})


@pytest.fixture(scope="module")
def silent(tmp_path_factory, df):
    """The set of a sweep without a `plot`; not to be changed."""
    return write_set(tmp_path_factory.mktemp("silent") / "set", df, plot=None)


@pytest.fixture(scope="module")
def asking(tmp_path_factory, df):
    """The set of a sweep that asks for a heat map; not to be changed."""
    return write_set(tmp_path_factory.mktemp("asking") / "set", df, plot=ASKED)


@pytest.fixture
def drawn(monkeypatch):
    """The axes that are saved while a test runs, and the frames that they were drawn from."""
    axes, frames = [], []
    save, load, chosen = pictures.save, store.load, store.load_chosen
    monkeypatch.setattr(pictures, "save", lambda ax, path: (axes.append(ax), save(ax, path)))
    monkeypatch.setattr(picture, "load", lambda *arguments: frames.append(load(*arguments)) or frames[-1])
    monkeypatch.setattr(picture, "load_chosen", lambda *arguments: frames.append(chosen(*arguments)) or frames[-1])
    return axes, frames


@pytest.mark.parametrize(
    ("options", "x", "y"),
    [
        (
            ("--kind", "front", "--where", "num_gpus=2048", "--where", f"{CAPACITY}=80 GB"),
            "step time [s]",
            "peak memory [GB]",
        ),
        (("--kind", "front", "--x", "num_gpus", "--y", "-mfu", "--by", CAPACITY), "number of GPUs", "MFU"),
        (("--kind", "scaling"), "number of GPUs", "tokens/s/GPU"),
        (("--kind", "scaling", "--by", "strategy", "--baseline", "grid"), "number of GPUs", "speed-up over grid"),
        (("--kind", "scaling", "--x", CAPACITY, "--y", "tokens_per_s"), "HBM capacity [GB]", "tokens [million/s]"),
        (("--kind", "heatmap", "--x", CAPACITY, "--y", "num_gpus"), "HBM capacity", "number of GPUs"),
        (("--kind", "breakdown"), "", "step time [s]"),
    ],
)
def test_kinds(run, silent, tmp_path, drawn, options, x, y):
    file = tmp_path / "a.png"
    done = run("plot", silent, *options, "-o", file)
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[-1] == f"dsx: wrote {file}"
    assert matplotlib.image.imread(file).std() > 0.05
    (ax,) = drawn[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (x, y)


@pytest.mark.slow
def test_only_what_is_shown_is_read(run, silent, tmp_path, drawn):
    heatmap = ("--kind", "heatmap", "--x", CAPACITY, "--y", "num_gpus", "--value", "mfu")
    run("plot", silent, *heatmap, "-o", tmp_path / "a.svg")
    run("plot", silent, "--kind", "scaling", "--by", "strategy", "-o", tmp_path / "a.svg")
    run("plot", silent, "--kind", "breakdown", "--x", "num_gpus", "--x", "strategy", "-o", tmp_path / "a.svg")
    heatmap, scaling, breakdown = drawn[1]
    # A picture says of which settings it is.
    assert set(heatmap.columns) == {"reject", "mfu", *SETTINGS}
    assert set(scaling.columns) == {
        *("reject", "tokens_per_s_per_gpu", "step_time_s", "step_time_s_low", "step_time_s_high", "strategy"), *SETTINGS
    }  # fmt: skip
    assert len(breakdown) == 6


@pytest.mark.slow
def test_the_sweep_says_what_to_draw_and_options_override_it(run, asking, tmp_path, drawn):
    for options in ((), ("--value", "mfu"), ("--kind", "heatmap", "--y", "strategy"), ("--kind", "scaling")):
        assert run("plot", asking, *options, "-o", tmp_path / "a.svg").code == 0
    stated, value, same, other = drawn[0]
    assert (stated.get_xlabel(), stated.get_ylabel()) == ("HBM capacity", "number of GPUs")
    assert stated.collections[0].colorbar.ax.get_ylabel() == "training time relative to today"
    assert value.collections[0].colorbar.ax.get_ylabel() == "MFU relative to today"
    assert same.get_ylabel() == "strategy"
    # A picture of another kind has nothing to do with what the sweep says.
    assert (other.get_xlabel(), other.get_ylabel()) == ("number of GPUs", "tokens/s/GPU")


@pytest.mark.slow
def test_a_front_of_several_jobs_and_sets_in_which_nothing_fits(run, silent, tmp_path, drawn, df):
    done = run("plot", silent, "--kind", "front", "-o", tmp_path / "a.svg")
    best = df[df["reject"] == 0].nsmallest(1, "step_time_s").iloc[0]
    assert f"the front is that of num_gpus={best['num_gpus']} {CAPACITY}={best[CAPACITY] / 1e9:.0f} GB" in done.err
    assert "--where draws another one" in done.err
    run("plot", silent, "--kind", "front", "--where", "num_gpus=1024", "--baseline", "tp=4", "-o", tmp_path / "a.svg")
    ax = drawn[0][1]
    assert title_of(ax)[1].startswith("m, 1,024 GPUs of near")
    marked = [text.get_text().splitlines()[-1].split() for text in ax.texts if text.get_gid() == "plans"]
    assert marked[0][0] == "baseline" and "tp=4" in marked[0]
    # Nothing feasible.
    folder = write_set(tmp_path / "set", df.assign(reject=1), plot=None)
    done = run("plot", folder, "--kind", "breakdown", "-o", tmp_path / "a.png")
    assert done.code == 3
    assert done.err.endswith(f"none of the 240 rows of {folder} is feasible, as {tmp_path / 'a.png'} says\n")
    assert (tmp_path / "a.png").stat().st_size > 0
    assert run("plot", folder, "--kind", "scaling", "--y", "mfu", "-o", tmp_path / "b.png").code == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "has no 'plot': add --kind front, breakdown, scaling or heatmap"),
        (("--x", "num_gpus"), "has no 'plot': add --kind"),
        (("--kind", "heatmp"), "unknown kind of picture 'heatmp'; did you mean 'heatmap'?"),
        (("--kind", "heatmap", "--x", "tp"), "a heatmap plot needs y: "),
        (("--kind", "heatmap"), "a heatmap plot needs x and y: "),
        (("--kind", "scaling", "--value", "mfu"), "a scaling plot takes no value, only x, y, by, baseline, where"),
        (("--kind", "breakdown", "--y", "mfu"), "a breakdown plot takes no y, only x, where"),
        (("--kind", "scaling", "--x", "tp", "--x", "pp"), "a scaling plot takes one column as x, not 2: tp, pp"),
        (("--kind", "scaling", "--x", BANDWIDTH), f"did you mean '{CAPACITY}'?"),
        (("--kind", "scaling", "--baseline", "flat"), "`by` must name the column"),
        (("--kind", "front", "--where", "num_gpus=8"), "no row has num_gpus=8"),
        (("--kind", "breakdown", "--where", "num_gpus=8"), "no row has num_gpus=8"),
    ],
)
def test_bad_options(run, silent, tmp_path, options, says):
    done = run("plot", silent, *options, "-o", tmp_path / "a.png")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dsx: error: ")
    assert says in done.err
    assert list(tmp_path.iterdir()) == []


def test_bad_files(run, silent, folder):
    done = run("plot", silent, "--kind", "scaling", "-o", "no/a.png")
    assert done.code == 2
    assert "no/a.png: no is no folder; make it, or choose another file" in done.err
    assert sorted(path.name for path in folder.iterdir()) == ["small.yaml", "sweep.yaml"]
    assert "-o" in run("plot", silent, "--kind", "scaling").err
    assert "no result set at nowhere" in run("plot", "nowhere", "-o", "a.png").err


def test_a_picture_is_checked_before_anything_is_read(tmp_path, monkeypatch):
    check_picture(ASKED, tmp_path / "a.png")
    with pytest.raises(UnknownNameError, match="did you mean 'front'"):
        check_picture({"kind": "fornt"}, tmp_path / "a.png")
    with pytest.raises(InputError, match="a heatmap plot takes no baseline"):
        check_picture(ASKED | {"baseline": "flat"}, tmp_path / "a.png")
    monkeypatch.setattr(picture, "load", None)
    with pytest.raises(InputError, match="unknown image suffix"):
        draw_picture(tmp_path / "nowhere", ASKED, tmp_path / "a.b")
    assert files.image_format("a.PNG") == "png"
