"""Heat maps: cells are the best feasible values."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from results.frames import candidates, feasible, is_whole, laid_out, legend_texts, overlapping, texts_of

from dsx.errors import InputError, UnknownNameError
from dsx.results import plot

CAPACITY, BANDWIDTH = "device.hbm_capacity", "device.hbm_bandwidth"


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
    return {(int(text.get_position()[1]), int(text.get_position()[0])): text for text in ax.texts}


@pytest.mark.parametrize(("value", "largest"), [("step_time_s", False), ("mfu", True)])
def test_cells_are_the_best_that_is_feasible(value, largest):
    df = grid(3, 4, copies=30)
    ax = plot.heatmap(df, CAPACITY, BANDWIDTH, value)
    found = feasible(df).pivot_table(
        index=BANDWIDTH, columns=CAPACITY, values=value, aggfunc="max" if largest else "min"
    )
    np.testing.assert_allclose(cells_of(ax), found.to_numpy(), rtol=1e-6)
    for (row, column), text in annotations(ax).items():
        assert float(text.get_text()) == pytest.approx(found.iloc[row, column], rel=5e-3)
    assert len(ax.texts) == 12


def test_axes_have_units():
    ax = laid_out(plot.heatmap(grid(2, 3), CAPACITY, BANDWIDTH, "peak_bytes"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("HBM capacity", "HBM bandwidth")
    assert texts_of(ax.get_xticklabels()) == ["70 GB", "90 GB", "110 GB"]
    assert texts_of(ax.get_yticklabels()) == ["1.1 TB/s", "1.21 TB/s"]
    assert ax.collections[0].colorbar.ax.get_ylabel() == "peak memory [GB]"
    low, high = ax.get_ylim()
    assert low < high  # upwards


def test_values_are_printed_as_short_as_they_are():
    what_if = {"network.nvs.latency": (1e-6, 2.5e-6), "assumptions.matrix_efficiency": (0.4, 0.85)}
    ax = laid_out(plot.heatmap(candidates(what_if=what_if), *what_if))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("NVS latency", "matrix efficiency")
    assert texts_of(ax.get_xticklabels()) == ["1 µs", "2.5 µs"]
    assert texts_of(ax.get_yticklabels()) == ["0.4", "0.85"]


def test_values_that_three_digits_do_not_tell_apart():
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
    assert set(annotations(ax)) == {tuple(map(int, cell)) for cell in np.argwhere(~empty)}
    assert ax.patch.get_hatch()
    assert legend_texts(ax) == ["no feasible plan"]
    full = plot.heatmap(df.assign(reject=0)[df[BANDWIDTH] > 1.2e12], CAPACITY, BANDWIDTH)
    assert full.get_legend() is None


@pytest.mark.parametrize("size", [1, 3, 14])
def test_numbers_are_read(size):
    ax = laid_out(plot.heatmap(grid(size, size, copies=40), CAPACITY, BANDWIDTH))
    box = ax.get_window_extent()
    numbers = annotations(ax)
    assert len(numbers) == np.isfinite(cells_of(ax)).sum() > 0
    for text in numbers.values():
        assert text.get_fontsize() >= 6
        extent = text.get_window_extent()
        assert extent.width < box.width / size
        assert extent.height < box.height / size
    assert overlapping(ax.get_xticklabels()) == overlapping(ax.get_yticklabels()) == []
    assert len(texts_of(ax.get_xticklabels())) == len(texts_of(ax.get_yticklabels())) == size
    assert is_whole(ax)


def test_numbers_stand_out_from_their_cells():
    ax = plot.heatmap(grid(5, 5, copies=40), CAPACITY, BANDWIDTH)
    cells, mesh = cells_of(ax), ax.collections[0]
    for (row, column), text in annotations(ax).items():
        lightness = np.dot(mesh.to_rgba(cells[row, column])[:3], (0.299, 0.587, 0.114))
        assert text.get_color() == ("white" if lightness < 0.5 else "black")
    shades = np.array([np.dot(mesh.get_cmap()(share)[:3], (0.299, 0.587, 0.114)) for share in np.linspace(0, 1, 20)])
    assert (np.diff(shades) > 0).all()


def test_small_cells_have_no_numbers_and_fewer_ticks():
    df = candidates(
        1, num_gpus=range(1000, 1060), strategy=("flat",), what_if={CAPACITY: [i * 1e12 for i in range(1, 61)]}
    )
    df.attrs["units"] |= {CAPACITY: "bytes"}
    ax = laid_out(plot.heatmap(df, CAPACITY, "num_gpus"))
    assert len(ax.texts) == 0
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert overlapping(labels) == []
        assert 10 < len(texts_of(labels)) < 60
    assert is_whole(ax)


def test_colours_of_a_wide_range():
    df = grid(3, 3, copies=40)
    narrow, wide = plot.heatmap(df, CAPACITY, BANDWIDTH), df.assign(step_time_s=df["step_time_s"] * df[BANDWIDTH] ** 12)
    wide = laid_out(plot.heatmap(wide, CAPACITY, BANDWIDTH))
    scales = [ax.collections[0].colorbar.ax.get_yscale() for ax in (narrow, wide)]
    assert scales == ["linear", "log"]
    assert overlapping(wide.collections[0].colorbar.ax.get_yticklabels()) == []


def test_the_title_says_over_what_else_a_cell_is_the_best():
    df = candidates(
        num_gpus=(8, 16), cluster=("far", "near"), what_if={CAPACITY: (60e9, 90e9), BANDWIDTH: (1e12, 2e12)}
    )

    def title(ax):
        assert is_whole(laid_out(ax))
        assert ax.get_title() == ""
        return " ".join(ax.get_title("left").split())

    assert title(plot.heatmap(df, CAPACITY, "num_gpus")) == "best over cluster, HBM bandwidth"
    assert title(plot.heatmap(df, "strategy", "tp")) == "best over cluster, number of GPUs, HBM capacity, HBM bandwidth"
    assert title(plot.heatmap(df[df["cluster"] == "near"], CAPACITY, "num_gpus")) == "best over HBM bandwidth"
    near = df[(df["cluster"] == "near") & (df[BANDWIDTH] == 1e12)]
    assert title(plot.heatmap(near, "num_gpus", CAPACITY)) == ""
    assert plot.heatmap(df.assign(reject=1), CAPACITY, "num_gpus").get_title("left") == ""


def test_the_title_does_not_touch_the_legend():
    df = candidates(
        num_gpus=(8, 16), cluster=("far", "near"), what_if={CAPACITY: (60e9, 90e9), BANDWIDTH: (1e12, 2e12)}
    )
    df.loc[(df["strategy"] == "flat") & (df[CAPACITY] == 60e9), "reject"] = 1
    ax = laid_out(plot.heatmap(df, CAPACITY, "strategy"))
    (title,) = [text for text in ax.get_children() if getattr(text, "get_text", str)() == ax.get_title("left")]
    assert not title.get_window_extent().overlaps(ax.get_legend().get_window_extent())
    assert title.get_window_extent().y0 > ax.get_window_extent().y1


def test_names_and_long_names():
    names = [f"cluster-with-a-long-name-{i}" for i in (3, 1, 2)]
    ax = laid_out(plot.heatmap(candidates(cluster=names), "cluster", "num_gpus"))
    assert texts_of(ax.get_xticklabels()) == names
    assert overlapping(ax.get_xticklabels()) == []
    assert is_whole(ax)
    ax = laid_out(plot.heatmap(candidates(cluster=names), "num_gpus", "cluster"))
    assert texts_of(ax.get_yticklabels()) == names
    assert is_whole(ax)


def test_nothing_feasible_and_nothing_at_all(tmp_path):
    df = grid(2, 2)
    for nothing in (df.assign(reject=1), df.head(0)):
        ax = plot.heatmap(nothing, CAPACITY, BANDWIDTH)
        assert ax.get_title() == "no feasible candidate"
        plot.save(ax, tmp_path / "a.png")
        assert is_whole(laid_out(ax))


def test_draws_on_a_given_axis():
    ax = Figure(figsize=(6, 4), layout="constrained").subplots()
    assert plot.heatmap(grid(3, 3), CAPACITY, BANDWIDTH, ax=ax) is ax
    assert ax.get_figure(root=True).get_size_inches() == pytest.approx((6, 4))


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
