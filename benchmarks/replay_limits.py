"""Plans whose steps take longer or shorter in a replay than priced, by the host's issue: a section of limits.md.

    python benchmarks/replay_limits.py --write docs/model/limits.md

Each is replayed as it is and without the host's issue, which leaves what else differs.
"""

import argparse
import logging
import tempfile
from pathlib import Path

from sections import table, write_section

import dsx

_NO_HOST = ["assumptions.dispatch_latency=0 s"]
# Model, GPUs, batch, tokens of a sequence (None: those of the model), strategy, plan.
PLANS = (
    ("mamba2-2.7b", 8, 64, None, "1d", "dp=8"),
    ("mpt-125m", 8, 32, None, "1d", "pp=4 dp=2"),
    ("mpt-125m", 8, 32, None, "1d", "dp=8 zero_stage=3"),
    ("llama-3-8b", 8, 16, 4096, "summa", "tp=4 tp2=2 panels=4"),
    ("mpt-125m", 8, 32, None, "summa", "tp=2 tp2=2 dp=2 panels=2"),
    ("llama-3-8b", 8, 16, 8192, "2d-ring", "cp=4 dp=2"),
    ("llama-3-8b", 8, 16, 2048, "2d-ring", "cp=4 dp=2"),
    ("mpt-125m", 8, 32, None, "2d-ring", "cp=4 dp=2"),
)


def difference(model: str, num_gpus: int, batch: int, tokens: int | None, strategy: str, plan: str, host: bool) -> str:
    """Return the step of a replay over that which is priced, less 1, in percent."""
    job = dsx.Job(model, "h100-nvs8", num_gpus, batch, tokens, set=None if host else _NO_HOST)
    priced = dsx.evaluate(job, plan, strategy=strategy)
    with tempfile.TemporaryDirectory() as folder:
        dsx.trace.write(job, plan, strategy=strategy, out=Path(folder) / "trace", durations=False, portable=False)
        found = dsx.trace.replay(Path(folder) / "trace", job.cluster, job.assumptions)
    return f"{100 * (found.step_time_s / priced.step_time_s - 1):+.1f} %"


def main() -> None:
    """Print the table, or write it into the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    logging.getLogger("dsx").setLevel(logging.ERROR)
    rows = [
        [model, f"`{plan}` ({strategy}{'' if tokens is None else f', {tokens:,} tokens'})"]
        + [difference(model, num_gpus, batch, tokens, strategy, plan, host) for host in (True, False)]
        for model, num_gpus, batch, tokens, strategy, plan in PLANS
    ]
    text = table(["model", "plan", "replay", "without the host"], rows, numbers=2)
    if options.write:
        write_section(options.write, "replay_limits", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
