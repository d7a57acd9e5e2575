"""The picture of stages: bars are their times, boxes the fast domains."""

import pytest
from matplotlib.patches import Rectangle

from dsx.errors import InputError
from dsx.results.plot.file import save
from dsx.results.plot.stages import MAX_STAGES, stages
from dsx.search.plan_stages import PlanStage


def found(count, domain=2, recompute_s=0.0):
    """Stages of 1, 2, 3, ... layers of 30 ms each, of which 10 are communication."""
    return tuple(
        PlanStage(
            first_layer=index * (index + 1) // 2,
            num_layers=index + 1,
            load_s=0.03 * (index + 1) + recompute_s,
            compute_s=0.02 * (index + 1),
            comm_s=0.01 * (index + 1),
            recompute_s=recompute_s,
            in_flight=count - index,
            peak_bytes=1e9,
            link=None if not index else "fast" if index % domain else "slow",
        )
        for index in range(count)
    )


def texts(ax):
    return [text.get_text().strip() for text in ax.texts]


def test_bars_add_up_to_the_time_of_each_stage():
    ax = stages(found(4), 8, 2, "a plan")
    tops = [max(bar.get_y() + bar.get_height() for bar in group) for group in zip(*ax.containers, strict=True)]
    assert tops == pytest.approx([30, 60, 90, 120])
    assert ax.get_title() == "a plan"
    assert texts(ax) == ["1", "2", "3", "4"]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["communication", "compute and memory access"]
    assert "recompute" in [t.get_text() for t in stages(found(2, recompute_s=0.01), 8, 1, "").get_legend().get_texts()]


def test_boxes_are_domains_and_links_are_named():
    below = stages(found(5), 8, 2, "").get_figure().axes[1]
    boxes = [patch for patch in below.patches if isinstance(patch, Rectangle)]
    assert [round(box.get_width()) for box in boxes] == [2, 2, 1]
    assert [text for text in texts(below) if text in ("fast", "slow")] == ["fast", "slow", "fast", "slow"]
    assert texts(below).count("8") == 5


@pytest.mark.parametrize("count", [1, 24, 25, MAX_STAGES])
def test_any_number_of_stages_can_be_drawn(count, tmp_path):
    save(stages(found(count, 4), 8, 4, "a plan"), tmp_path / "stages.png")
    assert (tmp_path / "stages.png").stat().st_size > 5000


def test_too_many_stages():
    with pytest.raises(InputError, match="65 stages are too many for one picture"):
        stages(found(65), 8, 1, "")
