"""What Megatron-Bridge makes of recipes: its own configurations, as its training makes them final and checks them.

Runs where it is installed. Reads JSON from stdin, a list of {"path", "num_gpus"}, and prints a list in the words of a
plan. Packages that need a GPU or that recipes for pictures and sound need are replaced by names.
"""

import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
from unittest.mock import MagicMock

printed, sys.stdout = sys.stdout, sys.stderr

import without_gpu  # noqa: E402

_REPLACED = ("transformer_engine", "transformer_engine_torch", "wandb", "timm", "diffusers", "megatron.energon")
_REPLACED += ("modelopt", "nvidia_resiliency_ext", "megatron.bridge.diffusion")
_REPLACED += ("megatron.bridge.recipes.flux", "megatron.bridge.recipes.wan")


class _Named(MagicMock):
    __path__ = ()
    __version__ = "9.9"
    __all__ = ()


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a name in place of a package."""

    def find_spec(self, fullname, path, target=None):
        del path, target
        there = any(fullname == name or fullname.startswith(f"{name}.") for name in _REPLACED)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if there else None

    def create_module(self, spec):
        return _Named(__name__=spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Replaced())

import megatron.bridge.training.comm_overlap as comm_overlap  # noqa: E402
import megatron.bridge.training.config as bridge  # noqa: E402

without_gpu.has_every_version(comm_overlap)


def read(path: str, num_gpus: int, whole: bool = False) -> dict:
    config = runpy.run_path(path)["recipe"]()
    assert isinstance(config, bridge.ConfigContainer)
    for owner in (config, config.model, config.ddp, config.train, config.optimizer, config.checkpoint, config.dist):
        known = set(type(owner).__dataclass_fields__)
        assert {name for name in vars(owner) if not name.startswith("_")} <= known | {"cfg"}, (path, owner)
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", *config.env_vars):
        os.environ.pop(name, None)
    bridge.get_world_size_safe = lambda: num_gpus
    bridge.runtime_config_update(config)
    model, ddp = config.model, config.ddp
    stage = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}[ddp.data_parallel_sharding_strategy]
    assert config.dataset.seq_length == model.seq_length
    reduced = ddp.megatron_fsdp_main_grads_dtype if ddp.use_megatron_fsdp else None
    assert ddp.use_distributed_optimizer == config.optimizer.use_distributed_optimizer
    if whole:
        return without_gpu.fields(model=model, ddp=ddp, optimizer=config.optimizer)
    pipelined = model.pipeline_model_parallel_size > 1
    return {
        "dp": config.data_parallel_size,
        "vpp": model.virtual_pipeline_model_parallel_size or 1,
        "order": "tp-cp-ep-pp-dp" if config.dist.use_tp_pp_dp_mapping and pipelined else "tp-cp-ep-dp-pp",
        "sequence_parallel": model.sequence_parallel,
        "modules": sorted(model.recompute_modules) if model.recompute_granularity == "selective" else [],
        "host_layers": model.cpu_offloading_num_layers if model.cpu_offloading else 0,
        "weight_bytes": model.params_dtype.itemsize,
        "backend": model.moe_flex_dispatcher_backend if model.moe_token_dispatcher_type == "flex" else None,
        "pp_overlap": model.overlap_p2p_comm,
        "tp": model.tensor_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "microbatch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "sequence_length": model.seq_length,
        "zero_stage": stage if ddp.use_megatron_fsdp else int(ddp.use_distributed_optimizer),
        "zero_replicas": ddp.num_distributed_optimizer_instances,
        "recompute": model.recompute_granularity,
        "recompute_method": model.recompute_method,
        "recompute_layers": model.recompute_num_layers,
        "host_optimizer": config.optimizer.optimizer_cpu_offload,
        "gradient_bytes": reduced.itemsize if reduced else 4 if ddp.grad_reduce_in_fp32 else 2,
        "narrow": model.fp8 or model.fp4,
        "dispatcher": model.moe_token_dispatcher_type if model.num_moe_experts else None,
        "grouped": model.moe_grouped_gemm,
        "tp_overlap": model.tp_comm_overlap,
        "ep_overlap": bool(model.overlap_moe_expert_parallel_comm),
        "dp_overlap": ddp.overlap_grad_reduce,
        "num_layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_query_groups or model.num_attention_heads,
        "width": model.ffn_hidden_size,
        "experts": model.num_moe_experts or 0,
    }


if __name__ == "__main__":
    json.dump([read(**job) for job in json.load(sys.stdin)], printed)
