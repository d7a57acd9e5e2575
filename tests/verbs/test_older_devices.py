"""What frameworks lack on devices of older generations is priced, searched and launched there, and nowhere else."""

from dataclasses import replace

import pytest
from verbs.small import MODEL

import dsx
from dsx.errors import SpecError
from dsx.plans.frameworks import read_framework
from dsx.verbs.searched import SearchedStrategies, searched

OLDER, NEWER = "v100-32-nvs8", "h100-nvs8"
LOCAL = {"core": "unfused-attention-core"}


@pytest.fixture(scope="module")
def job():
    return dsx.Job(MODEL, OLDER, num_gpus=16, global_batch_size=64)


def software(assumed):
    return assumed.attention_kernels, assumed.set, assumed.tp_overlap, assumed.dispatcher


def test_megatron_has_no_transformer_engine_on_volta(job):
    newer = job.replace(cluster=NEWER)
    assert software(job.assumptions) == (0.0, LOCAL, 0.0, "once_per_copy")
    assert software(newer.assumptions) == (3.0, {}, 0.8, "once_per_domain")
    assert software(newer.replace(cluster=OLDER).assumptions) == software(job.assumptions)
    assert job.assumptions.stack == newer.assumptions.stack
    assert job.run_by("megatron-bridge").assumptions.cross_entropy_bytes == 8
    assert newer.run_by("megatron-bridge").assumptions.cross_entropy_bytes == 2
    assert job.run_by("deepspeed").assumptions.attention_kernels == 1.0
    assert job.replace(set={"assumptions.tp_overlap": "0.3"}).assumptions.tp_overlap == 0.3


@pytest.mark.parametrize("framework", [None, "megatron"])
def test_each_cluster_of_several_has_what_runs_there(job, framework):
    other = replace(job.inputs, cluster=job.replace(cluster=NEWER).cluster)
    found = [
        searched(inputs, SearchedStrategies(["1d"]), framework, 2048) for inputs in (job.inputs, other, job.inputs)
    ]
    assert [one.problem.assumptions_spec.set for one in found] == [LOCAL, {}, LOCAL]


@pytest.mark.slow
def test_plans_say_what_the_device_lacks(job):
    found = dsx.best(job, fix="pp=1 vpp=1", partition="even")
    said = " ".join(str(found).split())
    assert "(software megatron-bridge-2026, on V100 without Transformer Engine)" in said
    assert {(plan["cp"], plan["offload"]) for plan in found.plans} == {(1, "none")}
    for words in ("--fp16", "--transformer-impl local", "--attention-backend unfused"):
        assert words in said
    for words in ("bf16", "BF16", "--tp-comm-overlap", "--cuda-graph-impl"):
        assert words not in said
    newer = str(dsx.best(job.replace(cluster=NEWER), fix="pp=1 vpp=1", partition="even"))
    assert "without Transformer Engine" not in newer and "--transformer-impl" not in newer
    # A plan that a launch refuses was said to be run, and the plans it is compared with had offload.
    offload = "dp=16 zero_stage=1 offload=optimizer"
    evaluated, explained = dsx.evaluate(job, offload), dsx.why(job, offload, framework="megatron")
    assert evaluated.not_run == {"offload": "optimizer"}
    said = " ".join(str(explained).split())
    assert "megatron does not run this plan, for offload=optimizer." in said and " cuts that megatron runs" in said
    assert explained.fastest["plan"]["offload"] == "none"
    assert dsx.evaluate(job.replace(cluster=NEWER), offload).not_run == {}


@pytest.mark.slow
def test_sweeps_over_generations_and_launch_files(job):
    """The plans of the first cluster were those of all."""
    fix = {"recompute": "none", "pp": 1, "zero_replicas": 1, "microbatch_size": 1, "offload": ["none", "optimizer"]}
    sweep = {"model": MODEL, "num_gpus": 4, "global_batch_size": 8, "fix": fix | {"zero_stage": 1}, "keep": "all"}
    for clusters in ([NEWER, OLDER], [OLDER, NEWER]):
        frame = dsx.sweep(sweep | {"cluster": clusters}).frame
        found = {name: (rows["offload"].nunique(), rows["cp"].max()) for name, rows in frame.groupby("cluster")}
        assert found == {NEWER: (2, 4), OLDER: (1, 1)}

    # A launch file says which kernels run.
    def head(cluster):
        text = dsx.launch(job.replace(cluster=cluster), "dp=16 zero_stage=1").files["launch.sh"]
        return " ".join(text.replace("#", "").split())

    assert "attention_kernels none (of the stack: flash-3): DotProductAttention" in head(OLDER)
    assert "attention_kernels flash-3 (A100 runs flash-2): " in head("a100-80-nvs8")
    assert "attention_kernels flash-3: " in head(NEWER)
    with pytest.raises(dsx.errors.InputError, match="cp=2; nearest: cp=1"):
        dsx.launch(job, "cp=2 dp=8 zero_stage=1", strategy="2d")


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [[NEWER, OLDER], [OLDER, NEWER]])
def test_rows_of_a_sweep_over_generations_are_priced_again_as_they_were(clusters, tmp_path):
    """A row of V100 was launched and explained with the software of H100."""
    fix = {"recompute": "none", "pp": 1, "zero_stage": 1, "zero_replicas": 1, "microbatch_size": 1, "offload": "none"}
    sweep = {"model": MODEL, "num_gpus": 4, "global_batch_size": 8, "fix": fix, "precision": "float64"}
    swept = dsx.sweep(sweep | {"cluster": clusters, "keep": {"top": 1}}, tmp_path / "set")
    assert len(swept.frame) == 2
    for _, row in swept.frame.iterrows():
        explained = dsx.why_row(swept.folder, row)
        assert explained.costs["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-9)
        head = dsx.launch(swept.folder, row).files["launch.sh"]
        assert f"Priced at {row['step_time_s']:.4g} s a step" in head
        assert ("attention_kernels none" in head) == ("--fp16" in head) == (row["cluster"] == OLDER)
    said = str(dsx.show(swept.folder))
    assert ("--transformer-impl local" in said) == (dsx.show(swept.folder).priced[0]["hardware"]["cluster"] == OLDER)


def test_faults_of_a_generation_name_their_place(tmp_path):
    file = tmp_path / "mine.yaml"
    own = "on_generation:\n  volta: {without: w, source: s, fix: {cpp: 1}}\n"
    file.write_text(f"name: mine\ndescription: d\nsource: s\n{own}runs: [{{}}]\n")
    with pytest.raises(SpecError, match=r"mine\.yaml:5: on_generation\.volta\.fix.*unknown column 'cpp'"):
        read_framework(str(file))
