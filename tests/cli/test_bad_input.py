"""Wrong input: a message with the value, the rule and the place, exit code 2, nothing on stdout."""

import pytest

MODEL = ("--model", "small.yaml")
CLUSTER = ("--cluster", "b200-nvs8")
GPUS = ("--num-gpus", 8)
BATCH = ("--global-batch-size", 8)
JOB = (*MODEL, *CLUSTER, *GPUS, *BATCH)


def refused(done, *fragments):
    assert done.code == 2, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    for fragment in fragments:
        assert fragment in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bset", *JOB), "No such command 'bset'. Did you mean 'best'?"),
        (("best", *MODEL, *CLUSTER, *GPUS), "Missing option '--global-batch-size'"),
        (("best", *MODEL, "--cluster", "b200", *GPUS, *BATCH), "unknown cluster 'b200': it is a device"),
        (("best", *MODEL, *CLUSTER, "--num-gpus", 0, *BATCH), "'--num-gpus': 0 is not a whole number from 1"),
        (("best", *MODEL, *CLUSTER, *GPUS, "--global-batch-size", 10**30), "is not a whole number from 1 to"),
        (
            ("best", *JOB, "--top", 10**9),
            "--top 1000000000: a list has at most 100,000 plans; a sweep with keep: all has every plan",
        ),
        (("best", *JOB, "--to", 3), "No such option: --to"),
        (
            ("best", *JOB, "TP=8", "vpp=1,2"),
            "'TP=8 vpp=1,2': a search takes choices as options: --fix tp=8 --fix vpp=1,2\n",
        ),
        (("best", *JOB, "fast"), "'fast': best takes options alone"),
        (("list", "model"), "'model' is not one of 'models', 'clusters'"),
        (("list", "modles"), "'frameworks'; did you mean 'models'?"),
        (("best", *MODEL, "--cluster", "b200-nvs8,", *GPUS, *BATCH), "beside a comma; did you mean 'b200-nvs8'?"),
        (
            ("best", *JOB, "--set", "cluster.network.bandwith=3"),
            "network.bandwith: unknown key; did you mean 'network.nvs.bandwidth' or 'network.net.bandwidth'?",
        ),
        (
            ("best", *JOB, "--fix", "recompute=norms"),
            "(it runs recompute none, experts, feed-forward+experts, feed-forward, and 37 more: docs/choices.md has "
            "the values of recompute); nearest: framework",
        ),
    ],
)
def test_options(run, folder, arguments, says):
    refused(run(*arguments), says)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ("tp=2", "dp=4", "strategy=2d"),
            "strategy is no setting of a plan; it is given beside the plan, as --strategy 2d",
        ),
        (
            ("gbs=8",),
            "global_batch_size is no setting of a plan; it is given beside the plan, as --global-batch-size 8",
        ),
        ((f"tp={'9' * 5000}",), "tp must be a whole number of at least 1 and at most 2147483647"),
        (("tp=\N{ARABIC-INDIC DIGIT TWO}", "dp=4"), "tp must be a whole number of at least 1"),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "why"])
def test_plans(run, folder, verb, settings, says):
    refused(run(verb, *JOB, *settings), says)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("model.dimensions.e=1e30", "is not a whole number from 1 to 2147483647"),
        ("assumptions.launch_latency=-1 us", "should be greater than or equal to 0"),
        ("assumptions.overhead=9e308 GB", "too large"),
        ("sweep.global_batch_size=16", "no sweep is read here; give an option, such as --global-batch-size 16"),
        ("sweep.fix.zero_stage=3", "no sweep is read here; a plan takes zero_stage=3"),
        ("sweep.fix.tp_nvs=4", "no sweep is read here; a plan takes nvs.tp=4"),
    ],
)
def test_set(run, folder, assignment, says):
    refused(run("evaluate", *JOB, "dp=8", "--set", assignment), says)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("sweep.num_gpus=16", "give an option, such as --num-gpus 16"),
        ("sweep.operator_times=a b.csv", "give an option, such as --operator-times 'a b.csv'"),
        ("sweep.fix.zero_stage=3", "a search takes --set assumptions.fixed.zero_stage=3"),
        ("sweep.fix.zero_stage=[1, 3]", "run dsx sweep FILE --set 'sweep.fix.zero_stage=[1, 3]'"),
        ("sweep.fix.pp=4", "a plan takes pp=4; a search takes --fix pp=4"),
        ("sweep.limit.tp=<=4", "a search takes --limit 'tp<=4'"),
        ("sweep.limit.tp=[>=2, <=4]", "run dsx sweep FILE --set 'sweep.limit.tp=[>=2, <=4]'"),
        ("sweep.limmit.tp=4", "no sweep is read here; and a sweep has no field 'limmit'; did you mean 'limit'?"),
    ],
)
def test_what_is_set_of_a_sweep_where_none_is_read(run, folder, assignment, says):
    refused(run("best", *JOB, "--set", assignment), f"--set {assignment}: no sweep is read here; ", says)


@pytest.mark.slow
def test_what_is_advised_instead_of_a_sweep_works(run, folder):
    done = run("best", *JOB, "--set", "assumptions.fixed.zero_stage=3")
    assert (done.code, "zero_stage=3" in done.out) == (0, True)
    for number, assignment in enumerate(("sweep.fix.zero_stage=3", "sweep.fix.tp=4", "sweep.limit.tp=<=4")):
        assert run("sweep", "sweep.yaml", "-o", f"out{number}", "--set", assignment).code == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((", f: 4096", ""), "uses the dimension 'f', which 'small' does not give"),
        (("kind: transformer", "kind: transfomer"), "unknown layer 'transfomer'; did you mean 'transformer'?"),
        (("layers:", "layers: ["), "m.yaml:6:"),
    ],
)
def test_model_files(run, folder, change, says):
    (folder / "m.yaml").write_text((folder / "small.yaml").read_text().replace(*change))
    refused(run("best", "--model", "m.yaml", *CLUSTER, *GPUS, *BATCH), says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("best", "--model", "sweep.yaml", *CLUSTER, *GPUS, *BATCH),
            "sweep.yaml: is a sweep, no model: give it to dsx",
        ),
        (("best", *MODEL, "--cluster", "small.yaml", *GPUS, *BATCH), "small.yaml: is a model, no cluster: give it to"),
        (("sweep", "small.yaml", "-o", "out"), "small.yaml: is a model, no sweep: give it to --model"),
        (
            ("best", "--model", "Config.json", *CLUSTER, *GPUS, *BATCH),
            "Config.json: is a config of Hugging Face, no model of dsx: dsx import-hf Config.json -o config.yaml",
        ),
    ],
)
def test_files_of_another_kind(run, folder, arguments, says):
    (folder / "Config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 9}'
    )
    done = run(*arguments)
    refused(done, f"dsx: error: {says}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (
            "fix:\n  zero_replicas: [3]",
            ["sweep.yaml:9: fix: zero_replicas = 3: zero_replicas divides dp", "nearest: zero_rep"],
        ),
        ("fix: {ep: 7}", ["sweep.yaml:8: fix: ep = 7: nothing of small is sharded over ep", "; nearest: ep = 1"]),
        (
            "fix: {vpp: 2, pp: 1}",
            [
                "leave none; change any of these\nsweep.yaml:8: fix: pp = 1: pp divides",
                "sweep.yaml:8: fix: vpp = 2: vpp ",
            ],
        ),
        (
            "fix: {pp: 3, tp: 5}",
            [
                "leave none; change all of these\nsweep.yaml:8: fix: tp = 5: tp divides num_gpus",
                "fix: pp = 3: pp divides num_gpus and the 8 layers; nearest: pp = 2",
            ],
        ),
        ("fix: {tp: 8, pp: 8}", ["all degrees multiply to num_gpus, and no product of these divides 8; nearest: pp"]),
        (
            "fix: {stored_layers: 9}",
            ["sweep.yaml:8: fix: stored_layers = 9: stored_layers is below the layers of a stage"],
        ),
    ],
)
def test_what_leaves_no_candidate_is_said_with_its_place(run, folder, stated, says):
    (folder / "sweep.yaml").write_text(f"{(folder / 'sweep.yaml').read_text()}{stated}\n")
    done = run("sweep", "sweep.yaml", "-o", "out")
    assert (done.code, done.out) == (3, "")
    for text in ("no candidate for 8 GPUs and global_batch_size=32: the fixed choices and limits leave none", *says):
        assert text in done.err
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_what_a_set_or_an_override_of_a_sweep_leaves(run, folder):
    done = run("best", *JOB, "--set", "assumptions.fixed.vpp=3", "--partition", "even")
    assert done.code == 3
    assert (
        "assumption set 'default': fixed: vpp = 3: vpp divides the layers of a stage, 8 / pp; vpp above 1 needs"
        in done.err
    )
    assert done.err.endswith("; nearest: vpp = 2\n")
    # Sweep overrides.
    sweep = ("sweep", "sweep.yaml", "-o", "out", "--set")
    refused(run(*sweep, "sweep.global_batch=64"), "did you mean 'global_batch_size'?")
    refused(run(*sweep, "sweep.limit.tpp=<=2"), "--set sweep.limit.tpp: limit.tpp: unknown candidate column 'tpp'")
    refused(run("sweep", "swep.yaml"), "swep.yaml is not a file; did you mean 'sweep.yaml'?")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("small.yaml", "small.yaml is a file, not a folder; choose another folder with -o"),
        ("small.yaml/deeper", "cannot write to small.yaml/deeper: Not a directory"),
        ("/proc/dsx", "cannot write to /proc/dsx: "),
        (".", "holds files that are not a result set (small.yaml, sweep.yaml)"),
    ],
)
def test_folders_that_cannot_be_written(run, folder, output, says):
    refused(run("sweep", "sweep.yaml", "-o", output), says)
    assert sorted(path.name for path in folder.iterdir()) == ["small.yaml", "sweep.yaml"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("why", "SET", 12), "no candidate '12' among the "),
        (("why", "SET", 10**19), f"no candidate '{10**19}' among the "),
        (("why", "SET", "x"), "an id is a number of its column 'candidate'"),
        (("why", "SET"), "give a result folder and one candidate id, or a plan as in tp=8"),
        (("why", "SET", 1, 2), "give a result folder and one candidate id"),
        (("why", "nowhere", 12), "no result set at nowhere, which does not exist"),
        (("why",), "missing: --model, --cluster, --num-gpus, --global-batch-size"),
        (("pareto", "nowhere"), "no result set at nowhere, which does not exist"),
        (("pareto", "."), "it has no manifest.json"),
        (("pareto", "SET", "--objective", "-"), "unknown column ''"),
        (("pareto", "SET", "--objective", "mfu", "--plot", "a.png"), "--plot a.png draws two objectives, and mfu is"),
        (("pareto", "SET", "--plot", "no/a.png"), "no/a.png: no is no folder; make it, or choose another file"),
    ],
)
def test_result_sets(run, folder, swept, arguments, says):
    refused(run(*[swept if argument == "SET" else argument for argument in arguments]), says)
    assert sorted(path.name for path in folder.iterdir()) == ["small.yaml", "sweep.yaml"]


BLOCK = """block mine
input  x[b, s, e]
weight w1[e, f/tp] w2[f/tp, e]
z[b, s, f/tp @*] = einsum(x, w1)
d[b, s, e @*]    = einsum(z, w2)
output[b, s, e]  = add(x, d[b, s, e])
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("einsum(z, w2)", "einsum(z, w2[e, f/tp])"), "a dimension does not match"),
        (("add(x, d[b, s, e])", "gelu(d)"), "gelu is not linear and cannot take a partial sum over tp"),
        (("einsum(x, w1)", "einsum(x, w1"), "mine.layer:4:"),
        ((BLOCK, "strategy mine\nrole rs = s s"), "mine.layer:2:"),
    ],
)
def test_layer_texts(run, folder, change, says):
    (folder / "mine.layer").write_text(BLOCK.replace(*change))
    refused(run("layer", "./mine.layer"), says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("./experst.layer",), "experst.layer is not a file"),
        (("feed-forward", "--set", "tpp=2"), "has no dimension or degree 'tpp'; did you mean 'tp'?"),
        (
            ("gated-mlp",),
            "is now written 'use feed-forward (n = n, output = d)' between a norm and an add, with the option gated",
        ),
        (("transformer", "gated", "ffn=experts"), "unknown option 'gated'"),
        (("transformer", "ffn=head"), "'head' is not a block"),
        (("transformer", "ffn="), "ffn= is no option, as gated is, nor a block parameter, as ffn=experts is"),
        (("transformer", "=experts"), "=experts is no option"),
        (
            ("transformer", "window", "full"),
            "'window' and 'full' exclude each other (mask: one of window, chunked, full, or none)",
        ),
    ],
)
def test_layer_arguments(run, folder, arguments, says):
    refused(run("layer", *arguments), says)
