"""Pictures as files."""

import subprocess
import sys

import matplotlib.image
import pytest
from matplotlib.figure import Figure
from results.frames import candidates

from dsx.errors import InputError, StoreError
from dsx.results import plot


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.svg", "a.pdf"])
def test_save(tmp_path, name):
    plot.save(plot.front(candidates(), by="strategy"), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name.lower().endswith("png"):
        assert matplotlib.image.imread(tmp_path / name).std() > 0.05


def test_save_errors(tmp_path):
    ax = plot.front(candidates())
    with pytest.raises(InputError, match=r"unknown image suffix '\.pgn'; did you mean '\.png'\? .*\.svg"):
        plot.save(ax, tmp_path / "a.pgn")
    with pytest.raises(InputError, match="unknown image suffix ''"):
        plot.save(ax, tmp_path / "a")
    with pytest.raises(StoreError, match=r"cannot write .*No such file"):
        plot.save(ax, tmp_path / "no" / "a.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        plot.save(ax, tmp_path / "b.png")
    assert [path.name for path in tmp_path.iterdir()] == ["b.png"]


def test_an_axis_without_a_figure():
    ax = Figure().subplots()
    ax.remove()
    with pytest.raises(InputError, match="not on a figure"):
        plot.save(ax, "a.png")
    with pytest.raises(InputError, match="not on a figure"):
        plot.scaling(candidates(), ax=ax)


def test_needs_no_matplotlib_before_it_draws():
    code = "import dsx; dsx.plot, dsx.load; import sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
