"""What gives the numbers of a report again: version, sweep file, priced files, and commands."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dsx.reporting.markup import Markup, element, folded, markup
from dsx.reporting.stated_values import assignments
from dsx.results.manifest import Manifest
from dsx.spec.what_if import field
from dsx.units import exact_quantity


def rerun(manifest: Manifest, commands: Sequence[tuple[str, str]]) -> Markup:
    """Return version and sweep, and commands that give these numbers again: what each is for, and itself."""
    shown = [markup(element("p", f"{what}:"), element("pre", command, class_="command")) for what, command in commands]
    about = f"dsx {manifest.dsx_version}, result schema {manifest.schema_version}, {manifest.precision}"
    when = f"begun {manifest.started}" + (f", finished {manifest.finished}" if manifest.finished else "")
    return markup(
        element("p", f"{about}; {when}; sweep {manifest.spec_hash[:16]}."),
        shown,
        folded("The sweep file (YAML)", element("pre", _sweep_yaml(manifest), tabindex="0", id="sweep-file")),
        folded("The files as they were priced (JSON)", element("pre", _json(manifest.spec["resolved"]), tabindex="0")),
    )


def _sweep_yaml(manifest: Manifest) -> str:
    """Return the sweep as a file that `dsx sweep` reads; what is not stated is left out."""
    stated = {key: value for key, value in manifest.spec.items() if key != "resolved" and value not in (None, {}, [])}
    return yaml.safe_dump(stated, sort_keys=False, allow_unicode=True)


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, sort_keys=True)


def sweep_command(manifest: Manifest) -> str:
    """Return the command that makes the set again from the sweep file of the page."""
    return shlex.join(["dsx", "sweep", "sweep.yaml", "-o", "results/again", *_set(assignments(manifest))])


def plan_command(manifest: Manifest, priced: Mapping[str, Any], verb: str, *options: str) -> str:
    """Return the command of a verb that takes a plan, for a plan of the set; `options` are further ones of the verb."""
    plan, spec = priced["plan"], manifest.spec
    clusters = spec["cluster"] if isinstance(spec["cluster"], list) else [spec["cluster"]]
    cluster = clusters[manifest.names["cluster"].index(priced["hardware"]["cluster"])]
    strategies = dict(zip(manifest.names["strategy"], spec["resolved"]["strategy"], strict=True))
    varied = [
        f"{name if name.startswith('assumptions.') else f'cluster.{name}'}={exact_quantity(value, field(name).unit)}"
        for name, value in priced["hardware"].items()
        if name != "cluster"
    ]
    job = {
        "model": spec["model"],
        "cluster": cluster,
        "num-gpus": plan["num_gpus"],
        "global-batch-size": plan["global_batch_size"],
        "sequence-length": plan["sequence_length"],
        "assumptions": spec["assumptions"],
        "strategy": strategies[plan["strategy"]],
        "operator-times": spec.get("operator_times") if verb == "evaluate" else None,  # launch files have no use for it
    }
    words = [word for name, value in job.items() if value is not None for word in (f"--{name}", str(value))]
    cut = [f"stage_layers={plan['stage_layers']}"] if "stage_layers" in plan else []
    told = _set([*assignments(manifest), *varied])
    return shlex.join(["dsx", verb, *words, *told, *options, *plan.text.split(), *cut])


def _set(told: Sequence[str]) -> list[str]:
    return [word for one in told for word in ("--set", one)]
