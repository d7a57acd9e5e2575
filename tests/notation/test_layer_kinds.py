"""The packaged layer kinds: the collectives, saved tensors and work that follow, reasoned out by hand."""

import pytest
from notation.definitions import (
    A2A,
    AG,
    AR,
    BACKWARD,
    FORWARD,
    RS,
    collectives,
    kernel,
    number,
    packaged,
    saved,
    volumes,
    weights,
)

from dsx.notation.expressions import evaluate, names

W, B, S, E, H, G, K, F, V = 2, 2, 512, 256, 16, 8, 16, 1024, 4096
SIZES = {"b": B, "s": S, "e": E, "h": H, "g": G, "k": K, "f": F, "v": V}
TP, CP, EP = 4, 2, 8
TOKENS = W * B * S * E
GATED = "transformer rotary gated"
BIASED = "transformer layernorm qkv_bias out_bias ff_bias ff_out_bias dropout residual_dropout"
MIXTURE = "transformer rotary ffn=experts"


def test_an_embedding_looks_up_and_completes_its_partial_sums():
    parallel, whole = packaged("embedding", "1d"), packaged("embedding", "1d-no-sp")
    assert volumes(parallel, FORWARD, **SIZES, tp=TP) == [(RS, "tp", TOKENS)]
    assert volumes(parallel, BACKWARD, **SIZES, tp=TP) == [(AG, "tp", TOKENS)]
    assert volumes(whole, FORWARD, **SIZES, tp=TP) == [(AR, "tp", TOKENS)]
    assert volumes(whole, BACKWARD, **SIZES, tp=TP) == []
    # An embedding looks up and multiplies nothing.
    layer = packaged("embedding", "2d")
    sizes = SIZES | {"tp": TP, "cp": CP}
    assert weights(layer, **sizes) == {"table": (W * V // TP * E, ("cp",), True)}
    assert saved(layer, **sizes) == {"x state 0": 8 * B * S // CP}  # the indices
    forward, backward = kernel(layer, "x").work
    assert (forward.matrix, backward.matrix) == (0, 0)
    assert number(layer, forward.bytes, **sizes) == B * S // CP * (8 + 2 * W * E)


def test_a_head_divides_the_vocabulary_and_keeps_logits_in_float32():
    layer, sizes = packaged("head", "1d"), SIZES | {"tp": TP}
    statistics = (AR, "tp", W * 3 * B * S)
    assert volumes(layer, FORWARD, **sizes) == sorted([(AG, "tp", TOKENS), statistics])
    assert (RS, "tp", TOKENS) in volumes(layer, BACKWARD, **sizes)
    kept = saved(layer, **sizes)
    assert kept["output state 0"] == 12 * B * S * V // TP
    assert "logits" not in kept
    (forward, _) = kernel(layer, "logits").work
    assert number(layer, forward.matrix, **sizes) == B * S * (V // TP) * (2 * E - 1)
    # A head that gathers its logits keeps those of the whole vocabulary.
    layer, sizes = packaged("head gathered_logits", "1d"), SIZES | {"tp": TP}
    assert (AG, "tp", W * B * S * V) in volumes(layer, FORWARD, **sizes)
    assert saved(layer, **sizes)["output state 0"] == 12 * B * S * V
    assert saved(layer, **sizes | {"cross_entropy_bytes": 2})["output state 0"] == 2 * B * S * V
    # A tied projection is a weight that the embedding has too.
    assert [(w.name, w.tied) for w in packaged("head tied", "1d").weights] == [("gamma", False), ("projection", True)]


@pytest.mark.parametrize("strategy", ["1d", "2d", "ulysses"])
def test_unfused_attention_keeps_the_square_three_times(strategy):
    """5 a s^2 b bytes: after the softmax and the dropout in two bytes, the mask in one (arXiv 2205.05198)."""
    layer = packaged(f"{BIASED} core=unfused-attention-core", strategy)
    sizes = SIZES | {"g": H, "tp": TP, "cp": CP}
    square = B * H * S * S // TP // (CP if "cp" in layer.axes else 1)
    kept = saved(layer, **sizes)
    of_core = [kept[f"self-attention.{name}"] for name in ("p", "p.2 state 0", "p.2")]
    assert of_core == [2 * square, square, 2 * square]


def test_fused_attention_keeps_nothing_of_the_square_and_sums_are_all_reduced():
    kept = saved(packaged(BIASED, "1d"), **SIZES, tp=TP)
    assert max(size for name, size in kept.items() if "feed-forward" not in name) <= W * B * S * (H + 2 * G) * K // TP
    # Without sequence parallelism partial sums are all reduced.
    layer = packaged(GATED, "1d-no-sp")
    assert volumes(layer, FORWARD, **SIZES, tp=TP) == [(AR, "tp", TOKENS)] * 2
    assert volumes(layer, BACKWARD, **SIZES, tp=TP) == [(AR, "tp", TOKENS)] * 2


def test_windows_and_chunks_do_the_work_of_their_pairs():
    def squares(name, **sizes):
        layer = packaged(name, "1d")
        core = kernel(layer, "self-attention.attention")
        return number(layer, core.work[FORWARD].matrix, **(SIZES | sizes))

    whole = 2 * B * H * S * S * (2 * K) - B * H * S * S - B * S * H * K
    causal = squares(GATED)
    assert causal == pytest.approx(whole / 2, abs=1)
    for window in (1, 64, S):
        pairs = window * S - window**2 / 2  # a triangle, then a band; the diagonal counts half, as in the causal half
        assert squares(f"{GATED} window", window=window) == pytest.approx(whole * pairs / S**2, abs=2)
    assert squares(f"{GATED} window", window=2 * S) == causal

    # Also where the last chunk is shorter, or one chunk has the whole sequence.
    for chunk in (1, 64, 100, S - 1, S, 2 * S):
        lengths = [chunk] * (S // chunk) + [S % chunk]
        share = sum(min(length, S) ** 2 for length in lengths) / S**2
        assert squares(f"{GATED} chunked", attention_chunk=chunk) == pytest.approx(causal * min(share, 1), abs=2)


def test_norms_of_results_and_of_all_heads():
    """The multiplies read the residual stream itself; each norm reads a result that is complete."""
    before, after = packaged(GATED, "1d"), packaged(f"{GATED} post_norm", "1d")
    assert volumes(after, FORWARD, **SIZES, tp=TP) == volumes(before, FORWARD, **SIZES, tp=TP)
    kept, kept_before = (saved(layer, **SIZES, tp=TP) for layer in (after, before))
    assert kept_before.keys() - kept.keys() == {"n1", "n2"}
    assert kept.keys() - kept_before.keys() == {"self-attention.output", "feed-forward.output"}
    assert sum(kept.values()) == sum(kept_before.values())
    # A norm over all heads adds up its statistics over tp.
    layer = packaged(f"{GATED} joint_qk_norm", "1d")
    statistics = [one for one in volumes(layer, FORWARD, **SIZES, tp=TP) if one[0] == AR]
    assert statistics == [(AR, "tp", W * B * S)] * 2
    assert weights(layer, **SIZES, tp=TP)["self-attention.gqj"] == (W * H * K // TP, (), True)
    assert weights(layer, **SIZES, tp=TP)["self-attention.gkj"] == (W * G * K // TP, (), True)
    assert not [one for one in volumes(packaged(f"{GATED} qk_norm", "1d"), FORWARD, **SIZES, tp=TP) if one[0] == AR]


@pytest.mark.parametrize("strategy", ["1d", "2d-copied-kv"])
def test_an_output_gate_has_the_width_of_the_queries(strategy):
    gated, plain = packaged(f"{GATED} output_gate", strategy), packaged(GATED, strategy)
    sizes = SIZES | {"tp": TP, "g": 2 if strategy == "2d-copied-kv" else G}
    counts = [sum(size for size, _, _ in weights(one, **sizes).values()) for one in (gated, plain)]
    assert counts[0] - counts[1] == W * E * H * K // TP
    assert volumes(gated, FORWARD, **sizes) == volumes(plain, FORWARD, **sizes)


def test_ulysses_exchanges_and_a_ring_gathers():
    layer, sizes = packaged(GATED, "ulysses"), SIZES | {"tp": TP, "cp": CP}
    query, key = W * B * (S // CP) * (H * K // TP), W * B * (S // CP) * (G * K // TP)
    over_cp = [one for one in volumes(layer, FORWARD, **sizes) if one[1] == "cp"]
    assert over_cp == sorted([(A2A, "cp", query)] * 2 + [(A2A, "cp", key)] * 2)
    # What was exchanged is kept: the backward exchanges gradients alone.
    assert [one for one in volumes(layer, BACKWARD, **sizes) if one[1] == "cp"] == over_cp
    # A ring has the volume of a gather.
    ring, gather = packaged(GATED, "2d-ring"), packaged(GATED, "2d")
    sizes = SIZES | {"tp": TP, "cp": CP}
    for direction in (FORWARD, BACKWARD):
        assert volumes(ring, direction, **sizes) == volumes(gather, direction, **sizes)
        assert {c.axis for c in ring.collectives(direction) if c.ring} == {"cp"}
        assert {c.ring for c in ring.collectives(direction) if c.axis == "cp"} == {True}
        assert not any(c.ring for c in gather.collectives(direction))


EXPERTS = SIZES | {"x": 16, "topk": 2, "fx": 128, "capacity_percent": 100, "tp": TP, "tp2": 1, "cp": CP, "ep": EP}


def test_each_rank_sends_its_own_tokens_to_their_experts():
    layer = packaged(MIXTURE, "2d")
    routed = W * 2 * (B * S // (TP * CP)) * E  # topk copies of the tokens of one rank
    assert [one for one in volumes(layer, FORWARD, **EXPERTS) if one[1] == "ep"] == [(A2A, "ep", routed)] * 2
    assert [one for one in volumes(layer, BACKWARD, **EXPERTS) if one[1] == "ep"] == [(A2A, "ep", routed)] * 2
    multiplied = kernel(layer, "experts.up").work[FORWARD].matrix
    assert number(layer, multiplied, **EXPERTS) == 2 * (B * S // (TP * CP)) * 128 * (2 * E - 1)
    # Its slots are of the tokens of all ranks that ep nests in, so all of them have a part of its gradient.
    assert weights(layer, **EXPERTS)["experts.wup"] == (W * (16 // EP) * E * 128, ("tp", "cp"), True)
    over_ep = {weight.name for weight in layer.weights if weight.over_ep}
    assert over_ep == {f"experts.{name}" for name in ("wgate", "wup", "wdown")}
    assert weights(layer, **EXPERTS)["experts.router"][1] == ("tp", "cp")
    assert layer.expert_axes == ()


@pytest.mark.parametrize("strategy", ["1d", "1d-no-sp", "2d", "2d-no-sp", "summa", "ulysses", "2d-expert-tp"])
def test_no_rank_does_the_work_of_another_for_experts(strategy):
    """Each rank routes tokens of its own; ep nests in the other axes, so no work is repeated."""
    layer = packaged(MIXTURE, strategy)
    behind_attention = [kernel.name for kernel in layer.kernels].index("n2")
    of_experts = [kernel for kernel in layer.kernels[behind_attention:] if kernel.runs]
    alike = {} if strategy not in ("1d-no-sp", "2d-no-sp") else {"n2": ("tp",), "output": ("tp",)}
    assert {kernel.name: kernel.replicated for kernel in of_experts if kernel.replicated} == alike
    assert not any("ep" in kernel.replicated for kernel in layer.kernels)


def test_shared_and_divided_experts_and_latent_attention():
    sizes = EXPERTS | {"fs": 512}
    plain, gated = (packaged(f"{MIXTURE} {options}", "2d") for options in ("shared", "shared shared_gate"))
    assert volumes(gated, FORWARD, **sizes) == volumes(plain, FORWARD, **sizes)
    (added,) = weights(gated, **sizes).keys() - weights(plain, **sizes).keys()
    assert weights(gated, **sizes)[added] == (W * E, ("tp", "cp"), True)
    multiply = kernel(gated, "experts.shared-experts.token").work[FORWARD].matrix
    assert number(gated, multiply, **sizes) == B * S // (TP * CP) * (2 * E - 1)
    # Divided experts gather their tokens over tp.
    layer = packaged(MIXTURE, "2d-expert-tp")
    routed = W * 2 * (B * S // (TP * CP)) * E
    experts = kernel(layer, "experts.gate").collectives[FORWARD]
    found = [(one.kind, one.axis, number(layer, one.bytes, **EXPERTS)) for one in experts]
    assert found == [(A2A, "ep", routed), (AG, "tp", routed * TP)]
    back = [(one.kind, one.axis) for one in kernel(layer, "experts.c").collectives[FORWARD]]
    assert back == [(RS, "tp"), (A2A, "ep")]
    assert weights(layer, **EXPERTS)["experts.wup"] == (W * (16 // EP) * E * (128 // TP), ("cp",), True)
    assert layer.expert_axes == ("tp",)


def test_latent_attention_gathers_latent_vectors_and_parallel_halves_are_reduced_once():
    sizes = SIZES | {"rq": 96, "rkv": 64, "nope": 16, "rope": 8, "kv": 16, "tp": TP}
    layer = packaged("transformer gated attention=latent-attention", "1d")
    gathered = [one for one in volumes(layer, FORWARD, **sizes) if one[0] == AG]
    row = W * B * S
    assert gathered == sorted([(AG, "tp", row * width) for width in (96, 64, 8, E)])
    # Parallel halves are reduced once.
    layer = packaged("parallel-layer layernorm rotary qkv_bias out_bias ff_bias ff_out_bias", "1d")
    assert [one for one in volumes(layer, FORWARD, **SIZES, tp=TP) if one[0] == RS] == [(RS, "tp", TOKENS)]


def test_copied_key_value_heads_are_made_on_every_rank():
    sizes = SIZES | {"g": 2, "tp": 8}
    layer = packaged(GATED, "2d-copied-kv")
    name = "self-attention"
    assert weights(layer, **sizes)[f"{name}.wkv"][0] == W * E * 2 * 2 * K
    assert number(layer, kernel(layer, f"{name}.kk.2").work[FORWARD].bytes, **sizes) == 2 * W * B * S * K  # one head
    # Each rank has gradients of the heads that it used: they are added over tp before the multiply's backward.
    backward = collectives(layer, BACKWARD)
    assert backward[(AR, "tp", f"d {name}.kk")] + backward[(AR, "tp", f"d {name}.kvm")] == 1
    # Copied key value heads without sequence parallelism.
    with_sp, layer = (packaged(GATED, name) for name in ("2d-copied-kv", "2d-copied-kv-no-sp"))
    assert weights(layer, **sizes).keys() == weights(with_sp, **sizes).keys()
    # One all-reduce completes the partial sums of each half where a gather and a scatter did.
    assert [one for one in volumes(layer, FORWARD, **sizes) if one[1] == "tp"] == [(AR, "tp", W * B * S * E)] * 2
    copies = [kernel(one, "self-attention.kk.2").work[FORWARD].bytes for one in (with_sp, layer)]
    made = [number(one, moved, **sizes) for one, moved in zip((with_sp, layer), copies, strict=True)]
    assert made[0] == made[1]


@pytest.mark.parametrize("options", ["", " qk_norm", " output_gate", " joint_qk_norm"])
def test_a_gathered_result_of_the_fused_multiply_serves_more_ranks_than_key_value_heads(options):
    """Weights are divided all the same. All of the result is gathered, and its gradient scattered (Megatron Core)."""
    sizes = SIZES | {"g": 2, "tp": 8}
    layer, plain = (packaged(GATED + options, name) for name in ("2d-gathered-qkv", "2d"))
    assert weights(layer, **sizes)["self-attention.wqkv"] == weights(plain, **sizes)["self-attention.wqkv"]
    columns = (2 * H if "gate" in options else H) + 2 * 2
    for direction, kind, name in ((FORWARD, AG, "self-attention.qkv"), (BACKWARD, RS, "d self-attention.qkv")):
        moved = [one for one in layer.collectives(direction) if one.tensor == name]
        assert [(one.kind, number(layer, one.bytes, **sizes)) for one in moved] == [(kind, W * B * S * columns * K)]
    scores = [kernel(one, "self-attention.attention").work[FORWARD].matrix for one in (layer, plain)]
    # One key-value head on each rank.
    assert number(layer, scores[0], **sizes) == number(plain, scores[1], **sizes | {"g": 8})


@pytest.mark.parametrize("strategy", ["1d-no-sp", "2d-no-sp", "2d-copied-kv-no-sp"])
def test_without_sequence_parallelism_tp_divides_tokens_for_routing_alone(strategy):
    """3 divides no 1,024 tokens."""

    def left_over(name, **more):
        sizes = SIZES | {"tp": 3, "cp": 1} | more
        rules = [rule for rule in packaged(name, strategy).rules if rule.reason == "tokens_not_divisible"]
        known = [rule for rule in rules if names(rule.left) | names(rule.right) <= sizes.keys()]
        return [int(evaluate(rule.left, sizes)) for rule in known if evaluate(rule.right, sizes) == 0]

    assert not any(left_over(GATED))
    assert any(left_over(MIXTURE, x=8))
