"""Time what a user waits for: whole commands, beside the start of a process that imports JAX and pandas.

    python benchmarks/answers.py [--write|--check docs/performance.md]

The median of three runs after one that is not counted, all in turn. Searches, with the seconds until they tell of their
first plan, then an evaluation and an explanation of a plan. Python's own byte code is there already, as after an
installation.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from sections import check_speeds, ratios, table, write_section

QUESTIONS = {
    "Llama-3 70B on 1,024 H100": "llama-3-70b h100-nvs8 1024 1024 8192",
    "Llama-3 405B on 16,384 H100": "llama-3-405b h100-nvs8 16384 2048 8192",
    "DeepSeek-V3 on 2,048 H800": "deepseek-v3 h800-nvs8 2048 15360 4096",
}
PLAN = ("llama-3-70b h100-nvs8 1024 1024 8192", ("tp=8", "pp=4", "dp=32"))
RUNS = 3
_OPTIONS = ("--model", "--cluster", "--num-gpus", "--global-batch-size", "--sequence-length")


class Waited(NamedTuple):
    """What somebody waits for in a run of a command."""

    seconds: float
    first_s: float  # until something is told
    answer: str


def waited(*command: str) -> Waited:
    """Run a command of Python."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as answer_file,
        subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=answer_file, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        told = ("a plan takes", "is faster than")
        told_s = [time.perf_counter() - started for line in process.stderr if any(words in line for words in told)]
        process.wait()
        seconds = time.perf_counter() - started
        answer_file.seek(0)
        answer = answer_file.read()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return Waited(seconds, min([*told_s, seconds]), answer)


def asked(verb: str, question: str, *plan: str) -> tuple[str, ...]:
    """Return the command of a question."""
    settings = [word for pair in zip(_OPTIONS, question.split(), strict=True) for word in pair]
    return ("-m", "dsx", verb, *settings, *plan, "--json")


def main() -> None:
    """Time all questions, and write or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE", help="fail if an answer is slower than this file says")
    options = parser.parse_args()
    question, plan = PLAN
    commands = {"import jax, pandas": ("-c", "import jax, pandas")}
    commands |= {f"dsx {verb}": asked(verb, question, *plan) for verb in ("evaluate", "why")}
    commands |= {name: asked("best", question) for name, question in QUESTIONS.items()}
    runs = {name: [waited(*command) for _ in range(1 + RUNS)][1:] for name, command in commands.items()}
    seconds = {name: statistics.median(run.seconds for run in of_name) for name, of_name in runs.items()}
    start_s = seconds["import jax, pandas"]
    rows, verbs = [], []
    for name, of_name in runs.items():
        ratio = f"{seconds[name] / start_s:.2f}"
        if name not in QUESTIONS:
            verbs.append([f"`{name}`", f"{seconds[name]:.2f}", ratio])
            continue
        answer = json.loads(of_name[0].answer)
        first_s = statistics.median(run.first_s for run in of_name)
        numbers = [f"{answer[count]:,}" for count in ("candidates", "priced", "cut")]
        rows.append([name, *numbers, f"{first_s:.2f}", f"{seconds[name]:.2f}", f"{first_s / start_s:.2f}", ratio])
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    head = ["`dsx best`", "plans", "priced", "of them cut", "first plan, s", "answer, s", "first plan", "ratio"]
    about = f"{os.cpu_count()} cores, peak memory {memory:.1f} GB. Ratios are to `import jax, pandas`."
    one_plan = table(["one plan of Llama-3 70B", "seconds", "ratio"], verbs, 2)
    text = f"{about}\n\n{table(head, rows, numbers=7)}\n{one_plan}"
    print(text)
    if options.check:
        written = {name: 1.0 / times for name, times in ratios(options.check, "answers", "ratio").items()}
        check_speeds(written, {name.strip("`"): start_s / seconds[name] for name in seconds})
    if options.write:
        write_section(options.write, "answers", text)


if __name__ == "__main__":
    main()
