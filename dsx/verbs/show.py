"""``dsx show``: a summary of a result set, and its fastest plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dsx.errors import InputError, file_path
from dsx.launching.request import LaunchSettings
from dsx.launching.writers import launch_by, launch_data, launch_text
from dsx.notation.model import Model, build_model
from dsx.progress import warn
from dsx.results.frames import column_list
from dsx.results.manifest import Manifest
from dsx.results.sets import as_plans, fastest, read_manifest
from dsx.tables.format import (
    counts_text,
    hardware_of,
    hardware_text,
    kept_text,
    rows_text,
    table,
    title_of,
    what_if_values,
    wrapped,
)
from dsx.tables.plans import plans_frame, plans_text
from dsx.tables.terms import costs_text
from dsx.text import Data, DataFrame
from dsx.units import counted
from dsx.verbs.arguments import PricedPlans, count, paragraphs
from dsx.verbs.job import Inputs
from dsx.verbs.plan import inputs_of, rows_of_candidate, taken_lines
from dsx.verbs.searched import run_by_none

_TOP = 10


@dataclass(frozen=True, eq=False, repr=False)
class ShownSet(PricedPlans):
    """A result set and some of its plans."""

    folder: Path  # of the set
    manifest: Manifest
    priced: Sequence[Data]
    single: bool  # whether the plans are the rows of one candidate

    @cached_property
    def frame(self) -> DataFrame:
        """The plans as rows; units in `attrs`."""
        return plans_frame(self.priced, [reason.name for reason in self.manifest.reject_reasons])

    @property
    def infeasible(self) -> str:
        """Why there is no plan to show; empty if there is one."""
        rows = counted(self.manifest.num_rows, "row")
        return "" if self.priced else f"no plan to show: none of the {rows} of {self.folder} is feasible"

    def _data(self) -> Data:
        manifest, counts, sweep = self.manifest, self.manifest.counts, self.manifest.sweep
        launches = _launches(self.folder, self.priced, manifest)
        sizes, numbers = ("num_gpus", "global_batch_size"), ("candidates", "skipped", "bounded", "cut", "feasible")
        return {
            "folder": str(self.folder),
            "model": sweep.resolved.model.name,
            "clusters": list(manifest.names["cluster"]),
            "strategies": list(manifest.names["strategy"]),
            "assumptions": sweep.resolved.assumptions.name,
            **{name: getattr(sweep, name) for name in sizes},
            "sequence_length": sweep.tokens,
            "what_if": what_if_values(manifest),
            "keep": manifest.spec["keep"],
            "precision": manifest.precision,
            "spec_file": manifest.spec_file or None,
            "complete": manifest.complete,
            "started": manifest.started,
            "finished": manifest.finished or None,
            "dsx_version": manifest.dsx_version,
            **{name: getattr(counts, name) if counts else None for name in (*numbers, "rejected")},
            "rows": manifest.num_rows,
            "parts": len(manifest.parts),
            "plans": [
                plan | {"launch": launch and launch_data(launch)}
                for plan, launch in zip(self._plans_data(), launches, strict=True)
            ],
        }

    def __str__(self) -> str:
        parts = [_set_text(self.manifest)]
        if self.priced:
            lines = [plans_text(self.priced, with_settings=True, hardware=hardware_of(self.manifest))]
            if self.single:
                rejected = [(number, plan["reject"]) for number, plan in enumerate(self.priced, 1) if plan["reject"]]
                lines += [f"{number} is rejected: {', '.join(names)}" for number, names in rejected]
            lines += [wrapped(line) for line in taken_lines(self.folder, self.manifest, self.priced)]
            parts += ["\n".join(lines), wrapped(run_by_none(self.plans))]
            if self.single and len(self.priced) == 1:
                parts.append(costs_text(self.priced[0]))
            if launch := _launches(self.folder, self.priced[:1], self.manifest)[0]:
                parts.append(launch_text(launch, "plan 1"))
        return paragraphs(parts)


def show(
    folder: str | Path, top: int | None = None, *, per: str | Sequence[str] = (), candidate: int | str | None = None
) -> ShownSet:
    """Summarise a result set, and show its fastest plans.

        print(dsx.show("results/sweep", per="num_gpus"))

    Args:
        folder: the folder of the result set.
        top: how many plans to show; by default 10, with `per` 1 of each group.
        per: columns, for each of whose values the fastest plans are shown.
        candidate: an id; only the rows of this candidate are shown, whether they fit or not.

    Raises StoreError if the set cannot be read, InputError for an unknown candidate.
    """
    folder = file_path("folder", folder)
    manifest = read_manifest(folder)
    columns = column_list("per", per)
    most = None if top is None else count("top", top)
    if candidate is not None:
        if top is not None or columns:
            raise InputError(f"--candidate {candidate} shows that candidate alone: leave out --top and --per")
        plans = as_plans(rows_of_candidate(folder, manifest, str(candidate)))
    elif columns:
        plans = fastest(folder, None, columns, most or 1)
    else:
        plans = fastest(folder, most or _TOP)
    return ShownSet(folder, manifest, plans, candidate is not None)


def _launches(folder: Path, plans: Sequence[Data], manifest: Manifest) -> list[LaunchSettings | None]:
    """Return the launch flags of rows; None, with a warning, if their layer definitions no longer exist."""
    priced: dict[tuple[str, ...], tuple[Inputs, Model] | None] = {}  # by strategy and hardware
    words = manifest.spec["resolved"].get("framework", {}).get("flags")
    launches: list[LaunchSettings | None] = []
    for plan in plans:
        strategy, hardware = plan["plan"]["strategy"], plan["hardware"]
        key = strategy, *map(str, hardware.values())
        if key not in priced:
            priced[key] = None
            try:
                inputs = inputs_of(folder, manifest, hardware)
                path = manifest.strategy_paths[strategy]
                priced[key] = inputs, build_model(inputs.model, inputs.assumptions, path, inputs.near)
            except InputError as error:
                warn(f"no launch flags under {strategy}: {error}")
        launches.append(None)
        if (of_row := priced[key]) is not None:
            inputs, model = of_row
            device = inputs.cluster.device
            launches[-1] = launch_by(words, plan["plan"], inputs.model, model, inputs.assumptions, device)
    return launches


def _set_text(manifest: Manifest) -> str:
    sweep, counts = manifest.sweep, manifest.counts
    state = f"finished {manifest.finished}"
    if not manifest.complete:
        state = f"incomplete, {len(manifest.parts)} of {counted(manifest.num_parts, 'part')}; begun {manifest.started}"
    rows = [
        ["num_gpus", ", ".join(map(str, sweep.num_gpus))],
        ["global_batch_size", ", ".join(map(str, sweep.global_batch_size))],
        ["sequence_length", counted(sweep.tokens, "token")],
        ["tokens a step", ", ".join(f"{size * sweep.tokens:,}" for size in sweep.global_batch_size)],
        ["strategy", ", ".join(manifest.names["strategy"])],
        *(
            [name, ", ".join(hardware_text(name, v) for v in listed)]
            for name, listed in what_if_values(manifest).items()
        ),
        ["assumptions", f"{sweep.resolved.assumptions.name}, in {manifest.precision}"],
        ["sweep file", manifest.spec_file or "-"],
        ["state", f"{state}, by dsx {manifest.dsx_version}"],
    ]
    if counts:
        rows.append(["candidates", counts_text(counts)])
    rows.append(["kept", f"{kept_text(manifest)}: {rows_text(manifest)}"])
    return f"{title_of(manifest)}\n" + table(["", ""], [[f"  {name}", text] for name, text in rows], text=(0, 1))
