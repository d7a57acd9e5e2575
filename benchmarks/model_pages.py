"""The printed output in the pages of docs/model, as their commands print it now.

python benchmarks/model_pages.py --write docs/model

Of a command's output a page shows runs of lines, with `...` for those between them. A run is found again by the words
that its lines begin with, then by its likeness to what the page showed. Numbers in arithmetic and in prose stay as
they are: tests/model_document says which no longer come out.
"""

import argparse
import difflib
import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

_BLOCK = re.compile(r"(?<=^```console\n)\$ (dsx [^\n]*)\n(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_BEGIN, _LEFT_OUT, _END = "(begin)", "...", "(end)"
_REJECTED = 3


def renewed(page: str, printed: Callable[[str], str]) -> str:
    """Return the text of a page with what `printed` gives for each of its commands; a ValueError where lines are gone.

    The first run is where the output begins and the last where it ends, unless `...` is there.
    """

    def block(found: re.Match[str]) -> str:
        command, shown = found.groups()
        out = [line.rstrip() for line in printed(command).splitlines()]
        return "\n".join([f"$ {command}", *_shown(shown.splitlines(), out, command)]) + "\n"

    return _BLOCK.sub(block, page)


def _shown(old: Sequence[str], out: Sequence[str], command: str) -> list[str]:
    """Return the lines of an output in place of those that a page showed."""
    out = [_BEGIN, *out, _END]
    new: list[str] = []
    begin = 0
    for left_out, lines in groupby([_BEGIN, *old, _END], key=_LEFT_OUT.__eq__):
        run = list(lines)
        if not left_out:
            places = [out[at : at + len(run)] for at in range(begin, len(out))]
            alike = [at for at, place in enumerate(places, begin) if _first_words(place) == _first_words(run)]
            if not alike:
                raise ValueError(f"{command}: prints no such lines: {run}")
            begin = max(alike, key=lambda at: _likeness(run, out[at : at + len(run)]))
            run = out[begin : begin + len(run)]
            begin += len(run)
        new += run
    return new[1:-1]


def _first_words(lines: Sequence[str]) -> list[list[str]]:
    return [line.split()[:1] for line in lines]


def _likeness(old: Sequence[str], new: Sequence[str]) -> float:
    return difflib.SequenceMatcher(None, "\n".join(old), "\n".join(new)).ratio()


@functools.cache
def printed(command: str) -> str:
    """Return what a command line prints, also one whose plan is rejected."""
    ran = subprocess.run([sys.executable, "-m", *shlex.split(command)], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode not in (0, _REJECTED):
        ran.check_returncode()
    return ran.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, help="the folder of the pages")
    pages = sorted(parser.parse_args().write.glob("*.md"))
    texts = [renewed(page.read_text(encoding="utf-8"), printed) for page in pages]
    for page, text in zip(pages, texts, strict=True):
        page.write_text(text, encoding="utf-8")
