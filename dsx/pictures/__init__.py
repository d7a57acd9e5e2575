"""Pictures of a result set: functions that draw a DataFrame on an axis, `ax`, and return it.

    df = dsx.load("results/a")
    dsx.plot.save(dsx.plot.front(df, by="strategy"), "front.png")
    dsx.plot.breakdown(df, "num_gpus", ax=my_axes)

| function | shows |
|---|---|
| `front` | the plans of one job near the best by two objectives, their Pareto front, and a baseline |
| `breakdown`, `breakdowns` | the parts of the step time and of the memory of the fastest plans |
| `cost_curve` | the cost of a training run against its days, a point for each number of GPUs |
| `scaling` | the best feasible value along one column, one line for each value of others, and ideal scaling |
| `heatmap` | by how much the best feasible value for each pair of values of two columns differs from today's machine |
| `timeline` | what each device runs in a step, and for which transfers it waits |

A frame, but for a timeline, is what `dsx.load` gives, or rows of it; its units are in `df.attrs["units"]`. Without
`ax` a function makes a figure of its own size. matplotlib is imported when one is called, and without pyplot, so
pictures need no display and are freed like any other object. A notebook shows the figures of pyplot, so give it one of
its axes: `figure, ax = plt.subplots(layout="constrained")`. Every picture can be read in grey: colours differ in
lightness, parts of a bar in their hatches too, and lines in their markers and dashes.

Not covered: interactive pages.
"""

from dsx.pictures.breakdown import breakdown as breakdown
from dsx.pictures.breakdown import breakdowns as breakdowns
from dsx.pictures.figure import save as save
from dsx.pictures.front import front as front
from dsx.pictures.heatmap import heatmap as heatmap
from dsx.pictures.scaling import cost_curve as cost_curve
from dsx.pictures.scaling import scaling as scaling
from dsx.pictures.timeline import timeline as timeline

__all__ = ["breakdown", "breakdowns", "cost_curve", "front", "heatmap", "save", "scaling", "timeline"]
