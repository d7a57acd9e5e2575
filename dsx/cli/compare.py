"""``dsx compare``: where the best plan differs between two result sets, and by how much."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.best import hardware_text, hardware_title
from dsx.cli.job import steps_text
from dsx.cli.output import counted, note, print_json, print_table
from dsx.cli.result_set import (
    differing,
    hardware_of,
    kept_text,
    rows_text,
    stated_text,
    title_of,
)
from dsx.units import format_quantity

if TYPE_CHECKING:
    from dsx.results.manifest import Manifest

_DIFFERENCES_SHOWN = 12
# What decides which candidates there are; a cluster does by the size of its fast domains.
_CHOICES = ("num_gpus", "global_batch_size", "sequence_length", "strategy", "cluster", "fix", "limit", "keep")
_LAYER = "layers."  # before the strategy whose texts differ
_TITLES = {"num_gpus": "GPUs", "global_batch_size": "batch"}

_Differences = dict[str, tuple[Any, Any]]


def compare(
    folder_a: Annotated[Path, typer.Argument(metavar="DIR_A", help="Folder of a result set, A.")],
    folder_b: Annotated[Path, typer.Argument(metavar="DIR_B", help="Folder of another, B.")],
    per: Annotated[
        list[str] | None,
        typer.Option(
            "--per",
            metavar="COLUMN",
            help="Compare the best of each value of a column; may be repeated "
            "[default: num_gpus, global_batch_size, and the hardware that a set varies].",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the best plans of two result sets side by side.

    Rows are joined on the candidate, which is the same choice on every cluster.
    """
    from dsx.results.compare import SETTINGS
    from dsx.results.compare import compare as compared
    from dsx.results.store import load, read_manifest
    from dsx.space.choices import PLAN_COLUMNS

    folders = [folder_a, folder_b]
    manifests = [read_manifest(folder) for folder in folders]
    choices = [name for name in (per or ()) if name in PLAN_COLUMNS]
    frames = [
        load(folder, ["candidate", *SETTINGS, *choices, *hardware_of(manifest), "step_time_s", "reject"])
        for folder, manifest in zip(folders, manifests, strict=True)
    ]
    table = compared(*frames, per=per or ())
    differences = differing(*manifests)
    groups = _groups(table, _plans(folders, table))
    if as_json:
        described = {
            name: {"folder": str(folder), "title": title_of(manifest), "keep": manifest.spec["keep"]}
            for name, folder, manifest in zip("ab", folders, manifests, strict=True)
        }
        stated = {path: {"a": a, "b": b} for path, (a, b) in differences.items()}
        summary = table.attrs["summary"]
        print_json(described | {"per": table.attrs["per"], "differences": stated, "summary": summary, "groups": groups})
    else:
        for name, folder, manifest in zip("AB", folders, manifests, strict=True):
            about = f"{title_of(manifest)}; kept {kept_text(manifest)}: {rows_text(manifest)}"
            steps = steps_text(manifest.sweep.global_batch_size, manifest.sweep.tokens)
            print(f"{name}: {folder}: {about}; {steps}")
        _print_differences(differences)
        print()
        _print_groups(groups)
        print()
        _print_summary(table.attrs["summary"])
    _say(folders, manifests, differences, table)


def _plans(folders: list[Path], table: Any) -> dict[int, dict[str, Any]]:
    """Return the choices of every best plan, by candidate."""
    from dsx.results.best import as_plans
    from dsx.results.store import load_chosen

    found: dict[int, dict[str, Any]] = {}
    for side, folder in zip("ab", folders, strict=True):
        ids = table[f"candidate_{side}"].dropna().unique()

        def choose(frame: Any, ids: Any = ids) -> Any:
            return frame[frame["candidate"].isin(ids)].drop_duplicates("candidate")

        found |= {row["plan"]["candidate"]: row["plan"] for row in as_plans(load_chosen(folder, ["candidate"], choose))}
    return found


def _groups(table: Any, plans: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a comparison as plain data; a side without a feasible plan is None."""
    groups: list[dict[str, Any]] = []
    for row in table.astype(object).where(table.notna(), None).to_dict(orient="records"):
        group: dict[str, Any] = {"per": {name: row[name] for name in table.attrs["per"]}}
        for side, other in ("ab", "ba"):
            candidate = row[f"candidate_{side}"]
            group[side] = (
                None
                if candidate is None
                else {
                    "step_time_s": row[f"step_time_s_{side}"],
                    "plan": plans[candidate],
                    "hardware": {name: row[f"{name}_{side}"] for name in table.attrs["hardware"][side]},
                    f"in_{other}": row[f"{side}_in_{other}"],
                    f"step_time_s_in_{other}": row[f"{side}_in_{other}_step_time_s"],
                }
            )
        groups.append(group | {name: row[name] for name in ("has_a", "has_b", "ratio", "same_plan")})
    return groups


def _print_differences(differences: _Differences) -> None:
    if not differences:
        print("Both sweeps state the same.")
        return
    # A layer text is known by its hash, which says no more than that it is another one.
    texts = [path.removeprefix(_LAYER) for path in differences if path.startswith(_LAYER)]
    pairs = [(path, pair) for path, pair in differences.items() if not path.startswith(_LAYER)]
    if pairs:
        shown = [[f"  {path}", stated_text(a), stated_text(b)] for path, (a, b) in pairs[:_DIFFERENCES_SHOWN]]
        print_table(["they differ in", "A", "B"], shown, text=range(3))
    if len(pairs) > _DIFFERENCES_SHOWN:
        print(f"  and in {len(pairs) - _DIFFERENCES_SHOWN} more")
    for strategy in texts:
        print(f"layer text of {strategy} differs")


def _print_groups(groups: list[dict[str, Any]]) -> None:
    """Print the groups; what is the same in all of them is said once, above.

    Where the best plan changes, that of B has a line of its own.
    """
    per = list(groups[0]["per"])
    shown = [name for name in per if any(group["per"][name] != groups[0]["per"][name] for group in groups)]
    common = [f"{name}={_value(name, groups[0]['per'][name])}" for name in per if name not in shown]
    one_plan = all(group["same_plan"] for group in groups)
    if common or one_plan:
        print(", ".join(["best plans", *common, *(["the same plan in A and B"] if one_plan else [])]) + ":")
    titles = [_TITLES.get(name) or hardware_title(name) for name in shown]
    header = [*titles, "A", "B", "B/A", *([] if one_plan else ["A's best\nin B", "B's best\nin A"]), "plan"]
    rows: list[list[str]] = []
    for group in groups:
        values = [_value(name, group["per"][name]) for name in shown]
        first, *more = _plan_texts(group)
        rows.append([*values, *_times(group, with_elsewhere=not one_plan), first])
        rows += [[*([""] * (len(header) - 1)), text] for text in more]
    print_table(header, rows, text=[i for i, name in enumerate(header) if name in ("cluster", "strategy", "plan")])


def _times(group: dict[str, Any], with_elsewhere: bool) -> list[str]:
    """Return the times of both best plans, their ratio, and on demand what became of each in the other set."""
    a, b = group["a"], group["b"]
    ratio = "-" if group["ratio"] is None else f"{group['ratio']:.3f}"
    times = [_best(a, "A", group["has_a"]), _best(b, "B", group["has_b"]), ratio]
    if not with_elsewhere:
        return times
    return [*times, *(["same plan"] * 2 if group["same_plan"] else [_elsewhere(a, "b"), _elsewhere(b, "a")])]


def _plan_texts(group: dict[str, Any]) -> list[str]:
    if group["same_plan"]:
        return [_plan_text("A, B", group["a"])]
    return [_plan_text(name.upper(), group[name]) for name in "ab" if group[name]] or ["-"]


def _value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return hardware_text(name, value) if "." in name else str(value)


def _best(side: dict[str, Any] | None, name: str, has_rows: bool) -> str:
    if side is None:
        return "none fits" if has_rows else f"not in {name}"
    return format_quantity(side["step_time_s"], "s")


def _elsewhere(side: dict[str, Any] | None, other: str) -> str:
    """Return what became of the best plan of one set in the other."""
    from dsx.results.compare import FITS, NOT_THERE

    if side is None:
        return "-"
    state = side[f"in_{other}"]
    if state == NOT_THERE:
        return f"not in {other.upper()}"
    return format_quantity(side[f"step_time_s_in_{other}"], "s") if state == FITS else state


def _plan_text(name: str, side: dict[str, Any]) -> str:
    hardware = ", ".join(_hardware(column, value) for column, value in side["hardware"].items())
    where = f" ({hardware})" if hardware else ""
    return f"{name}: {side['plan']['strategy']} {side['plan'].text}{where}"


def _hardware(column: str, value: Any) -> str:
    return f"{column}={hardware_text(column, value)}"


def _print_summary(summary: dict[str, Any]) -> None:
    print(f"The best plan changes in {summary['groups_changed']} of {counted(summary['groups'], 'group')}.")
    both = summary["fit_in_both"]
    print(f"Rows: {summary['rows_a']:,} in A, {summary['rows_b']:,} in B, {summary['joined']:,} in both.")
    if both:
        print(
            f"Of those {both:,} fit in both: B takes {summary['ratio_median']:.3f} times as long as A in the median, "
            f"{summary['ratio_min']:.3f} to {summary['ratio_max']:.3f}."
        )
    if summary["fit_in_a_only"] or summary["fit_in_b_only"]:
        print(f"{summary['fit_in_a_only']:,} fit in A alone, {summary['fit_in_b_only']:,} in B alone.")


def _say(folders: list[Path], manifests: "list[Manifest]", differences: _Differences, table: Any) -> None:
    """Say on stderr what limits the comparison."""
    from dsx.results.compare import NOT_THERE

    if folders[0].resolve() == folders[1].resolve():
        note(f"A and B are the same folder, {folders[0]}")
    models = [manifest.sweep.resolved.model.name for manifest in manifests]
    if any(path.startswith(("model.dimensions", "model.layers")) for path in differences):
        note(f"the models differ ({models[0]}, {models[1]}): a candidate is the same choices, not the same work")
    for name, manifest in zip("AB", manifests, strict=True):
        if not manifest.complete:
            note(f"{name} is not complete: {len(manifest.parts)} of {counted(manifest.num_parts, 'part')} are there")
        if table[f"candidate_{name.lower()}"].isna().all():
            note(f"nothing in {name} is feasible")
    if not table.attrs["summary"]["joined"]:
        stated = ", ".join(path for path in differences if path.partition(".")[0] in _CHOICES or "nvs.size" in path)
        why = f": the sweeps differ in {stated}" if stated else ""
        note(f"no candidate is in both sets{why}")
    elif (table[["a_in_b", "b_in_a"]] == NOT_THERE).any(axis=None) or not table[["has_a", "has_b"]].all(axis=None):
        kept = "; ".join(f"{name} kept {kept_text(manifest)}" for name, manifest in zip("AB", manifests, strict=True))
        note(f"what is not in a set was not priced for it, or not kept ({kept})")
