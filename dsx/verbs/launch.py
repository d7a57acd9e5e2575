"""``dsx launch``: files that start the run that was priced, in the words of a framework."""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsx import __version__
from dsx.config.search_path import shown
from dsx.errors import InputError, StoreError, UnknownNameError, file_path, one_text, wrong
from dsx.files import write_whole
from dsx.launching import LAUNCHED
from dsx.launching.hosts import host_variables
from dsx.launching.request import SCRIPT, Framework, Request, architecture_of, run_of
from dsx.launching.writers import FRAMEWORKS, launch_files, refused_of_job, refused_text
from dsx.plans.plan import Plan
from dsx.plans.rules import DOMAIN_NOT_FILLED
from dsx.plans.violations import HOST_MEMORY, MEMORY, for_plan
from dsx.pricing.one_plan import price_plan
from dsx.progress import remark, warn
from dsx.tables.format import job_text, step_text, whole_plan_text
from dsx.text import Data, printable
from dsx.verbs.arguments import Answer, paragraphs
from dsx.verbs.evaluate import evaluate
from dsx.verbs.job import Job, checked
from dsx.verbs.plan import PlanLike, Row
from dsx.verbs.show import Hardware, row_of

DEFAULT_FRAMEWORK = LAUNCHED[0]
_READABLE = 0o444
_BY = "Written by dsx"  # in each file


@dataclass(frozen=True, eq=False, repr=False)
class LaunchFiles(Answer):
    """The launch files of a plan."""

    framework: str  # that runs the plan
    plan: Plan  # every choice by its column
    files: dict[str, str]  # text by name; the first one starts the run
    left: Sequence[str]  # what the program of the user does
    lost: Sequence[str]  # what of the plan the framework does not express
    out: Path | None  # the folder that they were written to
    needs: Sequence[str]  # environment variables that start it, with examples of values

    def _data(self) -> Data:
        lists = {name: list(getattr(self, name)) for name in ("left", "lost", "needs")}
        out = None if self.out is None else str(self.out)
        return {"framework": self.framework, "plan": self.plan.data, **lists, "out": out, "files": dict(self.files)}

    def __str__(self) -> str:
        title = FRAMEWORKS[self.framework].title
        lost = [f"left to your program: {part}" for part in self.left]
        lost += [f"{title} does not express: {part}" for part in self.lost]
        if self.out is None:
            return paragraphs([*(f"{name}:\n{text}" for name, text in self.files.items()), "\n".join(lost)])
        names = [str(self.out / name) for name in self.files]
        words = " ".join([*self.needs, "bash", shlex.quote(names[0])])
        where = " on each node" if "NODE_RANK=0" in self.needs else ""
        plan = f"the plan is {printable(self.plan['strategy'])}: {whole_plan_text(self.plan)}"
        return "\n".join([f"{title}: wrote {' and '.join(names)}", plan, *lost, f"start it{where} with: {words}"])


def launch(
    job: "Job | str | Path",
    plan: "PlanLike | int | Row | None" = None,
    *,
    framework: str = DEFAULT_FRAMEWORK,
    out: str | Path | None = None,
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    hardware: Hardware = (),
    **choices: object,
) -> LaunchFiles:
    """Write the files that start a plan as it was priced.

    Without `out` they are only returned.

        found = dsx.best(job)
        print(dsx.launch(job, found.plan, framework="torchtitan"))
        dsx.launch("results/sweep", df.iloc[0], framework="megatron-bridge", out="results/launch")

    At the head of each file is what the framework does not express of the plan, and what its assumption set takes for
    granted of the software.

    Args:
        job: the job of the plan, or the folder of a result set.
        plan: the plan, as `dsx.evaluate` takes it; of a result set the candidate id, or a row as `dsx.load` gives it.
        framework: "megatron", "megatron-bridge", "torchtitan" or "deepspeed".
        out: a folder, which is made if it is missing; files of dsx of the same names are replaced.
        strategy: of a plan that names none; by default as of `evaluate`.
        partition: "even" or "optimal" cuts of the pipeline; by default that of the plan.
        hardware: of a result set that varies it, the cluster or the what-if values of the row.
        **choices: further choices of the plan, as in recompute="full".

    Raises InputError if the plan breaks rules other than those of memory and of filled fast domains, or the framework
    cannot run it, with each part that it cannot and the nearest that it can; UnknownNameError for an unknown framework,
    StoreError for a folder that cannot be written or has a file that dsx did not write, and what `dsx.evaluate` or
    `dsx.why_row` raise.
    """
    folder = None if out is None else _folder(out)
    frame = _known(framework)
    if isinstance(job, Job):
        if hardware:
            raise InputError("hardware: a job has its cluster; only a row of a result set is chosen by it")
        cut: Data = {"strategy": strategy, "partition": partition, "framework": frame.limits}
        evaluation = evaluate(checked(job), plan, **cut, **choices)  # pyright: ignore[reportArgumentType]
        problem, priced, cluster = evaluation.problem, evaluation.priced, job.cluster
    elif isinstance(job, str | os.PathLike):
        if strategy is not None or partition is not None or choices:
            raise InputError("a row of a result set has its strategy, its cut and its choices: leave them out")
        if plan is None:
            raise InputError("plan: a row of a result set is wanted: its candidate id, or a row as dsx.load gives it")
        row = row_of(file_path("job", job), plan, hardware)
        problem, cluster = row.problem, row.inputs.cluster
        priced = price_plan(problem, row.plan)
    else:
        raise wrong("job", job, "a Job or the folder of a result set is wanted")
    if unrunnable := [
        violation for violation in priced.broken if violation.reason not in {MEMORY, HOST_MEMORY, DOMAIN_NOT_FILLED}
    ]:
        parts = "\n".join(f"  {violation.reason.name}: {violation.detail}" for violation in unrunnable)
        raise InputError(f"no framework runs the plan:\n{parts}")
    (model,) = problem.models  # a plan that is priced alone has one strategy
    chosen, costs = priced.plan, priced.costs
    assumptions = for_plan(problem.assumptions_spec, chosen.codes)
    request = Request(
        run=run_of(chosen, model, assumptions, cluster.device),
        shape=architecture_of(problem.model, assumptions),
        title=f"{job_text(problem, chosen['num_gpus'])}, {printable(chosen['strategy'])}: {whole_plan_text(chosen)}",
        domain=problem.nvs_size,
        host=None if "gpus" in cluster.node.assumed else cluster.node.gpus,
    )
    peak = f"{costs['peak_bytes'] / 1e9:.1f} GB on the fullest GPU"
    head = [
        f"{_BY} {__version__}.",
        request.title,
        step_text(chosen["global_batch_size"], chosen["sequence_length"]),
        f"Priced at {costs['step_time_s']:.4g} s a step and {peak}.",
    ]
    written = launch_files(frame, request, head)
    if folder is not None:
        _write(folder, written.files)
    for violation in priced.broken:
        warn(f"the plan has launch files, though it is rejected: {violation.reason.name}: {violation.detail}")
    needs = (*frame.needs, *host_variables(request))
    return LaunchFiles(framework, chosen, written.files, written.left, written.lost, folder, needs)


def check_launch(job: Job, framework: str, out: str | Path) -> None:
    """Raise what `launch` raises for every plan of a job, before one is searched.

    Raises InputError if the framework has no such model or runs on no such device, UnknownNameError for an unknown
    framework, and for the folder what `launch` raises.
    """
    _folder(out)
    frame = _known(framework)
    assumptions = checked(job).run_by(frame.limits).assumptions
    if refused := refused_of_job(frame, architecture_of(job.model, assumptions), job.cluster.device):
        raise InputError(f"{frame.title} cannot run any plan of {printable(job.model.name)}:\n{refused_text(refused)}")


def _known(framework: str) -> Framework:
    frame = FRAMEWORKS.get(one_text("framework", framework, DEFAULT_FRAMEWORK))
    if frame is None:
        raise UnknownNameError("framework", framework, FRAMEWORKS)
    return frame


def _folder(out: str | Path) -> Path:
    """Return the folder `out`, which launch files can be written to; it need not exist yet.

    Raises InputError for an empty name, StoreError if there can be no such folder, or if it has a script that dsx did
    not write.
    """
    if str(out) == "":
        raise InputError("the folder of launch files has an empty name: give another one, or none to print them")
    folder = file_path("out", out)
    parent = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        fault = f"{shown(parent)} is no folder that may be written; choose another one"
        raise StoreError(f"launch files go to {shown(folder)}: {fault}")
    _check_own(folder, [SCRIPT])
    return folder


def _check_own(folder: Path, names: Iterable[str]) -> None:
    """Raise StoreError for a file of a folder that dsx did not write."""
    for file in (folder / name for name in names):
        if file.is_file() and _BY.encode() not in file.read_bytes():
            raise StoreError(f"{shown(file)} is there, and not written by dsx; choose another folder")


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write files, in place of those that dsx wrote; StoreError for one that it did not write, or cannot."""
    try:
        _check_own(folder, files)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file, content = folder / name, text.encode()
            if file.is_file() and file.read_bytes() != content:
                remark(f"{shown(file)} had other content, and is replaced")
            write_whole(file, content)
            if name.endswith(".sh"):
                mode = file.stat().st_mode
                file.chmod(mode | (mode & _READABLE) >> 2)  # executable for all who may read it
    except OSError as error:
        raise StoreError(f"cannot write to {shown(folder)}: {error.strerror or error}") from error
