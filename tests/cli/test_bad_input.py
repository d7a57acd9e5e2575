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
        (("best", "--model", "gpt3-1", *CLUSTER, *GPUS, *BATCH), "unknown model 'gpt3-1'; did you mean 'gpt3-1t'?"),
        (("best", *MODEL, "--cluster", "b200", *GPUS, *BATCH), "unknown cluster 'b200': it is a device"),
        (("best", *JOB, "--strategy", "3d"), "unknown strategy '3d'; did you mean "),
        (("best", *JOB, "--strategy", "experts"), "'experts' is a block, not a strategy"),
        (("best", *JOB, "--assumptions", "defalt"), "unknown assumption set 'defalt'; did you mean 'default'?"),
        (("best", "--model", "smal.yaml", *CLUSTER, *GPUS, *BATCH), "is not a file; did you mean 'small.yaml'?"),
        (("best", *MODEL, *CLUSTER, "--num-gpus", 0, *BATCH), "'--num-gpus': 0 is not a whole number from 1"),
        (("best", *MODEL, *CLUSTER, "--num-gpus", -8, *BATCH), "-8 is not a whole number from 1"),
        (("best", *MODEL, *CLUSTER, "--num-gpus", 8.5, *BATCH), "8.5 is not a whole number"),
        (("best", *MODEL, *CLUSTER, "--num-gpus", "many", *BATCH), "'many' is not a whole number, as in 512"),
        (("best", *MODEL, *CLUSTER, "--num-gpus", 2**31, *BATCH), "2147483648 is not a whole number from 1 to"),
        (("best", *MODEL, *CLUSTER, *GPUS, "--global-batch-size", 10**30), "is not a whole number from 1 to"),
        (("best", *JOB, "--sequence-length", 0), "'--sequence-length': 0 is not a whole number from 1"),
        (("best", *JOB, "--top", 0), "'--top': 0 is not a whole number from 1"),
        (
            ("best", *JOB, "--top", 10**9),
            "--top 1000000000: a list has at most 100,000 plans; a sweep with keep: all has every plan",
        ),
        (("best", *JOB, "--to", 3), "No such option: --to"),
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
        (("tp=0", "dp=8"), "'tp=0': tp must be a whole number of at least 1"),
        (("tp=-2", "dp=8"), "'tp=-2': tp must be a whole number"),
        (("tp=2.5", "dp=8"), "'tp=2.5': tp must be a whole number"),
        (("tp=", "dp=8"), "'tp=' has no value: write column=value"),
        (("tp", "dp=8"), "'tp' is not a setting of a plan: write column=value, such as tp=8"),
        (("tp=2", "tp=4", "dp=2"), "tp is given twice: 'tp=2' and 'tp=4'"),
        (("tpp=2", "dp=4"), "unknown setting 'tpp'; did you mean 'tp'?"),
        (("nvs.tpp=2", "dp=8"), "unknown setting 'nvs.tpp'; did you mean 'nvs.tp'?"),
        (("tp=2", "dp=2"), "tp=2 * dp=2 = 4, but num_gpus=8; nearest: dp=4"),
        (("tp=3", "dp=2"), "tp=3 * dp=2 = 6, but num_gpus=8; nearest: tp=4"),
        (
            ("tp=2", "dp=4", "strategy=2d"),
            "strategy is no setting of a plan; it is given beside the plan, as --strategy 2d",
        ),
        (("TP=2", "dp=4"), "'TP=2': each column has one name here, in lower case: write tp=2"),
        (
            ("TP=2", "dp=4", "mbs=1", "micro-batch-size=1", "zero=1"),
            "'TP=2 mbs=1 micro-batch-size=1 zero=1': each column has one name here, in lower case: "
            "write tp=2 microbatch_size=1 microbatch_size=1 zero_stage=1",
        ),
        (
            ("gbs=8",),
            "global_batch_size is no setting of a plan; it is given beside the plan, as --global-batch-size 8",
        ),
        (("gas=2",), "'gas=2': num_microbatches is global_batch_size / (dp * microbatch_size); set these instead"),
        ((), "all degrees are 1, but num_gpus=8; nearest: dp=8"),
        (("dp=8", "microbatch_size=2"), "dp=8 * microbatch_size=2 exceeds global_batch_size=8"),
        (("tp=2", "cp=2", "dp=2"), "cp=2: strategy '1d' shards nothing of this model over cp; its axes are tp"),
        (("tp=2", "dp=4", "panels=2"), "panels=2: strategy '1d' has no panels"),
        (("tp=2", "dp=4", "zero_stage=4"), "zero_stage = 4 must be one of 0, 1, 2, 3"),
        ((f"tp={10**30}",), "tp must be a whole number of at least 1 and at most 2147483647"),
        ((f"tp={'9' * 5000}",), "tp must be a whole number of at least 1 and at most 2147483647"),
        (("tp=\N{ARABIC-INDIC DIGIT TWO}", "dp=4"), "tp must be a whole number of at least 1"),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "why"])
def test_plans(run, folder, verb, settings, says):
    refused(run(verb, *JOB, *settings), says)


def test_more_stages_than_layers(run, folder):
    job = (*MODEL, *CLUSTER, "--num-gpus", 16, *BATCH)
    refused(run("evaluate", *job, "pp=16"), "pp=16 leaves stages without a layer: the model has 8 layers")
    refused(run("evaluate", *job, "dp=16"), "dp=16 * microbatch_size=1 exceeds global_batch_size=8")


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("cluster.device.hbm_capacity=141", "device.hbm_capacity: 141 has no unit: write for example '141 GB'"),
        ("cluster.device.hbm_capacity=141 GB/s", "'GB/s' is a unit of bytes/s; expected a unit of bytes"),
        ("cluster.device.hbm_capacty=141 GB", "unknown path 'device.hbm_capacty'; did you mean 'device.hbm_capacity'?"),
        ("cluster.device.hbm_capacity=", "no value is given"),
        ("cluster.device.hbm_capacity", "expected TARGET.PATH=VALUE"),
        ("cluster=5", "expected TARGET.PATH=VALUE"),
        ("cluser.device.hbm_capacity=1 GB", "unknown target 'cluser'; did you mean 'cluster'?"),
        ("model.dimensions.q=8", "unknown path 'dimensions.q'"),
        ("model.dimensions.e=1e30", "is not a whole number from 1 to 2147483647"),
        ("model.layers.1.count=8", "unknown path 'layers.1.count'; did you mean 'layers.0.count'?"),
        ("assumptions.launch_latency=-1 us", "should be greater than or equal to 0"),
        ("assumptions.matrix_efficiency=1.5", "should be less than or equal to 1, got 1.5"),
        (
            "assumptions.fixed.epp=2",
            "'fixed' cannot fix 'epp'; did",
        ),
        ("assumptions.operators=[standrd]", "unknown operator table 'standrd'; did you mean 'standard'?"),
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
        (("default_sequence_length", "default_sequence_lenght"), "m.yaml:3: default_sequence_lenght: unknown key; did"),
        (("count: 8", "count: 8.5"), "m.yaml:6: layers.0.count: 8.5 is not a whole number"),
        (("e: 1024", "e: 0"), "m.yaml:4: dimensions.e: 0 is not a whole number from 1"),
        (("e: 1024", "e: 1024, e: 2"), "m.yaml:4: the key 'e' is given twice"),
        (
            ("f: 4096", "F: 4096"),
            "m.yaml:4: dimensions.F: no layer of the model uses this dimension; did you mean 'f'?",
        ),
        ((", f: 4096", ""), "uses the dimension 'f', which 'small' does not give"),
        (("kind: transformer", "kind: transfomer"), "unknown layer 'transfomer'; did you mean 'transformer'?"),
        (("layers:", "layers: ["), "m.yaml:6:"),
    ],
)
def test_model_files(run, folder, change, says):
    (folder / "m.yaml").write_text((folder / "small.yaml").read_text().replace(*change))
    refused(run("best", "--model", "m.yaml", *CLUSTER, *GPUS, *BATCH), says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: b200-nvs9", "c.yaml:1: extends: unknown cluster 'b200-nvs9'; did you mean 'b200-nvs8'?"),
        ("extends: b200-nvs8\ndevice: {hbm_capacity: 192}", "c.yaml:2: device.hbm_capacity: 192 has no unit"),
        ("extends: b200-nvs8\nnetwork: {net: {bandwidth: 9 gb/s}}", "unknown unit 'gb/s' for bytes/s; did you mean"),
        ("", "c.yaml:1: the file is empty"),
        ("- 1", "c.yaml:1: expected keys and values at top level"),
    ],
)
def test_cluster_files(run, folder, text, says):
    (folder / "c.yaml").write_text(text)
    refused(run("best", *MODEL, "--cluster", "c.yaml", *GPUS, *BATCH), says)


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
    ("change", "says"),
    [
        (("strategy:", "startegy:"), "sweep.yaml:5: startegy: unknown key; did you mean 'strategy'?"),
        (("strategy: 1d", "strategy: [1d, 3d]"), "unknown strategy '3d'"),
        (("num_gpus: 8", "num_gpus: 0"), "sweep.yaml:3: num_gpus: 0 is not a whole number from 1"),
        (("num_gpus: 8", "num_gpus: {from: 8, too: 16, times: 2}"), "unknown key 'too'; did you mean 'to'?"),
        (("keep: all", "keep: feasable"), "'feasable' is not one of all, feasible, {top: 10} or"),
        (("keep: all", "keep: {topp: 2}"), "keep: expected all, feasible, {top: 10} or {pareto: "),
        (("keep: all", "keep: {top: 2, per: [tpp]}"), "keep.per.0: unknown candidate column 'tpp'; did you mean 'tp'?"),
        (("keep: all", "keep: {top: 2, per: [mfu]}"), "'mfu' is a cost; expected a candidate column"),
        (("keep: all", "keep: {pareto: [step_time]}"), "unknown column 'step_time'; did you mean 'step_time_s'?"),
        (("keep: all", "keep: {pareto: [-recompute]}"), "'recompute' holds names, not numbers"),
        (("keep: all", "keep: {pareto: [training_days]}"), "only if the sweep states train_tokens"),
        (("keep: all", "fix: {tpp: 2}"), "fix.tpp: unknown candidate column 'tpp'; did you mean 'tp'?"),
        (("keep: all", "fix: {tp: -2}"), "fix.tp: -2 is not a whole number from 0"),
        (("keep: all", "fix: {tp: two}"), "fix: tp = 'two' must be a whole number"),
        (("keep: all", "fix: {zero_stage: 4}"), "zero_stage = 4 must be one of 0, 1, 2, 3"),
        (
            ("keep: all", "keep: all\nfix:\n  offload: disk"),
            "sweep.yaml:9: fix: offload = 'disk' is not known (known: ",
        ),
        (
            ("keep: all", "fix: {sequence_length: 4}"),
            "sweep.yaml:7: fix.sequence_length: 'sequence_length' is a setting",
        ),
        (
            ("keep: all", "limit: {sequence_length: '>4'}"),
            "sweep.yaml:7: limit: 'sequence_length' is not a searched choice",
        ),
        (("keep: all", "limit: {ep_nvs: '<=x'}"), "is not a bound, such as '<=16'"),
        (("keep: all", "limit: {strategy: '<=2'}"), "limit.strategy: 'strategy' holds names"),
        (("keep: all", "limit: {tp: '=<2'}"), "did you mean '<=2'?"),
        (("small.yaml", "smal.yaml"), "is not a file; did you mean 'small.yaml'?"),
    ],
)
def test_sweep_files(run, folder, change, says):
    file = folder / "sweep.yaml"
    file.write_text(file.read_text().replace(*change))
    refused(run("sweep", "sweep.yaml", "-o", "out"), says)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (
            "fix:\n  zero_replicas: [3]",
            ["sweep.yaml:9: fix: zero_replicas = 3: zero_replicas divides dp", "nearest: zero_rep"],
        ),
        ("fix: {ep: 7}", ["sweep.yaml:8: fix: ep = 7: nothing of small is sharded over ep", "; nearest: ep = 1"]),
        ("limit:\n  pp: '>8'", ["sweep.yaml:9: limit: pp > 8: pp divides num_gpus and the 8 layers; nearest: pp = 8"]),
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


def test_what_a_set_holds_fixed_may_leave_no_candidate(run, folder):
    done = run("best", *JOB, "--set", "assumptions.fixed.vpp=3", "--partition", "even")
    assert done.code == 3
    assert (
        "assumption set 'default': fixed: vpp = 3: vpp divides the layers of a stage, 8 / pp; vpp above 1 needs"
        in done.err
    )
    assert done.err.endswith("; nearest: vpp = 2\n")


def test_sweep_overrides(run, folder):
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


def test_the_results_of_another_sweep_are_kept(run, folder, swept):
    before = sorted((path.name, path.read_bytes()) for path in swept.iterdir())
    done = run("sweep", "sweep.yaml", "-o", swept, "--set", "sweep.global_batch_size=64")
    refused(done, "holds the results of another sweep", "they differ in global_batch_size); choose another folder")
    assert sorted((path.name, path.read_bytes()) for path in swept.iterdir()) == before


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
        (("why", "tp=8", *MODEL, *CLUSTER), "missing: --num-gpus, --global-batch-size"),
        (("pareto", "nowhere"), "no result set at nowhere, which does not exist"),
        (("pareto", "small.yaml"), "no result set at small.yaml, which is a file"),
        (("pareto", "."), "it has no manifest.json"),
        (("pareto", "SET", "--objective", "step_tme_s"), "unknown column 'step_tme_s'; did you mean 'step_time_s'?"),
        (("pareto", "SET", "--objective", "strategy"), "'strategy' cannot be an objective"),
        (("pareto", "SET", "--objective", "candidate"), "'candidate' cannot be an objective"),
        (("pareto", "SET", "--objective", "-"), "unknown column ''"),
        (("pareto", "SET", "--objective", "mfu", "--plot", "a.png"), "--plot a.png draws two objectives, and mfu is"),
        (("pareto", "SET", "--plot", "a.pngg"), "unknown image suffix '.pngg'; did you mean '.png'?"),
        (("pareto", "SET", "--plot", "a"), "unknown image suffix ''"),
        (("pareto", "SET", "--plot", "no/a.png"), "no/a.png: no is no folder; make it, or choose another file"),
        (("pareto", "SET", "--plot", "small.yaml/a.png"), "small.yaml/a.png: small.yaml is no folder; make it, or"),
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
        (("d[b, s, e @*] ", "d[b, s, e] "), "'d' is a partial sum over tp"),
        (("einsum(x, w1)", "einsun(x, w1)"), "mine.layer:4:1: no operator 'einsun'; did you mean 'einsum'?"),
        (("einsum(x, w1)", "einsum(xx, w1)"), "no tensor 'xx' above; did you mean 'x'?"),
        (("einsum(x, w1)", "einsum(x, w1"), "mine.layer:4:"),
        (("f/tp @*", "f/tpp @*"), "'tpp' is not a mesh axis; did you mean 'tp'?"),
        (("s, e]", "$rss, e]"), "strategy '1d' gives no role 'rss'; did you mean 'rs'?"),
        ((BLOCK, ""), "mine.layer:1:1: the file is empty"),
        ((BLOCK, "strategy mine\nrole rs = s s"), "mine.layer:2:"),
    ],
)
def test_layer_texts(run, folder, change, says):
    (folder / "mine.layer").write_text(BLOCK.replace(*change))
    refused(run("layer", "./mine.layer"), says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("experst",), "unknown layer 'experst'; did you mean 'experts'?"),
        (("1d",), "'1d' is a strategy, not a layer or block"),
        (("./experst.layer",), "experst.layer is not a file"),
        (("experts", "--strategy", "self-attention"), "'self-attention' is a block, not a strategy"),
        (("experts", "--model", "gpt3-1"), "unknown model 'gpt3-1'; did you mean 'gpt3-1t'?"),
        (("feed-forward", "--set", "tpp=2"), "has no dimension or degree 'tpp'; did you mean 'tp'?"),
        (("feed-forward", "--set", "tp=0"), "--set tp=0: tp must be a whole number of at least 1"),
        (("feed-forward", "--set", "tp"), "--set tp: tp must be a whole number"),
        (("mamba2",), "'mamba2' is now written {kind: sublayer, options: [conv_bias, gate_norm], mixer: state-space}"),
        (
            ("gated-mlp",),
            "is now written 'use feed-forward (n = n, output = d)' between a norm and an add, with the option gated",
        ),
        (("transformer", "gatd"), "unknown option 'gatd'; did you mean 'gated'? (known: "),
        (
            ("transformer", "fnn=experts"),
            "unknown block parameter 'fnn'; did you mean 'ffn'? (known: attention, core, ffn)",
        ),
        (("transformer", "gated", "ffn=experts"), "unknown option 'gated'"),
        (("transformer", "ffn=expert"), "'expert'; did you mean 'experts'?"),
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
