"""``dsx compare``: two result sets side by side: where the best plan changes, and by how much.

    table = compare(df_a, df_b)                       # by num_gpus, global_batch_size and the hardware that varies
    table = compare(df_a, df_b, per=["strategy"])
    table.attrs["summary"]                            # over all rows that the two have in common

Rows are joined on `candidate`, which stands for the same choices on any hardware, and on the hardware columns that both
sets vary (`cluster` if both have several, the fields of both `what_if`). If only one set varies a hardware column, each
of its values is compared with the same rows of the other set.

Not covered: rows that a set did not keep. If a plan or a whole group is missing in a set, it was never priced, did not
fit, or was not among the best.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dsx.cost.context import StepCosts
from dsx.errors import InputError, NothingFeasible, UnknownNameError, file_path
from dsx.plans.choices import PLAN_COLUMNS
from dsx.progress import warn
from dsx.results.frames import Frame, as_plans, check_frame, column_list, load, load_chosen, read_manifest, require
from dsx.results.manifest import Manifest
from dsx.tables.format import (
    differing,
    hardware_of,
    hardware_text,
    hardware_title,
    kept_text,
    rows_text,
    stated_text,
    steps_text,
    table,
    title_of,
    whole_plan_text,
)
from dsx.text import Data, DataFrame
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import Answer, paragraphs

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


_DIFFERENCES_SHOWN = 12
# Fields that determine the candidates; of a cluster only the size of its fast domains does.
_CHOICES = ("num_gpus", "global_batch_size", "sequence_length", "strategy", "cluster", "fix", "limit", "keep")
_LAYER = "layers."  # before the strategy whose layer definitions differ
_TITLES = {"num_gpus": "GPUs", "global_batch_size": "batch"}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Answer):
    """The best plans of two result sets, A and B, side by side."""

    folders: Sequence[Path]  # of A and of B
    manifests: Sequence[Manifest]
    frame: DataFrame  # as `dsx.compare` gives it
    differences: dict[str, tuple[object, object]]  # fields in which the sweeps differ, by path
    groups: Sequence[Data]  # the rows of `frame`, with the plans

    def _data(self) -> Data:
        described = {
            name: {"folder": str(folder), "title": title_of(manifest), "keep": manifest.spec["keep"]}
            for name, folder, manifest in zip("ab", self.folders, self.manifests, strict=True)
        }
        plain = [
            group | {side: group[side] and group[side] | {"plan": group[side]["plan"].data} for side in "ab"}
            for group in self.groups
        ]
        differences = {path: {"a": a, "b": b} for path, (a, b) in self.differences.items()}
        attrs = self.frame.attrs
        answers = {"per": attrs["per"], "differences": differences, "summary": attrs["summary"]}
        return described | answers | {"groups": plain}

    def __str__(self) -> str:
        lines: list[str] = []
        for name, folder, manifest in zip("AB", self.folders, self.manifests, strict=True):
            about = f"{title_of(manifest)}; kept {kept_text(manifest)}: {rows_text(manifest)}"
            steps = steps_text(manifest.sweep.global_batch_size, manifest.sweep.tokens)
            lines.append(f"{name}: {folder}: {about}; {steps}")
        # Layer definitions are compared by hash, so only the strategy can be named.
        layers = [path.removeprefix(_LAYER) for path in self.differences if path.startswith(_LAYER)]
        pairs = [
            [f"  {path}", stated_text(a), stated_text(b)]
            for path, (a, b) in self.differences.items()
            if not path.startswith(_LAYER)
        ]
        if pairs:
            lines.append(table(["they differ in", "A", "B"], pairs[:_DIFFERENCES_SHOWN], text=range(3)))
        if len(pairs) > _DIFFERENCES_SHOWN:
            lines.append(f"  and in {len(pairs) - _DIFFERENCES_SHOWN} more")
        lines += [f"layer definition of {strategy} differs" for strategy in layers]
        if not self.differences:
            lines.append("Both sweeps state the same.")
        return paragraphs(["\n".join(lines), _groups_text(self.groups), _summary_text(self.frame.attrs["summary"])])


def compare_sets(a: str | Path, b: str | Path, per: str | Sequence[str] = ()) -> Comparison:
    """Compare the best plans of two result sets side by side.

    Rows are joined on the candidate, which stands for the same choices on every cluster. `compare` takes two
    DataFrames.

    Args:
        a: folder of a result set.
        b: folder of the other one.
        per: compare the best of each value of these columns; by default of num_gpus, global_batch_size, and the
            hardware that a set varies.

    Raises StoreError if a set cannot be read, UnknownNameError for an unknown column.
    """
    folders = [file_path("a", a), file_path("b", b)]
    manifests = [read_manifest(folder) for folder in folders]
    chosen = column_list("per", per)
    choices = [name for name in chosen if name in PLAN_COLUMNS]
    frames = [
        load(folder, ["candidate", *SETTINGS, *choices, *hardware_of(manifest), "step_time_s", "reject"])
        for folder, manifest in zip(folders, manifests, strict=True)
    ]
    rows = compare(*frames, per=chosen)
    records = rows.astype(object).where(rows.notna(), None).to_dict(orient="records")
    best_plans: list[list[Data | None]] = []  # of A and of B, by group
    for side, folder, manifest in zip("ab", folders, manifests, strict=True):
        hardware = {name: name if name in rows.attrs["per"] else f"{name}_{side}" for name in hardware_of(manifest)}
        best_plans.append(_best_plans(folder, records, {"candidate": f"candidate_{side}", **hardware}))
    groups: list[Data] = []
    for row, *plans in zip(records, *best_plans, strict=True):
        group: Data = {"per": {name: row[name] for name in rows.attrs["per"]}}
        for (side, other), plan in zip(("ab", "ba"), plans, strict=True):
            group[side] = None  # without a feasible plan
            if plan is not None:
                group[side] = {
                    "step_time_s": row[f"step_time_s_{side}"],
                    "plan": plan,
                    "hardware": {name: row[f"{name}_{side}"] for name in rows.attrs["hardware"][side]},
                    f"in_{other}": row[f"{side}_in_{other}"],
                    f"step_time_s_in_{other}": row[f"{side}_in_{other}_step_time_s"],
                }
        groups.append(group | {name: row[name] for name in ("has_a", "has_b", "ratio", "same_plan")})
    differences = differing(*manifests)
    _warn_of_limits(folders, manifests, rows, differences)
    return Comparison(folders, manifests, rows, differences, groups)


def _best_plans(folder: Path, records: Sequence[Data], columns: dict[str, str]) -> list[Data | None]:
    """Return the best plan of a set in each record, with the layers of its stages; None for a record without one.

    `columns` has the columns of the set that identify its rows, and what these are called in the records.
    """
    keys = [tuple(row[column] for column in columns.values()) for row in records]
    wanted = {*keys}
    candidates = [key[0] for key in keys if key[0] is not None]

    def choose(frame: Frame) -> DataFrame:
        few = frame[frame["candidate"].isin(candidates)]
        return few.loc[[row in wanted for row in few[[*columns]].itertuples(index=False, name=None)]]

    chosen = load_chosen(folder, columns, choose)
    ids = chosen[[*columns]].itertuples(index=False, name=None)
    plans = {row: described["plan"] for row, described in zip(ids, as_plans(chosen), strict=True)}
    return [plans[key] if key[0] is not None else None for key in keys]


def _groups_text(groups: Sequence[Data]) -> str:
    """Return the groups as a table, below a line with the values that all groups share.

    If the best plan changes, that of B has a line of its own.
    """
    per = groups[0]["per"]
    shown = [name for name in per if any(group["per"][name] != per[name] for group in groups)]
    one_plan = all(group["same_plan"] for group in groups)
    common = [f"{name}={_value(name, value)}" for name, value in per.items() if name not in shown]
    other_stages = one_plan and not all(map(_same_stages, groups))
    common += [f"the same plan in A and B{', with other stages' if other_stages else ''}"] if one_plan else []
    titles = [_TITLES.get(name) or hardware_title(name) for name in shown]
    header = [*titles, "A", "B", "B/A", *([] if one_plan else ["A's best\nin B", "B's best\nin A"]), "plan"]
    rows: list[list[str]] = []
    for group in groups:
        a, b, same = group["a"], group["b"], group["same_plan"]
        absent = ["none fits" if group[f"has_{name}"] else f"not in {name.upper()}" for name in "ab"]
        times = [
            format_quantity(side["step_time_s"], "s") if side else text
            for side, text in zip((a, b), absent, strict=True)
        ]
        elsewhere = ["same plan"] * 2 if same else [_text_elsewhere(a, "b"), _text_elsewhere(b, "a")]
        plans = [_plan_text(name.upper(), group[name]) for name in "ab" if group[name]] or ["-"]
        first, *more = [_plan_text("A, B", a)] if same and _same_stages(group) else plans
        values = [_value(name, group["per"][name]) for name in shown]
        ratio = "-" if group["ratio"] is None else f"{group['ratio']:.3f}"
        rows.append([*values, *times, ratio, *([] if one_plan else elsewhere), first])
        rows += [[*([""] * (len(header) - 1)), text] for text in more]
    text = [i for i, name in enumerate(header) if name in ("cluster", "strategy", "plan")]
    head = [f"{', '.join(['best plans', *common])}:"] if common else []
    return "\n".join([*head, table(header, rows, text=text)])


def _same_stages(group: Data) -> bool:
    """Return whether the plans of A and B, which are one candidate, have the same layers in their stages."""
    return whole_plan_text(group["a"]["plan"]) == whole_plan_text(group["b"]["plan"])


def _value(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    return hardware_text(name, value) if "." in name else str(value)


def _text_elsewhere(side: Data | None, other: str) -> str:
    """Return the time of the best plan of one set in the other set, or why it has none."""
    if side is None:
        return "-"
    state = side[f"in_{other}"]
    if state == NOT_THERE:
        return f"not in {other.upper()}"
    return format_quantity(side[f"step_time_s_in_{other}"], "s") if state == FITS else state


def _plan_text(name: str, side: Data) -> str:
    hardware = ", ".join(f"{column}={hardware_text(column, value)}" for column, value in side["hardware"].items())
    return f"{name}: {side['plan']['strategy']} {whole_plan_text(side['plan'])}{f' ({hardware})' if hardware else ''}"


def _summary_text(summary: Data) -> str:
    lines = [
        f"The best plan changes in {summary['groups_changed']} of {counted(summary['groups'], 'group')}.",
        f"Rows: {summary['rows_a']:,} in A, {summary['rows_b']:,} in B, {summary['joined']:,} in both.",
    ]
    if summary["fit_in_both"]:
        median, *ends = (f"{summary[f'ratio_{name}']:.3f}" for name in ("median", "min", "max"))
        times = f"B takes {median} times as long as A in the median, {' to '.join(ends)}"
        lines.append(f"Of those {summary['fit_in_both']:,} fit in both: {times}.")
    if summary["fit_in_a_only"] or summary["fit_in_b_only"]:
        lines.append(f"{summary['fit_in_a_only']:,} fit in A alone, {summary['fit_in_b_only']:,} in B alone.")
    return "\n".join(lines)


def _warn_of_limits(
    folders: Sequence[Path], manifests: Sequence[Manifest], rows: Frame, differences: Iterable[str]
) -> None:
    """Warn of what limits a comparison."""
    a, b = folders
    if a.resolve() == b.resolve():
        warn(f"A and B are the same folder, {a}")
    if any(path.startswith(("model.dimensions", "model.layers")) for path in differences):
        models = ", ".join(manifest.sweep.resolved.model.name for manifest in manifests)
        warn(f"the models differ ({models}): a candidate is the same choices, not the same work")
    for name, manifest in zip("AB", manifests, strict=True):
        if not manifest.complete:
            warn(f"{name} is not complete: {len(manifest.parts)} of {counted(manifest.num_parts, 'part')} are there")
        if rows[f"candidate_{name.lower()}"].isna().all():
            warn(f"nothing in {name} is feasible")
    if not rows.attrs["summary"]["joined"]:
        fields = ", ".join(path for path in differences if path.partition(".")[0] in _CHOICES or "nvs.size" in path)
        warn(f"no candidate is in both sets{f': the sweeps differ in {fields}' if fields else ''}")
    elif (rows[["a_in_b", "b_in_a"]] == NOT_THERE).any(axis=None) or not rows[["has_a", "has_b"]].all(axis=None):
        kept = "; ".join(f"{name} kept {kept_text(manifest)}" for name, manifest in zip("AB", manifests, strict=True))
        warn(f"rows missing from a set were not priced for it, or not kept ({kept})")
