"""The example of the document: what the command prints, and its picture."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COMMAND = "dsx place examples/steps/fnet.py:fnet --devices 4 --inter 400GB/s --time-limit 20s"
_FIGURE = "docs/placement.png"


def text() -> str:
    """Run the command, which draws its picture too; return both as a console shows them."""
    words = f"{_COMMAND} --plot {_FIGURE}".split()
    command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return f"```console\n$ {' '.join(words)}\n{done.stdout.strip()}\n```\n"
