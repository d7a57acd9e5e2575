"""``dsx sweep``: price every configuration of a sweep file and write a result set."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.best import print_plans, why_nothing
from dsx.cli.inputs import Inputs, load_inputs
from dsx.cli.output import counted, note, print_json
from dsx.cli.progress import progress, rate_text
from dsx.errors import IncompleteSweep, NothingFeasible
from dsx.spec.keep import KeepTop
from dsx.spec.overrides import split

if TYPE_CHECKING:
    from dsx.results.manifest import Manifest
    from dsx.search.problem import Problem
    from dsx.search.space import Space
    from dsx.spec.sweep import SweepSpec

_SHOWN = 10  # plans printed after a sweep
_GROUPS_SHOWN = 40


def sweep(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="A sweep file (YAML).")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Result folder [default: results/<name of SPEC>]."),
    ] = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Price every candidate of a sweep file and write a result set.

    The set is a folder of Parquet files, which `dsx pareto`, `dsx why` and `dsx.load` read. Exit codes: 3 if
    no candidate fits, 4 if the sweep was interrupted.
    """
    from dsx.cost.columns import StepCosts
    from dsx.space.candidates import NAMED, Candidates
    from dsx.spec.column_names import Columns
    from dsx.spec.sweep import load_sweep

    columns = Columns(tuple(Candidates.__dataclass_fields__), tuple(StepCosts.__dataclass_fields__), NAMED)
    overrides = split(assignments or ())
    spec = load_sweep(spec_file, columns, overrides["sweep"])
    inputs = load_inputs(spec.model, spec.cluster, spec.assumptions, overrides, spec.file)
    folder = output or Path("results") / spec_file.stem
    from dsx.search.devices import use_all_cores
    from dsx.search.space import Space

    use_all_cores()
    started = time.monotonic()
    try:
        problem = inputs.problem(spec.strategy, spec.sequence_length, spec.train_tokens)
        space = Space(problem, spec.num_gpus, spec.global_batch_size, spec.fix, spec.limit)
        total = space.count()
        # Nothing is written without a candidate, so the corrected sweep can use the folder.
        manifest = _run(spec, inputs, problem, space, folder, total) if total else None
    except KeyboardInterrupt:
        raise IncompleteSweep(
            f"interrupted; run the same command again (an earlier set in {folder}, if any, is as it was)"
        ) from None
    if manifest is None:
        if as_json:
            print_json({"folder": None, "candidates": 0, "feasible": 0, "rows": 0, "plans": []})
        raise NothingFeasible(why_nothing(problem, space, 0))
    per = spec.keep.per if isinstance(spec.keep, KeepTop) else []
    _report(manifest, problem, space, folder, per, time.monotonic() - started, as_json)


def _run(spec: "SweepSpec", inputs: Inputs, problem: "Problem", space: "Space", folder: Path, total: int) -> "Manifest":
    from dsx.results import manifest as manifests
    from dsx.results import store
    from dsx.search.rows import column_names
    from dsx.search.sweep import Sweep
    from dsx.space.rules import MEMORY

    strategies = spec.strategy or [inputs.assumptions.default_strategy]
    resolved = inputs.to_data() | {"strategy": strategies, "layers": problem.fingerprint()}
    described = spec.model_dump(mode="json") | {"resolved": resolved}
    reasons = [(reason.name, reason.description) for reason in problem.reasons]
    read_from = str(spec.file.resolve()) if spec.file else ""
    manifest = manifests.begin(described, column_names(problem), reasons, spec.precision, read_from)
    with store.create(folder, manifest) as writer, progress(total, "pricing") as advance:
        run = Sweep(problem, space, spec.keep, spec.precision, advance)
        for rows in run.rows():
            writer.write(rows)
        counts = run.counts
        # Enumeration leaves only one rule to break.
        rejected = dict.fromkeys((name for name, _ in reasons), 0) | {MEMORY.name: counts.candidates - counts.feasible}
        return writer.finish(manifests.Counts(counts.candidates, counts.feasible, rejected))


def _report(
    manifest: "Manifest",
    problem: "Problem",
    space: "Space",
    folder: Path,
    per: Sequence[str],
    seconds: float,
    as_json: bool,
) -> None:
    """Say what was found: the fastest plans (or the fastest of each group) on stdout, the rest on stderr."""
    from dsx.results.best import fastest

    counts = manifest.counts
    candidates, feasible = (counts.candidates, counts.feasible) if counts else (0, 0)
    num_rows = sum(part.rows for part in manifest.parts)
    note(
        f"{counted(candidates, 'candidate')}, {feasible:,} feasible, in {seconds:.1f} s "
        f"({rate_text(candidates / max(seconds, 1e-9))}); {counted(num_rows, 'row')} in {folder}"
    )
    plans = fastest(folder, _SHOWN if not per else _GROUPS_SHOWN, per)
    if as_json:
        data: dict[str, Any] = {"folder": str(folder), "candidates": candidates, "feasible": feasible}
        print_json(data | {"rows": num_rows, "plans": plans})
    elif plans:
        print_plans(plans, with_settings=True)
    if not feasible:
        sys.stdout.flush()
        raise NothingFeasible(why_nothing(problem, space, candidates))
