"""Rules of a strategy hold in every layer: layers with fewer key-value heads than others limit tensor parallelism.

Gemma 4 and MiMo-V2 have such layers. Megatron Core would gather queries, keys and values in some layers alone, which no
strategy does, so such plans are refused, by a search as by an evaluation.
"""

import numpy as np
import pytest

import dsx
from dsx.plans.violations import MEMORY

LAYERS = [
    {"kind": "transformer", "count": 3},
    {"kind": "transformer", "options": ["global_heads"], "count": 1},
]
DIMENSIONS = {"e": 2048, "h": 16, "g": 8, "k": 128, "f": 8192, "gg": 2, "gk": 128}
MODEL = {"name": "differs", "source": "a test", "dimensions": DIMENSIONS, "default_sequence_length": 2048}


@pytest.mark.parametrize("layers", [LAYERS, LAYERS[::-1]], ids=["usual first", "global first"])
@pytest.mark.parametrize(
    ("strategy", "degrees"), [("2d", {1, 2}), ("2d-gathered-qkv", {16}), ("2d-copied-kv", {8, 16})]
)
def test_every_layer_limits_the_degrees(layers, strategy, degrees):
    job = dsx.Job(MODEL | {"layers": layers}, "h100-nvs8", 16, 16)
    legal = set()
    for tp in (1, 2, 4, 8, 16):
        found = dsx.evaluate(job, tp=tp, dp=16 // tp, strategy=strategy)
        legal |= {tp} if {*found.reject} <= {MEMORY.name} else set()
    assert legal == degrees
    searched = dsx.best(job, 200, framework="any", strategy=strategy, fix="pp=1 cp=1 zero_stage=1 recompute=none")
    assert {int(tp) for tp in np.unique([plan["tp"] for plan in searched.plans])} == degrees
