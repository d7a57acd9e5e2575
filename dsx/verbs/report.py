"""``dsx report``: a result set as one HTML file that opens without a network, to read and to send."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dsx.config.search_path import shown
from dsx.errors import InputError, file_path
from dsx.pictures.html.answer import check_plotly
from dsx.pricing.one_plan import price_plan
from dsx.progress import remark
from dsx.results.frames import read_manifest
from dsx.results.manifest import Manifest
from dsx.tables.format import keeps_front, kept_text, title_of, wrapped
from dsx.tables.plans import plans_frame, plans_text
from dsx.text import Data, DataFrame
from dsx.units import counted
from dsx.verbs.arguments import PricedPlans, output_file, paragraphs, write_output_file
from dsx.verbs.job import device_remarks
from dsx.verbs.searched import run_by_none
from dsx.verbs.show import Hardware, ResultRow, row_of, taken_lines

_SUFFIXES = (".html", ".htm")


@dataclass(frozen=True, eq=False, repr=False)
class Report(PricedPlans):
    """A report: its page, and the plans of its answer."""

    manifest: Manifest  # of the set
    question: str  # what the set answers, in a sentence
    titles: Sequence[str]  # what each plan is the best at
    priced: Sequence[Data]  # the plans, the explained one first; empty if no row is feasible
    taken: Sequence[str]  # which of them leave GPUs of their nodes free, a line each
    rows: int  # of the table
    left_out: int  # rows of the set that the table does not have
    html: str  # the page

    @cached_property
    def frame(self) -> DataFrame:
        """The plans of the answer as rows; units in `attrs`."""
        return plans_frame(self.priced, [reason.name for reason in self.manifest.reject_reasons])

    @property
    def infeasible(self) -> str:
        """Why there is no plan; empty if there is one."""
        return "" if self.priced else f"no row is feasible, so nothing answers: {self.question}"

    def save(self, path: str | Path) -> None:
        """Write the page into the file `path`, and remark on it; raises StoreError if that fails."""
        output = file_path("path", path)
        write_output_file(output, self.html)
        size = len(self.html.encode("utf-8")) / 1e6
        left_out = f", {self.left_out:,} left out" if self.left_out else ""
        remark(f"wrote {output}: {size:.1f} MB, {counted(self.rows, 'row')}{left_out}")

    def _data(self) -> Data:
        plans = [{"best_at": title, **plan} for title, plan in zip(self.titles, self._plans_data(), strict=True)]
        return {"question": self.question, "plans": plans, "rows": self.rows, "left_out": self.left_out}

    def __str__(self) -> str:
        if not self.priced:
            return self.infeasible
        best_at = [f"{number} {title}" for number, title in enumerate(self.titles, 1)]
        table = plans_text(self.priced, with_settings=True)
        taken = [wrapped(line) for line in self.taken]
        return paragraphs([self.question, table, "\n".join([*best_at, *taken]), wrapped(run_by_none(self.plans))])


def report(
    folder: str | Path, output: str | Path | None = None, candidate: int | str | None = None, hardware: Hardware = ()
) -> Report:
    """Write a result set as one HTML file that opens offline.

    Without `output` the report is only returned.

        dsx.report("results/sweep", "report.html")

    The page has the question and the answer, pictures with hover, the explanation of the first plan term by term, a
    table of the 20,000 best rows that can be filtered, the reasons of rejected candidates, assumptions with their
    sources, how far measurements back the numbers, and what runs it again.

    Args:
        folder: the folder of the result set.
        output: the HTML file.
        candidate: an id, of a plan to explain in place of the best one.
        hardware: the cluster or the what-if values of its row, if the sweep varies them, as for `why_row`.

    Raises InputError without plotly (the extra dsx-explorer[report]), for an unknown candidate or a file that is not
    named as HTML; StoreError if the set cannot be read, or the file not be written.
    """
    check_plotly()
    folder = file_path("folder", folder)
    file = output_file("output", output, (part for part in folder.glob("*") if part.suffix not in _SUFFIXES))
    if file and file.suffix.lower() not in _SUFFIXES and (file.is_file() or not file.exists()):
        html = file.with_suffix(".html")
        raise InputError(f"-o {shown(file)}: a report is an HTML file; name it {shown(html)}")
    if candidate is None and hardware:
        raise InputError("--hardware is that of a candidate: add --candidate ID, or leave it out")
    manifest = read_manifest(folder)
    row = None if candidate is None else row_of(folder, candidate, hardware)
    answer = _made(folder, manifest, row)
    if file is not None:
        answer.save(file)
    return answer


def _made(folder: Path, manifest: Manifest, chosen: ResultRow | None) -> Report:
    from dsx.pictures.html import answer as cards
    from dsx.pictures.html.answer import element, markup
    from dsx.pictures.html.figures import pictures
    from dsx.pictures.html.page import Parts, page, plan_command, rejected_reasons, rerun, stated_values, sweep_command
    from dsx.pictures.html.ranked_rows import ranked_rows, table_data

    rows = ranked_rows(folder, manifest)
    resolution = manifest.spec["resolved"]["assumptions"].get("resolution")
    explained_row = None if chosen is None else rows.at(chosen.plan["candidate"], chosen.hardware)
    named = cards.answer(rows, resolution, explained_row)
    question, table = cards.question_text(manifest), table_data(rows)
    commands = [("The sweep, from the file below", sweep_command(manifest))]
    answered, explained, backed = element("p", "No plan is feasible.", class_="remark"), markup(), markup()
    if named:
        problem, first = None, named[0].priced
        try:
            row = row_of(folder, named[0].row, ())
            problem = row.problem
            details = cards.priced_details(problem, price_plan(problem, row.plan))
            backed = cards.evidence(
                problem, named[0], device_remarks(row.inputs.cluster.device, row.inputs.assumptions)
            )
        except InputError as error:
            left_out = f"The terms below the totals are left out: {error}"
            details = markup(element("p", left_out, class_="remark"))
        not_run = run_by_none(role.priced["plan"] for role in named)
        remarks = [f"{not_run[0].upper()}{not_run[1:]}."] if not_run else []
        if not keeps_front(manifest):
            kept = f"The sweep kept {kept_text(manifest)}"
            remarks.append(f"{kept}: simpler and leaner plans may be among the others; dsx best searches all.")
        answered = markup(
            element("div", *(cards.plan_card(plan, problem) for plan in named), class_="cards"),
            *(element("p", text, class_="remark") for text in remarks),
            cards.setting_table(rows),
        )
        explained = markup(cards.terms(named), cards.choices(first["plan"]), details)
        commands.append((f"The {named[0].title} plan", plan_command(manifest, first, "evaluate")))
        commands.append(("Its launch files", plan_command(manifest, first, "launch", "-o", "launch")))
    parts = Parts(
        title=title_of(manifest),
        question=question,
        searched=cards.searched_pairs(manifest),
        answer=answered,
        pictures=pictures(rows, named) if named else [],
        explanation=explained,
        plans=table,
        rejected=rejected_reasons(manifest),
        assumptions=stated_values(manifest),
        evidence=backed,
        rerun=rerun(manifest, commands),
    )
    titles, plans = [role.title for role in named], [dict(role.priced) for role in named]
    taken = taken_lines(folder, manifest, plans)
    return Report(manifest, question, titles, plans, taken, table.rows, table.left_out, page(parts))
