"""``dsx compare``: where the best plan differs between two result sets, and by how much."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsx.errors import file_path
from dsx.plans.choices import PLAN_COLUMNS
from dsx.progress import warn
from dsx.results.compare import FITS, NOT_THERE, SETTINGS
from dsx.results.compare import compare as compared
from dsx.results.frames import Frame, column_list
from dsx.results.manifest import Manifest
from dsx.results.sets import as_plans, load, load_chosen, read_manifest
from dsx.tables.format import hardware_text, hardware_title, table, whole_plan_text
from dsx.tables.job import differing, hardware_of, kept_text, rows_text, stated_text, steps_text, title_of
from dsx.text import Data, DataFrame
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import Answer, paragraphs

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
            group | {side: group[side] and group[side] | {"plan": dict(group[side]["plan"])} for side in "ab"}
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
    rows = compared(*frames, per=chosen)
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
        elsewhere = ["same plan"] * 2 if same else [_elsewhere(a, "b"), _elsewhere(b, "a")]
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


def _elsewhere(side: Data | None, other: str) -> str:
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
