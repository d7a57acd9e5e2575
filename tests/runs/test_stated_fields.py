"""Columns that state what software does with memory, and what sharded weights in a pipeline are."""

import numpy as np
import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.errors import RunTableError
from dsx.runs.predict import predict
from dsx.runs.setups import setups
from dsx.runs.table import read_runs

ASSUMED = load_assumptions("uncalibrated", [("fragmentation", "0")])
ONE_GPU = {"n_gpus": "1", "tp": "1", "pp": "1", "dp": "1", "layers": "4", "global_batch": "4", "zero_stage": "0"}


def memory(tmp_path, *changes):
    return predict(setups(read_runs(write(tmp_path / "runs.csv", *changes))), ASSUMED).peak_bytes


def test_gradients_in_float32_add_two_bytes_a_parameter(tmp_path):
    small, large, blank = memory(tmp_path, *({"gradient_bytes": size} | ONE_GPU for size in ("2", "4", "")))
    hidden, feed_forward, vocabulary = 4096, 11008, 32000
    parameters = 4 * (4 * hidden**2 + 3 * hidden * feed_forward + 2 * hidden) + (2 * vocabulary + 1) * hidden
    # The head's transient has the gradients of its weights once more.
    assert large - small == pytest.approx(2 * parameters, rel=0.06)
    assert blank == small


def test_gradients_of_fp16_are_in_fp16_whatever_the_set_says(tmp_path):
    half, brain, stated = setups(
        read_runs(write(tmp_path / "runs.csv", {"precision": "fp16"}, {}, {"precision": "fp16", "gradient_bytes": "4"}))
    )
    assert (half.stated, brain.stated, stated.stated) == ({"gradient_bytes": 2}, {}, {"gradient_bytes": 4})


def test_an_unfused_cross_entropy_keeps_ten_bytes_more_of_each_logit(tmp_path):
    fused, unfused, blank = memory(tmp_path, *({"cross_entropy": word} | ONE_GPU for word in ("fused", "Unfused", "")))
    assert unfused - fused == pytest.approx(10 * 2 * 2048 * 32000)
    assert blank == unfused


def test_rows_that_differ_in_a_field_are_priced_as_each_alone(tmp_path):
    fields = [{"cross_entropy": word, "gradient_bytes": size} for word in ("fused", "unfused") for size in ("2", "4")]
    changes = [field | ONE_GPU for field in fields]
    together = memory(tmp_path, *changes)
    np.testing.assert_allclose(together, [memory(tmp_path, change)[0] for change in changes], rtol=1e-12)
    assert len({*together}) == 4


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("cross_entropy", "fuse", "'fuse' is neither fused nor unfused; did you mean 'fused'?"),
        ("gradient_bytes", "8", r"'8' is not the bytes of a gradient: 2 \(BF16, FP16\) or 4 \(FP32\)"),
    ],
)
def test_other_words_are_refused(tmp_path, column, cell, message):
    with pytest.raises(RunTableError, match=f"runs.csv:2: {column}: {message}"):
        read_runs(write(tmp_path / "runs.csv", {column: cell}))


def test_sharded_weights_in_a_pipeline_are_whole_for_the_step(tmp_path):
    sharded = {"zero_stage": "3", "microbatch": ""}
    flat, piped, interleaved, stated = setups(
        read_runs(
            write(
                tmp_path / "runs.csv",
                sharded | {"pp": "1", "dp": "8"},
                sharded,
                sharded | {"vpp": "2"},
                sharded | {"microbatch": "1"},
            )
        )
    )
    assert [flat.plan[name] for name in ("zero_stage", "microbatch_size")] == [3, 1]
    assert [piped.plan[name] for name in ("zero_stage", "microbatch_size", "num_microbatches")] == [1, 8, 2]
    assert interleaved.plan["num_microbatches"] == 4
    assert stated.plan["num_microbatches"] == 16
