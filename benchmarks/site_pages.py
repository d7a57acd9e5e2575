"""Hooks of the documentation site (properdocs.yml): links that work in the repository work on the site too.

Documents link to files outside docs/, such as ../data/stacks/megatron-2025.yaml, and the site has docs/ alone. So every
file or folder that is linked becomes a page of the site: Markdown as it is, text as a block of code, a folder as a
list. README.md is the first page. Headings have the anchors that they have on GitHub.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from properdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
DOCS, README = ROOT / "docs", ROOT / "README.md"
_LARGE = 100_000  # bytes of a file; a larger one is offered as it is
_LANGUAGES = {".py": "python", ".yaml": "yaml"}
_FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)((?:#[^)]*)?)\)")

_sources: dict[str, Path] = {}  # page -> the file that it was made of, outside docs/


def on_config(config: Any) -> Any:
    """Put the pages of each index into the navigation, and give headings GitHub's anchors."""
    config.nav = [_with_pages(entry) for entry in config.nav]
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading: lower case, without punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, and a page for each file that a document links to and that is no document."""
    _sources.clear()
    documents = [Path(file.abs_src_path) for file in files if file.is_documentation_page() and file.abs_src_path]
    waiting = [README, *documents]
    known = {*documents}
    while waiting:
        source = waiting.pop()
        if source not in known:
            known.add(source)
            if (page := _page(source, config)) is not None:
                files.append(page)
        if source.suffix == ".md":
            waiting += [target for target in _targets(source) if target not in known and target.exists()]
    for notebook in [file for file in files if file.src_uri.endswith(".py") and not file.is_documentation_page()]:
        files.remove(notebook)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the text of a page with the links that its source has in the repository turned to those of the site."""
    uri = page.file.src_uri
    source = _sources.get(uri, DOCS / uri)
    if source.suffix != ".md":
        return markdown

    def turned(link: re.Match[str]) -> str:
        target = _resolved(source, link[1])
        if not target.exists():
            return link[0]
        return f"]({os.path.relpath(_uri(target), os.path.dirname(uri) or '.')}{link[2]})"

    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(turned, part) for part in parts)


def _with_pages(entry: Any) -> Any:
    """Return an entry of the navigation, an index as the list of itself and of its pages."""
    if not isinstance(entry, dict):
        return entry
    ((title, index),) = entry.items()
    if not (isinstance(index, str) and index.endswith("README.md")):
        return entry
    source = DOCS / index
    pages = [_uri(target) for target in _targets(source) if target.parent == source.parent and target.is_file()]
    return {title: [index, *dict.fromkeys(page for page in pages if page != index)]}


def _targets(source: Path) -> Iterator[Path]:
    """Yield what a document links to in the repository."""
    for link in _LINK.finditer(_FENCED.sub("", source.read_text(encoding="utf-8"))):
        yield _resolved(source, link[1])


def _resolved(source: Path, link: str) -> Path:
    return Path(os.path.normpath(source.parent / link))


def _uri(target: Path) -> str:
    """Return the page of a file or a folder of the repository."""
    if target == README:
        return "index.md"
    if target.is_relative_to(DOCS):
        name = target.relative_to(DOCS).as_posix()
        return f"{name}.md" if target.suffix == ".py" else name
    name = f"repository/{target.relative_to(ROOT).as_posix()}"
    return name if target.suffix == ".md" or (target.is_file() and _is_large(target)) else f"{name}.md"


def _is_large(source: Path) -> bool:
    return source.stat().st_size > _LARGE


def _page(source: Path, config: Any) -> File | None:
    """Return the page of a file or a folder; None for a picture of docs/, which the site has anyway."""
    uri, inclusion = _uri(source), InclusionLevel.NOT_IN_NAV
    if source == README or (source.suffix == ".py" and source.is_relative_to(DOCS)):
        inclusion = InclusionLevel.INCLUDED
    elif source.is_relative_to(DOCS):
        return None
    elif source.is_file() and not uri.endswith(".md"):
        return File.generated(config, uri, abs_src_path=str(source), inclusion=inclusion)
    _sources[uri] = source
    return File.generated(config, uri, content=_text(source), inclusion=inclusion)


def _text(source: Path) -> str:
    if source.suffix == ".md":
        return source.read_text(encoding="utf-8")
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in source.iterdir())
        return "\n".join([f"# {name}\n", *(f"* `{one}`" for one in names if not one.startswith(("_", ".")))])
    return f"# {name}\n\n~~~~~~ {_LANGUAGES.get(source.suffix, 'text')}\n{source.read_text(encoding='utf-8')}\n~~~~~~\n"
