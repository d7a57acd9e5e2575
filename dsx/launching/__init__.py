"""Launch files: what a training framework must be told so that it starts the run that was priced.

`request` says what must be set, in no framework's words; `megatron` (with `megatron_settings`), `torchtitan` and
`deepspeed` say it in theirs; `writers` refuses what a framework cannot run. Not covered: data, tokenizers, learning
rates and checkpoints, which do not change the time of a step.
"""

LAUNCHED = ("megatron", "megatron-bridge", "torchtitan", "deepspeed")  # frameworks that have writers, the default first
