"""The picture that a sweep asks for: its columns, and every fault."""

import pytest
from config.sweeps import COLUMNS, LEAST, read_again, sweep

from dsx.config.sweep_file import PlotSpec, sweep_from_data
from dsx.errors import SpecError

HARDWARE = {"what_if": {"device.hbm_capacity": ["80 GB", "1 TB"], "network.nvs.size": [4, 8]}}


def test_fields_of_a_plot():
    plot = {"kind": "heatmap", "x": "device.hbm_capacity", "y": "network.nvs.size", "value": "mfu"}
    assert sweep(plot=plot, **HARDWARE).plot == PlotSpec(
        kind="heatmap", x=["device.hbm_capacity"], y="network.nvs.size", value="mfu", by=None, baseline=None
    )
    plot = {"kind": "scaling", "x": ["num_gpus", "tp"], "by": "cluster", "baseline": "b200-nvs8"}
    found = sweep(plot=plot).plot
    assert found is not None
    assert (found.x, found.by, found.baseline) == (["num_gpus", "tp"], "cluster", "b200-nvs8")
    assert found.columns == ("num_gpus", "tp", "cluster")
    # Only the kind must be given.
    assert sweep().plot is None
    plot = sweep(plot={"kind": "front"}).plot
    assert plot is not None
    assert (plot.x, plot.y, plot.value, plot.by, plot.baseline, plot.columns) == ([], None, None, None, None, ())
    # A front has objectives.
    plot = sweep(plot={"kind": "front", "x": "step_time_s", "y": "-mfu", "by": "strategy"}).plot
    assert plot is not None
    assert plot.y == "-mfu"
    assert plot.columns == ("step_time_s", "mfu", "strategy")
    # A baseline that is a number is the text of a legend.
    plot = sweep(plot={"kind": "scaling", "by": "tp", "baseline": 8}).plot
    assert plot is not None
    assert plot.baseline == "8"
    # Conditions on rows.
    plot = sweep(plot={"kind": "front", "where": {"num_gpus": 8, "device.hbm_capacity": "80 GB"}}, **HARDWARE).plot
    assert plot is not None
    assert plot.where == {"num_gpus": "8", "device.hbm_capacity": "80 GB"}
    assert plot.columns == ("num_gpus", "device.hbm_capacity")
    # Overrides may add a plot and its fields.
    changes = [("plot.kind", "heatmap"), ("plot.x", "[tp]"), ("plot.y", "pp")]
    assert sweep_from_data(LEAST, COLUMNS, changes).plot == PlotSpec(kind="heatmap", x=["tp"], y="pp")
    # A hardware column must be varied by the sweep.
    with pytest.raises(SpecError) as caught:
        sweep(plot={"kind": "heatmap", "x": "device.hbm_capacity"})
    assert "plot.x.0: unknown column 'device.hbm_capacity'; what_if varies no such field" in str(caught.value)


@pytest.mark.parametrize(
    "plot",
    [
        {"kind": "breakdown"},
        {"kind": "front", "where": {"num_gpus": 8}},
        {"kind": "front", "x": "-mfu", "y": "peak_bytes", "by": "cluster"},
        {"kind": "heatmap", "x": ["tp"], "y": "pp", "value": "training_days"},
        {"kind": "scaling", "by": "tp", "baseline": 8},
    ],
)
def test_what_was_written_reads_as_the_same(plot):
    spec = sweep(plot=plot, train_tokens="1e12")
    assert spec.plot is not None
    assert read_again(spec) == spec


@pytest.mark.parametrize(
    ("plot", "says"),
    [
        ({}, "plot.kind: is required, but missing"),
        ("heatmap", "plot: expected a section with the keys kind, x, y, value, by, baseline, where, got 'heatmap'"),
        (
            {"kind": "heat"},
            "plot.kind: 'heat' is not one of breakdown, scaling, heatmap, front; did you mean 'heatmap'?",
        ),
        (
            {"kind": "front", "base": "x"},
            "plot.base: unknown key; did you mean 'baseline'? (known: kind, x, y, value, by",
        ),
        ({"kind": "front", "x": "step_time"}, "plot.x.0: unknown column 'step_time'; did you mean 'step_time_s'?"),
        ({"kind": "front", "y": "-mfuu"}, "plot.y: unknown column 'mfuu'; did you mean 'mfu'?"),
        ({"kind": "scaling", "by": "clutser"}, "plot.by: unknown column 'clutser'; did you mean 'cluster'?"),
        ({"kind": "heatmap", "value": "-mfu"}, "plot.value: unknown column '-mfu'; did you mean 'mfu'?"),
        ({"kind": "front", "y": "mfu"}, "plot.y: the smallest 'mfu' is the worst; write '-mfu' to maximise it"),
        ({"kind": "heatmap", "y": "-mfu"}, "plot.y: '-mfu' is an objective, which only a front has; write 'mfu'"),
        (
            {"kind": "heatmap", "x": "device.hbm_bandwidth"},
            "unknown column 'device.hbm_bandwidth'; did you mean 'device",
        ),
        ({"kind": "front", "y": ["tp"]}, "plot.y: input should be a valid string, got ['tp']"),
        ({"kind": "scaling", "baseline": True}, "plot.baseline: input should be a valid string, got True"),
        (
            {"kind": "scaling", "value": "training_days"},
            "training_days can be drawn only if the sweep states train_tok",
        ),
    ],
)
def test_a_fault_names_value_rule_and_nearest(plot, says):
    with pytest.raises(SpecError) as caught:
        sweep(plot=plot, **HARDWARE)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
