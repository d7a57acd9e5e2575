"""Pictures as files."""

import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from results.frames import candidates

from dsx import pictures as plot
from dsx.errors import InputError, StoreError
from dsx.pictures.figure import DOTS_PER_INCH


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.svg", "a.pdf"])
def test_save(tmp_path, name):
    plot.save(plot.front(candidates(), by="strategy"), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name.lower().endswith("png"):
        assert matplotlib.image.imread(tmp_path / name).std() > 0.05


def drawn_and_saved(ax, tmp_path):
    """Return what matplotlib draws, what `save` writes as a PNG, and its size in bytes."""
    plot.save(ax, tmp_path / "a.png")
    ax.get_figure(root=True).savefig(tmp_path / "b.png", dpi=DOTS_PER_INCH)
    with Image.open(tmp_path / "b.png") as drawn, Image.open(tmp_path / "a.png") as saved:
        assert saved.info["dpi"] == pytest.approx((DOTS_PER_INCH, DOTS_PER_INCH), abs=0.1)
        images = [np.asarray(image.convert("RGBA"), np.int16) for image in (drawn, saved)]
    return *images, (tmp_path / "a.png").stat().st_size


def a_heatmap():
    df = candidates(40, num_gpus=range(1000, 1014), what_if={"device.hbm_capacity": [i * 1e10 for i in range(6, 20)]})
    return plot.heatmap(df, "device.hbm_capacity", "num_gpus")


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [a_heatmap, lambda: plot.breakdowns(candidates(), ["num_gpus", "strategy"]), lambda: plot.front(candidates(500))],
    ids=["heatmap", "breakdowns", "front"],
)
def test_a_png_is_small_and_looks_the_same(tmp_path, draw):
    drawn, saved, size = drawn_and_saved(draw(), tmp_path)
    differs = np.abs(drawn - saved).max(axis=2)
    assert size < 150_000
    assert (differs > 16).mean() < 1e-3
    assert differs.mean() < 0.5


@pytest.mark.slow
def test_a_png_keeps_colours_and_stays_transparent(tmp_path):
    ax = Figure(figsize=(2, 2)).subplots()
    ax.imshow(np.random.default_rng(0).random((400, 400, 3)))
    drawn, saved, _ = drawn_and_saved(ax, tmp_path)
    np.testing.assert_array_equal(saved, drawn)
    # A png stays transparent.
    ax = Figure(figsize=(2, 2), facecolor="none").subplots()
    ax.plot([1, 2], color="red")
    drawn, saved, _ = drawn_and_saved(ax, tmp_path)
    np.testing.assert_array_equal(saved, drawn)
    assert saved[0, 0, 3] == 0


def test_save_errors(tmp_path):
    ax = plot.front(candidates())
    with pytest.raises(InputError, match=r"unknown image suffix '\.pgn'; did you mean '\.png'\? .*\.svg"):
        plot.save(ax, tmp_path / "a.pgn")
    with pytest.raises(InputError, match="unknown image suffix ''"):
        plot.save(ax, tmp_path / "a")
    with pytest.raises(StoreError, match=r"no is no folder; make it"):
        plot.save(ax, tmp_path / "no" / "a.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(StoreError, match="is a folder; name a file in it"):
        plot.save(ax, tmp_path / "b.png")
    assert [path.name for path in tmp_path.iterdir()] == ["b.png"]


@pytest.mark.slow
def test_axes_need_a_figure_and_no_matplotlib_before_they_are_drawn():
    ax = Figure().subplots()
    ax.remove()
    with pytest.raises(InputError, match="not on a figure"):
        plot.save(ax, "a.png")
    with pytest.raises(InputError, match="not on a figure"):
        plot.scaling(candidates(), ax=ax)
    # Needs no matplotlib before it draws.
    code = "import dsx; dsx.plot, dsx.load; import sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
