"""Time what a user waits for: whole commands, in an empty cache of compiled code and in a filled one.

    python benchmarks/answers.py [--write docs/performance.md]

Searches, then an evaluation and an explanation of a plan with the seconds of their imports. Python's own byte code is
there already, as after an installation.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sections import table, write_section

QUESTIONS = {
    "Llama-3 405B on 16,384 H100": "llama-3-405b h100-nvs8 16384 2048 8192",
    "DeepSeek-V3 on 2,048 H800": "deepseek-v3 h800-nvs8 2048 15360 4096",
    "Llama-3 70B on 512 H100": "llama-3-70b h100-nvs8 512 1024 8192",
}
PLAN = ("llama-3-70b h100-nvs8 512 1024 8192", ("tp=8", "pp=4", "dp=16"))
_OPTIONS = ("--model", "--cluster", "--num-gpus", "--global-batch-size", "--sequence-length")


def asked(cache: str, verb: str, question: str, *plan: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a command, and its answer."""
    settings = [word for pair in zip(_OPTIONS, question.split(), strict=True) for word in pair]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "dsx", verb, *settings, *plan, "--json"],
        env=_environment(cache),
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started, json.loads(done.stdout)


def imports_s(module: str) -> float:
    """Return the seconds of a process that only imports a module."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], env=_environment(""), check=True)
    return time.perf_counter() - started


def _environment(cache: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return known | {"XDG_CACHE_HOME": cache}


def _of_one_plan() -> str:
    """Return the seconds of the verbs of one plan as a table, with those of the imports that they need."""
    question, plan = PLAN
    rows = []
    for verb in ("evaluate", "why"):
        with tempfile.TemporaryDirectory() as cache:
            rows.append([f"`dsx {verb}`", *(f"{asked(cache, verb, question, *plan)[0]:.1f}" for _ in range(2))])
    imports = [imports_s(name) for name in ("sys", "numpy", "jax", "dsx.verbs.evaluate")]
    names = ("nothing", "numpy", "jax, with numpy", "all that an evaluation needs")
    rows += [[f"import of {name}", "", f"{seconds:.1f}"] for name, seconds in zip(names, imports, strict=True)]
    return table(["one plan of Llama-3 70B on 512 H100", "seconds, empty cache", "seconds, filled cache"], rows, 2)


def main() -> None:
    """Time all questions, and write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    file = parser.parse_args().write
    question, plan = PLAN
    with tempfile.TemporaryDirectory() as cache:
        asked(cache, "evaluate", question, *plan)  # writes byte code
    rows = []
    for name, question in QUESTIONS.items():
        with tempfile.TemporaryDirectory() as cache:
            cold, counts = asked(cache, "best", question)
            warm, _ = asked(cache, "best", question)
        numbers = (counts["candidates"], counts["priced"], counts["cut"])
        rows.append([name, *(f"{number:,}" for number in numbers), f"{cold:.1f}", f"{warm:.1f}"])
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    head = ["question", "plans", "priced", "of them cut", "seconds, empty cache", "seconds, filled cache"]
    text = f"{os.cpu_count()} cores, peak memory {memory:.1f} GB\n\n{table(head, rows, numbers=5)}\n{_of_one_plan()}"
    if file is None:
        print(text)
    else:
        write_section(file, "answers", text)


if __name__ == "__main__":
    main()
