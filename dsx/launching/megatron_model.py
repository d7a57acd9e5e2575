"""A model as settings of Megatron Core, and what of it they cannot express.

Sources: megatron-core 0.19.2 (megatron.training.arguments, TransformerConfig and MLATransformerConfig; softmax_type in
0.16.1); the checks of Transformer Engine's attn_forward_func_with_cp (from memory of 2.8).
"""

from dsx.graph.layer import RING
from dsx.graph.match import ALL_TO_ALL
from dsx.launching.architecture import GATED, GELU, SQUARED_RELU, Architecture, ExpertSizes, Latent
from dsx.launching.option import Option, Settings, switch, valued
from dsx.launching.run import Run

_NO_MODEL = "Megatron-LM's GPT model"


def refused_model(shape: Architecture) -> list[str]:
    """Return the parts of a model without which Megatron-LM would run another model."""
    return [f"{part}: {_NO_MODEL} has none" for part in shape.unusual] + (
        [] if shape.causal else [f"attention to all positions: {_NO_MODEL} masks later ones"]
    )


def refused_context(shape: Architecture, run: Run) -> list[str]:
    """Return what Transformer Engine refuses beside the exchanges of context parallelism that a plan has."""
    kinds = {kind for kind, _ in run.exchanges} if run.number("cp") > 1 else set[str]()
    parts = {
        f"attention to the last {shape.window} positions": shape.window is not None and RING in kinds,
        "attention sinks": shape.sinks and bool(kinds - {ALL_TO_ALL}),
    }
    return [
        f"{part} with cp={run['cp']} by {' and '.join(sorted(kinds))}: Transformer Engine has them with all-to-alls "
        "(--cp-comm-type a2a)"
        for part, there in parts.items()
        if there
    ]


def model_options(shape: Architecture, sequence_length: int) -> Settings:
    """Return the settings of a model for sequences of so many tokens."""
    options = [
        valued("--num-layers", shape.num_layers, "model.num_layers"),
        valued("--hidden-size", shape.hidden, "model.hidden_size"),
        valued("--num-attention-heads", shape.heads, "model.num_attention_heads"),
        *_attention(shape),
        *_feed_forward(shape),
        *_positions(shape, sequence_length),
        valued("--normalization", "LayerNorm" if shape.layernorm else "RMSNorm", "model.normalization"),
        *_biases(shape),
        *([] if shape.tied else [_untied()]),
        *([valued("--mtp-num-layers", shape.predictions, "model.mtp_num_layers")] if shape.predictions else []),
        valued("--attention-dropout", 0.1 if shape.dropout else 0.0, "model.attention_dropout"),
        valued("--hidden-dropout", 0.1 if shape.residual_dropout else 0.0, "model.hidden_dropout"),
    ]
    lost: list[str] = []
    biased = {shape.bias, shape.experts.biased if shape.experts else shape.bias}
    if len(biased) > 1:
        lost.append("biases of some multiplies and not of others: Megatron-LM has them in all or in none")
    return options, lost


def _untied() -> Option:
    flag = "--untie-embeddings-and-output-weights"
    return switch(flag, "model.share_embeddings_and_output_weights", False)


def _attention(shape: Architecture) -> list[Option]:
    found: list[Option] = []
    if shape.latent is not None:
        found += _latent_attention(shape.latent)
    else:
        found.append(valued("--kv-channels", shape.head_dim, "model.kv_channels"))
        if shape.kv_heads != shape.heads:
            found.append(Option("--group-query-attention", "", ""))
            found.append(valued("--num-query-groups", shape.kv_heads, "model.num_query_groups"))
    if shape.qk_norm:
        found.append(switch("--qk-layernorm", "model.qk_layernorm"))
    if shape.sinks:
        found.append(valued("--softmax-type", "learnable", "model.softmax_type"))
    if shape.window is not None:
        # Positions to the left and to the right, without the position itself.
        reach = shape.window - 1
        found.append(Option("--window-size", f"{reach},0", "model.window_size", (reach, 0)))
        if not all(shape.windowed):
            each = [int(windowed) for windowed in shape.windowed]
            pattern = f"[{','.join(map(str, each))}]"
            found.append(Option("--window-attn-skip-freq", pattern, "model.window_attn_skip_freq", each))
    return found


def _latent_attention(latent: Latent) -> list[Option]:
    rank, field = latent.query_rank, "model.q_lora_rank"
    return [
        switch("--multi-latent-attention", "model.multi_latent_attention"),
        Option("", "", field, None) if rank is None else valued("--q-lora-rank", rank, field),
        valued("--kv-lora-rank", latent.kv_rank, "model.kv_lora_rank"),
        valued("--qk-head-dim", latent.nope, "model.qk_head_dim"),
        valued("--qk-pos-emb-head-dim", latent.rope, "model.qk_pos_emb_head_dim"),
        valued("--v-head-dim", latent.value, "model.v_head_dim"),
    ]


def _feed_forward(shape: Architecture) -> list[Option]:
    experts = shape.experts
    found = [valued("--ffn-hidden-size", shape.width or (experts.width if experts else 0), "model.ffn_hidden_size")]
    if shape.activation == GATED:
        found += [switch("--swiglu", "model.gated_linear_unit"), Option("", "", "model.activation_func", "silu")]
    if shape.activation == SQUARED_RELU:
        found.append(switch("--squared-relu", "model.activation_func", "squared_relu"))
    if shape.activation == GELU:
        found.append(Option("", "", "model.activation_func", "gelu"))
    return found + (_expert_sizes(experts) if experts else [])


def _expert_sizes(experts: ExpertSizes) -> list[Option]:
    found = [valued("--moe-ffn-hidden-size", experts.width, "model.moe_ffn_hidden_size")]
    if experts.shared:
        name = "shared_expert_intermediate_size"
        found.append(valued(f"--moe-{name.replace('_', '-')}", experts.shared, f"model.moe_{name}"))
    if experts.balanced:
        found.append(valued("--moe-router-score-function", "sigmoid", "model.moe_router_score_function"))
        found.append(switch("--moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias"))
    return found


def _positions(shape: Architecture, sequence_length: int) -> list[Option]:
    kind = "learned_absolute" if shape.positions else "rope" if shape.rotary else "none"
    longest = max(shape.positions or 0, sequence_length)
    return [
        valued("--position-embedding-type", kind, "model.position_embedding_type"),
        Option("--max-position-embeddings", str(longest), ""),  # Megatron-Bridge takes that of the sequence
    ]


def _biases(shape: Architecture) -> list[Option]:
    found: list[Option] = []
    if not shape.bias:
        found.append(switch("--disable-bias-linear", "model.add_bias_linear", False))
        if shape.qkv_bias:
            found.append(switch("--add-qkv-bias", "model.add_qkv_bias"))
    return found
