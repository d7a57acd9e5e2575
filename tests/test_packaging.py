"""The wheel holds all of data/ but data/validation, whose licences are not dsx's, and runs without the repository."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import dsx
from dsx.files import distribution, install_text

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_has_its_data_versions_and_name(monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {f"data/{path.name}" for path in (ROOT / "data").iterdir()} - included.keys() == {"data/validation"}
    assert all(target == f"dsx/{source}" for source, target in included.items())
    # ValidationInfo of pydantic is generic since 2.12.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = {name: at for name, at in (wanted.split(">=") for wanted in project["dependencies"])}
    assert lowest["pydantic"] == "2.12"
    # An extra of another name, such as that of the import, would install somebody else's package.
    extras = "|".join(project["optional-dependencies"])
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "dsx").rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    texts["dev"] = "\n".join(project["optional-dependencies"]["dev"])
    pattern = re.compile(rf"\b(dsx[\w-]*)\[(?:{extras})[\],]|pip install '([\w-]+)")
    named = {(path, found[1] or found[2]) for path, text in texts.items() for found in pattern.finditer(text)}
    assert len(named) > 5
    assert {(path, name) for path, name in named if name != project["name"]} == set()
    # What is installed knows its name.
    with pytest.raises(metadata.PackageNotFoundError):
        monkeypatch.setattr(metadata, "entry_points", lambda **only: ())
        distribution()
    monkeypatch.undo()
    assert install_text("[place]") == f"pip install '{distribution().name}[place]'"
    assert dsx.__version__ == distribution().version


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel and install it into an environment of its own; return a function that runs a command there.

    The environment finds the dependencies in this one, so that nothing is loaded but what builds the wheel.
    """
    folder = tmp_path_factory.mktemp("wheel")
    environment, here = folder / "environment", folder / "elsewhere"
    here.mkdir()
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DSX_PATH")}

    def run(*command):
        done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("dsx_explorer-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    run(*pip, "--python", str(environment / "bin" / "python"), "install", "--no-deps", str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return lambda command, *arguments: run(str(environment / "bin" / command), *arguments)


@pytest.mark.external
def test_the_wheel_is_what_runs(installed):
    name = "from dsx.files import install_text; print(install_text('[place]'))"
    assert installed("python", "-c", name) == "pip install 'dsx-explorer[place]'\n"
    show = "import dsx; from dsx.config.search_path import packaged_data; print(dsx.__file__, packaged_data())"
    for place in map(Path, installed("python", "-c", show).split()):
        assert "environment" in place.parts and not place.is_relative_to(ROOT)


@pytest.mark.external
def test_the_wheel_finds_the_best_plan(installed):
    job = ("--model", "llama-3-70b", "--cluster", "h100-nvs8", "--num-gpus", "64", "--global-batch-size", "128")
    found = json.loads(installed("dsx", "best", *job, "--json"))
    assert found["plans"][0]["plan"]["num_gpus"] == 64


@pytest.mark.external
@pytest.mark.parametrize("kind", ["models", "clusters", "strategies", "layers", "assumptions", "stacks", "frameworks"])
def test_the_wheel_lists_what_the_repository_does(installed, kind):
    of_repository = subprocess.run(
        [sys.executable, "-m", "dsx", "list", kind], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert installed("dsx", "list", kind) == of_repository.stdout


@pytest.mark.external
def test_the_wheel_imports_a_model_and_prices_it(installed, tmp_path):
    config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024, "max_position_embeddings": 128}
    config |= {"hidden_act": "silu", "tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = tmp_path / "small.yaml"
    installed("dsx", "import-hf", str(tmp_path / "config.json"), "-o", str(model))
    job = ("--cluster", "h100-nvs8", "--num-gpus", "8", "--global-batch-size", "8")
    assert "step_time_s" in installed("dsx", "evaluate", "--model", str(model), *job, "dp=8", "--json")
