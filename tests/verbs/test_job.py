"""A job from names, paths, content and specs; what of it can be changed; and what is no job."""

import pickle

import numpy as np
import pytest
import yaml
from verbs.small import MODEL

import dsx
from dsx.errors import InputError, PlanError, SpecError, UnknownNameError

FEW = {"num_gpus": 8, "global_batch_size": 32}
CAPACITY = "cluster.device.hbm_capacity"


def of(model=MODEL, cluster="b200-nvs8", **more):
    return dsx.Job(model, cluster, **(FEW | more))


@pytest.fixture
def model_file(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(MODEL))
    return tmp_path / "small.yaml"


@pytest.mark.slow
def test_models_as_content(model_file):
    jobs = [of(model_file), of(str(model_file)), of(MODEL), of(of(MODEL).model)]
    assert all(job.model == jobs[0].model for job in jobs)
    assert jobs[0].sequence_length == 2048
    assert jobs[2] == jobs[3]
    # Layer texts may lie beside a file.
    assert (jobs[0].inputs.near, jobs[2].inputs.near) == (model_file, None)
    # Content extends a name a path content or a spec.
    change = {"name": "wide", "dimensions": {"f": 8192}}
    jobs = [of({"extends": base, **change}) for base in (str(model_file), MODEL, of(MODEL).model)]
    assert {job.model.name for job in jobs} == {"wide"}
    assert all(job.model.dimensions == {**MODEL["dimensions"], "f": 8192} for job in jobs)
    cluster = of(cluster={"extends": "b200-nvs8", "device": {"hbm_capacity": "80 GB"}}).cluster
    assert (cluster.name, cluster.device.hbm_capacity) == ("b200-nvs8", 80e9)
    inline = {"extends": "paper-2410.00273", "matrix_efficiency": 0.5}
    assert of(assumptions=inline).assumptions.matrix_efficiency == 0.5
    # Content may hold what a program has.
    content = MODEL | {"dimensions": {"e": np.int64(1024), "h": 8, "g": 8, "k": 128, "f": 4096}}
    assert of(content | {"layers": tuple(MODEL["layers"])}) == of(MODEL)
    assert of(num_gpus=np.int64(8), global_batch_size=32.0).num_gpus == 8
    assert of(num_gpus="8", global_batch_size="3.2e1") == of()


@pytest.mark.parametrize(
    "fields",
    [
        {CAPACITY: "141 GB", "model.dimensions.f": 8192},
        {CAPACITY: "141 GB", "model.dimensions.f": np.int32(8192)},
        [f"{CAPACITY}=141 GB", "model.dimensions.f=8192"],
        (f"{CAPACITY}=141 GB", "model.dimensions.f=8192"),
    ],
)
def test_fields_are_set_by_a_mapping_or_texts(fields):
    job = of(set=fields)
    assert (job.cluster.device.hbm_capacity, job.model.dimensions["f"]) == (141e9, 8192)


def test_fields_are_set_and_replaced(job, model_file):
    assert of(set=f"{CAPACITY}=141 GB").cluster.device.hbm_capacity == 141e9
    layers = of(set={"model.layers": [{"kind": "transformer", "count": 4}]}).model.layers
    assert [layer.count for layer in layers] == [4]
    # What is replaced changes and the rest stays.
    more = job.replace(num_gpus=16, set={CAPACITY: "80 GB"})
    assert (more.num_gpus, more.cluster.device.hbm_capacity) == (16, 80e9)
    assert (more.model, more.assumptions, more.global_batch_size) == (job.model, job.assumptions, 32)
    again = more.replace(cluster="h100-nvs8", assumptions="default")
    assert (again.cluster.name, again.assumptions.name, again.num_gpus) == ("h100-nvs8", "default", 16)
    assert job.replace() == job and job.num_gpus == 8
    # A sequence length stays unless it is none.
    longer = job.replace(sequence_length=4096)
    other = {**MODEL, "default_sequence_length": 512}
    assert longer.replace(model=other).sequence_length == 4096
    assert longer.replace(model=other, sequence_length=None).sequence_length == 512
    # Replacing keeps where layer texts lie.
    job = of(model_file)
    assert job.replace(num_gpus=16).inputs.near == model_file
    assert job.replace(model=MODEL).inputs.near is None


def test_operator_times_are_of_one_machine(tmp_path):
    (tmp_path / "times.csv").write_text("operator,direction,m,n,k,batch,time\neinsum,,2048,4096,1024,,900 us\n")
    timed = of(operator_times=tmp_path / "times.csv")
    times = timed.inputs.operator_times
    assert timed.replace(num_gpus=16).inputs.operator_times is times
    with pytest.raises(InputError, match="operator times are measured on one machine"):
        timed.replace(set={CAPACITY: "80 GB"})
    with pytest.raises(InputError, match="operator times are measured on one machine"):
        timed.replace(cluster="h100-nvs8")
    assert timed.replace(cluster="h100-nvs8", operator_times=None).inputs.operator_times is None
    assert timed.replace(cluster="h100-nvs8", operator_times=tmp_path / "times.csv").inputs.operator_times == times
    with pytest.raises(SpecError, match="measured on one machine"):
        of(operator_times=tmp_path / "times.csv", set={CAPACITY: "80 GB"})


def test_jobs_read_as_made_and_refuse_others(job):
    sizes = "num_gpus=8, global_batch_size=32, sequence_length=2048"
    assert repr(job) == f"Job(model='small', cluster='b200-nvs8', {sizes}, assumptions='paper-2410.00273')"
    assert str(job) == "small on 8 x b200-nvs8: 32 sequences of 2,048 tokens, 65,536 tokens a step"
    # Jobs are equal and can be pickled.
    assert pickle.loads(pickle.dumps(job)) == job
    assert job != job.replace(num_gpus=16)
    # Specs and arguments of other kinds are refused.
    with pytest.raises(SpecError, match="cluster: ModelSpec is given, and a name, a path, a mapping or a ClusterSpec"):
        of(cluster=job.model)
    # An argument that there is not is refused.
    with pytest.raises(TypeError, match="num_gpu"):
        job.replace(num_gpu=16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_gpus": "many"}, "num_gpus: 'many' is not a whole number, as in 512"),
        ({"num_gpus": 0}, "num_gpus: 0 is not a whole number from 1 to"),
        ({"num_gpus": -8}, "num_gpus: -8 is not a whole number from 1 to"),
        ({"num_gpus": 1.5}, "num_gpus: 1.5 is not a whole number"),
        ({"num_gpus": True}, "num_gpus: True is not a whole number, as in 512"),
        ({"num_gpus": [16, 32]}, "num_gpus: [16, 32] is not a whole number, as in 512"),
        ({"num_gpus": np.array([16])}, "num_gpus: array([16]) is not a whole number, as in 512"),
        ({"num_gpus": None}, "num_gpus: None is not a whole number, as in 512"),
        ({"global_batch_size": float("nan")}, "global_batch_size: nan is not a whole number, as in 512"),
        ({"sequence_length": 0}, "sequence_length: 0 is not a whole number"),
        ({"set": {"cluster.device.hbm_capacit": "1 GB"}}, "did you mean 'device.hbm_capacity'?"),
        ({"set": {CAPACITY: 141e9}}, "141000000000.0 has no unit: write for example '141 GB'"),
        ({"set": {"device.hbm_capacity": "1 GB"}}, "unknown target 'device'; did you mean 'cluster.device'?"),
        ({"set": {CAPACITY: object()}}, "is not a number, text, list or mapping"),
        ({"set": ["sweep.num_gpus=16"]}, "no sweep is read here"),
        ({"operator_times": "nowhere.csv"}, "nowhere.csv is not a file"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_rule(change, says):
    with pytest.raises(InputError) as error:
        of(**change)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("smal.yaml", "smal.yaml is not a file"),
        ("llama-3-8c", "unknown model 'llama-3-8c'; did you mean 'llama-3-8b'?"),
        ({"extends": "llama-3-8c"}, "unknown model 'llama-3-8c'; did you mean 'llama-3-8b'?"),
        (3, "model: int is given, and a name, a path, a mapping or a ModelSpec is wanted"),
        (None, "model: NoneType is given"),
        ({**MODEL, "dimension": {}}, "model: dimension: unknown key; did you mean 'dimensions'?"),
        ({"extends": MODEL, "dimension": {}}, "model: dimension: unknown key; did you mean 'dimensions'?"),
        ({"extends": {**MODEL, "source": 3}}, "model.extends: source: input should be a valid string, got 3"),
        ({"extends": 3}, "model.extends: int is given"),
        ({"name": "x"}, "model: source: is required, but missing"),
    ],
)
def test_what_is_no_model_is_named_with_the_nearest(model, says):
    with pytest.raises((SpecError, UnknownNameError)) as error:
        of(model)
    assert says in str(error.value)


@pytest.mark.parametrize("ask", [dsx.best, dsx.evaluate, dsx.why, dsx.partition])
def test_what_is_no_job_is_refused(ask):
    with pytest.raises(InputError, match=r"'llama-3-8b' is not a job: make one with dsx.Job\(model, cluster"):
        ask("llama-3-8b")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda job: dsx.best(job, top=0), "top: 0 is not a whole number"),
        (lambda job: dsx.best(job, top="all"), "top: 'all' is not a whole number, as in 512"),
        (lambda job: dsx.best(job, top=np.array([5])), "top: array([5]) is not a whole number, as in 512"),
        (lambda job: dsx.best(job, partition="optimum"), "unknown partition 'optimum'; did you mean 'optimal'?"),
        (lambda job: dsx.best(job, strategy="3d"), "unknown strategy '3d'; did you mean '2d'?"),
        (
            lambda job: dsx.best(job.replace(model=MODEL | {"layers": [{"kind": "transformr", "count": 8}]})),
            "no layer definition for the kind 'transformr' of model 'small'; did you mean 'transformer'?",
        ),
        (lambda job: dsx.partition(job, tp=3), "tp=3 does not divide num_gpus=8"),
    ],
)
def test_what_is_asked_is_checked(job, ask, says):
    with pytest.raises((InputError, PlanError)) as error:
        ask(job)
    assert says in str(error.value)
