"""Sweep files: every form of every field, the columns they may name, and every fault."""

import pytest
from config.sweeps import COLUMNS, LEAST, read_again, sweep

from dsx.config.sweep_fields import Limit
from dsx.config.sweep_file import KeepPareto, KeepTop, SweepSpec, load_sweep, sweep_from_data
from dsx.errors import SpecError

FULL = """model: gpt3-1t
cluster: b200-nvs8
num_gpus: {from: 1024, to: 16384, times: 2}
global_batch_size: 4096
sequence_length: 2048
strategy: [1d, 2d]
fix: {pp: 64, recompute: none}
limit: {tp: "<=16"}
train_tokens: 1e12
assumptions: paper-2410.00273
keep: {top: 10, per: [num_gpus, strategy]}
"""


def test_the_example_of_the_design(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(FULL)
    spec = load_sweep(file, COLUMNS)
    assert spec.cluster == ["b200-nvs8"]
    assert spec.num_gpus == [1024, 2048, 4096, 8192, 16384]
    assert spec.global_batch_size == [4096]
    assert spec.sequence_length == 2048
    assert spec.strategy == ["1d", "2d"]
    assert spec.fix == {"pp": [64], "recompute": ["none"]}
    assert spec.limit == {"tp": [Limit("<=", 16)]}
    assert spec.train_tokens == 1e12
    assert spec.keep == KeepTop(top=10, per=["num_gpus", "strategy"])
    assert spec.file == file
    # Equality is of what is stated not of the file.
    file.write_text(FULL)
    again = read_again(spec)
    assert again == spec
    assert again.file is None
    assert spec != sweep()
    assert spec != FULL


def test_the_defaults():
    spec = sweep()
    assert (spec.strategy, spec.assumptions, spec.precision) == ([], "default", "float32")
    assert (spec.sequence_length, spec.train_tokens, spec.file) == (None, None, None)
    assert (spec.fix, spec.limit, spec.keep) == ({}, {}, KeepTop(top=10))
    assert (spec.part_size, spec.plot) == (None, None)
    # Jobs of several sizes do not compete for what is kept.
    assert sweep(num_gpus=[8, 16]).keep == KeepTop(top=10, per=["num_gpus"])
    assert sweep(num_gpus=[8, 16], global_batch_size=[64, 128]).keep.per == ["num_gpus", "global_batch_size"]
    # Clusters are one or several each once.
    assert sweep(cluster="a").cluster == ["a"]
    assert sweep(cluster=["b", "a", "b"]).cluster == ["b", "a"]
    # Columns of the hardware may group what is kept.
    keep = {"top": 1, "per": ["num_gpus", "cluster", "device.hbm_capacity"]}
    assert sweep(keep=keep, what_if={"device.hbm_capacity": "80 GB"}).keep == KeepTop(**keep)
    assert sweep(keep=keep, what_if=[{"device": {"hbm_capacity": "80 GB"}}]).keep == KeepTop(**keep)
    # Lists of fixed values and limits.
    spec = sweep(fix={"tp": [4, 8, 4]}, limit={"tp": [">=2", "< 1e3"]}, strategy="summa")
    assert spec.fix == {"tp": [4, 8]}
    assert spec.limit == {"tp": [Limit(">=", 2), Limit("<", 1000.0)]}
    assert spec.strategy == ["summa"]
    assert sweep(strategy=["summa", "1d", "summa"]).strategy == ["summa", "1d"]
    # Objectives may be maximised.
    assert sweep(keep={"pareto": ["-mfu", "num_gpus"]}).keep == KeepPareto(pareto=["-mfu", "num_gpus"])
    days = sweep(keep={"pareto": ["training_days"]}, train_tokens=1e12)
    assert days.keep == KeepPareto(pareto=["training_days"])
    # A sweep does not change.
    with pytest.raises(ValueError, match="frozen"):
        sweep().model = "x"  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(sweep(), SweepSpec)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "summa", "cluster": ["a", "b"], "part_size": 1e5},
        {"fix": {"tp": [4, 8]}, "limit": {"pp": [">=2", "<1e3"]}},
        {"keep": "all"},
        {"keep": {"pareto": ["-mfu"]}, "precision": "float64"},
        {"keep": {"top": 1, "per": ["cluster", "network.nvs.size"]}, "what_if": {"network.nvs.size": [4, 8]}},
    ],
)
def test_what_was_written_reads_as_the_same(changes):
    spec = sweep(**changes)
    assert read_again(spec) == spec
    assert read_again(spec).model_dump() == spec.model_dump()


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (8, [8]),
        ([8, 2, 8], [2, 8]),
        ({"from": 3, "to": 30, "times": 3}, [3, 9, 27]),
        ({"from": 4, "to": 4, "times": 2}, [4]),
        ("1e3", [1000]),
    ],
)
def test_sizes(given, sizes):
    assert sweep(num_gpus=given).num_gpus == sizes


@pytest.mark.parametrize(
    ("given", "keep"),
    [
        ("all", "all"),
        ("feasible", "feasible"),
        ({"top": 3}, KeepTop(top=3)),
        ({"pareto": ["step_time_s", "tp"]}, KeepPareto(pareto=["step_time_s", "tp"])),
    ],
)
def test_what_is_kept(given, keep):
    assert sweep(keep=given).keep == keep


def test_overrides_may_add_fields_fixed_values_and_limits(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(FULL)
    changes = [("fix.tp", "8"), ("limit.pp", ">=2"), ("precision", "float64"), ("num_gpus", "[64, 32]")]
    spec = load_sweep(file, COLUMNS, changes)
    assert spec.fix == {"pp": [64], "recompute": ["none"], "tp": [8]}
    assert spec.limit["pp"] == [Limit(">=", 2)]
    assert (spec.precision, spec.num_gpus) == ("float64", [32, 64])
    assert sweep_from_data(LEAST, COLUMNS, [("fix.tp", "8")]).fix == {"tp": [8]}
    spec = load_sweep(file, COLUMNS, [("cluster", "[a, b]"), ("part_size", "1e5")])
    assert (spec.cluster, spec.part_size) == (["a", "b"], 100_000)
    assert load_sweep(file, COLUMNS, [("cluster", "a")]).cluster == ["a"]
    with pytest.raises(SpecError, match=r"--set sweep\.fix\.tpp: fix\.tpp: unknown candidate column 'tpp'"):
        load_sweep(file, COLUMNS, [("fix.tpp", "8")])
    with pytest.raises(SpecError, match=r"unknown path 'keep\.topp'; did you mean 'keep\.top'"):
        load_sweep(file, COLUMNS, [("keep.topp", "8")])
    with pytest.raises(SpecError, match=r"unknown path 'train_token'; did you mean 'train_tokens'"):
        sweep_from_data(LEAST, COLUMNS, [("train_token", "1T")])


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("stratgy", "strategy"),
        ("pareto", "keep.pareto"),
        ("kep.top", "keep.top"),
        ("fxi.tp", "fix.tp"),
        ("limits.pp", "limit.pp"),
        ("whatif.device.hbm_capacity", "what_if.device.hbm_capacity"),
    ],
)
def test_a_misspelt_path_names_the_whole_path_that_is_meant(path, meant):
    with pytest.raises(SpecError, match=rf"unknown path '{path}'; did you mean '{meant}'\?$"):
        sweep_from_data(LEAST, COLUMNS, [(path, "8")])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_gpus": []}, "num_gpus: the list is empty: expected at least one value"),
        ({"num_gpus": [4, 0]}, "num_gpus: 0 is not a whole number from 1"),
        ({"num_gpus": 2**31}, "2147483648 is not a whole number from 1 to 2147483647"),
        ({"num_gpus": 1.5}, "1.5 is not a whole number"),
        ({"num_gpus": None}, "None is not a whole number, as in 512"),
        ({"num_gpus": {"from": 1, "too": 4, "times": 2}}, "unknown key 'too'; did you mean 'to'?"),
        ({"num_gpus": {"from": 1, "times": 2}}, "to is missing"),
        ({"num_gpus": {"from": 8, "to": 4, "times": 2}}, "from 8 to 4 times 2: expected"),
        ({"num_gpus": {"from": 1, "to": 4, "times": 1}}, "from 1 to 4 times 1: expected 0 < from <= to, and times > 1"),
        ({"strategy": []}, "strategy: the list is empty: expected at least one name"),
        ({"cluster": []}, "cluster: the list is empty: expected at least one name"),
        ({"cluster": None}, "cluster: expected a list, as in [a, b], got None"),
        ({"cluster": ["a", 5]}, "cluster.1: input should be a valid string, got 5"),
        ({"part_size": 0}, "part_size: 0 is not a whole number from 1"),
        ({"strategy": 1}, "strategy: expected a list, as in [a, b], got 1"),
        ({"fix": {"tpp": 8}}, "fix.tpp: unknown candidate column 'tpp'; did you mean 'tp'?"),
        ({"fix": {"step_time_s": 8}}, "'step_time_s' is a cost; expected a candidate column"),
        ({"fix": {"num_gpus": 8}}, "'num_gpus' is a setting of the sweep: state it at top level"),
        ({"fix": {"cluster": "a"}}, "'cluster' is a setting of the sweep: state it at top level"),
        ({"fix": {"device.hbm_capacity": 8}}, "belongs to the hardware; expected a choice of the plan"),
        ({"limit": {"cluster": "<=8"}}, "'cluster' belongs to the hardware; expected a choice of the plan"),
        ({"fix": {"tp": []}}, "fix.tp: the list is empty"),
        ({"fix": {"tp": -2}}, "fix.tp: -2 is not a whole number from 0"),
        ({"fix": {"tp": None}}, "fix.tp: None is neither a whole number nor a name"),
        ({"limit": {"tp": 16}}, "limit.tp: 16 is not a bound, such as '<=16'"),
        ({"limit": {"tp": "16"}}, "did you mean '<=16'?"),
        ({"limit": {"tp": "=<16"}}, "did you mean '<=16'?"),
        ({"limit": {"tp": "=16"}}, "did you mean '==16'?"),
        ({"limit": {"tp": "<=1e999"}}, "'1e999' is not a finite number"),
        ({"limit": {"tp": ["<=16", "x"]}}, "limit.tp: 'x' is not a bound"),
        ({"limit": {"tp": " " * 100_000 + "x"}}, "x' is not a bound"),
        ({"limit": {"strategy": "<=1"}}, "limit.strategy: 'strategy' holds names; expected a column of numbers"),
        ({"keep": "al"}, "peak_bytes]}; did you mean 'all'?"),
        (
            {"keep": "best"},
            "keep: 'best' is not one of all, feasible, {top: 10} or {pareto: [step_time_s, peak_bytes]}",
        ),
        ({"keep": 5}, "keep: expected all, feasible, {top: 10} or {pareto: [step_time_s, peak_bytes]}"),
        ({"keep": {"best": 5}}, "keep: expected all, feasible, {top: 10}"),
        ({"keep": {"top": 3, "pareto": ["mfu"]}}, "keep: top and pareto exclude each other"),
        ({"keep": {"top": 0}}, "keep.top: 0 is not a whole number from 1 to 2147483647"),
        ({"keep": {"top": 1, "pre": []}}, "keep.pre: unknown key; did you mean 'per'? (known: top, objective, per)"),
        ({"keep": {"top": 1, "per": ["num_gpu"]}}, "keep.per.0: unknown candidate column 'num_gpu'; did you mean"),
        ({"keep": {"top": 1, "per": ["clutser"]}}, "unknown candidate column 'clutser'; did you mean 'cluster'?"),
        ({"keep": {"top": 1, "per": ["mfu"]}}, "keep.per.0: 'mfu' is a cost; expected a candidate column"),
        ({"keep": {"top": 1, "per": ["network.nvs.size"]}}, "; what_if varies no such field"),
        ({"keep": {"pareto": ["cluster"]}}, "keep.pareto.0: 'cluster' does not vary within a front"),
        ({"keep": {"pareto": []}}, "keep.pareto: has no entries, but at least 1 is needed"),
        ({"keep": {"pareto": ["step_time"]}}, "unknown column 'step_time'; did you mean 'step_time_s'?"),
        ({"keep": {"pareto": ["-step_time"]}}, "unknown column 'step_time'; did you mean 'step_time_s'?"),
        ({"keep": {"pareto": ["mfu"]}}, "keep.pareto.0: the smallest 'mfu' is the worst; write '-mfu' to maximise it"),
        ({"keep": {"pareto": ["strategy"]}}, "keep.pareto.0: 'strategy' holds names, not numbers"),
        ({"keep": {"pareto": ["-training_days"]}}, "keep: training_days can be an objective only if the sweep states"),
        (
            {"keep": {"pareto": ["cost_usd"]}},
            "keep: cost_usd can be an objective only if the sweep states train_tokens",
        ),
        ({"keep": {"top": 1, "objective": "gpu_hours"}}, "gpu_hours can be an objective only if the sweep states"),
        ({"keep": {"top": 1, "objective": "-mfu"}}, "the top candidates are those of the smallest cost"),
        (
            {"keep": {"top": 1, "objective": "mfu"}},
            "the smallest 'mfu' is the worst; a front can maximise it: {pareto: [-mfu]}",
        ),
        ({"keep": {"top": 1, "objective": "cost_us"}}, "'cost_us' is no cost"),
        ({"train_tokens": "15t"}, "train_tokens: '15t': unknown suffix 't'; did you mean 'T'?"),
        ({"precision": "float16"}, "precision: 'float16' is not one of float32, float64"),
        ({"train_tokens": "x"}, "train_tokens: 'x' is not a number, as in 5e6 or 15T"),
        ({"sequence_length": 0}, "sequence_length: 0 is not a whole number from 1"),
        ({"file": "x"}, "file: unknown key"),
        ({"_file": "x"}, "_file: unknown key"),
        ({"modell": "x"}, "sweep: modell: unknown key; did you mean 'model'?"),
    ],
)
def test_a_fault_names_value_rule_and_nearest(changes, says):
    with pytest.raises(SpecError) as caught:
        sweep(**changes)
    assert says in str(caught.value)


def test_faults_of_a_file_have_their_line(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(FULL.replace("pp: 64", "ppp: 64").replace("top: 10", "topp: 10"))
    with pytest.raises(SpecError) as caught:
        load_sweep(file, COLUMNS)
    first, second = str(caught.value).splitlines()
    assert "sweep.yaml:7: fix.ppp: unknown candidate column 'ppp'; did you mean 'pp'?" in first
    assert "sweep.yaml:11: keep: expected all" in second
    # A sweep that is no file names the nearest.
    (tmp_path / "sweep.yaml").write_text(FULL)
    with pytest.raises(SpecError, match=r"swep\.yaml is not a file; did you mean 'sweep\.yaml'"):
        load_sweep(tmp_path / "swep.yaml", COLUMNS)
    with pytest.raises(SpecError, match="is not a file"):
        load_sweep(tmp_path, COLUMNS)


@pytest.mark.parametrize("stated", ["15T", "15 T", "15e12", 15e12, {"value": "15000B", "source": "a report"}])
def test_tokens_may_have_a_suffix(stated):
    assert sweep(train_tokens=stated).train_tokens == 15e12
