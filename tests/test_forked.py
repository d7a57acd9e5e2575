"""Work in a forked process: in a process of its own, since that of the tests has loaded JAX and does not fork."""

import os
import subprocess
import sys

import pytest

from dsx.forked import forked

ASKED = """
import os, sys
from dsx.forked import forked
assert "jax" not in sys.modules

def product(asked, factor):
    number, stops = asked()
    if stops and os.getpid() != caller:
        os._exit(1)
    if number < 0:
        raise ValueError(number)
    return factor * number, os.getpid() != caller

caller = os.getpid()
"""


def told(code):
    done = subprocess.run([sys.executable, "-c", ASKED + code], capture_output=True, text=True, check=False)
    early = ("placed as launched takes less than", "placed as launched is faster than")  # told on a busy machine
    other = [line for line in done.stderr.splitlines() if not any(words in line for words in early)]
    assert not other, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core has nothing beside it")
def test_a_forked_process_has_the_values_that_it_is_asked_with():
    told_by_both = told("with forked(product, 3) as beside: beside.tell(14, False); print(*beside.result())")
    assert told_by_both == ["42", "True"]


def test_a_process_that_ends_leaves_the_work_to_its_caller():
    assert told("with forked(product, 3) as beside: beside.tell(14, True); print(*beside.result())") == ["42", "False"]


@pytest.mark.parametrize("stops", [False, True])
def test_it_is_told_values_one_after_the_other(stops):
    code = "def both(asked): return [*product(asked, 3), *asked()]\n"
    code += f"with forked(both) as beside:\n  beside.tell(14, {stops})\n  beside.tell(15)\n  print(*beside.result())"
    assert told(code) == ["42", str(not stops), "15"]


@pytest.mark.slow
def test_a_result_that_is_there_before_it_is_asked_for():
    code = "import signal, time\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    code += "with forked(lambda _: os.getpid() != caller) as beside:\n  time.sleep(1)\n"
    code += "  beside.tell(1)\n  print(beside.result())"
    assert told(code) == ["True"]


def test_an_error_is_raised_by_the_caller_alone():
    code = "with forked(product, 3) as beside:\n  beside.tell(-1, False)\n"
    code += "  try: beside.result()\n  except ValueError as error: print(error)"
    assert told(code) == ["-1"]


def test_the_process_ends_with_the_body():
    code = "import multiprocessing\nwith forked(product, 3): pass\nprint(len(multiprocessing.active_children()))"
    assert told(code) == ["0"]


def test_nothing_forks_where_jax_is_loaded():
    with forked(lambda asked, factor: (factor * asked()[0], os.getpid()), 3) as beside:
        beside.tell(14)
        assert beside.result() == (42, os.getpid())


@pytest.mark.slow
def test_a_plan_is_priced_and_searched_without_jax():
    code = "import dsx\njob = dsx.Job('llama-3-8b', 'h100-nvs8', num_gpus=8, global_batch_size=16)\n"
    code += "found = dsx.best(job, fix='tp=2 microbatch_size=1 pp=1 offload=none', watch=lambda *_: None)\n"
    code += "dsx.evaluate(job, found.plan)\nprint('jax' in sys.modules)"
    assert told(code) == ["False"]


def test_the_command_line_searches_without_what_takes_long_to_load():
    job = "best --model llama-3-8b --cluster h100-nvs8 --num-gpus 8 --global-batch-size 16 --fix tp=2 --fix pp=1 --json"
    code = f"import runpy\nsys.argv = ['dsx', *{job!r}.split()]\n"
    code += "try: runpy.run_module('dsx', run_name='__main__')\n"
    code += "except SystemExit: print('loaded:', *{'jax', 'pandas', 'pyarrow', 'matplotlib'} & set(sys.modules))"
    assert told(code)[-1] == "loaded:"
