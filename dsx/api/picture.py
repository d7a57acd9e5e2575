"""A picture of a result set, as the sweep asks for it or as somebody says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.display.quantities import counted
from dsx.errors import InputError, NothingFeasible, UnknownNameError
from dsx.remarks import remark
from dsx.results.pareto_rows import column_of
from dsx.results.store import load, load_chosen, read_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Kind:
    """A kind of picture: which options it takes, which of them it needs, and how many columns may be `x`."""

    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    several_x: bool = False


KINDS = {
    "front": _Kind(("x", "y", "by")),
    "breakdown": _Kind(("x",), several_x=True),
    "scaling": _Kind(("x", "y", "by", "baseline")),
    "heatmap": _Kind(("x", "y", "value"), needs=("x", "y")),
}


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
) -> None:
    """Draw the fastest plans of a result set into a file.

    Args:
        folder: of the set.
        path: the picture; its suffix is the format.
        kind: front, breakdown, scaling or heatmap; what the sweep asks for, where it is not given.
        x: column along x; of a breakdown several.
        y: column along y.
        value: what a cell of a heatmap shows.
        by: one line, or marker, for each value of this column.
        baseline: show how many times faster than this line.

    Raises InputError for a picture that cannot be drawn, NothingFeasible, after it is drawn, if no row fits.
    """
    folder, path = Path(folder), Path(path)
    manifest = read_manifest(folder)
    along = [x] if isinstance(x, str) else x
    given = {"kind": kind, "x": along, "y": y, "value": value, "by": by, "baseline": baseline}
    stated = manifest.sweep.plot
    draw_picture(folder, _asked(folder, stated.model_dump() if stated else None, given), path)
    if manifest.counts and not manifest.counts.feasible:
        rows = sum(part.rows for part in manifest.parts)
        raise NothingFeasible(f"none of the {counted(rows, 'row')} of {folder} is feasible, as {path} says")


def draw_picture(folder: Path, plot: Mapping[str, Any], path: Path) -> None:
    """Draw the picture that `plot` describes, of the result set in `folder`, into the file `path`, and say so.

    `plot` has the fields of a `PlotSpec`; a result set without a feasible row gives a picture that says that.
    Raises what `check_picture` raises, UnknownNameError for a column that the set does not have, StoreError if the set
    cannot be read or the file not be written.
    """
    check_picture(plot, path)
    from dsx.results.plot import save

    save(_picture(folder, plot["kind"], {option: value for option, value in plot.items() if value}), path)
    remark(f"wrote {path}")


def check_picture(plot: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if `plot` is no picture that can be drawn, or `path` no file that can hold one.

    It takes no result set, so a sweep can check its picture before it begins.
    """
    from dsx.results.plot.file import image_format

    image_format(path)
    name = str(plot["kind"])
    if name not in KINDS:
        raise UnknownNameError("kind of picture", name, KINDS)
    kind = KINDS[name]
    given = [option for option, value in plot.items() if value and option != "kind"]
    for option in given:
        if option not in kind.takes:
            raise InputError(f"a {name} plot takes no {option}, but {', '.join(kind.takes)}")
    if missing := [option for option in kind.needs if option not in given]:
        raise InputError(f"a {name} plot needs {' and '.join(missing)}: columns along its axes, as in --x num_gpus")
    if len(plot.get("x") or ()) > 1 and not kind.several_x:
        raise InputError(f"a {name} plot takes one column as x, and {len(plot['x'])} are given: {', '.join(plot['x'])}")


def _asked(folder: Path, stated: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the picture that the sweep states, with what is given in its place; of another kind, only that."""
    options = {option: value for option, value in given.items() if value}
    if "kind" not in options and not stated:
        raise InputError(
            f"the sweep of {folder} asks for no picture: add --kind {', '.join([*KINDS][:-1])} or {[*KINDS][-1]}"
        )
    same = stated is not None and options.get("kind", stated["kind"]) == stated["kind"]
    return {**(stated or {}), **options} if same else options


def _picture(folder: Path, kind: str, given: Mapping[str, Any]) -> "Axes":
    """Return the drawn picture; only the columns that it shows are read."""
    from dsx.results import plot as pictures
    from dsx.results.plot.selection import fastest, settings

    along = given.get("x", ["step_time_s" if kind == "front" else "num_gpus"])
    x, y, by = along[0], given.get("y", "step_time_s"), given.get("by")
    match kind:
        case "front":
            y = given.get("y", "peak_bytes")
            frame: Any = load(folder, ["reject", column_of(x), column_of(y), by or "strategy"])
            several = by is None and frame["strategy"].nunique() > 1
            return pictures.front(frame, x, y, by="strategy" if several else by)
        case "breakdown":
            light = ["reject", "step_time_s", "candidate", *along]
            return pictures.breakdowns(load_chosen(folder, light, lambda frame: fastest(frame, along)), along)
        case "scaling":
            frame = load(folder, ["reject", x, y, *([by] if by else [])])
            return pictures.scaling(frame, x, y, by, given.get("baseline"))
        case _:
            value = given.get("value", "step_time_s")
            others = settings(column.name for column in read_manifest(folder).columns)
            return pictures.heatmap(load(folder, ["reject", x, y, value, *others]), x, y, value)
