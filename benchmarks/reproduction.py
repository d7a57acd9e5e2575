"""Write docs/reproduction.md: every claim of arXiv 2410.00273 with the numbers of the released code and of dsx.

    python benchmarks/reproduction.py [--write docs/reproduction.md]

The script prices and draws the sweep files of the figures and reads the claims from their result sets; every verdict
follows from them. --write writes the whole document, and its pictures to figures/ next to it; otherwise the document is
printed and the pictures are discarded. Nothing in the model is fitted.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from claims import hardware, many_systems, one_system
from claims.claim import NO, PARTLY, YES, Claim
from claims.pictures import PICTURES
from claims.runs import Runs

# In the order of the document.
CLAIMS: tuple[Callable[[Runs], Claim], ...] = (
    one_system.tensor_parallelism,
    one_system.memory_of_the_optimum,
    one_system.pipeline_stages,
    one_system.two_stages,
    one_system.one_stage,
    one_system.summa_in_small_domains,
    one_system.summa_in_large_domains,
    one_system.second_axis,
    many_systems.placement,
    many_systems.depth,
    many_systems.grid_of_the_transformer,
    many_systems.transformer_needs_2d,
    many_systems.bottleneck_of_the_transformer,
    many_systems.summa_for_the_transformer,
    many_systems.days,
    many_systems.speedup_of_2d,
    many_systems.where_summa_helps,
    hardware.compute_or_memory,
    hardware.slow_but_large_memory,
    hardware.measured_plan,
)

_HEAD = """\
# Reproduction of arXiv 2410.00273

<!-- Written by benchmarks/reproduction.py (`make reproduction`); change it there. -->

This page compares the claims of the paper with the results of its released code and of dsx.

* **The claims** are statements of the paper's text and figures.
* **Released code** is transformer-perf-estimates of 2024-10-02, unmodified.
* **dsx** is the assumption set `paper-2410.00273`, with the [corrections C1 to C7](model/corrections.md). `make
  reproduction` prices the sweep files of the figures in [sweeps/](../sweeps), draws the pictures and writes this file:
  every number of dsx and every verdict comes from that run. Nothing in the model is fitted.

The global batch is 4,096 sequences unless stated otherwise. A domain is the set of GPUs that share NVLink or
NVSwitch. The paper's nt or n1 is `tp`; n2 is `cp` in its 2D and `tp2` in its SUMMA; np, nd, bm, nb, m are `pp`, `dp`,
`microbatch_size`, `panels`, `num_microbatches`. "DP share" is a part of the step time.
"""

_NOT_TESTED = """\
## Not tested

* The validation's errors of 11 % and 2 %: the measured times, and the dimensions of the second model (a vision
  transformer of 32K tokens), are neither in the paper nor in its released code.
* The absolute days of the vision transformer: the number of its training tokens is not in the released inputs. The
  sweeps take 1.8144e12, which is 28 million samples of 64,800 tokens. It was chosen because with it the released code
  gives each of the five numbers above (2.05, 2.53, 4.28, 1.68, 1.72). Only the ratios of dsx's days are a test.
* The curves of the figures: the sources of this document are the paper's statements, its released code and inputs, not
  the data behind its figures. For A2 and A3 they state no numbers.
* Whether the paper's model is right. Only measurements can show that, and this document has none.
"""


_SAID = {YES: "reproduces", PARTLY: "reproduces in part", NO: "does not reproduce"}


def main() -> None:
    """Write or print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the document here, and figures/ next to it")
    path = parser.parse_args().write
    with tempfile.TemporaryDirectory() as scratch:
        pictures = path.parent / "figures" if path else Path(scratch)
        pictures.mkdir(parents=True, exist_ok=True)
        text = document(Runs(Path(scratch) / "sets", pictures))
    if path:
        path.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def document(runs: Runs) -> str:
    """Return the document, and draw all its pictures."""
    claims = [claim(runs) for claim in CLAIMS]
    for name in PICTURES:
        runs[name]
    parts = (_HEAD, _summary(claims), _claims(claims), _differences(claims), _pictures(claims), _NOT_TESTED)
    return "\n".join(parts)


def _summary(claims: list[Claim]) -> str:
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in (YES, PARTLY, NO)}
    return (
        f"**Of {len(claims)} claims {count[YES]} reproduce, {count[PARTLY]} in part, {count[NO]} do not.** In part "
        "means that some parts or cases\nof the claim hold by the numbers of dsx.\n"
    )


def _claims(claims: list[Claim]) -> str:
    rows = [
        (str(i), claim.statement, claim.released, claim.dsx, f"**{claim.verdict}**{_after(claim.reason)}")
        for i, claim in enumerate(claims, 1)
    ]
    return "## Claims\n\n" + _table(("", "claim of the paper", "released code", "dsx", "reproduces"), rows)


def _after(reason: str) -> str:
    return f". {reason}" if reason else ""


def _differences(claims: list[Claim]) -> str:
    rows = [difference.cells() for claim in claims for difference in claim.differences]
    return (
        "## Effect of the corrections\n\n"
        "The table has the numbers of the claims in which dsx differs from the released code, and the corrections\n"
        "that change them. These were found by applying and undoing one at a time in a copy of the formulas, which\n"
        "without any correction gives the numbers of the released code. dsx itself cannot undo them.\n\n"
        + _table(("quantity", "unit", "released code", "dsx", "difference", "changed by"), rows)
    )


def _pictures(claims: list[Claim]) -> str:
    parts = ["## Figures\n"]
    for name, (title, shows) in PICTURES.items():
        tested = [(i, claim) for i, claim in enumerate(claims, 1) if name in claim.pictures]
        verdicts = "".join(f" Claim {i} {_SAID[claim.verdict]}." for i, claim in tested)
        parts.append(f"### {title}\n\n{shows}{verdicts}\n")
        parts.append(f"![{title}](figures/{name}.png)\n\n[sweeps/{name}.yaml](../sweeps/{name}.yaml)\n")
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
