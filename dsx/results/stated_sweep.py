"""The sweep that a manifest states, typed: the settings and file names that dsx reads back.

A manifest holds the sweep as plain data, so that it can be compared and hashed as written. These records type the keys
that are read; other keys are allowed, since other versions of dsx may have written them. The priced files (model,
clusters, assumption set) are known only by name here: a command that prices a row again reads them within
`stated_files`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from dsx.errors import StoreError
from dsx.results.plain_json import reason
from dsx.spec.cluster import ChipSpec, label_of
from dsx.spec.keep import Keep
from dsx.spec.plot_spec import PlotSpec
from dsx.spec.points import WhatIfPoints
from dsx.spec.what_if import WhatIf
from dsx.units import LARGEST_COUNT

# Fields of an assumption set that older manifests of this schema version state by a former name.
_FORMER_FIELDS = {"told_apart": "resolution"}

_Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST_COUNT)]
_Sizes = Annotated[list[_Size], Field(min_length=1)]


class _Stated(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class StatedFile(_Stated):
    """A file that was priced, by its name."""

    name: str


class StatedDevice(_Stated):
    """The device of a cluster, by its name, and the chip that it is a part of."""

    name: str
    chip: ChipSpec | None = None


class StatedCluster(StatedFile):
    """A cluster that was priced."""

    device: StatedDevice | None = None

    @property
    def label(self) -> str:
        """The name, with what a GPU is where that is not plain, as of `ClusterSpec`."""
        return label_of(self.name, self.device.name, self.device.chip) if self.device else self.name


class StatedModel(StatedFile):
    """The model that was priced."""

    default_sequence_length: _Size


class PricedFiles(_Stated):
    """The files of a sweep: `strategy` as the sweep states it, `layers` the hash of each strategy's definitions."""

    model: StatedModel
    clusters: list[StatedCluster]
    assumptions: StatedFile
    strategy: list[str]
    layers: dict[str, str]
    operator_times: dict[str, Any] | None = None
    # The assumption set and the layers on clusters, by name, where a framework lacks something that the first one has.
    on_cluster: dict[str, dict[str, Any]] = Field(default_factory=dict)


class StatedSweep(_Stated):
    """The settings of a sweep that describe its result set."""

    num_gpus: _Sizes
    global_batch_size: _Sizes
    sequence_length: _Size | None = None
    train_tokens: float | None = None
    fix: dict[str, list[int | str]] = Field(default_factory=dict)
    what_if: WhatIfPoints = WhatIf()
    partition: Literal["even", "optimal"] = "even"
    keep: Keep
    plot: PlotSpec | None = None
    resolved: PricedFiles

    @property
    def tokens(self) -> int:
        """The tokens of a sequence; the same in all rows."""
        return self.sequence_length or self.resolved.model.default_sequence_length


def stated_sweep(spec: Mapping[str, object]) -> StatedSweep:
    """Return the sweep that the `spec` of a manifest states; raises pydantic.ValidationError."""
    return StatedSweep.model_validate(spec)


def files_on(resolved: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the files of a sweep, as its manifest has them, with those of a cluster of its own."""
    return {**resolved, **resolved.get("on_cluster", {}).get(cluster, {})}


def with_current_names(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `spec` of a manifest, which has no fault, with the names that the fields of its files have today."""
    files = spec["resolved"]
    assumptions = {_FORMER_FIELDS.get(name, name): value for name, value in files["assumptions"].items()}
    return {**spec, "resolved": {**files, "assumptions": assumptions}}


def fault_of(spec: Mapping[str, object], names: Mapping[str, tuple[str, ...]], what_if: tuple[str, ...]) -> str:
    """Return the fault of the `spec` of a manifest, or how it contradicts the rest; "" if there is none."""
    try:
        sweep = stated_sweep(spec)
    except pydantic.ValidationError as error:
        return reason(error, "spec")
    files = sweep.resolved
    for column, stated in (("cluster", files.clusters), ("strategy", files.strategy)):
        if len(stated) != len(names[column]):
            return f"names.{column}: has {len(names[column])} names, but the sweep states {len(stated)}"
    if missing := [name for name in names["strategy"] if name not in files.layers]:
        return f"spec.resolved.layers: has no hash of the layer definitions of {missing[0]!r}"
    if sorted(what_if) != sorted(sweep.what_if.fields):
        return f"what_if: has the columns {', '.join(what_if) or 'none'}, but the sweep varies others"
    return ""


@contextmanager
def stated_files(folder: Path) -> Iterator[None]:
    """Raise a ValidationError of the block as a StoreError; the block reads what the manifest in `folder` states."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise StoreError(
            f"{folder}: its manifest states a {error.title} that this dsx cannot read ({reason(error)}); run the sweep "
            "again, into another folder"
        ) from None
