"""Time what a user waits for: whole `dsx best` commands, in an empty cache of compiled code and in a filled one.

python benchmarks/answers.py [--write docs/performance.md]
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

from sections import table, write_section

QUESTIONS = {
    "Llama-3 405B on 16,384 H100": "llama-3-405b h100-nvs8 16384 2048 8192",
    "DeepSeek-V3 on 2,048 H800": "deepseek-v3 h800-nvs8 2048 15360 4096",
    "Llama-3 70B on 512 H100": "llama-3-70b h100-nvs8 512 1024 8192",
}
_OPTIONS = ("--model", "--cluster", "--num-gpus", "--global-batch-size", "--sequence-length")


def asked(question: str, cache: str) -> tuple[float, dict[str, int]]:
    """Return the seconds of a command, and its counts."""
    settings = [word for pair in zip(_OPTIONS, question.split(), strict=True) for word in pair]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "dsx", "best", *settings, "--json"],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started, json.loads(done.stdout)


def main() -> None:
    """Time all questions, and write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    file = parser.parse_args().write
    rows = []
    for name, question in QUESTIONS.items():
        with tempfile.TemporaryDirectory() as cache:
            cold, counts = asked(question, cache)
            warm, _ = asked(question, cache)
        numbers = (counts["candidates"], counts["priced"], counts["cut"])
        rows.append([name, *(f"{number:,}" for number in numbers), f"{cold:.1f}", f"{warm:.1f}"])
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    head = ["question", "plans", "priced", "of them cut", "seconds, empty cache", "seconds, filled cache"]
    text = f"{os.cpu_count()} cores, peak memory {memory:.1f} GB\n\n{table(head, rows, numbers=5)}"
    if file is None:
        print(text)
    else:
        write_section(file, "answers", text)


if __name__ == "__main__":
    main()
