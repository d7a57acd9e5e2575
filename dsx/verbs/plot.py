"""``dsx plot``: a picture of a result set, as `plot` of its sweep file or as the arguments describe it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.cost.interval import StepInterval
from dsx.errors import InputError, NothingFeasible, UnknownNameError, file_path, one_text
from dsx.progress import remark, warn
from dsx.results import frames
from dsx.results.frames import (
    Conditions,
    column_list,
    column_of,
    load,
    load_chosen,
    matching,
    parsed,
    read_manifest,
    taken,
    text_of,
)
from dsx.tables.format import keeps_front, kept_text
from dsx.text import DataFrame, DataView
from dsx.units import counted, exact_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Kind:
    """A kind of picture: the options that it takes, those that it needs, and whether `x` may be several columns."""

    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    several_x: bool = False


KINDS = {
    "front": _Kind(("x", "y", "by", "baseline", "where")),
    "breakdown": _Kind(("x", "where"), several_x=True),
    "scaling": _Kind(("x", "y", "by", "baseline", "where")),
    "heatmap": _Kind(("x", "y", "value", "where"), needs=("x", "y")),
}

_EXAMPLES = {"kind": "front", "y": "step_time_s", "value": "step_time_s", "baseline": "80 GB"}


def draw(
    folder: str | Path,
    path: str | Path,
    kind: str | None = None,
    *,
    x: Sequence[str] | str | None = None,
    y: str | None = None,
    value: str | None = None,
    by: str | None = None,
    baseline: str | None = None,
    where: Conditions | Sequence[str] | str | None = None,
) -> None:
    """Draw the fastest plans of a result set.

    Args:
        folder: the folder of the result set.
        path: the file of the picture; its suffix is the image format.
        kind: front, breakdown, scaling or heatmap; by default that of `plot` in the sweep file.
        x: column along x; a breakdown takes several.
        y: column along y.
        value: column shown in the cells of a heatmap.
        by: draw one line, or marker, for each value of this column.
        baseline: of scaling, show the speed-up over the line of this value; of a front, mark the fastest plan with
            these columns ("tp=8 pp=16") in place of the plain plan.
        where: only rows with these values, {"num_gpus": 1024} or ["num_gpus=1024"].

    Raises InputError for a picture that cannot be drawn; NothingFeasible, after drawing, if no row fits.
    """
    folder, path = file_path("folder", folder), file_path("path", path)
    single = {"kind": kind, "y": y, "value": value, "by": by, "baseline": baseline}
    for name, text in single.items():
        if text is not None:
            one_text(name, text, _EXAMPLES.get(name, "num_gpus"))
    arguments = {**single, "x": column_list("x", x), "where": parsed("where", where)}
    options = {option: content for option, content in arguments.items() if content}
    manifest = read_manifest(folder)
    of_sweep = manifest.sweep.plot.model_dump() if manifest.sweep.plot else {}
    if "kind" not in options and not of_sweep:
        *kinds, last = KINDS
        raise InputError(f"the sweep of {folder} has no 'plot': add --kind {', '.join(kinds)} or {last}")
    # Arguments change the picture of the sweep, unless they are of one of another kind.
    same = of_sweep and options.get("kind", of_sweep["kind"]) == of_sweep["kind"]
    draw_picture(folder, {**of_sweep, **options} if same else options, path)
    if manifest.counts and not manifest.counts.feasible:
        raise NothingFeasible(
            f"none of the {counted(manifest.num_rows, 'row')} of {folder} is feasible, as {path} says"
        )


def draw_picture(folder: Path, plot: DataView, path: Path) -> None:
    """Draw the picture that `plot` describes, of the result set in `folder`, into the file `path`; remark on it.

    `plot` has the fields of a `PlotSpec`. The picture of a result set without a feasible row says so.
    Raises the errors of `check_picture`, UnknownNameError for an unknown column, StoreError if the set cannot be read
    or the file cannot be written.
    """
    check_picture(plot, path)
    from dsx.pictures import save

    save(_picture(folder, plot["kind"], {option: value for option, value in plot.items() if value}), path)
    if plot["kind"] == "front":
        warn_of_rows_left_out(folder, [*(plot.get("x") or ["step_time_s"]), plot.get("y") or "peak_bytes"])
    remark(f"wrote {path}")


def warn_of_rows_left_out(folder: Path, objectives: Sequence[str]) -> None:
    """Warn where plans of a front of `objectives` may be among the rows that the sweep did not keep."""
    manifest = read_manifest(folder)
    if not keeps_front(manifest, objectives):
        warn(
            f"the front is that of the rows that the sweep kept, {kept_text(manifest)}; to have that of all its plans, "
            f"sweep with 'keep: {{pareto: [{', '.join(objectives)}]}}' into another folder"
        )


def check_picture(plot: DataView, path: Path) -> None:
    """Raise InputError if `plot` cannot be drawn, or if the suffix of `path` is no image format.

    This needs no result set, so a sweep can check its picture before it begins.
    """
    from dsx.pictures.figure import image_format

    image_format(path)
    name = str(plot["kind"])
    if name not in KINDS:
        raise UnknownNameError("kind of picture", name, KINDS)
    kind = KINDS[name]
    options = [option for option, value in plot.items() if value and option != "kind"]
    for option in options:
        if option not in kind.takes:
            raise InputError(f"a {name} plot takes no {option}, only {', '.join(kind.takes)}")
    if missing := [option for option in kind.needs if option not in options]:
        raise InputError(f"a {name} plot needs {' and '.join(missing)}: columns along its axes, as in --x num_gpus")
    if len(plot.get("x") or ()) > 1 and not kind.several_x:
        raise InputError(f"a {name} plot takes one column as x, not {len(plot['x'])}: {', '.join(plot['x'])}")


def _picture(folder: Path, kind: str, options: DataView) -> "Axes":
    """Return the drawn picture; reads only the columns that it shows."""
    from dsx import pictures
    from dsx.pictures.shown_rows import PER_GPU, fastest, settings

    along = options.get("x", ["step_time_s" if kind == "front" else "num_gpus"])
    x, by, where = along[0], options.get("by"), options.get("where", {})
    if where:
        matching(load(folder, where), where)
    # A title says which settings the rows have, and over which a point is the best.
    common = ["reject", *settings(column.name for column in read_manifest(folder).columns), *where]
    match kind:
        case "front":
            return _front(folder, x, options.get("y", "peak_bytes"), options, common)
        case "breakdown":
            light = [*common, "step_time_s", "candidate", *along]
            rows = load_chosen(folder, light, lambda frame: fastest(_where(frame, where), along))
            return pictures.breakdowns(_where(rows, where), along)
        case "scaling":
            y = options.get("y", PER_GPU)
            ends = ["step_time_s", *StepInterval.__dataclass_fields__]
            frame = load(folder, [*common, x, y, *ends, *([by] if by else [])])
            return pictures.scaling(_where(frame, where), x, y, by, options.get("baseline"))
        case _:
            value = options.get("value", "step_time_s")
            y = options["y"]
            frame = load(folder, [*common, x, y, value])
            return pictures.heatmap(_where(frame, where), x, y, value)


def _front(folder: Path, x: str, y: str, options: DataView, common: Sequence[str]) -> "Axes":
    """Return the front of one job; all columns are read of the rows alone that it shows."""
    from dsx import pictures
    from dsx.pictures.shown_rows import drawn_rows, job_of_best

    by, where, baseline = options.get("by"), options.get("where", {}), parsed("baseline", options.get("baseline"))
    light = [*common, column_of(x), column_of(y), by or "strategy"]
    drawable = _where(load(folder, light), where)
    by = "strategy" if by is None and len(drawable["strategy"].drop_duplicates()) > 1 else by
    job = job_of_best(drawable, x, {column_of(x), column_of(y), by or ""})
    if {*baseline} - {*drawable.columns}:
        matching(load(folder, [*light, *baseline]), baseline)
    if job:
        units = drawable.attrs["units"]
        words = text_of({name: n if isinstance(n, str) else exact_quantity(n, units[name]) for name, n in job.items()})
        remark(f"the front is that of {words}, which has the best {column_of(x)}; --where draws another one")
    needed = [*light, *frames.PLAIN_PLAN_COLUMNS, "step_time_s", *baseline]
    rows = load_chosen(folder, needed, lambda frame: drawn_rows(_where(frame, where), (x, y), job, baseline))
    return pictures.front(rows if len(rows) else drawable, x, y, by=by, baseline=baseline or None)


def _where(frame: DataFrame, where: Conditions) -> DataFrame:
    """Return the rows that meet the conditions; another part of the set may have those that do."""
    return taken(frame, matching(frame, where, partial=True)) if where else frame
