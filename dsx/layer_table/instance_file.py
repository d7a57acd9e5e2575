"""The schema of an instance file (JSON): checks that concern one value at a time.

A row is a list of cells; `layer_columns` and `edge_columns` name them. Columns may be in any order, and other columns
and keys are ignored.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo

from dsx.errors import did_you_mean
from dsx.layer_table.bounded_quantities import Above0, Amount, CountKey, LayerId
from dsx.spec.document import Document
from dsx.spec.validated import validate
from dsx.spec.value_types import Count

T = TypeVar("T", int, str)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer in one width, for one microbatch."""

    id: LayerId
    fw_latency: Amount  # in `time_unit_s`
    bw_latency: Amount
    param_bytes: Amount
    activation_bytes: Amount  # saved for the backward


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """A tensor from one layer that a later layer reads."""

    src: LayerId
    dst: LayerId
    bytes: Amount


def _columns_of(row: type) -> AfterValidator:
    wanted = [field.name for field in fields(row)]

    def check(names: list[str]) -> list[str]:
        if (twice := repeated(names)) is not None:
            raise ValueError(f"{twice!r} is listed twice")
        for name in wanted:
            if name not in names:
                others = [other for other in names if other not in wanted]
                raise ValueError(f"has no {name!r}{did_you_mean(name, others)} (it has {', '.join(names)})")
        return names

    return AfterValidator(check)


class _Header(BaseModel):
    layer_columns: Annotated[list[str], _columns_of(LayerRow)]
    edge_columns: Annotated[list[str], _columns_of(EdgeRow)]


def _by_column(header: str) -> BeforeValidator:
    def cells(row: Any, info: ValidationInfo) -> dict[str, Any]:
        names: list[str] = getattr(info.context, header)
        if not isinstance(row, list):
            raise ValueError(f"expected a list of the {len(names)} values of a row, got {row!r:.100}")
        if len(row) != len(names):
            raise ValueError(f"has {len(row)} values, but there are {len(names)} columns: {', '.join(names)}")
        return dict(zip(names, row, strict=True))

    return BeforeValidator(cells)


def _last_configuration(layers: Any) -> Any:
    return {max(layers): layers[max(layers)]} if isinstance(layers, dict) and layers else layers


LayerRows = Annotated[list[Annotated[LayerRow, _by_column("layer_columns")]], Field(min_length=1)]
EdgeRows = list[Annotated[EdgeRow, _by_column("edge_columns")]]
Widths = Annotated[dict[CountKey, LayerRows], Field(min_length=1)]


class InstanceFile(BaseModel):
    """The keys of an instance file that dsx reads."""

    layers: Annotated[dict[str, Widths], Field(min_length=1), BeforeValidator(_last_configuration)]
    edges: dict[CountKey, EdgeRows]  # by width
    devices_per_stage: dict[CountKey, Count]  # by width
    max_memory_bytes: Above0
    microbatches_in_batch: Count
    time_unit_s: Above0


def instance_file(document: Document) -> InstanceFile:
    """Return the document as an instance file; raises SpecError with a list of all faulty values."""
    return validate(document, InstanceFile, validate(document, _Header))


def repeated(found: Iterable[T]) -> T | None:
    """Return the first entry that is listed more than once; None if there is none."""
    return next((entry for entry, count in Counter(found).items() if count > 1), None)
