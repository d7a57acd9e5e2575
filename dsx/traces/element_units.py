"""Traces that count elements and multiply-adds, as STAGE writes them: their metadata names a schema of its own.

Sizes become bytes of elements of one width, and operations FLOPs, when a file is read.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dsx.traces.columns import RankTrace

DEFAULT_ELEMENT_BYTES = 2  # 16 bits, in which activations and weights are computed with
_SCHEMA = "symbolic_tensor_network"
_FLOPS = 2  # of a multiply-add


def counts_elements(metadata: Any) -> bool:
    """Return whether the metadata of a file say that it counts elements."""
    return any(attribute.name == "schema" and attribute.string_val == _SCHEMA for attribute in metadata.attr)


def in_bytes(trace: RankTrace, element_bytes: int) -> RankTrace:
    """Return a trace that counts elements with its sizes in bytes, and its operations in FLOPs.

    Raises OverflowError if one of them has more than 63 bits then.
    """
    return replace(
        trace,
        element_bytes=element_bytes,
        tensor_bytes=_times(trace.tensor_bytes, element_bytes),
        tensor_size=_times(trace.tensor_size, element_bytes),
        comm_size=_times(trace.comm_size, element_bytes),
        num_ops=_times(trace.num_ops, _FLOPS),
    )


def _times(column: np.ndarray, factor: int) -> np.ndarray:
    """Return numbers times a factor, but for those that are not stated."""
    if len(column) and int(column.max()) > np.iinfo(np.int64).max // factor:
        raise OverflowError
    return np.where(column > 0, column * factor, column)
