"""What the fuzzer found in command lines, as cases; what it found in files stands beside the tests of their readers."""

import os

import pytest

LONG = "a" * 10_000  # no file has a name as long as that
JOB = ("--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 8, "--assumptions", "paper-2410.00273")


@pytest.mark.parametrize(
    "arguments",
    [
        ("why", LONG, "1"),
        ("show", LONG),
        ("compare", LONG, LONG),
        ("pareto", LONG),
        ("plot", LONG, "--kind", "front", "-o", "a.png"),
        ("validate", "runs.csv", "-o", LONG),
        ("calibrate", "runs.csv", "-o", f"{LONG}.yaml"),
        ("import-hf", "config.json", "-o", f"{LONG}.yaml"),
        ("sweep", f"{LONG}.yaml"),
        ("best", "--model", f"{LONG}.yaml", *JOB),
        ("best", "--model", "small.yaml", *JOB, "--operator-times", LONG),
        ("partition", "--model", "small.yaml", *JOB, "--plot", f"{LONG}.png"),
        ("layer", f"./{LONG}.layer"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_names_that_no_file_can_have(run, folder, arguments):
    (folder / "runs.csv").write_text("id\n")
    before = sorted(os.listdir(folder))
    done = run(*arguments)
    assert done.code == 2
    assert done.err.startswith("dsx: error: ")
    assert len(done.err) < 30_000
    assert sorted(os.listdir(folder)) == before


def test_a_formula_that_python_only_warns_of(run, folder):
    (folder / "families").mkdir()
    (folder / "families" / "mine.yaml").write_text("extends: llama\ndimensions: {e: 1 if hidden_size else2}\n")
    (folder / "config.json").write_text('{"model_type": "mine"}')
    done = run("import-hf", "config.json")
    assert done.code == 2
    assert "SyntaxWarning" not in done.err
