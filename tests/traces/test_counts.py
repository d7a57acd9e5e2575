"""The counts and volumes that the STAGE paper measured on GPUs, in its tables VI and VII.

A rank has the same nodes for every microbatch, so a trace of few microbatches has a part of the counts. `v` is 50,304,
the vocabulary of GPT-2 as Megatron-LM pads it. Elements are of two bytes.
"""

from textwrap import dedent

import pytest
from written_traces import communications, job_of, multiplies, written

from dsx.config.model_file import load_model

E, S, V, WIDTH = 4096, 2048, 50304, 2  # of GPT-3 5B; bytes of an element
AG, RS, AR = "all-gather", "reduce-scatter", "all-reduce"
PADDED = {"model.dimensions.v": V}


def rank_0(folder, model, num_gpus, num_microbatches, **plan):
    replicas = plan.get("dp", 1)
    job = job_of(model, num_gpus, num_microbatches * replicas, sequence_length=S, set=PADDED)
    return written(folder, job, ranks=[0], microbatch_size=1, **plan)[0]


def elements(trace, kind, axis):
    """How often a rank has a collective over an axis, by its elements."""
    return {size // WIDTH: count for (of, on, size), count in communications(trace).items() if (of, on) == (kind, axis)}


def per_microbatch(counts, num_microbatches):
    """Counts of one microbatch; a remainder is a mistake."""
    assert not any(count % num_microbatches for count in counts.values())
    return {name: count // num_microbatches for name, count in counts.items()}


def tensor_parallel(trace, num_microbatches):
    """The counts of a trace in which every microbatch has the same nodes, of 128 of them."""
    found = {
        "matrix": per_microbatch(multiplies(trace), num_microbatches),
        AG: per_microbatch(elements(trace, AG, "tp"), num_microbatches),
        RS: per_microbatch(elements(trace, RS, "tp"), num_microbatches),
    }
    return {name: {of: 128 * count for of, count in counts.items()} for name, counts in found.items()}


OF_TP_8 = {"matrix": {"multiply": 37_248, "attention": 6_144}, AG: {1_048_576: 18_816}, RS: {8_388_608: 12_544}}


@pytest.mark.parametrize("num_microbatches", [1, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_tensor_parallelism_with_sequence_parallelism(tmp_path, num_microbatches):
    """The paper measured 37,248 multiplies, 6,144 attentions and 18,816 gathers; its scatters: see below."""
    trace = rank_0(tmp_path, "gpt3-5b", 8, num_microbatches, tp=8)
    assert tensor_parallel(trace, num_microbatches) == OF_TP_8


@pytest.mark.parametrize("num_microbatches", [2, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_fully_sharded_data_parallelism(tmp_path, num_microbatches):
    trace = rank_0(tmp_path, "gpt3-5b", 8, num_microbatches, dp=8, zero_stage=3)
    found = per_microbatch(multiplies(trace), num_microbatches)
    assert {of: 16 * count for of, count in found.items()} == {"multiply": 4_656, "attention": 768}
    # A layer gathers its weights twice and scatters their gradients once; so do the embedding and the head.
    layer = 12 * E * E + 13 * E  # its multiplies, their biases, and two norms
    ends = [V * E + S * E, V * E + 2 * E]
    sizes = per_microbatch(elements(trace, AG, "dp"), num_microbatches)
    assert sizes == {layer // 8: 48} | {size // 8: 2 for size in ends}
    assert per_microbatch(elements(trace, RS, "dp"), num_microbatches) == {layer: 24} | dict.fromkeys(ends, 1)


@pytest.mark.parametrize("num_microbatches", [1, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_tensor_parallelism_of_the_large_model(tmp_path, num_microbatches):
    trace = rank_0(tmp_path, "gpt3-175b", 32, num_microbatches, tp=32)
    found = per_microbatch(multiplies(trace), num_microbatches)
    assert {of: 32 * count for of, count in found.items()} == {"multiply": 36_960, "attention": 6_144}
    gathers = per_microbatch(elements(trace, AG, "tp"), num_microbatches)
    assert {size: 32 * count for size, count in gathers.items()} == {786_432: 18_528}


@pytest.mark.parametrize("num_microbatches", [8, pytest.param(128, marks=pytest.mark.slow)])
def test_pipeline_parallelism(tmp_path, num_microbatches):
    trace = rank_0(tmp_path, "gpt3-5b", 8, num_microbatches, pp=8)
    found = per_microbatch(multiplies(trace), num_microbatches)
    assert {of: 128 * count for of, count in found.items()} == {"multiply": 4_608, "attention": 768}
    # The gradient of the tied weight is reduced once a step.
    assert communications(trace) == {
        ("send", "", WIDTH * 8_388_608): num_microbatches,
        ("receive", "", WIDTH * 8_388_608): num_microbatches,
        (AR, "pp", WIDTH * 206_045_184): 1,
    }


# The embedding of the paper's measured runs: partial sums are completed on every rank, which then keeps its part.
WHOLE_EMBEDDING = """\
    layer whole-embedding
    data   ids[b, $is]
    weight table[$vf(v), $ve]
    x[b, $is, $oe @*]   = lookup(ids, table[$uf(v), $oe]~)
    whole[b, $is, $re]  = view(x[b, $is, $re])
    output[b, $rs, $re] = view(whole[b, $rs, $re])
"""


@pytest.mark.slow
def test_an_embedding_that_completes_its_sums_on_every_rank(tmp_path):
    """So the paper measured 12,416 scatters; six lines of a layer definition say so."""
    file = tmp_path / "whole-embedding.layer"
    file.write_text(dedent(WHOLE_EMBEDDING))
    body = load_model("gpt3-5b").model_dump(mode="json")["layers"][1:]

    def with_embedding(kind, folder):
        model = {"extends": "gpt3-5b", "name": "other", "layers": [{"kind": kind}, *body]}
        return rank_0(tmp_path / folder, model, 8, 1, tp=8)

    whole, usual = with_embedding(str(file), "whole"), with_embedding("embedding", "usual")
    assert tensor_parallel(usual, 1) == OF_TP_8
    assert tensor_parallel(whole, 1) == OF_TP_8 | {RS: {8_388_608: 12_416}}
    assert 8_388_608 not in elements(usual, AR, "tp")
    assert elements(whole, AR, "tp") == elements(usual, AR, "tp") | {8_388_608: 1}  # of 128: 128
