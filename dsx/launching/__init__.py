"""Launch files: what a training framework must be told so that it starts the run that was priced.

    run = run_of(plan, model, assumptions, device)     # what must be set, in no framework's words
    request = Request(run, architecture_of(spec, assumptions), title, domain, host)
    written = launch_files(FRAMEWORKS["torchtitan"], request, head)  # files, and what it does not express

`run` and `architecture` say what must be set; `megatron` (with `megatron_options` and `megatron_model`), `torchtitan`
and `deepspeed` say it in the words of a framework; `files` writes it down. Not covered: data, tokenizers, learning
rates and checkpoints, which do not change the time of a step.
"""
