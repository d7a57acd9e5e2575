"""What is no name of a column, no axis and no path is refused by the functions of a DataFrame."""

import pandas as pd
import pytest

from dsx import pictures as plot
from dsx.errors import InputError
from dsx.results.compare import compare
from dsx.results.frames import pareto

DF = pd.DataFrame(
    {"tp": [1, 2], "pp": [1, 1], "num_gpus": 8, "step_time_s": [2.0, 1.0], "peak_bytes": 1e9, "reject": 0}
)
ONE, SEVERAL = "is given, and one name is wanted", "is given, and a list of names is wanted"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: plot.front(DF, by=5), f"by: 5 {ONE}"),
        (lambda: plot.front(DF, by=["tp"]), f"by: ['tp'] {ONE}"),
        (lambda: plot.front(DF, x=["step_time_s"]), f"x: ['step_time_s'] {ONE}"),
        (lambda: plot.heatmap(DF, None, "pp"), f"x: None {ONE}"),
        (lambda: plot.heatmap(DF, ["tp"], "pp"), f"x: ['tp'] {ONE}"),
        (lambda: plot.heatmap(DF, "tp", "pp", value=5), f"value: 5 {ONE}"),
        (lambda: plot.scaling(DF, x=["tp", "pp"]), f"x: ['tp', 'pp'] {ONE}"),
        (lambda: plot.scaling(DF), "unknown column 'tokens_per_s_per_gpu'"),
        (lambda: plot.front(DF, baseline=[5]), "baseline: 5 is given, and COLUMN=VALUE"),
        (lambda: plot.scaling(DF, by=5), f"by: 5 {SEVERAL}"),
        (lambda: plot.breakdown(DF, of=None), f"of: None {ONE}"),
        (lambda: plot.breakdown(DF, x=5), f"x: 5 {SEVERAL}"),
        (lambda: pareto(DF, None), "a front needs an objective"),
        (lambda: pareto(DF, 5), f"objectives: 5 {SEVERAL}"),
        (lambda: pareto(DF, ["step_time_s", ["a"]]), f"objectives: ['step_time_s', ['a']] {SEVERAL}"),
        (lambda: compare(DF, DF, per=[5]), f"per: [5] {SEVERAL}"),
        (lambda: plot.front(DF, ax=5), "ax: 5 is given, and an axis of matplotlib is wanted"),
        (lambda: plot.scaling(DF, y="step_time_s", ax=5), "ax: 5 is given"),
        (lambda: plot.heatmap(DF, "tp", "pp", ax=5), "ax: 5 is given"),
        (lambda: plot.save(None, "x.png"), "ax: None is given"),
        (lambda: plot.save(plot.scaling(DF, y="step_time_s"), 5), "path: 5 is given, and a path is wanted"),
    ],
)
def test_what_is_no_column_axis_or_path_is_refused(call, says):
    with pytest.raises(InputError) as error:
        call()
    assert says in str(error.value)
