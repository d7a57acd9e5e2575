"""Launch files: what a training framework must be told so that it starts the run that was priced.

    run = run_of(plan, model, assumptions, device)     # what must be set, in no framework's words
    launch = megatron_lm(run)                          # the options of one framework, and what it cannot express
    files = launch_files(FRAMEWORKS["torchtitan"], run, architecture_of(spec, assumptions))

`run` and `architecture` say what must be set; `megatron` (with `megatron_options` and `megatron_model`), `torchtitan`
and `deepspeed` say it in the words of a framework; `files` writes it down. Not covered: data, tokenizers, learning
rates and checkpoints, which do not change the time of a step.
"""
