"""A sweep from content, in memory or into a folder, and what is asked of its result set."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from verbs.small import MODEL, SWEEP

import dsx
from dsx.errors import IncompleteSweep, InputError, NothingFeasible, SpecError, StoreError

CAPACITY = "device.hbm_capacity"
ONE = {name: value for name, value in SWEEP.items() if name != "what_if"} | {"num_gpus": 8, "keep": {"top": 2}}


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder for temporary files, and the working directory; both empty."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_folder_the_rows_are_in_memory_alone(scratch):
    swept = dsx.sweep(ONE)
    assert swept.folder is None and swept.to_data()["folder"] is None
    assert len(swept.frame) == swept.rows == 2
    assert os.listdir(scratch) == ["temporary"] and os.listdir(scratch / "temporary") == []


def test_a_frame_is_the_same_in_memory_and_in_a_folder(swept, result_set):
    again = dsx.load(result_set)
    assert swept.frame.equals(again) and swept.frame.attrs.keys() == again.attrs.keys()
    assert swept.rows == swept.candidates == len(again)
    fastest = again.loc[again.loc[again["reject"] == 0, "step_time_s"].idxmin()]
    assert dsx.show(result_set).plans[0]["candidate"] == fastest["candidate"]


def test_what_is_there_is_not_priced_again(result_set, caplog):
    caplog.set_level("INFO", "dsx")
    told = []
    dsx.sweep(SWEEP, result_set, watch=lambda *now: told.append(now))
    assert told == []
    assert caplog.messages[0].startswith(f"{result_set} is complete since ")


def test_models_and_machines_may_be_content(swept):
    named = {"extends": "b200-nvs8", "name": "small-memory", "device": {"hbm_capacity": "80 GB"}}
    both = dsx.sweep({**ONE, "cluster": ["b200-nvs8", named], "keep": {"top": 1}})
    assert list(both.frame["cluster"]) == ["b200-nvs8", "small-memory"]
    assert both.frame.attrs["spec"]["model"] == "small"
    assert both.frame.attrs["spec"]["resolved"]["clusters"][1]["device"]["hbm_capacity"] == "80000000000.0 B"
    job = dsx.Job(MODEL, named, 8, 32, assumptions="paper-2410.00273")
    assert dsx.sweep({**ONE, "model": job.model, "cluster": job.cluster}).frame["cluster"].iloc[0] == "small-memory"


def test_content_may_hold_what_a_program_has():
    swept = dsx.sweep({**ONE, "num_gpus": np.array([8, 16]), "global_batch_size": (np.int64(32),)})
    assert {*swept.frame["num_gpus"]} <= {8, 16}


def test_fields_are_set_as_in_a_job():
    changes = {"sweep.num_gpus": [16], "cluster.device.hbm_capacity": "80 GB"}
    swept = dsx.sweep(ONE, set=changes)
    assert swept == dsx.sweep(ONE, set=["sweep.num_gpus=[16]", "cluster.device.hbm_capacity=80 GB"])
    assert {*swept.frame["num_gpus"]} == {16}


def test_a_memory_margin_is_set_as_in_a_job():
    tight = {f"cluster.{CAPACITY}": f"{1.01 * dsx.sweep(ONE).frame['peak_bytes'].max()} B"}
    without, half = (dsx.sweep(ONE, set=tight, memory_margin=margin).feasible for margin in (0, 0.5))
    assert dsx.sweep(ONE, set=tight | {"assumptions.memory_margin": 0.5}).feasible == half < without
    with pytest.raises(InputError, match=r"^memory_margin: 2 is not a share from 0 to 1"):
        dsx.sweep(ONE, memory_margin=2)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({**ONE, "num_gpu": 8}, "sweep: num_gpu: unknown key; did you mean 'num_gpus'?"),
        ({**ONE, "num_gpus": "many"}, "sweep: num_gpus: 'many'"),
        ({**ONE, "model": "llama-3-8c"}, "unknown model 'llama-3-8c'; did you mean 'llama-3-8b'?"),
        ({**ONE, "model": {**MODEL, "dimension": {}}}, "model: dimension: unknown key; did you mean 'dimensions'?"),
        ({**ONE, "cluster": ["b200-nvs8", {"extends": "b200-nvs8"}]}, "two entries are called 'b200-nvs8'"),
        (
            {**ONE, "cluster": [{"extends": "b200-nvs8"}, {"extends": "b200-nvs8"}]},
            "two entries are called 'b200-nvs8'",
        ),
        ("nowhere.yaml", "nowhere.yaml is not a file"),
        (3, "spec: int is not a sweep file or its content"),
    ],
)
def test_what_is_no_sweep_is_refused(spec, says):
    with pytest.raises(InputError) as error:
        dsx.sweep(spec)
    assert says in str(error.value)


def test_all_faults_are_listed():
    with pytest.raises(SpecError) as error:
        dsx.sweep({**ONE, "num_gpus": 0, "keep": "some"})
    assert len(str(error.value).splitlines()) == 2


def test_a_sweep_in_which_nothing_fits_says_why():
    nothing = dsx.sweep(ONE, set={"cluster.device.hbm_capacity": "1 kB"})
    assert "none of" in nothing.infeasible and nothing.feasible == 0 and nothing.plans == ()
    assert nothing.frame.empty and "step_time_s" in nothing.frame


def test_a_sweep_without_a_candidate_has_no_frame():
    none = dsx.sweep({**ONE, "fix": {"tp": 3}})
    assert none.infeasible.startswith("no candidate")
    with pytest.raises(NothingFeasible, match="no candidate"):
        none.frame  # noqa: B018


def test_an_interrupted_sweep_says_how_it_goes_on(scratch):
    def interrupt(done, total, what):
        raise KeyboardInterrupt

    with pytest.raises(IncompleteSweep, match="with a folder as `out` the same call would continue"):
        dsx.sweep(ONE, watch=interrupt)
    assert os.listdir(scratch / "temporary") == []
    with pytest.raises(IncompleteSweep, match="the same command continues from there"):
        dsx.sweep(ONE, "set", watch=interrupt)
    assert dsx.sweep(ONE, "set").rows == 2


def test_shards_make_a_set(scratch):
    parts = {**SWEEP, "part_size": 100}
    for shard in ((1, 2), (2, 2)):
        done = dsx.sweep_shard(parts, "set", shard)
        assert isinstance(done, dsx.SweptShard) and done.shard == shard and 0 < done.parts < done.of
        if shard == (1, 2):
            with pytest.raises(IncompleteSweep):
                dsx.finish_sweep(parts, "set")
    finished = dsx.finish_sweep(parts, "set")
    assert finished.rows == len(finished.frame) == dsx.sweep(SWEEP).rows


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), "1/2", (1,), None])
def test_a_shard_that_there_is_not_is_refused(scratch, shard):
    with pytest.raises(InputError, match=r"is not a shard: the second of eight is \(2, 8\)"):
        dsx.sweep_shard(ONE, "set", shard)


def test_a_row_is_explained_by_itself_or_by_its_id(result_set, swept):
    row = swept.frame.iloc[0]
    explained = dsx.why_row(result_set, row)
    assert explained.plan["candidate"] == row["candidate"]
    assert explained.costs["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-5)
    hardware = {CAPACITY: row[CAPACITY]}
    assert dsx.why_row(result_set, row["candidate"], hardware) == explained
    texts = [f"{CAPACITY}={row[CAPACITY] / 1e9:g} GB"]
    assert dsx.why_row(result_set, str(row["candidate"]), texts) == explained
    with pytest.raises(InputError, match="was priced on 2 hardware points"):
        dsx.why_row(result_set, row["candidate"])
    with pytest.raises(InputError, match="the candidate was not priced there; it was at 2 GB, 192 GB"):
        dsx.why_row(result_set, row["candidate"], {CAPACITY: 81e9})
    with pytest.raises(InputError, match="no candidate '3'"):
        dsx.why_row(result_set, 3)


def test_one_column_may_be_a_text(result_set, swept):
    assert dsx.show(result_set, per="num_gpus") == dsx.show(result_set, per=["num_gpus"])
    assert dsx.front(result_set, "step_time_s") == dsx.front(result_set, ["step_time_s"])
    assert dsx.compare_sets(result_set, result_set, "num_gpus") == dsx.compare_sets(
        result_set, result_set, ["num_gpus"]
    )
    assert dsx.compare(swept.frame, swept.frame, "num_gpus").equals(dsx.compare(swept.frame, swept.frame, ["num_gpus"]))


def test_plans_of_a_set_have_their_hardware(result_set, swept):
    shown = dsx.show(result_set, 4)
    assert len(shown.plans) == len(shown.frame) == 4 and CAPACITY in shown.frame
    front = dsx.front(result_set)
    assert {*front.frame["candidate"]} == {*dsx.pareto(swept.frame, "step_time_s", "peak_bytes")["candidate"]}
    rejected = swept.frame[swept.frame["reject"] != 0].iloc[0]
    rows = dsx.show(result_set, candidate=rejected["candidate"]).frame
    assert rejected["reject"] in set(rows["reject"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda what: dsx.pareto(what, "step_time_s"),
        lambda what: dsx.compare(what, what),
        dsx.plot.front,
        dsx.plot.scaling,
        lambda what: dsx.plot.breakdown(what, "tp"),
    ],
)
def test_what_is_no_frame_is_refused(ask, swept):
    for what in (swept, "results/sweep", Path("results/sweep")):
        with pytest.raises(InputError, match=r"is no DataFrame: dsx\.load reads that of a folder"):
            ask(what)


def test_a_folder_without_a_set_is_refused(tmp_path):
    for ask in (dsx.load, dsx.show, dsx.front):
        with pytest.raises(StoreError, match="no result set at"):
            ask(tmp_path / "nowhere")


def test_no_compiled_code_is_kept_unless_asked(tmp_path, monkeypatch):
    import jax

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    try:
        dsx.keep_compiled()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
