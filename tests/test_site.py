"""The documentation site builds without a broken link, and the gallery has every picture with its command."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from checkout import ROOT

DOCS = ROOT / "docs"
GALLERY = (DOCS / "gallery.md").read_text(encoding="utf-8")
# What the gallery shows: one picture or several, then words, then the commands.
SHOWN = re.compile(r"((?:!\[[^]]*\]\([^)]+\)\n\n)+)[^!#]+?```console\n(.*?)```", re.DOTALL)


def test_the_gallery_has_every_picture_and_its_command():
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", GALLERY)
    assert len(shown) == len({*shown})
    assert {DOCS / name for name in shown} == {*DOCS.rglob("*.png")}
    # Every picture of the gallery has its command.
    found = SHOWN.findall(GALLERY)
    assert sum(pictures.count("![") for pictures, _ in found) == GALLERY.count("![")
    for pictures, commands in found:
        for name in re.findall(r"\(([^)]+)\)", pictures):
            assert f"docs/{name}\n" in commands or "benchmarks/accuracy.py" in commands, name
        for sweep in re.findall(r"sweeps/\S+\.yaml", commands):
            picture = (ROOT / sweep).read_text(encoding="utf-8")
            assert "--plot" not in commands or yaml.safe_load(picture)["plot"]


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value)
            elif name == "id":
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("properdocs", reason="the site is built by an extra, dsx-explorer[docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_links_files_and_loads_of_the_site(site):
    pages = {page: Links(page) for page in site.rglob("index.html")}
    assert site / "index.html" in pages and len(pages) > len([*DOCS.rglob("*.md")])
    for page, found in pages.items():
        for link in found.links:
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (page.parent / unquote(where.path)).resolve() if where.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (page, link)
            assert not where.fragment or where.fragment in pages[target].anchors, (page, link)

    # Files of the repository are pages of the site.
    def text_of(name):
        return (site / "repository" / name / "index.html").read_text(encoding="utf-8")

    assert "extends:" in text_of("data/stacks/megatron-2025.yaml")
    assert "gpt3-1t-b200.yaml" in text_of("sweeps")
    assert (site / "repository" / "data" / "validation" / "runs.csv").read_bytes() == (
        ROOT / "data" / "validation" / "runs.csv"
    ).read_bytes()
    assert "dsx.best" in (site / "how-to" / "notebook.py" / "index.html").read_text(encoding="utf-8")
    # The site loads nothing from elsewhere.
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//")
    assert not [page for page in Path(site).rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))]
