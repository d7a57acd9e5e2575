"""The page: its sections, its scripts and styles, and a policy that lets it load nothing and run only its own scripts.

Scripts are allowed by their hashes, so a script that a name brought along would not run even if it were not escaped.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from dsx.reporting.figure import Picture
from dsx.reporting.markup import Markup, data_block, described, element, folded, markup, section
from dsx.reporting.plotly_extra import plotly_script
from dsx.reporting.table_data import TableData

_ASSETS = "dsx.reporting"


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
        *(data_block(f"{one.identity}-data", json.loads(one.figure.to_json() or "{}")) for one in parts.pictures),
        data_block("plans-data", parts.plans.to_data()),
        *(Markup(f"<script>{script}</script>") for script in scripts),
    )
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{element("body", body)}</html>\n'


def _sections(parts: Parts) -> list[Markup]:
    stated: list[tuple[str, str, Sequence[Markup]]] = [
        ("answer", "Answer", [parts.answer] if parts.answer else []),
        ("pictures", "Pictures", [_figure(one) for one in parts.pictures]),
        ("explanation", "The plan term by term", [parts.explanation] if parts.explanation else []),
        ("plans", "Plans", [_plans(parts.plans)] if parts.plans.rows else []),
        ("rejected", "Why others are rejected", [parts.rejected]),
        ("evidence", "How far measurements back this", [parts.evidence] if parts.evidence else []),
        ("assumptions", "What is assumed, and its sources", [parts.assumptions]),
        ("searched", "What was searched", [described(parts.searched)]),
        ("rerun", "To run it again", [parts.rerun]),
    ]
    there = [one for one in stated if one[2]]
    links = [element("li", element("a", title, href=f"#{identity}")) for identity, title, _ in there]
    contents = element("nav", element("ul", *links), aria_label="Sections")
    return [contents, *(section(identity, title, *children) for identity, title, children in there)]


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
    return (files(_ASSETS) / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
