"""Configs of published checkpoints, and variants of them in a file."""

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "published"
NAMES = sorted(file.stem for file in CONFIGS.glob("*.json"))


def published(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def write(folder: Path, base: str, without: tuple[str, ...] = (), **changes: Any) -> Path:
    """Write the config `base` with changes, and without some keys, to config.json in `folder`."""
    data = {key: value for key, value in published(base).items() if key not in without} | changes
    file = folder / "config.json"
    file.write_text(json.dumps(data, indent=2))
    return file
