"""A model of one expert costs what the dense model does, but for its router, its dispatch and its combination."""

import pytest

import dsx

SIZES = {"e": 2048, "h": 16, "g": 4, "k": 128, "v": 32000}


def kernels(experts):
    """The seconds of the kernels of a layer, by name and direction; with or without experts."""
    layer = {"kind": "transformer", "options": ["rotary"], "ffn": "experts"} if experts else {}
    dense = {"kind": "transformer", "options": ["rotary", "gated"]}
    of_experts = {"fx": 8192, "x": experts, "topk": 1, "capacity_percent": 100}
    of_ffn = of_experts if experts else {"f": 8192}
    model = {
        "name": "one", "source": "a test", "default_sequence_length": 2048,
        "dimensions": SIZES | of_ffn,
        "layers": [{"kind": "embedding"}, {**(layer or dense), "count": 4}, {"kind": "head"}],
    }  # fmt: skip
    frame = dsx.evaluate(dsx.Job(model, "h100-nvs8", 8, 16), "dp=8").operators
    seconds = frame["compute_s"] + frame["memory_s"]
    return {(row.kernel, row.direction): time for row, time in zip(frame.itertuples(), seconds, strict=True)}


def test_the_multiplies_of_one_expert_are_those_of_the_dense_layer():
    one, several, dense = kernels(1), kernels(2), kernels(0)
    for expert, name in (("gate", "z"), ("up", "up"), ("u", "u"), ("y", "output")):
        for direction in ("forward", "backward"):
            found = one[f"experts.{expert}", direction]
            assert found == pytest.approx(dense[f"feed-forward.{name}", direction], rel=1e-9)
    assert one["experts.gate", "forward"] < 0.7 * several["experts.gate", "forward"]
    more = sum(one.values()) - sum(dense.values())
    stated = [time for (name, _), time in one.items() if name.startswith(("experts.scores", "experts.routing"))]
    stated += [time for (name, _), time in one.items() if name in ("experts.d", "experts.c")]
    assert more == pytest.approx(sum(stated), rel=1e-6)
