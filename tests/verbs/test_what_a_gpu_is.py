"""Where data sheets count chips of several devices, every answer says what a GPU of the job is."""

import dsx

SMALL = {
    "name": "small",
    "source": "a test",
    "default_sequence_length": 1024,
    "dimensions": {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 32000},
    "layers": [{"kind": "embedding"}, {"kind": "transformer", "count": 4}, {"kind": "head"}],
}
SAID = "mi250x-xgmi8 (MI250X die, 2 to a module)"


def job(cluster="mi250x-xgmi8"):
    return dsx.Job(SMALL, cluster, num_gpus=8, global_batch_size=8)


def test_answers_say_what_a_gpu_is():
    found = dsx.best(job(), fix={"tp": 1, "pp": 1})
    several = dsx.several_jobs(job(), num_gpus=[4, 8], fix={"tp": 1, "pp": 1})
    for answer in (job(), dsx.evaluate(job(), "dp=8"), dsx.why(job(), "dp=8"), found, several):
        assert SAID in str(answer).splitlines()[0]
    assert str(job("h100-nvs8")).startswith("small on 8 x h100-nvs8: ")


def test_a_result_set_says_it_too(tmp_path):
    spec = {"model": SMALL, "cluster": "mi250x-xgmi8", "num_gpus": 8, "global_batch_size": 8, "fix": {"tp": 1}}
    dsx.sweep(spec, out=tmp_path / "set")
    assert SAID in str(dsx.show(tmp_path / "set"))
