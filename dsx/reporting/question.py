"""The question that a result set answers, in a sentence, and what was searched for the answer."""

from collections.abc import Sequence
from typing import Any

from dsx.display.job_text import only_text, steps_text
from dsx.display.manifest_text import kept_text, title_of, what_if_values
from dsx.display.quantities import hardware_text
from dsx.printable import printable
from dsx.results.manifest import Manifest
from dsx.units import counted


def question_text(manifest: Manifest) -> str:
    """Return "Which plan trains MODEL (70.6 billion parameters) fastest on 512 GPUs of CLUSTER, with ...?"."""
    sweep, resolved = manifest.sweep, manifest.spec["resolved"]
    parameters = resolved["model"].get("parameters")
    size = f" ({_billions(parameters)} parameters)" if parameters else ""
    gpus = _range([f"{number:,}" for number in sweep.num_gpus])
    clusters = " or ".join(cluster.label for cluster in sweep.resolved.clusters)
    step = steps_text(sweep.global_batch_size, sweep.tokens)
    single = len(sweep.num_gpus) == 1 and len(sweep.global_batch_size) == 1
    how = "fastest" if single else "with the most tokens a second and GPU"
    return printable(
        f"Which plan trains {sweep.resolved.model.name}{size} {how} on {gpus} GPUs of {clusters}, with {step}?"
    )


def heading_text(manifest: Manifest) -> str:
    """Return the title of the page."""
    return title_of(manifest)


def searched_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what the sweep searched, by name: strategies, restrictions, what-ifs, and the rows that it kept."""
    sweep, spec = manifest.sweep, manifest.spec
    framework = spec["resolved"].get("framework")
    varied = [
        (name, ", ".join(hardware_text(name, value) for value in values))
        for name, values in what_if_values(manifest).items()
    ]
    return [
        ("strategies", ", ".join(manifest.names["strategy"])),
        ("framework", str(framework.get("name", "")) if isinstance(framework, dict) else str(framework or "")),
        ("restricted to", only_text(sweep.fix, _limits(spec.get("limit") or {}))),
        *varied,
        ("stages", "the optimal cut of each plan" if sweep.partition == "optimal" else "even"),
        ("rows kept", kept_text(manifest)),
        ("training", f"{counted(round(sweep.train_tokens), 'token')}" if sweep.train_tokens else ""),
    ]


def _limits(limit: dict[str, Any]) -> dict[str, Sequence[str]]:
    return {name: [bounds] if isinstance(bounds, str) else [*map(str, bounds)] for name, bounds in limit.items()}


def _range(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _billions(count: float) -> str:
    return f"{count / 1e12:.3g} trillion" if count >= 1e12 else f"{count / 1e9:.3g} billion"
