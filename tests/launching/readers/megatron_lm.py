"""What Megatron-LM makes of command lines: its own parser, checks and configurations. Runs where they are installed.

Reads JSON from stdin, a list of {"arguments", "environment", "num_gpus"}, and prints a list in the words of a plan. Of
Transformer Engine, which needs a GPU, only the names are replaced that the checks look for.
"""

import json
import os
import sys

printed, sys.stdout = sys.stdout, sys.stderr

import without_gpu  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout  # noqa: E402
from megatron.core.transformer.transformer_block import get_num_layers_to_build  # noqa: E402
from megatron.training import arguments  # noqa: E402
from megatron.training.training import get_megatron_ddp_config, get_megatron_optimizer_config  # noqa: E402

without_gpu.has_every_version(arguments)


def read(job: dict) -> dict:
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"):
        os.environ.pop(name, None)
    os.environ.update(job["environment"], WORLD_SIZE=str(job["num_gpus"]), RANK="0", LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *job["arguments"]]
    args = arguments.parse_args()
    arguments.validate_args(args)
    model = arguments.core_transformer_config_from_args(args)
    ddp, (optimizer, _) = get_megatron_ddp_config(args), get_megatron_optimizer_config(args)
    assert isinstance(ddp, DistributedDataParallelConfig)
    assert isinstance(optimizer, OptimizerConfig)
    if job.get("whole"):
        return without_gpu.fields(model=model, ddp=ddp, optimizer=optimizer)
    return described(args, model, ddp, optimizer)


def described(args, model, ddp, optimizer) -> dict:
    stage = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}[ddp.data_parallel_sharding_strategy]
    sharded = stage if ddp.use_megatron_fsdp else int(ddp.use_distributed_optimizer)
    vpp = model.virtual_pipeline_model_parallel_size or 1
    pp = model.pipeline_model_parallel_size
    reduced = ddp.megatron_fsdp_main_grads_dtype if ddp.use_megatron_fsdp else None
    return {
        "tp": model.tensor_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "pp": pp,
        "vpp": vpp,
        "dp": args.data_parallel_size,
        "microbatch_size": args.micro_batch_size,
        "global_batch_size": args.global_batch_size,
        "sequence_length": args.seq_length,
        "zero_stage": sharded,
        "zero_replicas": ddp.num_distributed_optimizer_instances,
        "order": "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        "sequence_parallel": model.sequence_parallel,
        "expert_tp": model.expert_tensor_parallel_size if model.num_moe_experts else 1,
        "recompute": model.recompute_granularity,
        "recompute_method": model.recompute_method,
        "recompute_layers": model.recompute_num_layers,
        "modules": sorted(model.recompute_modules) if model.recompute_granularity == "selective" else [],
        "host_optimizer": optimizer.optimizer_cpu_offload,
        "host_layers": model.cpu_offloading_num_layers,
        "weight_bytes": model.params_dtype.itemsize,
        "gradient_bytes": reduced.itemsize if reduced else 4 if ddp.grad_reduce_in_fp32 else 2,
        "narrow": model.fp8 or model.fp4,
        "cp_comm_type": model.cp_comm_type[0] if isinstance(model.cp_comm_type, list) else model.cp_comm_type,
        "dispatcher": model.moe_token_dispatcher_type if model.num_moe_experts else None,
        "backend": model.moe_flex_dispatcher_backend if model.moe_token_dispatcher_type == "flex" else None,
        "grouped": model.moe_grouped_gemm,
        "tp_overlap": model.tp_comm_overlap,
        "ep_overlap": model.overlap_moe_expert_parallel_comm,
        "pp_overlap": model.overlap_p2p_comm,
        "dp_overlap": ddp.overlap_grad_reduce,
        "chunks": chunks(model, pp, vpp),
        "num_layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_query_groups,
        "head_dim": model.kv_channels,
        "width": model.ffn_hidden_size,
        "gated": model.gated_linear_unit,
        "experts": model.num_moe_experts or 0,
        "chosen": model.moe_router_topk if model.num_moe_experts else 0,
        "expert_width": model.moe_ffn_hidden_size if model.num_moe_experts else 0,
        "with_experts": with_experts(model),
        "biases": model.add_bias_linear,
        "norm": model.normalization,
        "qk_norm": model.qk_layernorm,
        "vocabulary": args.vocab_size,
    }


def chunks(model, pp: int, vpp: int) -> list[int]:
    layout = model.pipeline_model_parallel_layout
    parallel_state.set_virtual_pipeline_model_parallel_world_size(vpp if vpp > 1 else None)
    places = [(chunk if vpp > 1 else None, rank) for chunk in range(vpp) for rank in range(pp)]
    if layout is None:
        return [get_num_layers_to_build(model, vp_stage=chunk, pp_rank=rank) for chunk, rank in places]
    assert isinstance(layout, PipelineParallelLayerLayout)
    layout.validate_layer_layout(model.num_layers, 0)
    return [layout.get_num_layers_to_build(vp_stage=chunk, pp_rank=rank) for chunk, rank in places]


def with_experts(model) -> list[int]:
    frequency = model.moe_layer_freq
    if not model.num_moe_experts:
        return [0] * model.num_layers
    return [*frequency] if isinstance(frequency, list) else [1] * model.num_layers


if __name__ == "__main__":
    json.dump([read(job) for job in json.load(sys.stdin)], printed)
