"""What the wheel holds of data/: everything but data/validation, whose licences are not dsx's."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_has_all_data_but_that_of_others():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {f"data/{path.name}" for path in (ROOT / "data").iterdir()} - included.keys() == {"data/validation"}
    assert all(target == f"dsx/{source}" for source, target in included.items())
