#!/usr/bin/env bash
# Written by dsx 0.1.0.
# llama-3-8b on 16 x h100-nvs8, 1d: dp=16 microbatch_size=1 nvs.dp=8
# 64 sequences of 8,192 tokens, 524,288 tokens a step
# Priced at 3.19 s a step and 85.2 GB on the fullest GPU.
#
# Assumed of the software (stack megatron-bridge-2026: Megatron-Bridge of 2026, with CUDA graphs of attention,
#   router and dense layers.):
#   - attention_kernels flash-3: Transformer Engine takes fused attention of cuDNN 9 (February 2024) on H100;
#     NeMo containers have both since about 24.05
#   - unfused_share 0.1: Megatron Core: apply_rope_fusion, bias_swiglu_fusion, fused norms of Transformer
#     Engine, on by default in recipes
#   - dispatch_latency 10 us: assumption: CUDA graphs of all but the experts (Megatron Core, cuda_graph_scope)
#   - tp_overlap 0.8: assumption, after arXiv 2406.06858 (Flux), figures of Transformer Engine: most of a gather
#     or scatter is beside its multiply, in chunks; recipes set tp_comm_overlap
#   - cp_overlap 0.8: Transformer Engine: keys and values go round in a ring beside attention
#   - ep_overlap 0.3: assumption: overlap_moe_expert_parallel_comm in some recipes, which runs the exchange of
#     one microbatch beside another's compute
#   - pp_overlap 0.8: recipes set overlap_p2p_comm with interleaved stages
#   - dp_overlap 0.9: recipes set overlap_grad_reduce and overlap_param_gather
#   - fsdp_overlap 0.85: assumption, as for generic-2024
#   - gradient_bytes 2: NeMo, performance recipes: grad_reduce_in_fp32 is off (from memory of them)
#   - fp8_saved_bytes 1: Transformer Engine keeps the cast operand (from memory of the code)
#   - cross_entropy_bytes 2: recipes set cross_entropy_fusion_impl te: one kernel of Transformer Engine (from
#     memory of them)
#   - fragmentation 0.1: assumption, as for generic-2024
#   - dispatcher once_per_domain: recipes set the flex dispatcher with DeepEP on Hopper and HybridEP on
#     Blackwell (from memory of them)
#
# Megatron-LM does not express, so that the run differs from the one that was priced:
#   - cross-entropy that keeps 2 bytes per logit (cross_entropy_bytes): Megatron-LM refuses the kernel of
#     Transformer Engine (--cross-entropy-fusion-impl te), and its own keeps 8
set -euo pipefail

NUM_GPUS=16
GPUS_PER_NODE="${GPUS_PER_NODE:-8}"
if ((NUM_GPUS % GPUS_PER_NODE)); then
    echo "GPUS_PER_NODE=$GPUS_PER_NODE: it must divide the $NUM_GPUS GPUs of the plan" >&2
    exit 2
fi
HOSTS=(--nnodes "$((NUM_GPUS / GPUS_PER_NODE))" --nproc-per-node "$GPUS_PER_NODE" --node-rank "${NODE_RANK:-0}"
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}")


MODEL=(
    --num-layers 32
    --hidden-size 4096
    --num-attention-heads 32
    --kv-channels 128
    --group-query-attention
    --num-query-groups 8
    --ffn-hidden-size 14336
    --swiglu
    --position-embedding-type rope
    --max-position-embeddings 8192
    --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
)
PLAN=(
    --tensor-model-parallel-size 1
    --context-parallel-size 1
    --pipeline-model-parallel-size 1
    --micro-batch-size 1
    --global-batch-size 64
    --seq-length 8192
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --bf16
    --grad-reduce-in-bf16
    --no-create-attention-mask-in-dataloader
    --cross-entropy-loss-fusion
    --cross-entropy-fusion-impl native
    --cuda-graph-impl transformer_engine
    --cuda-graph-modules attn mlp
    --te-rng-tracker
)
# Made-up tokens; set DATA_PATH and TOKENIZER for your own. Learning rates are no part of the plan.
if [ -n "${DATA_PATH:-}" ]; then
    DATA=(--data-path "$DATA_PATH" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER")
else
    DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size 128256)
fi
TRAINING=(--train-iters "${TRAIN_ITERS:-50}" --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --log-interval 1
    --log-throughput --eval-iters 0)

torchrun "${HOSTS[@]}" "${MEGATRON_LM:?a checkout of Megatron-LM}/pretrain_gpt.py" \
    "${MODEL[@]}" "${PLAN[@]}" "${DATA[@]}" "${TRAINING[@]}" "$@"
