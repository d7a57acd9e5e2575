"""The commands of the pages, run in this process; each once, since pages share them."""

import contextlib
import functools
import io
import json
import shlex

from dsx.errors import NothingFeasible
from dsx.verbs.cli import app

JOB = "--model llama-3-70b --cluster h100-nvs8 --num-gpus 256 --global-batch-size 256"
PLAN = f"dsx evaluate {JOB} tp=8 pp=4 dp=8"


@functools.cache
def printed(command):
    """Return what a command line prints, also one whose plan is rejected."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(NothingFeasible):
        app(shlex.split(command)[1:], standalone_mode=False)
    return out.getvalue()


def found(command):
    """Return the JSON of a command line."""
    return json.loads(printed(f"{command} --json"))
