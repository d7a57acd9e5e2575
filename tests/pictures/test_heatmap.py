"""Heat maps: cells are the best feasible values."""

import itertools

import numpy as np
import pytest
from results.frames import candidates, feasible, is_whole, laid_out, legend_texts, overlapping, texts_of, title_of

from dsx import pictures as plot
from dsx.errors import InputError, UnknownNameError

CAPACITY, BANDWIDTH = "device.hbm_capacity", "device.hbm_bandwidth"
MINUS = "\N{MINUS SIGN}"


def grid(rows, columns, copies=6):
    """Candidates whose best time grows with the bandwidth's place, so that every cell differs."""
    what_if = {CAPACITY: [70e9 + 20e9 * i for i in range(columns)], BANDWIDTH: [1.1e12 * 1.1**i for i in range(rows)]}
    df = candidates(copies, num_gpus=(1024,), strategy=("flat",), what_if=what_if)
    df.attrs["units"] |= {CAPACITY: "bytes", BANDWIDTH: "bytes/s"}
    return df


def cells_of(ax):
    """Return [rows, columns] values, NaN where a cell is empty."""
    mesh = ax.collections[0]
    return mesh.get_array().filled(np.nan)


def annotations(ax):
    cells = [text for text in ax.texts if text.get_gid() is None]
    return {(int(text.get_position()[1]), int(text.get_position()[0])): text for text in cells}


def numbers(ax):
    return {cell: text.get_text() for cell, text in annotations(ax).items()}


def framed(ax):
    """Return the left lower corner, width and height of the frame, in cells."""
    (frame,) = [patch for patch in ax.patches if patch.get_edgecolor() == (0, 0, 0, 1)]
    return tuple(
        round(one) for one in (frame.get_x() + 0.5, frame.get_y() + 0.5, frame.get_width(), frame.get_height())
    )


def table(values, capacities=None, bandwidths=None, today=None):
    """One feasible candidate a cell, with step times [bandwidths][capacities] in seconds."""
    rows, columns = np.shape(values)
    df = grid(rows, columns, copies=1).assign(reject=0, step_time_s=np.ravel(np.transpose(values)))
    for name, stated in ((CAPACITY, capacities), (BANDWIDTH, bandwidths)):
        if stated is not None:
            df[name] = df[name].map(dict(zip(sorted(df[name].unique()), stated, strict=True)))
    if today is not None:
        device = {"name": "near", "hbm_capacity": f"{today[0]} B", "hbm_bandwidth": f"{today[1]} B/s"}
        df.attrs["spec"] = {"resolved": {"clusters": [{"name": "near", "device": device}]}}
    return df


@pytest.mark.parametrize(("value", "largest"), [("step_time_s", False), ("mfu", True)])
def test_cells_are_the_best_that_is_feasible(value, largest):
    df = grid(3, 4, copies=30)
    ax = plot.heatmap(df, CAPACITY, BANDWIDTH, value)
    found = feasible(df).pivot_table(
        index=BANDWIDTH, columns=CAPACITY, values=value, aggfunc="max" if largest else "min"
    )
    best = found.to_numpy().max() if largest else found.to_numpy().min()
    np.testing.assert_allclose(cells_of(ax), found.to_numpy() / best, rtol=1e-6)
    for (row, column), text in numbers(ax).items():
        ratio = found.iloc[row, column] / best
        expected = f"{ratio:#.3g} x" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %".replace("-", MINUS)
        assert text == (expected if ratio != 1 else f"{best:#.3g}")
    assert 9 <= len(annotations(ax)) <= 12


def test_axes_and_values_of_cells():
    ax = laid_out(plot.heatmap(grid(2, 3), CAPACITY, BANDWIDTH, "peak_bytes"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("HBM capacity", "HBM bandwidth")
    assert texts_of(ax.get_xticklabels()) == ["70 GB", "90 GB", "110 GB"]
    assert texts_of(ax.get_yticklabels()) == ["1.1 TB/s", "1.21 TB/s"]
    assert ax.collections[0].colorbar.ax.get_ylabel() == "peak memory relative to the best"
    low, high = ax.get_ylim()
    assert low < high  # upwards
    # Values are printed as short as they are.
    what_if = {"network.nvs.latency": (1e-6, 2.5e-6), "assumptions.matrix_efficiency": (0.4, 0.85)}
    ax = laid_out(plot.heatmap(candidates(what_if=what_if), *what_if))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("NVLink domain latency", "matrix efficiency")
    assert texts_of(ax.get_xticklabels()) == ["1 µs", "2.5 µs"]
    assert texts_of(ax.get_yticklabels()) == ["0.4", "0.85"]
    # Values that three digits do not tell apart.
    df = grid(1, 2)
    df[CAPACITY] = df[CAPACITY].replace({70e9: 141e9, 90e9: 141.2e9})
    ax = laid_out(plot.heatmap(df, CAPACITY, BANDWIDTH))
    assert texts_of(ax.get_xticklabels()) == ["141 GB", "141.2 GB"]


def test_empty_cells_are_hatched():
    df = grid(3, 3)
    df.loc[(df[CAPACITY] == 70e9) & (df[BANDWIDTH] == 1.1e12), "reject"] = 1  # all rejected
    df = df[(df[CAPACITY] != 90e9) | (df[BANDWIDTH] != 1.1e12)]  # not there
    ax = plot.heatmap(df, CAPACITY, BANDWIDTH)
    empty = np.isnan(cells_of(ax))
    assert [(0, 0), (0, 1)] == [tuple(map(int, cell)) for cell in np.argwhere(empty)][:2]
    assert set(annotations(ax)) <= {tuple(map(int, cell)) for cell in np.argwhere(~empty)}
    assert ax.patch.get_hatch()
    assert legend_texts(ax) == ["no feasible plan in the set"]
    full = plot.heatmap(df.assign(reject=0)[df[BANDWIDTH] > 1.2e12], CAPACITY, BANDWIDTH)
    assert full.get_legend() is None


@pytest.mark.parametrize("size", [1, 3, 14])
def test_numbers_are_read(size):
    ax = laid_out(plot.heatmap(grid(size, size, copies=40), CAPACITY, BANDWIDTH))
    box = ax.get_window_extent()
    assert len(annotations(ax)) > 0.6 * np.isfinite(cells_of(ax)).sum() > 0
    for text in annotations(ax).values():
        assert text.get_fontsize() >= 6
        extent = text.get_window_extent()
        assert extent.width < box.width / size
        assert extent.height < box.height / size
    assert overlapping(ax.get_xticklabels()) == overlapping(ax.get_yticklabels()) == []
    assert len(texts_of(ax.get_xticklabels())) == len(texts_of(ax.get_yticklabels())) == size
    assert is_whole(ax)


@pytest.mark.slow
def test_numbers_and_colours_of_cells():
    ax = plot.heatmap(grid(5, 5, copies=40), CAPACITY, BANDWIDTH)
    cells, mesh = cells_of(ax), ax.collections[0]
    for (row, column), text in annotations(ax).items():
        lightness = np.dot(mesh.to_rgba(cells[row, column])[:3], (0.299, 0.587, 0.114))
        assert text.get_color() == ("white" if lightness < 0.5 else "black")
    shades = np.array([np.dot(mesh.get_cmap()(share)[:3], (0.299, 0.587, 0.114)) for share in np.linspace(0, 1, 20)])
    assert (np.diff(shades) > 0).all()
    # Small cells have no numbers and fewer ticks.
    df = candidates(
        1, num_gpus=range(1000, 1060), strategy=("flat",), what_if={CAPACITY: [i * 1e12 for i in range(1, 61)]}
    )
    df.attrs["units"] |= {CAPACITY: "bytes"}
    ax = laid_out(plot.heatmap(df, CAPACITY, "num_gpus"))
    assert len(annotations(ax)) == 0
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert overlapping(labels) == []
        assert 10 < len(texts_of(labels)) < 60
    assert is_whole(ax)
    # A bad row does not take the colours.
    values = [[1.0, 1.02, 1.04, 1.06], [1.01, 1.03, 1.05, 1.07], [1.0, 1.02, 1.04, 1.06], [90.0, 80.0, 70.0, 60.0]]
    ax = laid_out(plot.heatmap(table(values), CAPACITY, BANDWIDTH))
    mesh = ax.collections[0]
    assert mesh.norm.vmax < 1.5
    assert mesh.colorbar.extend == "max"
    assert numbers(ax)[3, 0] == "90.0 x"
    even = plot.heatmap(table([[1.0, 1.02], [1.04, 1.06]]), CAPACITY, BANDWIDTH)
    assert even.collections[0].colorbar.extend == "neither"
    same = plot.heatmap(table([[1.0, 1.0], [1.0, 1.001]]), CAPACITY, BANDWIDTH).collections[0]
    assert same.norm.vmax - same.norm.vmin == pytest.approx(0.05), "what hardly differs looks alike"
    # Colours of a wide range.
    df = table(np.geomspace(1, 1000, 16).reshape(4, 4))
    wide = laid_out(plot.heatmap(df, CAPACITY, BANDWIDTH))
    assert wide.collections[0].colorbar.ax.get_yscale() == "log"
    assert overlapping(wide.collections[0].colorbar.ax.get_yticklabels()) == []


def test_cells_relative_to_the_machine_of_today():
    df = table([[2.0, 1.0, 0.9], [1.5, 1.0, 0.95]], [60e9, 80e9, 100e9], [1e12, 2e12], today=(80e9, 2e12))
    ax = plot.heatmap(df, CAPACITY, BANDWIDTH)
    assert framed(ax) == (1, 1, 1, 1)
    assert ax.collections[0].colorbar.ax.get_ylabel() == "step time relative to today"
    expected = {(0, 0): "2.00 x", (1, 0): "+50 %", (1, 1): "1.00", (0, 2): f"{MINUS}10 %", (1, 2): f"{MINUS}5 %"}
    assert numbers(ax) == expected
    assert title_of(ax) == (
        "step time by HBM capacity and HBM bandwidth",
        "1,024 GPUs of near each cell: the best feasible plan "
        "framed: near as it is, 1.00 s; no number: within 0.5 % of it",
    )
    # One axis of the machine has a line of today.
    df = table([[2.0, 1.0], [8.0, 5.0]], [60e9, 80e9], today=(80e9, 1.0))
    df["num_gpus"] = np.where(df[BANDWIDTH] == df[BANDWIDTH].min(), 64, 8)
    ax = plot.heatmap(df, CAPACITY, "num_gpus")
    assert framed(ax) == (1, 0, 1, 2)
    np.testing.assert_allclose(cells_of(ax), [[1.6, 1.0], [2.0, 1.0]])
    # Where today's machine has no plan, cells cannot be relative to it.
    df.loc[(df["num_gpus"] == 8) & (df[CAPACITY] == 80e9), "reject"] = 1
    ax = plot.heatmap(df, CAPACITY, "num_gpus")
    assert framed(ax) == (1, 1, 1, 1)
    assert "framed: the best, 1.00 s" in title_of(ax)[1]
    # A machine that is no cell is said.
    df = table([[2.0, 1.0], [8.0, 5.0]], [60e9, 80e9], [1e12, 2e12], today=(90e9, 2e12))
    ax = plot.heatmap(df, CAPACITY, BANDWIDTH)
    assert framed(ax) == (1, 0, 1, 1)
    assert title_of(ax)[1].endswith("within 0.5 % of it; today's HBM capacity is no cell")
    # Equal neighbours have one number.
    ax = plot.heatmap(table([[1.0, 1.2, 1.2, 1.2], [1.1, 1.2, 1.2, 1.2], [1.1, 1.1, 1.2, 1.3]]), CAPACITY, BANDWIDTH)
    assert sorted(numbers(ax).values()) == ["+10 %", "+20 %", "+30 %", "1.00"]
    assert ax.collections[1].get_segments()


def test_the_title_says_over_what_else_a_cell_is_the_best():
    df = candidates(
        num_gpus=(8, 16), cluster=("far", "near"), what_if={CAPACITY: (60e9, 90e9), BANDWIDTH: (1e12, 2e12)}
    )

    def over(ax):
        assert is_whole(laid_out(ax))
        return title_of(ax)[1].partition(" framed")[0]

    each = "each cell: the best feasible plan"
    assert over(plot.heatmap(df, CAPACITY, "num_gpus")) == f"{each}, and over cluster, HBM bandwidth"
    one = df[df["cluster"] == "near"]
    assert over(plot.heatmap(one, CAPACITY, "num_gpus")) == f"near {each}, and over HBM bandwidth"
    near = df[(df["cluster"] == "near") & (df[BANDWIDTH] == 1e12)]
    assert over(plot.heatmap(near, "num_gpus", CAPACITY)) == f"near, HBM bandwidth 1 TB/s {each}"
    nothing = plot.heatmap(df.assign(reject=1), CAPACITY, "num_gpus")
    assert title_of(nothing) == ("no feasible candidate", "")


def test_titles_legends_and_long_names():
    df = candidates(
        num_gpus=(8, 16), cluster=("far", "near"), what_if={CAPACITY: (60e9, 90e9), BANDWIDTH: (1e12, 2e12)}
    )
    df.loc[(df["strategy"] == "flat") & (df[CAPACITY] == 60e9), "reject"] = 1
    ax = laid_out(plot.heatmap(df, CAPACITY, "strategy"))
    (small,) = [text for text in ax.texts if text.get_gid() == "job"]
    boxes = [ax.get_legend().get_window_extent(), small.get_window_extent(), ax._left_title.get_window_extent()]
    assert boxes[0].y0 > ax.get_window_extent().y1 - 1
    assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(boxes))
    # Names and long names.
    names = [f"cluster-with-a-long-name-{i}" for i in (3, 1, 2)]
    ax = laid_out(plot.heatmap(candidates(cluster=names), "cluster", "num_gpus"))
    assert texts_of(ax.get_xticklabels()) == names
    assert overlapping(ax.get_xticklabels()) == []
    assert is_whole(ax)
    ax = laid_out(plot.heatmap(candidates(cluster=names), "num_gpus", "cluster"))
    assert texts_of(ax.get_yticklabels()) == names
    assert is_whole(ax)


def test_errors():
    df = grid(2, 2)
    for arguments in (("num_gpu", CAPACITY), (CAPACITY, "num_gpu"), (CAPACITY, BANDWIDTH, "num_gpu")):
        with pytest.raises(UnknownNameError, match="did you mean 'num_gpus'"):
            plot.heatmap(df, *arguments)
    with pytest.raises(InputError, match="does not hold quantities"):
        plot.heatmap(df, CAPACITY, BANDWIDTH, "strategy")
    many = candidates(300)
    with pytest.raises(InputError, match="candidate: 1,800 values, but a picture has room for 200"):
        plot.heatmap(many, "candidate", "num_gpus")
