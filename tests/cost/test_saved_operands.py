"""What multiplies in 8 bits keep of their operands, and fields in which the works of a batch differ."""

import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.cost.layer_work import layer_work
from dsx.notation.model import build_model

MODEL = load_model("llama-3-8b")
ASSUMED = load_assumptions("uncalibrated")
KEYS = {name: np.array([1.0, 1.0]) for name in ("tp", "cp", "ep", "tp_nvs", "cp_nvs", "ep_nvs", "panels")}
SEQUENCE, HIDDEN, FEED_FORWARD = 1024, 4096, 14336


def stash(dtype, own):
    """Return the saved bytes of a transformer layer of a batch of two works, without recomputation."""
    assumed = ASSUMED.model_copy(update={"linear_dtype": dtype})
    model = build_model(MODEL, assumed, "1d")
    layer = model.body[0][0]
    keys = KEYS | {"microbatch_size": np.array([1.0, 1.0])}
    return layer_work(layer, model.dimensions | own, assumed, float(SEQUENCE), keys).stash[0]


def test_a_cast_operand_takes_one_byte_where_no_other_operator_keeps_it():
    whole, cast = stash("fp8", {"fp8_saved_bytes": np.array([2.0, 1.0])})
    # The results of both norms and of the gate; attention keeps its own result in 16 bits for its gradient.
    assert whole - cast == pytest.approx(SEQUENCE * (2 * HIDDEN + FEED_FORWARD))
    # Operands that are not cast or cast alike save alike.
    assert np.ptp(stash("bf16", {"fp8_saved_bytes": np.array([2.0, 1.0])})) == 0
    # A number of the set is the same for all works.
    assumed = ASSUMED.model_copy(update={"fp8_saved_bytes": 1})
    assert assumed.fp8_saved_bytes == 1
    assert np.ptp(stash("fp8", {})) == 0
