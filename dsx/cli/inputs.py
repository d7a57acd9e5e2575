"""From options to a problem: files are found, overrides set, and what should be known is said."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.cli.output import note
from dsx.spec.assumptions import AssumptionsSpec, load_assumptions
from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.model import ModelSpec, load_model
from dsx.spec.overrides import split

if TYPE_CHECKING:
    from dsx.search.problem import Problem


@dataclass(frozen=True)
class Inputs:
    """The validated files of a problem."""

    model: ModelSpec
    cluster: ClusterSpec
    assumptions: AssumptionsSpec

    def to_data(self) -> dict[str, Any]:
        """Return the files as plain data."""
        return {name: getattr(self, name).model_dump(mode="json") for name in ("model", "cluster", "assumptions")}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Inputs":
        """Return the inputs that `to_data` wrote."""
        return cls(
            ModelSpec.model_validate(data["model"]),
            ClusterSpec.model_validate(data["cluster"]),
            AssumptionsSpec.model_validate(data["assumptions"]),
        )

    def problem(
        self,
        strategies: Sequence[str],
        sequence_length: int | None,
        train_tokens: float | None = None,
        near: Path | None = None,
    ) -> "Problem":
        """Return the problem of these files."""
        from dsx.search.problem import make_problem

        return make_problem(self.model, self.cluster, self.assumptions, strategies, sequence_length, train_tokens, near)


def load_inputs(
    model: str, cluster: str, assumptions: str, assignments: Sequence[str] | None, near: Path | None = None
) -> Inputs:
    """Load a problem's files with ``--set`` assignments; says on stderr if the set is not calibrated."""
    overrides = split(assignments or ())
    believed = load_assumptions(assumptions, overrides.pop("assumptions", ()), near)
    if not believed.calibrated:
        note(f"assumption set {believed.name!r} is not calibrated yet: take its times as relative, not absolute")
    return Inputs(
        load_model(model, overrides.pop("model", ()), near),
        load_cluster(cluster, overrides.pop("cluster", ()), near),
        believed,
    )
