"""The input files of a problem: found by name, changed by overrides, and validated.

Layer definitions may be in the folder of the file that names them: the sweep file, else the model file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from dsx.api.device_remarks import cluster_remarks
from dsx.api.unusual_values import unusual_cluster
from dsx.errors import SpecError, did_you_mean
from dsx.graph.model import layer_check
from dsx.remarks import warn
from dsx.space.choices import SEARCHED_COLUMNS
from dsx.space.frameworks import read_framework
from dsx.spec.assumptions import AssumptionsSpec, load_assumptions
from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.framework import FrameworkSpec
from dsx.spec.load import Given, Spec
from dsx.spec.locate import is_path
from dsx.spec.model import ModelSpec, load_model
from dsx.spec.operator_times import OperatorTimes, read_operator_times
from dsx.spec.overrides import Assignment, split
from dsx.spec.sweep import SweepSpec

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Inputs:
    """The validated files of a problem; the folder of the file `near` may have layer definitions."""

    model: ModelSpec
    cluster: ClusterSpec
    assumptions: AssumptionsSpec
    near: Path | None = None
    operator_times: OperatorTimes | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the files as plain data; `operator_times` only if there are any."""
        data = {name: getattr(self, name).model_dump(mode="json") for name in ("model", "cluster", "assumptions")}
        return data | ({"operator_times": self.operator_times.to_data()} if self.operator_times else {})

    def run_by(self, framework: FrameworkSpec) -> "Inputs":
        """Return the files for plans of a framework, which are priced as it runs them."""
        return replace(self, assumptions=self.assumptions.run_by(framework, self.cluster.device.family))

    @classmethod
    def from_data(cls, data: dict[str, Any], near: Path | None) -> "Inputs":
        """Return the inputs that `to_data` wrote."""
        return cls(
            ModelSpec.model_validate(data["model"]),
            ClusterSpec.model_validate(data["cluster"]),
            AssumptionsSpec.model_validate(data["assumptions"]),
            near,
            OperatorTimes.from_data(data["operator_times"]) if "operator_times" in data else None,
        )

    def problem(
        self,
        strategies: Sequence[str],
        sequence_length: int | None,
        train_tokens: float | None = None,
        partition: str = "even",
    ) -> "Problem":
        """Return the problem of these files; by default under the default strategy of the assumption set."""
        from dsx.pricing.problem import make_problem  # imports JAX, which a job alone does not need

        chosen = [*strategies] or [self.assumptions.default_strategy]
        return make_problem(
            self.model,
            self.cluster,
            self.assumptions,
            chosen,
            sequence_length,
            train_tokens,
            self.near,
            self.operator_times,
            partition,
        )


# Fields of a sweep that are options of the verbs that read no sweep.
_OPTIONS = ("model", "cluster", "assumptions", "num_gpus", "global_batch_size", "sequence_length", "strategy")
_OPTIONS += ("operator_times",)


def split_overrides(assignments: Sequence[str] | None) -> dict[str, list[Assignment]]:
    """Return ``--set`` assignments by target, for a verb that reads no sweep; SpecError if one is for a sweep."""
    overrides = split(assignments or ())
    for path, value in overrides["sweep"]:
        raise SpecError(f"--set sweep.{path}={value}: no sweep is read here; {_advice(path, value)}")
    return overrides


def _advice(path: str, value: str) -> str:
    """Return what to give in place of a field of a sweep."""
    section, _, column = path.partition(".")
    if path in _OPTIONS:
        return f"give an option, such as --{path.replace('_', '-')} {quote(value)}"
    if section == "fix" and column:
        name = f"nvs.{column.removesuffix('_nvs')}" if column.endswith("_nvs") else column
        if not value.startswith("["):
            fixed = (
                f"--set assumptions.fixed.{column}={value}" if column in SEARCHED_COLUMNS else f"--fix {name}={value}"
            )
            return f"a plan takes {name}={value}; a search takes {fixed}"
    if section == "limit" and column and not value.startswith("["):
        return f"a search takes --limit {quote(f'{column}{value}')}"
    fields = [*SweepSpec.model_fields]
    if section not in fields:
        return f"and a sweep has no field {section!r}{did_you_mean(section, fields)}"
    return f"write a sweep file of this search, and run dsx sweep FILE --set {quote(f'sweep.{path}={value}')}"


def file_of(model: Given) -> Path | None:
    """Return the file of a model given by its path; its folder may have layer definitions. None for any other model."""
    return Path(model) if isinstance(model, str | Path) and is_path(str(model), ".yaml") else None


def of_its_framework(assumptions: AssumptionsSpec, generation: str | None, near: Path | None = None) -> AssumptionsSpec:
    """Return an assumption set for plans of its framework, on devices of a generation."""
    named = assumptions.of_framework
    framework = read_framework(named, near) if isinstance(named, str) else named
    return (
        assumptions.run_by(framework, generation) if framework is not named or framework.on_generation else assumptions
    )


def load_inputs(
    model: Given,
    cluster: Given,
    assumptions: Given,
    overrides: Mapping[str, Sequence[Assignment]],
    near: Path | None = None,
    operator_times: str | Path | None = None,
) -> Inputs:
    """Load the files of a problem; warn of a set that is not calibrated, or not for the device.

    The assumption set is that for plans of its framework. `near` is the file that names the files.

    Raises SpecError if `overrides` change the machine and there are operator times, which hold for one machine.
    """
    of_machine = [one for one in overrides["cluster"] if one[0].split(".")[0] not in ClusterSpec.of_operation]
    if operator_times is not None and of_machine:
        path, value = of_machine[0]
        raise SpecError(
            f"--set cluster.{path}={value}: operator times are measured on one machine, and {operator_times} has none "
            "of the changed one; leave out one of them"
        )
    layers_near = near or file_of(model)

    def given(spec: Given, target: str, kind: type[S], load: Callable[..., S], *check: object) -> S:
        # A validated spec without overrides is used as it is.
        changes = overrides[target]
        return spec if isinstance(spec, kind) and not changes else load(spec, changes, near, *check)

    stated = of_its_framework(given(assumptions, "assumptions", AssumptionsSpec, load_assumptions), None, near)
    read = given(model, "model", ModelSpec, load_model, layer_check(layers_near, stated))
    machine = given(cluster, "cluster", ClusterSpec, load_cluster)
    inputs = Inputs(
        read,
        machine,
        of_its_framework(stated, machine.device.family, near),
        layers_near,
        read_operator_times(str(operator_times), near) if operator_times is not None else None,
    )
    if not inputs.assumptions.calibrated:
        name = inputs.assumptions.name
        warn(f"assumption set {name!r} is not calibrated yet: take its times as relative, not absolute")
    for said in cluster_remarks(inputs.cluster, inputs.assumptions):
        warn(said)
    if overrides["cluster"] or not isinstance(cluster, str) or is_path(cluster, ".yaml"):
        for said in unusual_cluster(inputs.cluster):
            warn(said)
    return inputs
