"""The column `kernels`: which operators ran as one fused kernel.

Most frameworks fuse an RMS norm, and a softmax outside fused attention; a row without a value is assumed to fuse both.
An operator that is not fused runs step by step, in float32. Fused attention has its own column (`flash`).
"""

import re
from typing import get_args

from dsx.errors import did_you_mean
from dsx.spec.assumptions import Unfusable

FUSABLE: frozenset[Unfusable] = frozenset(get_args(Unfusable))  # operators that may run as one kernel or as several
_NONE = "none"
_KNOWN = f"{', '.join(sorted(FUSABLE))}, both as {' + '.join(sorted(FUSABLE))!r}, or none"


def kernels(text: str) -> frozenset[Unfusable]:
    """Return the operators that `text` lists as fused: "norm", "norm + softmax", "none".

    Raises ValueError for any other word.
    """
    words = [word.strip().lower() for word in re.split(r"[+,]", text)]
    for word in words:
        if word not in (*FUSABLE, _NONE):
            near = did_you_mean(word, [*FUSABLE, _NONE])
            raise ValueError(f"{word!r} is not an operator of this column{near} ({_KNOWN})")
    if _NONE in words and len(words) > 1:
        raise ValueError(f"{text!r} lists none with other operators ({_KNOWN})")
    return frozenset(operator for operator in FUSABLE if operator in words)
