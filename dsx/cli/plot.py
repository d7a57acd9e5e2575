"""``dsx plot``: a picture of a result set, as the sweep asks for it or as the options say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.output import counted, note
from dsx.errors import InputError, NothingFeasible, UnknownNameError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Kind:
    """A kind of picture: which options it takes, which of them it needs, and how many columns may be `x`."""

    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    several_x: bool = False


_KINDS = {
    "front": _Kind(("x", "y", "by")),
    "breakdown": _Kind(("x",), several_x=True),
    "scaling": _Kind(("x", "y", "by", "baseline")),
    "heatmap": _Kind(("x", "y", "value"), needs=("x", "y")),
}


def plot(
    folder: options.ResultFolder,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The picture (such as .png, .pdf, .svg).")
    ],
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help=f"{', '.join(_KINDS)} [default: what the sweep file says]."),
    ] = None,
    x: Annotated[
        list[str] | None,
        typer.Option("--x", metavar="COLUMN", help="Column along x; of a breakdown several, each with its own --x."),
    ] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="Column along y.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="COLUMN", help="What a cell shows [default: step_time_s].")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="One line, or marker, for each of its values.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="VALUE", help="Show how many times faster than this line.")
    ] = None,
) -> None:
    """Draw the fastest plans of a result set.

    breakdown: where their time and memory goes. scaling: the best y along x, one line each. heatmap: the best
    value for each x and y. front: all plans by two objectives, and those that none beats.
    """
    from dsx.results.store import read_manifest

    manifest = read_manifest(folder)
    given = {"kind": kind, "x": x, "y": y, "value": value, "by": by, "baseline": baseline}
    stated = manifest.sweep.plot
    draw(folder, _asked(folder, stated.model_dump() if stated else None, given), output)
    if manifest.counts and not manifest.counts.feasible:
        rows = sum(part.rows for part in manifest.parts)
        raise NothingFeasible(f"none of the {counted(rows, 'row')} of {folder} is feasible, as {output} says")


def draw(folder: Path, plot: Mapping[str, Any], path: Path) -> None:
    """Draw the picture that `plot` describes, of the result set in `folder`, into the file `path`, and say so.

    `plot` has the fields of a `PlotSpec`; a result set without a feasible row gives a picture that says that.
    Raises what `check` raises, UnknownNameError for a column that the set does not have, StoreError if the set
    cannot be read or the file not be written.
    """
    check(plot, path)
    from dsx.results.plot import save

    save(_picture(folder, plot["kind"], {option: value for option, value in plot.items() if value}), path)
    note(f"wrote {path}")


def check(plot: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if `plot` is no picture that can be drawn, or `path` no file that can hold one.

    It takes no result set, so a sweep can check its picture before it begins.
    """
    from dsx.results.plot.file import image_format

    image_format(path)
    name = str(plot["kind"])
    if name not in _KINDS:
        raise UnknownNameError("kind of picture", name, _KINDS)
    kind = _KINDS[name]
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
            f"the sweep of {folder} asks for no picture: add --kind {', '.join([*_KINDS][:-1])} or {[*_KINDS][-1]}"
        )
    same = stated is not None and options.get("kind", stated["kind"]) == stated["kind"]
    return {**(stated or {}), **options} if same else options


def _picture(folder: Path, kind: str, given: Mapping[str, Any]) -> "Axes":
    """Return the drawn picture; only the columns that it shows are read."""
    from dsx.results import plot as pictures
    from dsx.results.pareto import column_of
    from dsx.results.plot.selection import fastest, settings
    from dsx.results.store import load, load_chosen, read_manifest

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
