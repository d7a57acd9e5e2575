"""dsx as a process: exit codes, streams, signals, closed pipes, and what starting it costs."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dsx

DSX = Path(sys.executable).with_name("dsx")
# A shell that starts tests in the background makes them ignore Ctrl-C, and their children too.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
MAIN = f"{INTERRUPTIBLE}; from dsx.__main__ import main; main()"


def start(*arguments, **options):
    return subprocess.run([DSX, *map(str, arguments)], capture_output=True, text=True, **options)


def test_streams_exit_codes_and_closed_pipes(folder):
    good = start("list", "models")
    assert (good.returncode, good.stderr) == (0, "")
    bad = start("best", "--model", "gpt3-1", "--cluster", "x", "--num-gpus", 8, "--global-batch-size", 8)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("dsx: error: unknown model 'gpt3-1'; did you mean 'gpt3-1t'?")
    assert start("--version").stdout.strip() == dsx.__version__
    # A closed stdout.
    done = subprocess.run(["bash", "-c", f"{DSX} list models >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_bug_exits_with_1_and_a_traceback_only_on_request(folder):
    broken = (
        "import dsx.verbs.cli as descriptions, sys\n"
        "descriptions.print_json = None\n"
        "from dsx.verbs.process import main\n"
        "sys.argv = ['dsx', *sys.argv[1:]]\n"
        "main()"
    )
    for flags, traceback in (([], False), (["--debug"], True)):
        command = [sys.executable, "-c", broken, *flags, "list", "models", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert "dsx: internal error, please report it: TypeError" in done.stderr
        assert ("Traceback" in done.stderr) is traceback


def test_help_is_whole_and_loads_nothing_heavy():
    verbs = [
        "", "sweep", "best", "evaluate", "why", "layer", "pareto", "plot", "show", "compare", "list", "partition",
        "place",
    ]  # fmt: skip
    code = (
        "import sys; from dsx.verbs.process import main\n"
        "heavy = {'jax', 'numpy', 'pandas', 'pyarrow', 'matplotlib', 'rich'}\n"
        f"for verb in {verbs}:\n"
        "    sys.argv = ['dsx', *verb.split(), '--help']\n"
        "    try: main()\n"
        "    except SystemExit as done: print('END', done.code, *heavy & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}
    )
    assert done.returncode == 0
    ends = [line for line in done.stdout.splitlines() if line.startswith("END")]
    assert ends == ["END 0"] * len(verbs)
    assert done.stdout.count("Usage: dsx") == len(verbs)
    assert "..." not in done.stdout.replace("]...", "").replace("VALUE...", "").replace("[ARGS]...", "")


@pytest.mark.slow
def test_a_reader_that_closes_early(swept):
    command = f"{DSX} pareto {swept} --json | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{\n", "")
    assert done.returncode in (0, 128 + signal.SIGPIPE)  # 0 if the pipe could hold all of it


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout(unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [DSX, "list", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert done.stderr == "dsx: error: cannot write to stdout: No space left on device\n"


@pytest.mark.slow
def test_no_colour_and_no_bar_without_a_terminal(folder):
    done = start(
        "sweep",
        "sweep.yaml",
        "-o",
        "out",
        "--set",
        "sweep.strategy=1d",
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"},
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_no_traceback(folder):
    job = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", "8", "--global-batch-size", "8")
    ended = []
    for delay_s in (0.2, 0.6, 1.2):
        begun = subprocess.Popen(
            [sys.executable, "-c", f"print(flush=True); {MAIN}", "best", *job],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert begun.stdout.readline() == "\n"
        time.sleep(delay_s)
        begun.send_signal(signal.SIGINT)
        _, said = begun.communicate()
        assert "Traceback" not in said
        assert "internal error" not in said
        ended.append(begun.returncode)
    # Before its handlers are there a process dies of the signal, which a shell calls 130 too.
    assert set(ended) <= {-signal.SIGINT, 128 + signal.SIGINT, 0}
    assert set(ended) != {0}


RAISED = "try: signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt: raise "
DYING = "type('Dying', (), {'__del__': lambda self: signal.raise_signal(signal.SIGINT)})()"


@pytest.mark.parametrize(
    ("main", "body", "code"),
    [
        ("dsx.verbs.process", "signal.raise_signal(signal.SIGINT)", 128 + signal.SIGINT),
        ("dsx.__main__", f"{RAISED}ImportError('half a module')", 128 + signal.SIGINT),
        ("dsx.__main__", f"{RAISED}KeyboardInterrupt", 128 + signal.SIGINT),
        ("dsx.__main__", f"{DYING}\n    print('went on')", -signal.SIGINT),  # in a destructor it is not forgotten
    ],
)
def test_ctrl_c_ends_quietly_where_and_as_what_it_arrives(folder, main, body, code):
    load = f"def load(*arguments):\n    {body}\nmodel.stated_document = load"
    script = f"{INTERRUPTIBLE}; import dsx.config.model_file as model\n{load}\nfrom {main} import main; main()"
    job = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", "8", "--global-batch-size", "8")
    done = subprocess.run([sys.executable, "-c", script, "best", *job], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert not done.stderr if main == "dsx.__main__" else "Traceback" not in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("verb", [("list", "models"), ("best", "--model", "small.yaml"), ("show", "a"), ("sweep", "s")])
def test_a_working_directory_that_is_gone(tmp_path, verb):
    (tmp_path / "gone").mkdir()
    job = ("--cluster", "b200-nvs8", "--num-gpus", "8", "--global-batch-size", "8") if verb[0] == "best" else ()
    command = shlex.join([str(DSX), *verb, *job])
    done = subprocess.run(
        f"cd gone; rmdir ../gone; {command}", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert done.returncode == (0 if verb[0] == "list" else 2)
