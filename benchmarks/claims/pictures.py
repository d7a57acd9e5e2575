"""The pictures of the document, with their captions."""

# {name of the sweep: (title, caption)}, in the order of the document
PICTURES = {
    "figure-1": (
        "Figure 1: tensor parallelism",
        "Step time and memory of GPT3-1T on 16,384 B200 in domains of 8 against tp, at pp = 64 and one sequence a "
        "microbatch. The bubble shrinks and TP communication grows; both together are least at tp = 8. Every bar is "
        "the fastest placement.",
    ),
    "figure-2a": (
        "Figure 2a: pipeline stages, domains of 8",
        "The same against pp at tp = 8. With fewer stages DP communication grows, until DP takes shares of the domain "
        "from TP; one and two stages do not fit (hatched).",
    ),
    "figure-2b": (
        "Figure 2b: pipeline stages, domains of 64",
        "The same in domains of 64, where TP and a share of DP are both placed in the domain. Fewer stages are faster "
        "down to two; at one, DP communication outweighs the bubble. One and two do not fit.",
    ),
    "figure-3a": (
        "Figure 3a: SUMMA, domains of 8",
        "For each grid of tp by tp2 the fastest SUMMA plan that fits. Grids of more than 8 GPUs leave the domain, and "
        "communication dominates.",
    ),
    "figure-3b": (
        "Figure 3b: SUMMA, domains of 64",
        "The same in domains of 64. Grids of 8 by 4 stay inside the domain and need no pipeline.",
    ),
    "figure-4a": (
        "Figure 4a: GPT3-1T against the number of GPUs",
        "The fastest 1d plan at each number of B200; below the bars the shares of the NVLink domain and the plan. The "
        "step times of large numbers are small here: the claims have those that matter.",
    ),
    "figure-4b": (
        "Figure 4b: the vision transformer against the number of GPUs",
        "The fastest 2d plan at each number of B200. Almost all of the memory is in use everywhere.",
    ),
    "figure-5-gpt3-1t": (
        "Figure 5: training time of GPT3-1T",
        "Days for 10^12 tokens by the fastest plan of three strategies on nine systems. The GPU matters more than the "
        "domain. The claims on days are about 1d plans, as the released numbers are.",
    ),
    "figure-5-vit-era5": (
        "Figure 5: training time of the vision transformer",
        "Days by the fastest plan of three strategies on the same systems. The domain matters more here than for "
        "GPT3-1T. The absolute days rest on a token count that is not in the released inputs (see below). No claim is "
        "tested on it.",
    ),
    "figure-a2": (
        "Figure A2: 2D plans at scale",
        "As figure 4a, for the fastest 2d plan. What A2 shows beyond 2D plans at scale is not stated in the sources of "
        "this document, so no claim is tested on it.",
    ),
    "figure-a3": (
        "Figure A3: SUMMA plans at scale",
        "As figure 4a, for the fastest SUMMA plan. Here too the sources state no more, and no claim is tested.",
    ),
    "figure-a4": (
        "Figure A4: speed-up over 1D",
        "The best 2d and SUMMA plans of GPT3-1T over the best 1d plan on B200 in domains of 8. SUMMA gains where GPUs "
        "are few, 2d where they are many; the claims count all nine systems.",
    ),
    "figure-a5-gpt3-1t": (
        "Figure A5: older compute or memory, GPT3-1T",
        "A step on 8,192 B200, with the FLOP/s of A100 and H200 (left) and with their memory (middle). Below are the "
        "FLOP/s and the capacity; the bandwidth goes with the capacity.",
    ),
    "figure-a5-vit-era5": (
        "Figure A5: older compute or memory, vision transformer",
        "The same for the vision transformer: with less memory a replica needs more GPUs, and a step is longer.",
    ),
    "figure-a6-gpt3-1t": (
        "Figure A6: capacity against bandwidth, GPT3-1T",
        "Days on 8,192 B200 with another HBM, relative to the GPU as it is (framed). Bandwidth matters below 1.5 TB/s; "
        "capacity from 640 GB, where a plan without pipeline fits.",
    ),
    "figure-a6-vit-era5": (
        "Figure A6: capacity against bandwidth, vision transformer",
        "The same for the vision transformer: capacity matters everywhere, bandwidth less.",
    ),
    "validation-gpt3-175b": (
        "Validation: GPT3-175B on 512 A100",
        "The fastest 1d plan for each tp by pp, four GPUs to a node, relative to the best (framed). Around it the step "
        "time is flat along pp and steep along tp.",
    ),
}
