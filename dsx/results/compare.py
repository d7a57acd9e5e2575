"""Two result sets side by side: where the best plan changes, and by how much.

    table = compare(df_a, df_b)                       # by num_gpus, global_batch_size and the hardware that varies
    table = compare(df_a, df_b, per=["strategy"])
    table.attrs["summary"]                            # over all rows that the two have in common

Rows are joined on `candidate`, which stands for the same choices on any hardware, and on the hardware columns that both
sets vary (`cluster` if both have several, the fields of both `what_if`). If only one set varies a hardware column, each
of its values is compared with the same rows of the other set.

Not covered: rows that a set did not keep. If a plan or a whole group is missing in a set, it was never priced, did not
fit, or was not among the best.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dsx.cost.context import StepCosts
from dsx.errors import InputError, NothingFeasible, UnknownNameError
from dsx.plans.choices import PLAN_COLUMNS
from dsx.results.frames import Frame, check_frame, column_list, require

SETTINGS = ("num_gpus", "global_batch_size")
CLUSTER = "cluster"

# The state of the best plan of one set in the other set.
FITS, DOES_NOT_FIT, NOT_THERE = "fits", "does not fit", "not there"


def compare(a: pd.DataFrame, b: pd.DataFrame, per: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each group of equal `per` columns, in ascending order.

    The columns are those of `per`, and:

    candidate_a, candidate_b
        the fastest feasible candidate of each set; missing where the set has none in the group
    has_a, has_b
        whether the set has any row in the group
    step_time_s_a, step_time_s_b, ratio
        the step times of these candidates in seconds, and that of b over that of a
    same_plan
        whether both are the same candidate
    a_in_b, a_in_b_step_time_s; b_in_a, b_in_a_step_time_s
        the state of the best of a in b ("fits", "does not fit" or "not there"), its step time there, and likewise
        of the best of b in a
    <column>_a, <column>_b
        the hardware of each best, for hardware columns that a set varies and `per` does not name

    `attrs["per"]` are the columns that form the groups, `attrs["hardware"]` the columns of the last kind by side.
    `attrs["summary"]` counts rows and groups, and has the median, smallest and largest ratio of the joined rows that
    fit in both sets.

    Raises UnknownNameError for an unknown column, InputError for a column that is a cost or if the sets have no group
    in common, NothingFeasible if neither set has a feasible row.
    """
    for df in (a, b):
        check_frame(df)
    varied_a, varied_b = hardware_columns(a), hardware_columns(b)
    groups = _groups(column_list("per", per), varied_a, varied_b)
    shared = [name for name in varied_a if name in varied_b]
    rows_a, rows_b = _rows(a, groups, varied_a), _rows(b, groups, varied_b)
    for name in set(rows_a) & set(rows_b):
        if isinstance(rows_a[name].dtype, pd.CategoricalDtype):
            # The same categories, so that equal names compare equal.
            categories = [*dict.fromkeys([*rows_a[name].cat.categories, *rows_b[name].cat.categories])]
            for rows in (rows_a, rows_b):
                rows[name] = rows[name].cat.set_categories(categories)
    best_a, best_b = _best(rows_a, groups, "a"), _best(rows_b, groups, "b")
    common = [name for name in groups if name in best_a and name in best_b]
    table = best_a.merge(best_b, on=common, how="outer") if common else best_a.merge(best_b, how="cross")
    _require_common(table, best_a, best_b, common)
    table = table.sort_values(groups, ignore_index=True)
    for side in ("a", "b"):
        table[f"has_{side}"] = table[f"has_{side}"].notna()
    table["ratio"] = table["step_time_s_b"] / table["step_time_s_a"]
    table["same_plan"] = (table["candidate_a"] == table["candidate_b"]).fillna(False).astype(bool)
    for side, other, rows, varied in (("a", "b", rows_b, varied_b), ("b", "a", rows_a, varied_a)):
        state, seconds = _elsewhere(table, side, rows, varied, groups)
        table[f"{side}_in_{other}"], table[f"{side}_in_{other}_step_time_s"] = state, seconds
    costs = ["has_a", "has_b", "candidate_a", "candidate_b", "step_time_s_a", "step_time_s_b", "ratio", "same_plan"]
    hardware = [name for name in table if name not in (*groups, *costs)]
    table = table[[*groups, *costs, *hardware]]
    outside = {side: [n for n in varied if n not in groups] for side, varied in (("a", varied_a), ("b", varied_b))}
    table.attrs = {"per": groups, "hardware": outside, "summary": _summary(table, rows_a, rows_b, shared)}
    table.attrs["units"] = {name: "s" if "step_time_s" in str(name) else "" for name in table}
    return table


def hardware_columns(df: pd.DataFrame) -> list[str]:
    """Return the hardware columns that a result set varies."""
    several = [CLUSTER] if len(df.attrs.get("clusters", ())) > 1 else []
    return [*several, *df.attrs.get("what_if", ())]


def _groups(per: Sequence[str], varied_a: Sequence[str], varied_b: Sequence[str]) -> list[str]:
    varied = dict.fromkeys((*varied_a, *varied_b))
    for name in per:
        if name in StepCosts.__dataclass_fields__ and name not in PLAN_COLUMNS:
            raise InputError(f"{name!r} is a cost, but groups are formed by choices, such as 'tp', or by hardware")
        if name not in (*PLAN_COLUMNS, *varied, CLUSTER):
            raise UnknownNameError("column", name, (*PLAN_COLUMNS, *varied, CLUSTER))
    # A cluster that no set varies would not split the rows.
    chosen = [name for name in dict.fromkeys(per) if name in PLAN_COLUMNS or name in varied]
    return chosen or [*SETTINGS, *varied]


def _rows(df: Frame, groups: Sequence[str], varied: Sequence[str]) -> Frame:
    """Return the columns to compare, and the column `fits`: whether a row is feasible."""
    grouped = [name for name in groups if name in varied or name in PLAN_COLUMNS]
    names = dict.fromkeys(("candidate", "step_time_s", *grouped, *varied))
    for name in names:
        if name not in df:
            require(df, name)
    rows = pd.DataFrame({name: df[name].array for name in names})
    rows["fits"] = (require(df, "reject") == 0) & np.isfinite(require(df, "step_time_s"))
    return rows


def _best(rows: Frame, groups: Sequence[str], side: str) -> Frame:
    """Return every group of a set with its fastest feasible row, if any; `has` marks the groups that the set has."""
    by = [name for name in groups if name in rows]
    fitting = rows[rows["fits"]].drop(columns="fits")
    order = [name for name in fitting if name != "step_time_s"]  # the candidate first, then the hardware
    if by:
        # Among equally fast rows the one with the smallest id; they are few, so sorting them is cheap.
        least = fitting.groupby(by, observed=True)["step_time_s"].transform("min")
        leading = fitting[fitting["step_time_s"] == least].sort_values(order).drop_duplicates(by)
        best = rows[by].drop_duplicates().merge(leading, on=by, how="left")
    else:
        best = fitting.sort_values(["step_time_s", *order]).reset_index(drop=True).reindex([0])
    # With a missing row pandas would turn integers into floats, which cannot hold an id.
    best["candidate"] = pd.array(best["candidate"].astype(object).where(best["candidate"].notna(), None), dtype="Int64")
    best["step_time_s"] = best["step_time_s"].astype(np.float64)
    best["has"] = True
    return best.rename(columns={name: f"{name}_{side}" for name in best if name not in by})


def _elsewhere(
    table: Frame, side: str, other_set: Frame, varied: Sequence[str], groups: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the state of one side's best plans on their group's hardware in the other set, and their times there."""
    from_column = {"candidate": f"candidate_{side}"}
    columns = {name: name if name in groups else f"{name}_{side}" for name in varied}
    from_column |= {name: column for name, column in columns.items() if column in table}
    best = table[list(from_column.values())].set_axis(list(from_column), axis=1)
    best = best.assign(row=np.arange(len(table))).dropna(subset="candidate").astype({"candidate": np.int64})
    same_plans = other_set[other_set["candidate"].isin(best["candidate"])]
    joined = best.merge(same_plans[[*from_column, "step_time_s", "fits"]], on=list(from_column))
    seconds = joined[joined["fits"]].groupby("row")["step_time_s"].min().reindex(np.arange(len(table)))
    priced = np.isin(np.arange(len(table)), joined["row"])
    missing = table[f"candidate_{side}"].isna().to_numpy(bool)
    state = np.select([missing, seconds.notna().to_numpy(), priced], ["", FITS, DOES_NOT_FIT], NOT_THERE)
    return state, seconds.to_numpy(np.float64)


def _summary(table: Frame, rows_a: Frame, rows_b: Frame, shared: Sequence[str]) -> dict[str, int | float]:
    on = ["candidate", *shared]
    columns = [*on, "step_time_s", "fits"]
    joined = rows_a[columns].merge(rows_b[columns], on=on, suffixes=("_a", "_b"))
    fits_a, fits_b = joined["fits_a"].to_numpy(), joined["fits_b"].to_numpy()
    in_both = joined[fits_a & fits_b]
    ratio = in_both["step_time_s_b"].to_numpy(np.float64) / in_both["step_time_s_a"].to_numpy(np.float64)
    decided = table["candidate_a"].notna() & table["candidate_b"].notna()
    return {
        "rows_a": len(rows_a),
        "rows_b": len(rows_b),
        "joined": len(joined),
        "fit_in_both": len(in_both),
        "fit_in_a_only": int((fits_a & ~fits_b).sum()),
        "fit_in_b_only": int((fits_b & ~fits_a).sum()),
        "ratio_median": float(np.median(ratio)) if len(ratio) else float("nan"),
        "ratio_min": float(ratio.min()) if len(ratio) else float("nan"),
        "ratio_max": float(ratio.max()) if len(ratio) else float("nan"),
        "groups": len(table),
        "groups_changed": int((decided & ~table["same_plan"]).sum()),
    }


def _require_common(table: Frame, best_a: Frame, best_b: Frame, common: Sequence[str]) -> None:
    """Raise unless at least one group can be compared, or exactly one of the sets has no feasible row."""
    some_a, some_b = best_a[best_a["candidate_a"].notna()], best_b[best_b["candidate_b"].notna()]
    if some_a.empty and some_b.empty:
        raise NothingFeasible("nothing to compare: neither set has a feasible row")
    if some_a.empty or some_b.empty or (table["candidate_a"].notna() & table["candidate_b"].notna()).any():
        return
    disjoint = [name for name in common if not set(some_a[name]) & set(some_b[name])]
    shown = "; ".join(f"{name} {_values(some_a[name])} and {_values(some_b[name])}" for name in disjoint or common)
    raise InputError(f"nothing to compare: the sets have no feasible group in common ({shown}); try others with --per")


def _values(column: Frame) -> str:
    values = sorted(set(column))
    return ", ".join(map(str, values[:4])) + (f" and {len(values) - 4} more" if len(values) > 4 else "")
