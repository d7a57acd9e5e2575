"""A small model under some plans."""

import numpy as np
from verbs.small import model_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.measuring.cases import cases_of
from dsx.notation.model import build_model
from dsx.notation.syntax import AXES

ASSUMED = load_assumptions("default")
SIZES = {"e": 32, "h": 4, "g": 2, "k": 8, "f": 64, "v": 96}
LENGTH = 16


def model(*options, strategy=ASSUMED.default_strategy, **sizes):
    """A model of two layers."""
    stated = model_of(
        [{"kind": "embedding"}, {"kind": "transformer", "options": [*options], "count": 2}, {"kind": "head"}],
        SIZES | sizes,
        length=LENGTH,
    )
    return build_model(load_model(stated), ASSUMED, strategy)


def keys(tp=(1,), **others):
    """A key table; columns that are not given are 1."""
    given = {"tp": tp} | others
    count = max(map(len, given.values()))
    names = ("microbatch_size", "panels", *AXES, *(f"{axis}_nvs" for axis in AXES))
    return {name: np.array(given.get(name, (1,) * count)) for name in names}


def cases(*options, tp=(1,), length=LENGTH, sizes=None, strategy=ASSUMED.default_strategy, **others):
    """The kernels of the small model under a key table."""
    made = model(*options, strategy=strategy, **(sizes or {}))
    return cases_of(made, ASSUMED, length, keys(tp, **others))
