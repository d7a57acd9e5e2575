"""Which operators ran as one fused kernel, as a row states it.

Most software has a kernel for an RMS norm and one for a softmax outside fused attention, and a row that says nothing
is taken to have had both. Without one the operator runs step by step, in float32. Not stated here: whether attention is
fused, which has a column of its own (`flash`).
"""

import re
from typing import get_args

from dsx.errors import did_you_mean
from dsx.spec.assumptions import Unfusable

ALL: frozenset[Unfusable] = frozenset(get_args(Unfusable))  # operators whose cost depends on it
_NONE = "none"
_KNOWN = f"{', '.join(sorted(ALL))}, both as {' + '.join(sorted(ALL))!r}, or none"


def kernels(text: str) -> frozenset[Unfusable]:
    """Return the operators for which `text` names a kernel: "norm", "norm + softmax", "none".

    Raises ValueError for any other word.
    """
    words = [word.strip().lower() for word in re.split(r"[+,]", text)]
    for word in words:
        if word not in (*ALL, _NONE):
            raise ValueError(f"{word!r} is no operator of this column{did_you_mean(word, [*ALL, _NONE])} ({_KNOWN})")
    if _NONE in words and len(words) > 1:
        raise ValueError(f"{text!r} names none and others ({_KNOWN})")
    return frozenset(operator for operator in ALL if operator in words)
