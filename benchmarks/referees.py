"""Freeze what dsx answers, and hold the answers of another tree against it.

    python benchmarks/referees.py freeze FOLDER [PATTERN ...]          in the tree to compare with
    python benchmarks/referees.py compare FOLDER [PATTERN ...]         in the changed one

A change of structure changes no answer. referees.yaml lists the answers: every column of drawn plans (float64), the
fastest plans of searches, swept sets, predictions of measured runs, traces, and what each verb prints and writes. It is
asked through the command line and `dsx.sweep`, so trees of any structure can be compared. A file of FOLDER is one case;
a pattern takes those cases whose names match it, as in 'columns/*'.

A comparison prints each difference and the largest one in numbers, which may be 1e-12. Of plans whose times are within
0.1 % any may come first. Differences that are wanted are listed in referee_differences.yaml, each with its reason.
"""

import argparse
import fnmatch
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import dsx

ROOT = Path(__file__).parents[1]
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
WANTED = yaml.safe_load((Path(__file__).parent / "referee_differences.yaml").read_text(encoding="utf-8")) or []
TOLERANCE = 1e-12
TIE = 1e-3

_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00")
_TIMED = ("manifest.json", ".html")  # files that have the time in them
_PROGRESS = re.compile(r"so far$| left$|: (a|the fastest) plan takes ")  # lines that depend on how fast the machine is

Answer = Any  # plain data: what JSON can say
Ask = Callable[[Path], Answer]  # given an empty folder to work in


def cases() -> dict[str, Ask]:
    """Return what asks for each answer, by name."""
    jobs = TABLE["answers"] | TABLE["searches"]
    return {
        **{f"columns/{name}": partial(drawn_plans, name, sweep) for name, sweep in TABLE["spaces"].items()},
        **{f"answers/{name}": partial(printed, best(*job)) for name, job in TABLE["answers"].items()},
        **{f"searches/{name}": partial(printed, f"{best(*job)} --top 20") for name, job in jobs.items()},
        **{f"swept/{name}": partial(swept, name) for name in TABLE["swept"]},
        **{f"runs/{Path(name).stem}": partial(predictions, name) for name in TABLE["runs"]},
        **{f"traces/{name}": partial(traced, words) for name, words in TABLE["traces"].items()},
        **{f"verbs/{name}": partial(printed, words) for name, words in TABLE["verbs"].items()},
    }


def best(model: str, cluster: str, gpus: int, batch: int, tokens: int, options: str = "") -> str:
    """Return the command that searches the plans of a job."""
    job = f"--model {model} --cluster {cluster} --num-gpus {gpus} --global-batch-size {batch}"
    return f"best {job} --sequence-length {tokens} {options}".strip()


def drawn_plans(cluster: str, sweep: Mapping[str, object], _: Path) -> Answer:
    """Return every column of plans of each strategy, drawn by a hash of their ids."""
    everything = {"strategy": TABLE["strategies"], "framework": "any", "precision": "float64", "keep": "all"}
    frame = dsx.sweep({"cluster": cluster, **everything, **sweep}).frame
    drawn = frame["candidate"].map(lambda plan: hashlib.sha256(str(plan).encode()).hexdigest())
    order = frame.assign(drawn=drawn).sort_values("drawn").groupby("strategy", observed=True).head(TABLE["plans"])
    return columns(order.drop(columns="drawn").sort_values("candidate"))


def swept(name: str, work: Path) -> Answer:
    """Return every column of the rows of a swept set, sorted by id."""
    run(f"sweep sweeps/{name}.yaml -o set", work)
    return columns(dsx.load(work / "set").sort_values(["candidate", "num_gpus", "global_batch_size"]))


def columns(frame: pd.DataFrame) -> Answer:
    """Return the columns of a frame as lists."""
    return {str(name): frame[name].tolist() for name in frame}


def predictions(name: str, work: Path) -> Answer:
    """Return what is predicted for each row of a table of measured runs."""
    run(f"validate {name} -o rows.csv", work)
    return columns(pd.read_csv(work / "rows.csv", keep_default_na=False, dtype=str))


def traced(words: str, work: Path) -> Answer:
    """Return the hash of each file of a trace."""
    run(f"trace write {filled(words)} --ranks stages -o trace", work)
    return hashes(work / "trace")


def printed(words: str, work: Path) -> Answer:
    """Return what a command prints, as data and as text, and the hashes of the files that it writes."""
    if "{set}" in words:
        run(f"sweep sweeps/{TABLE['swept'][0]}.yaml -o set", work)
    if "{trace}" in words:
        run(f"trace write {filled(next(iter(TABLE['traces'].values())))} -o trace", work)
    before = set(hashes(work))
    command = filled(words).replace("{set}", "set").replace("{trace}", "trace")
    data = run(f"{command} --json", work)
    files = {name: digest for name, digest in hashes(work).items() if name not in before}
    answer = {"exit": data.returncode, "json": json.loads(data.stdout) if data.stdout else None, "files": files}
    if words.startswith("best ") and "--top" in words:
        return answer  # its text says less
    text = run(command, work)
    remarks = [line for line in text.stderr.splitlines() if not _PROGRESS.search(line)]
    return answer | {"text": text.stdout.splitlines(), "remarks": remarks}


def filled(words: str) -> str:
    """Return a command with the options of the job that it names."""
    return re.sub(r"\{(\w+)\}", lambda found: TABLE["jobs"].get(found[1], found[0]), words)


def run(words: str, work: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of dsx in a folder that shows the files of the repository."""
    for name in ("data", "examples", "sweeps", "tests"):
        if not (work / name).exists():
            (work / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "dsx", *shlex.split(words)]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)


def hashes(folder: Path) -> dict[str, str]:
    """Return a hash of each file below a folder, but of those that have the time in them."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(_TIMED))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def differences(place: str, old: Answer, new: Answer) -> Iterator[tuple[str, float]]:
    """Yield the places where two answers differ, each with the relative difference (infinite if it is no number)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            if key not in old or key not in new:
                yield f"{place}.{key} {'is new' if key in new else 'is missing'}", math.inf
            else:
                yield from differences(f"{place}.{key}", old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        if _plans(old) and _plans(new):
            old, new = _without_ties(old), _without_ties(new)
        for row, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from differences(f"{place}[{row}]", was, now)
    elif _number(old) and _number(new):
        if old != new and not (old != old and new != new):
            yield f"{place}: {old!r} is now {new!r}", abs(new - old) / max(abs(old), abs(new))
    elif old != new:
        yield f"{place}: {old!r} is now {new!r}", math.inf


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plans(rows: list[Any]) -> bool:
    return bool(rows) and all(isinstance(row, dict) and "step_time_s" in row and "plan" in row for row in rows)


def _without_ties(plans: list[Any]) -> list[Any]:
    """Return plans by time, those of one time (0.1 %) by their ids."""
    group, order, last = 0, [], plans[0]["step_time_s"]
    for plan in plans:
        group, last = (group, last) if plan["step_time_s"] <= last * (1 + TIE) else (group + 1, plan["step_time_s"])
        order.append((group, plan["plan"]["candidate"]))
    return [plan for _, plan in sorted(zip(order, plans, strict=True), key=lambda pair: pair[0])]


def wanted(place: str) -> bool:
    """Return whether a difference is listed as one that is wanted."""
    return any(fnmatch.fnmatch(place, difference["where"]) for difference in WANTED)


def ask(name: str, asking: Ask) -> Answer:
    """Return the answer of a case, as JSON gives it back."""
    with tempfile.TemporaryDirectory() as work:
        answer = asking(Path(work))
    return json.loads(_TIME.sub("TIME", json.dumps(answer, default=_plain).replace(str(ROOT), ".")))


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else str(value)


def main() -> None:
    """Freeze or compare; exit with 1 if there is a difference that nobody wants."""
    parser = argparse.ArgumentParser(description="Freeze the answers of dsx, or compare them with frozen ones.")
    parser.add_argument("action", choices=("freeze", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*", default=["*"])
    arguments = parser.parse_args()
    chosen = {
        name: asking
        for name, asking in cases().items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in arguments.patterns)
    }
    unequal = 0
    with ThreadPoolExecutor(2) as pool:
        for name, answer in zip(chosen, pool.map(ask, chosen, chosen.values()), strict=True):
            file = arguments.folder / f"{name}.json"
            if arguments.action == "freeze":
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(answer), encoding="utf-8")
                print(name, flush=True)
                continue
            found = list(differences(name, json.loads(file.read_text(encoding="utf-8")), answer))
            large = [place for place, size in found if size > TOLERANCE and not wanted(place)]
            unequal += len(large)
            rounding = max((size for _, size in found if size <= TOLERANCE), default=0.0)
            print(
                f"{name}: {len(large)} differences, {rounding:.0e} in other numbers",
                *large[:20],
                sep="\n    ",
                flush=True,
            )
    sys.exit(unequal > 0)


if __name__ == "__main__":
    main()
