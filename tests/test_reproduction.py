"""docs/reproduction.md is what benchmarks/reproduction.py writes, and its verdicts follow from numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from checkout import OPTIMISED

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "reproduction.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")


@pytest.fixture
def reproduction(benchmark_script):
    return benchmark_script("reproduction")


@pytest.fixture
def claim(benchmark_script):
    return benchmark_script("claims.claim")


def table(head):
    """The rows of the table whose head has these words, as lists of cells."""
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def claims():
    return table("|  | claim of the paper")


def verdict(row):
    return re.match(r"\*\*(\w+)\*\*", row[4])[1]


def test_claims_and_sweeps_of_the_paper(reproduction):
    assert [row[0] for row in claims()] == [str(i) for i in range(1, len(reproduction.CLAIMS) + 1)]
    for row in claims():
        assert len(row) == 5 and all(row), row
        assert verdict(row) in ("yes", "partly", "no")
        assert verdict(row) == "yes" or len(row[4]) > len("**partly**. "), f"no reason: {row}"
    # Every sweep of the paper with a plot has its picture.
    files = [*(ROOT / "sweeps").glob("figure-*.yaml"), *(ROOT / "sweeps").glob("validation-*.yaml")]
    drawn = {file.stem for file in files if "plot" in yaml.safe_load(file.read_text(encoding="utf-8"))}
    shown = re.findall(r"!\[.+?\]\(figures/(.+?)\.png\)", TEXT)
    there = {path.stem for path in (ROOT / "docs" / "figures").iterdir()}
    assert sorted(drawn) == sorted(shown) == sorted(there - of_runs())
    for name in shown:
        picture = (ROOT / "docs" / "figures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert 5_000 < len(picture) < 400_000, name


def test_the_summary_and_the_differences_are_those_of_the_rows():
    verdicts = [verdict(row) for row in claims()]
    found = re.search(r"\*\*Of (\d+) claims (\d+) reproduce, (\d+) in part, (\d+) do not.\*\*", TEXT)
    assert [int(number) for number in found.groups()] == [
        len(verdicts), *(verdicts.count(name) for name in ("yes", "partly", "no"))
    ]  # fmt: skip
    # Differences are those of the printed numbers.
    rows = table("| quantity | unit |")
    assert rows
    for _, unit, released, ours, difference, moved_by in rows:
        assert float(difference.split()[0]) == pytest.approx(float(ours) - float(released), abs=1e-9)
        assert difference.endswith(" points" if unit == "%" else " %)")
        assert re.search(r"C[1-7]", moved_by)
    # No number is missing.
    assert not re.search(r"\b(nan|inf|None)\b|np\.|\{\w+\}", TEXT)


def of_runs():
    """Return the pictures of the other document."""
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    return {*re.findall(r"\(figures/(.+?)\.png\)", text)}


@pytest.mark.parametrize(
    ("holds", "expected"), [((True, True), "yes"), ((True, False), "partly"), ((False,), "no"), ((False, False), "no")]
)
def test_a_verdict_follows_from_the_parts(claim, holds, expected):
    assert claim.Claim("a", "b", "c", holds, {expected: "because"}).verdict == expected


def test_texts_of_numbers(claim, reproduction):
    changed = claim.Claim("np = 1 is the fastest", "3.405 s", "2.9 s", (True, False), {"no": "it is slower"})
    with pytest.raises(ValueError, match=r"np = 1 is the fastest.*now 'partly'.*written for 'no'.*2\.9 s"):
        _ = changed.reason
    assert claim.Claim("a", "b", "c", (True,)).reason == ""
    # Differences of percentages are points.
    assert claim.Difference("a", "s", 8.141, 8.25738, "C1").cells()[2:5] == ("8.141", "8.257", "+0.116 (+1.4 %)")
    assert claim.Difference("a", "%", 7.6, 5.6548, "C2", 1).cells()[2:5] == ("7.6", "5.7", "-1.9 points")
    assert (claim.percent(-1e-9), claim.change(0.9999999, 1.0)) == ("0.0", "+0.0 %")
    assert (claim.span([0.137, 0.045]), claim.span([0.013])) == ("4.5-13.7 %", "1.3 %")
    systems = reproduction.many_systems
    assert systems._counts([256, 512, 1024]) == "256-1,024"
    assert systems._counts([256, 1024]) == "256, 1,024"
    assert systems._equal_blocks({128: (1, 16), 256: (2, 8), 512: (2, 8)}) == "128 (1, 16), 256-512 (2, 8)"


def test_speed_ups_and_claims_that_fail(reproduction):
    times = {"a": {"1d": 2.1, "2d": 2.0, "summa": 2.0}, "b": {"2d": 1.0, "summa": 1.0}}
    rows = pd.DataFrame(
        [(cluster, 512, s, time) for cluster, by in times.items() for s, time in by.items()],
        columns=["cluster", "num_gpus", "strategy", "step_time_s"],
    )
    gains = reproduction.many_systems._gains(rows)
    assert [*gains.index] == [("a", 512)]
    assert gains["2d"].tolist() == pytest.approx([0.05])
    # A claim can fail.
    tensor_parallelism = reproduction.one_system.tensor_parallelism
    several = pd.concat([figure_1(8), figure_1(8).assign(tp=[1, 2, 32], step_time_s=9.0)])
    assert tensor_parallelism({"figure-1": several, "figure-4a": several}).verdict == "yes"
    other = pd.concat([figure_1(4), figure_1(4).assign(tp=[1, 2, 32], step_time_s=9.0)])
    assert tensor_parallelism({"figure-1": other, "figure-4a": other}).verdict == "no"
    assert tensor_parallelism({"figure-1": several, "figure-4a": other}).verdict == "no"


def figure_1(fastest):
    """Rows of figures 1 and 4a in which the best has this tp."""
    plans = pd.DataFrame({"tp": [4, 8, 16], "pp": 64, "dp": [64, 32, 16], "microbatch_size": 1, "num_gpus": 16384})
    plans["step_time_s"] = [3.0 + (tp != fastest) for tp in plans.tp] + 0.1 * plans.index
    plans["num_microbatches"] = 4096 // plans.dp
    plans["reject"] = 0
    return plans


@pytest.mark.documents
def test_the_document_is_what_the_script_writes(tmp_path):
    written = tmp_path / "reproduction.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "reproduction.py"), "--write", str(written)]
    done = subprocess.run(command, env=os.environ | OPTIMISED, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert written.read_text(encoding="utf-8") == TEXT
    drawn, committed = ({p.stem for p in (f / "figures").iterdir()} for f in (tmp_path, DOCUMENT.parent))
    assert drawn == committed - of_runs()
