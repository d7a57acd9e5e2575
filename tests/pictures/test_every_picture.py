"""What holds of every picture of a frame: it says that there is no plan, and it draws on a given axis."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from results.frames import candidates, is_whole, laid_out, title_of

from dsx import pictures as plot

PICTURES = {
    "front": plot.front,
    "scaling": lambda df, ax=None: plot.scaling(df, y="step_time_s", by="strategy", baseline="flat", ax=ax),
    "heatmap": lambda df, ax=None: plot.heatmap(df, "tp", "num_gpus", ax=ax),
    "breakdown": plot.breakdown,
}


@pytest.mark.parametrize("draw", [*PICTURES.values(), plot.breakdowns], ids=[*PICTURES, "breakdowns"])
def test_nothing_feasible_and_nothing_at_all(tmp_path, draw):
    df = candidates()
    nothing = [df.assign(reject=1), df.head(0)]
    nothing += [] if draw in (plot.breakdown, plot.breakdowns) else [df.assign(step_time_s=np.inf)]
    for rows in nothing:
        ax = draw(rows)
        assert title_of(ax)[0] == "no feasible candidate"
        plot.save(ax, tmp_path / "a.png")
        assert is_whole(laid_out(ax))


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_draws_on_a_given_axis(draw):
    ax = Figure(figsize=(6, 4), layout="constrained").subplots()
    assert draw(candidates(), ax=ax) is ax
    assert ax.get_figure(root=True).get_size_inches() == pytest.approx((6, 4))
