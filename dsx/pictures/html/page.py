"""The page of a report: its sections and scripts, why candidates are rejected, and what gives the numbers again.

A policy lets the page load nothing and run only its own scripts. Scripts are allowed by their hashes, so a script that
a name brought along would not run even if it were not escaped.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import yaml

from dsx.config.what_if import varied_field
from dsx.pictures.html.assumed import assignments
from dsx.pictures.html.figures import Picture
from dsx.pictures.html.markup import (
    Markup,
    data_block,
    described,
    element,
    folded,
    markup,
    plotly_script,
    section,
    table,
)
from dsx.pictures.html.ranked_rows import TableData
from dsx.results.manifest import Manifest
from dsx.results.ranked_by import Priced
from dsx.units import exact_quantity


def rejected_reasons(manifest: Manifest) -> Markup:
    """Return why candidates were rejected, in numbers; a candidate counts under each of its reasons."""
    counts = manifest.counts
    if counts is None:
        return element("p", "The sweep has not counted its candidates.")
    about = {reason.name: reason.description for reason in manifest.reject_reasons}
    rejected = sorted(((name, number) for name, number in counts.rejected.items() if number), key=lambda item: -item[1])
    priced = counts.candidates - counts.skipped - counts.bounded
    rows = [
        [name.replace("_", " "), f"{number:,}", f"{100 * number / priced:.1f} %", about.get(name, "")]
        for name, number in rejected
    ]
    if not rows:
        return element("p", "No candidate was rejected: enumeration leaves out what breaks a rule.")
    return table(["reason", "candidates", "of those priced", "rule"], rows, "A candidate counts under each reason")


def rerun(manifest: Manifest, commands: Sequence[tuple[str, str]]) -> Markup:
    """Return version and sweep, and commands that give these numbers again: what each is for, and itself."""
    shown = [markup(element("p", f"{what}:"), element("pre", command, class_="command")) for what, command in commands]
    about = f"dsx {manifest.dsx_version}, result schema {manifest.schema_version}, {manifest.precision}"
    when = f"begun {manifest.started}" + (f", finished {manifest.finished}" if manifest.finished else "")
    # What the sweep does not state is left out of its file.
    sweep = {key: value for key, value in manifest.spec.items() if key != "resolved" and value not in (None, {}, [])}
    sweep_file = yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True)
    priced = json.dumps(manifest.spec["resolved"], indent=1, sort_keys=True)
    return markup(
        element("p", f"{about}; {when}; sweep {manifest.spec_hash[:16]}."),
        shown,
        folded("The sweep file (YAML)", element("pre", sweep_file, tabindex="0", id="sweep-file")),
        folded("The files as they were priced (JSON)", element("pre", priced, tabindex="0")),
    )


def sweep_command(manifest: Manifest) -> str:
    """Return the command that makes the set again from the sweep file of the page."""
    return shlex.join(["dsx", "sweep", "sweep.yaml", "-o", "results/again", *_set(assignments(manifest))])


def plan_command(manifest: Manifest, priced: Priced, verb: str, *options: str) -> str:
    """Return the command of a verb that takes a plan, for a plan of the set; `options` are further ones of the verb."""
    plan, spec = priced["plan"], manifest.spec
    clusters = spec["cluster"] if isinstance(spec["cluster"], list) else [spec["cluster"]]
    cluster = clusters[manifest.names["cluster"].index(priced["hardware"]["cluster"])]
    strategies = dict(zip(manifest.names["strategy"], spec["resolved"]["strategy"], strict=True))
    varied = [
        f"{name if name.startswith('assumptions.') else f'cluster.{name}'}="
        f"{exact_quantity(value, varied_field(name).unit)}"
        for name, value in priced["hardware"].items()
        if name != "cluster"
    ]
    job = {
        "model": spec["model"],
        "cluster": cluster,
        "num-gpus": plan["num_gpus"],
        "global-batch-size": plan["global_batch_size"],
        "sequence-length": plan["sequence_length"],
        "assumptions": spec["assumptions"],
        "strategy": strategies[plan["strategy"]],
        "operator-times": spec.get("operator_times") if verb == "evaluate" else None,  # launch files have no use for it
    }
    words = [word for name, value in job.items() if value is not None for word in (f"--{name}", str(value))]
    cut = [f"stage_layers={plan['stage_layers']}"] if "stage_layers" in plan else []
    values = _set([*assignments(manifest), *varied])
    return shlex.join(["dsx", verb, *words, *values, *options, *plan.text.split(), *cut])


def _set(values: Sequence[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@dataclass(frozen=True)
class Parts:
    """What a page is made of; each but the first three is a section, empty where there is nothing to say."""

    title: str
    question: str
    searched: Sequence[tuple[str, str]]
    answer: Markup
    pictures: Sequence[Picture]
    explanation: Markup
    plans: TableData
    rejected: Markup
    assumptions: Markup
    evidence: Markup
    rerun: Markup


def page(parts: Parts) -> str:
    """Return the whole HTML file."""
    drawn = bool(parts.pictures)
    scripts = [*([plotly_script(), _asset("figures.js")] if drawn else []), _asset("plans.js")]
    policy = "; ".join(
        [
            "default-src 'none'",
            "script-src " + " ".join(f"'sha256-{_hash(script)}'" for script in scripts),
            "style-src 'unsafe-inline'",  # Plotly styles its elements
            "img-src data: blob:",  # saving a picture
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    head = markup(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
        element("title", f"{parts.title} - dsx report"),
        Markup(f"<style>{_asset('page.css')}</style>"),
    )
    body = markup(
        element("a", "Skip to the table of plans", href="#plans-title", class_="skip"),
        element("header", element("h1", parts.title), element("p", parts.question, class_="question")),
        element("main", *_sections(parts)),
        *(
            data_block(f"{picture.identity}-data", json.loads(picture.figure.to_json() or "{}"))
            for picture in parts.pictures
        ),
        data_block("plans-data", parts.plans.to_data()),
        *(Markup(f"<script>{script}</script>") for script in scripts),
    )
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{element("body", body)}</html>\n'


def _sections(parts: Parts) -> list[Markup]:
    sections: list[tuple[str, str, Sequence[Markup]]] = [
        ("answer", "Answer", [parts.answer] if parts.answer else []),
        ("pictures", "Pictures", [_figure(picture) for picture in parts.pictures]),
        ("explanation", "The plan term by term", [parts.explanation] if parts.explanation else []),
        ("plans", "Plans", [_plans(parts.plans)] if parts.plans.rows else []),
        ("rejected", "Why others are rejected", [parts.rejected]),
        ("evidence", "How far measurements back this", [parts.evidence] if parts.evidence else []),
        ("assumptions", "What is assumed, and its sources", [parts.assumptions]),
        ("searched", "What was searched", [described(parts.searched)]),
        ("rerun", "To run it again", [parts.rerun]),
    ]
    filled = [part for part in sections if part[2]]
    links = [element("li", element("a", title, href=f"#{identity}")) for identity, title, _ in filled]
    contents = element("nav", element("ul", *links), aria_label="Sections")
    return [contents, *(section(identity, title, *children) for identity, title, children in filled)]


def _figure(picture: Picture) -> Markup:
    place = element(
        "div", "", id=picture.identity, class_="picture", role="img", aria_label=f"{picture.title}. {picture.about}"
    )
    caption = element("figcaption", element("strong", picture.title), " ", picture.about)
    return element("figure", caption, place)


def _plans(plans: TableData) -> Markup:
    left_out = f"; {plans.left_out:,} are left out" if plans.left_out else ""
    about = f"The best {plans.rows:,} rows of the set, best first{left_out}. A heading sorts by its column."
    help_text = (
        "Conditions with spaces between them, all of which must hold: tp<=8 recompute=full pp=4,8 mfu>40; a word alone "
        "is looked for in the names. Numbers are in the units of the headings."
    )
    return markup(
        element("p", about),
        element("noscript", element("p", "The table needs JavaScript, which this page brings along.")),
        element(
            "div",
            element("label", "Filter", for_="filter"),
            Markup(
                '<input id="filter" type="search" autocomplete="off" autocapitalize="off" spellcheck="false" '
                'placeholder="tp&lt;=8 pp=4,8" aria-describedby="filter-help filter-status">'
            ),
            element("p", help_text, id="filter-help", class_="small"),
            element("p", "", id="filter-status", role="status"),
            element("fieldset", element("legend", "Columns"), id="groups"),
            class_="controls",
            role="search",
        ),
        element(
            "div",
            element("table", element("thead", ""), element("tbody", ""), id="plans-table"),
            class_="scroll tall",
            tabindex="0",
            role="region",
            aria_label="Plans",
        ),
        element("nav", "", id="pages", aria_label="Pages of the table", class_="controls"),
        folded("The same in all of these rows", described(plans.constant)) if plans.constant else "",
    )


def _asset(name: str) -> str:
    return (files("dsx.pictures.html") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
