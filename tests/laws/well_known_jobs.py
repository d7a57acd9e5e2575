"""Fifteen jobs that people ask for, whose answers are looked at as someone would who pays for them.

Each states its framework, batch, sequence length and precision, and nothing else.
"""

from dataclasses import dataclass

import dsx


@dataclass(frozen=True)
class WellKnown:
    model: str
    cluster: str
    num_gpus: int
    global_batch_size: int
    sequence_length: int
    framework: str = "megatron"
    linear_dtype: str = "bf16"

    @property
    def job(self) -> dsx.Job:
        return dsx.Job(
            self.model,
            self.cluster,
            self.num_gpus,
            self.global_batch_size,
            self.sequence_length,
            set=[f"assumptions.linear_dtype={self.linear_dtype}"],
        )

    def __str__(self) -> str:
        return f"{self.model}-{self.num_gpus}-{self.cluster}-{self.framework}"


JOBS = (
    WellKnown("llama-3-405b", "h100-nvs8", 16384, 2048, 8192),
    WellKnown("llama-3-405b", "gb200-nvl72", 2304, 1152, 8192),
    WellKnown("nemotron-4-340b", "h100-nvs8", 6144, 2304, 4096),
    WellKnown("llama-3-70b", "h100-nvs8", 1024, 1024, 8192),
    WellKnown("llama-3-70b", "mi300x-xgmi8", 64, 256, 8192, framework="torchtitan"),
    WellKnown("llama-3-8b", "h100-nvs8", 8, 128, 8192, framework="torchtitan"),
    WellKnown("llama-3-8b", "h100-nvs8", 64, 512, 8192, framework="deepspeed"),
    WellKnown("gpt3-175b", "h100-nvs8", 1024, 1536, 2048),
    WellKnown("deepseek-v3", "h800-nvs8", 2048, 15360, 4096, linear_dtype="fp8"),
    WellKnown("deepseek-v3", "gb200-nvl72", 288, 4608, 4096),
    WellKnown("qwen3-235b-a22b", "h100-nvs8", 256, 2048, 4096),
    WellKnown("qwen3-30b-a3b", "h100-nvs8", 16, 1024, 4096),
    WellKnown("mixtral-8x7b", "h100-nvs8", 128, 256, 4096),
    WellKnown("gpt-oss-120b", "gb200-nvl72", 72, 1152, 4096),
    WellKnown("gpt-oss-120b", "h100-nvs8", 64, 1024, 4096, framework="deepspeed"),
)
