"""The page of a report: its sections and scripts, why candidates are rejected, what is assumed, how to run it again.

A file states a value with its source, ``{value: 80 GB, source: "data sheet"}`` (`dsx.config.schema`), which validation
drops. So a manifest has the values without their sources, which the files of today state. A source is shown only where
the file of today has the value that was priced.

A policy lets the page load nothing and run only its own scripts. Scripts are allowed by their hashes, so a script that
a name brought along would not run even if it were not escaped.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files

import yaml

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import ClusterSpec, load_cluster
from dsx.config.documents import KeyPath, is_sourced, merged
from dsx.config.load import statements
from dsx.config.stack import with_stack
from dsx.config.what_if import is_assumption, varied_field
from dsx.errors import InputError
from dsx.pictures.html.answer import (
    Markup,
    data_block,
    described,
    element,
    folded,
    markup,
    section,
    table,
)
from dsx.pictures.html.figures import Picture
from dsx.pictures.html.ranked_rows import TableData
from dsx.results.manifest import Manifest
from dsx.results.ranked_by import Priced
from dsx.tables.format import stated_text
from dsx.units import exact_quantity, stated_quantity


def rejected_reasons(manifest: Manifest) -> Markup:
    """Return why candidates were rejected, in numbers; a candidate counts under each of its reasons."""
    counts = manifest.counts
    if counts is None:
        return element("p", "The sweep has not counted its candidates.")
    about = {reason.name: reason.description for reason in manifest.reject_reasons}
    priced = counts.candidates - counts.skipped - counts.bounded
    rows = [
        [name.replace("_", " "), f"{number:,}", f"{100 * number / priced:.1f} %", about.get(name, "")]
        for name, number in sorted(counts.rejected.items(), key=lambda item: -item[1])
        if number
    ]
    if not rows:
        return element("p", "No candidate was rejected: enumeration leaves out what breaks a rule.")
    return table(["reason", "candidates", "of those priced", "rule"], rows, "A candidate counts under each reason")


Sources = Mapping[str, str]  # of values, by their dotted path
_CHANGED = "stated by the sweep"


def _sources(data: object, path: KeyPath = ()) -> Iterator[tuple[str, str]]:
    if is_sourced(data):
        if source := data.get("source"):
            yield ".".join(map(str, path)), str(source)
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _sources(value, (*path, key))


def _leaves(value: object, sources: Sources, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values by dotted path; lists, and what has a source as a whole, are one value."""
    if isinstance(value, dict) and path not in sources:
        for key, inner in value.items():
            yield from _leaves(inner, sources, f"{path}.{key}" if path else key)
    elif value not in (None, [], ""):
        yield path, value


def _files(manifest: Manifest) -> Iterator[tuple[str, Mapping[str, object], list[tuple[str, object, str]]]]:
    """Yield the kind and content of each priced file, the assumption set and then the clusters, and its values.

    Values have their dotted path and their source, of the file of today if that can be read.
    """
    spec, resolved = manifest.spec, manifest.spec["resolved"]
    near = manifest.near
    clusters = spec["cluster"] if isinstance(spec["cluster"], list) else [spec["cluster"]]
    of_clusters = zip(clusters, resolved["clusters"], strict=True)
    named = [(spec["assumptions"], resolved["assumptions"]), *of_clusters]
    for number, (file, content) in enumerate(named):
        today, sources = {}, {}
        with suppress(InputError):
            if number == 0:
                statement = with_stack(tuple(statements(AssumptionsSpec, file, near)))
                today = load_assumptions(file, (), near).model_dump(mode="json")
            else:
                today = load_cluster(file, (), near).model_dump(mode="json")
                statement = statements(ClusterSpec, file, near)
            sources = dict(_sources(merged(statement).data))
        values: list[tuple[str, object, str]] = []
        for path, value in _leaves(content, sources):
            of_today: object = today
            for key in path.split("."):
                of_today = of_today.get(key) if isinstance(of_today, Mapping) else None
            source = sources.get(path, "" if today else "no source in a file of today")
            values.append((path, value, _CHANGED if today and of_today != value else source))
        yield "cluster" if number else "assumptions", content, values


def stated_values(manifest: Manifest) -> Markup:
    """Return the tables of the assumption set and of each cluster, and the source of the model."""
    model = manifest.spec["resolved"]["model"]
    source = f": {model['source']}" if model.get("source") else ""
    tables: list[Markup] = []
    for kind, content, named in _files(manifest):
        shown = [entry for entry in named if entry[0] not in ("name", "description", "source")]
        rows = [[path, stated_text(value), source] for path, value, source in shown]
        about = [str(content[key]) for key in ("description", "source") if content.get(key)]
        title = {"assumptions": "Assumption set", "cluster": "Cluster"}[kind]
        summary = f"{title} {content['name']}: {len(rows)} values"
        paragraph = element("p", " Source: ".join(about)) if about else ""
        values = table(["field", "value", "source"], rows, summary, numbers=False)
        tables.append(folded(summary, paragraph, values))
    return markup(element("p", f"Model {model['name']}{source}."), tables)


def assignments(manifest: Manifest) -> list[str]:
    """Return what files of today tell of --set: FIELD=VALUE each, none of several clusters, which it sets alike."""
    single = len(manifest.spec["resolved"]["clusters"]) == 1
    texts: list[str] = []
    for kind, _, values in _files(manifest):
        for path, value, source in values if single or kind != "cluster" else ():
            if source == _CHANGED:
                # A quantity as people write it, so that it reads back exactly.
                quantity = stated_quantity(value) if isinstance(value, str) else None
                text = value if isinstance(value, str) else json.dumps(value)
                texts.append(f"{kind}.{path}={exact_quantity(*quantity) if quantity else text}")
    return texts


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
    varied = [
        f"{'' if is_assumption(name) else 'cluster.'}{name}={exact_quantity(value, varied_field(name).unit)}"
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
        "strategy": manifest.strategy_paths[plan["strategy"]],
        "operator-times": spec.get("operator_times") if verb == "evaluate" else None,  # launch files have no use for it
    }
    words = [word for name, value in job.items() if value is not None for word in (f"--{name}", str(value))]
    cut = [f"stage_layers={plan.data['stage_layers']}"] if "stage_layers" in plan else []
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
    scripts = [_asset("plans.js")]
    if parts.pictures:
        from plotly.offline import get_plotlyjs

        scripts = [get_plotlyjs(), _asset("figures.js"), *scripts]
    hashes = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    # Plotly styles its elements, and saves a picture as a blob.
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
    policy += "base-uri 'none'; form-action 'none'"
    head = markup(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
        element("title", f"{parts.title} - dsx report"),
        Markup(f"<style>{_asset('page.css')}</style>"),
    )
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
    body = markup(
        element("a", "Skip to the table of plans", href="#plans-title", class_="skip"),
        element("header", element("h1", parts.title), element("p", parts.question, class_="question")),
        element("main", *[contents, *(section(identity, title, *children) for identity, title, children in filled)]),
        *(
            data_block(f"{picture.identity}-data", json.loads(picture.figure.to_json() or "{}"))
            for picture in parts.pictures
        ),
        data_block("plans-data", parts.plans.to_data()),
        *(Markup(f"<script>{script}</script>") for script in scripts),
    )
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{element("body", body)}</html>\n'


def _figure(picture: Picture) -> Markup:
    label = f"{picture.title}. {picture.about}"
    place = element("div", "", id=picture.identity, class_="picture", role="img", aria_label=label)
    return element("figure", element("figcaption", element("strong", picture.title), " ", picture.about), place)


def _plans(plans: TableData) -> Markup:
    left_out = f"; {plans.left_out:,} are left out" if plans.left_out else ""
    about = f"The best {plans.rows:,} rows of the set, best first{left_out}. A heading sorts by its column."
    how = "Conditions with spaces between them, all of which must hold: tp<=8 recompute=full pp=4,8 mfu>40; a word "
    how += "alone is looked for in the names. Numbers are in the units of the headings."
    frame = element("table", element("thead", ""), element("tbody", ""), id="plans-table")
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
            element("p", how, id="filter-help", class_="small"),
            element("p", "", id="filter-status", role="status"),
            element("fieldset", element("legend", "Columns"), id="groups"),
            class_="controls",
            role="search",
        ),
        element("div", frame, class_="scroll tall", tabindex="0", role="region", aria_label="Plans"),
        element("nav", "", id="pages", aria_label="Pages of the table", class_="controls"),
        folded("The same in all of these rows", described(plans.constant)) if plans.constant else "",
    )


def _asset(name: str) -> str:
    return (files("dsx.pictures.html") / "assets" / name).read_text(encoding="utf-8")
