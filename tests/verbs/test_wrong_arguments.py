"""An argument of the wrong kind is refused where it enters, by an error of dsx that names it."""

import dataclasses

import pytest
from verbs.small import SWEEP

import dsx
from dsx.errors import InputError, SpecError

VERBS = [dsx.best, dsx.evaluate, dsx.why, dsx.partition]


NO_NAMES = ["", [], 5, b"1d", {"name": "1d"}]


@pytest.mark.parametrize(
    ("verb", "strategy"),
    [
        (verb, wrong)
        for verb in VERBS
        for wrong in (*NO_NAMES, ["1d", "2d"])
        if verb not in (dsx.best, dsx.partition) or wrong in NO_NAMES
    ],
)
def test_a_strategy_is_one_name_except_in_a_search(job, verb, strategy):
    with pytest.raises(
        InputError, match=r"--strategy .*: the name of one strategy \(dsx list strategies\) or a .layer"
    ):
        verb(job, strategy=strategy)
    with pytest.raises(InputError, match=r"--strategy .*: the name of one strategy"):
        dsx.layer("transformer", strategy=strategy)


def test_an_unknown_strategy_is_said_to_be_one_where_it_is_given(job):
    for verb in VERBS:
        with pytest.raises(SpecError, match=r"^--strategy: unknown strategy '1dd'; did you mean '1d'"):
            verb(job, strategy="1dd")
    with pytest.raises(SpecError, match=r"^--strategy: unknown strategy '1dd'; did you mean '1d'"):
        dsx.layer("transformer", strategy="1dd")
    with pytest.raises(SpecError, match=r"^sweep: strategy: unknown strategy '1dd'; did you mean '1d'"):
        dsx.sweep(SWEEP | {"strategy": ["2d", "1dd"]})


@pytest.mark.parametrize("shard", [(True, 2), (1, True), (0, 2), (3, 2), 2, "1/2", None])
def test_a_shard_is_two_counts(tmp_path, shard):
    with pytest.raises(InputError, match=r"is not a shard: the second of eight is"):
        dsx.sweep_shard(SWEEP, tmp_path / "set", shard)


@pytest.mark.parametrize("fields", [7, 0, [3], b"cluster.device.hbm_capacity=80 GB"])
def test_overridden_fields_are_a_mapping_or_texts(job, tmp_path, fields):
    for call in (
        lambda: dsx.Job("llama-3-8b", "h100-nvs8", 8, 8, set=fields),
        lambda: job.replace(set=fields),
        lambda: dsx.sweep(SWEEP, set=fields),
        lambda: dsx.sweep_shard(SWEEP, tmp_path / "set", (1, 2), set=fields),
        lambda: dsx.finish_sweep(SWEEP, tmp_path / "set", set=fields),
        lambda: dsx.cluster_times("b200-nvs8", set=fields),
        lambda: dsx.layer("transformer", sizes=fields),
    ):
        with pytest.raises(InputError, match=r"^(set|sizes): .* is given, and a mapping of fields to values is wanted"):
            call()


@pytest.mark.parametrize("path", [None, 5, ["a"], b"a"])
def test_a_path_is_a_text_or_a_path(result_set, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    calls = [
        lambda: dsx.load(path), lambda: dsx.show(path), lambda: dsx.front(path), lambda: dsx.why_row(path, 1),
        lambda: dsx.compare_sets(path, result_set), lambda: dsx.compare_sets(result_set, path),
        lambda: dsx.sweep_shard(SWEEP, path, (1, 2)), lambda: dsx.finish_sweep(SWEEP, path),
        lambda: dsx.validate(path), lambda: dsx.calibrate(path, "out.yaml"), lambda: dsx.calibrate("runs.csv", path),
        lambda: dsx.draw(path, "a.png", "front"), lambda: dsx.draw(result_set, path, "front"),
        lambda: dsx.image_format(path), lambda: dsx.cluster_times("b200-nvs8").plot(path),
        lambda: dsx.import_hf(path), lambda: dsx.layer(path), lambda: dsx.partition_table(path, "networks.json:a", 8),
    ]  # fmt: skip
    if path is not None:  # these arguments may be left out
        calls += [
            lambda: dsx.sweep(SWEEP, path),
            lambda: dsx.sweep(SWEEP, tmp_path / "set", plot=path),
            lambda: dsx.finish_sweep(SWEEP, tmp_path / "set", plot=path),
            lambda: dsx.front(result_set, plot=path),
            lambda: dsx.validate("runs.csv", out=path),
            lambda: dsx.import_hf("config.json", path),
        ]
    for call in calls:
        with pytest.raises(InputError, match=r"^\w+: .* is given, and a path is wanted, as a text or a Path"):
            call()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda folder: dsx.names(None), "kind: None is given, and one name is wanted, such as 'models'"),
        (lambda folder: dsx.load(folder, [5]), "columns: [5] is given, and a list of names is wanted"),
        (lambda folder: dsx.load(folder, 5), "columns: 5 is given, and a list of names is wanted"),
        (lambda folder: dsx.load(folder, "tp"), "columns: 'tp' is given, and a list of names is wanted, such as ["),
        (lambda folder: dsx.load(folder, "tp"), "; for one write ['tp']"),
        (lambda folder: dsx.show(folder, per=["tp", 5]), "per: ['tp', 5] is given, and a list of names is wanted"),
        (lambda folder: dsx.show(folder, per=5), "per: 5 is given, and a list of names is wanted"),
        (lambda folder: dsx.front(folder, 5), "objectives: 5 is given, and a list of names is wanted"),
        (lambda folder: dsx.compare_sets(folder, folder, 5), "per: 5 is given"),
        (lambda folder: dsx.draw(folder, "a.png", "front", by=5), "by: 5 is given, and one name is wanted"),
        (lambda folder: dsx.draw(folder, "a.png", "front", x=5), "x: 5 is given, and a list of names is wanted"),
        (lambda folder: dsx.why_row(folder, 1, 5), "hardware: 5 is given, and a list of names is wanted"),
    ],
)
def test_a_column_is_a_text(result_set, call, says):
    with pytest.raises(InputError) as error:
        call(result_set)
    assert says in str(error.value)


def test_types_of_paths_and_settings(tmp_path):
    written = dsx.sweep(SWEEP, tmp_path / "set")
    with pytest.raises(InputError) as error:
        dsx.report(written, tmp_path / "r.html")
    wanted = "folder: Swept is given, and a path is wanted, as a text or a Path; its .folder "
    assert str(error.value) == f"{wanted}is one"
    with pytest.raises(InputError) as error:
        dsx.load(dataclasses.replace(written, folder=None))
    assert str(error.value).startswith(f"{wanted}is None, since nothing was written: ")
    with pytest.raises(InputError, match=r"^folder: DataFrame is given, and a path is wanted, as a text or a Path$"):
        dsx.report(dsx.load(written.folder))
    # Settings of a layer are texts.
    for setting in (5, ["gated"]):
        with pytest.raises(InputError, match=r"a setting of the layer: .* one name is wanted, such as 'gated'"):
            dsx.layer("transformer", setting)


@pytest.mark.parametrize("columns", ["recompute=full", 5, None, ["recompute"]])
def test_a_plan_is_changed_by_a_mapping(found, columns):
    with pytest.raises(InputError, match=r"a mapping of columns is wanted, as in plan \| {'recompute': 'full'}"):
        found.plan | columns


@pytest.mark.parametrize("number", ["1", None, [1], 0, 99])
def test_a_plan_has_a_number(found, number):
    with pytest.raises(InputError, match=r"^no plan .*: there are 20 plans, counted from 1"):
        found.launch(number)


def test_watches_and_settings_of_tables(job, tmp_path):
    for call in (
        lambda: dsx.best(job, watch=5),
        lambda: dsx.partition(job, watch=5),
        lambda: dsx.sweep(SWEEP, watch=5),
        lambda: dsx.sweep_shard(SWEEP, tmp_path / "set", (1, 2), watch=5),
        lambda: dsx.calibrate("runs.csv", "out.yaml", watch=5),
        lambda: dsx.validate("runs.csv", predict=5),
    ):
        with pytest.raises(InputError, match=r"(watch|predict): 5 is given, and a function is wanted"):
            call()
    assert not [*tmp_path.iterdir()]
    # The settings of a table of layers are known words.
    with pytest.raises(InputError, match=r"unknown recompute 'ful'; did you mean 'full'"):
        dsx.partition_table("layers.json", "networks.json:a", 8, recompute="ful")
    with pytest.raises(InputError, match="network: 5 is given"):
        dsx.partition_table("layers.json", 5, 8)


BIG = 10**5000  # Python refuses to write it out
LLAMA = dsx.Job("llama-3-8b", "h100-nvs8", 16, 64)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: dsx.Job("llama-3-8b", "h100-nvs8", BIG, 64),
        lambda: dsx.Job("llama-3-8b", "h100-nvs8", 16, 64, set={"assumptions.overhead": BIG}),
        lambda: dsx.Job("llama-3-8b", "h100-nvs8", 16, 64, set={"model.dimensions.e": -BIG}),
        lambda: dsx.evaluate(LLAMA, tp=BIG),
        lambda: dsx.evaluate(LLAMA, zero_stage=-BIG),
        lambda: dsx.evaluate(LLAMA, stage_layers=[BIG, 1]),
        lambda: dsx.best(LLAMA, fix={"tp": BIG}),
        lambda: dsx.best(LLAMA, top=BIG),
        lambda: dsx.best(LLAMA, train_tokens=BIG),
        lambda: dsx.best(LLAMA, time_limit=BIG),
    ],
)
def test_numbers_that_python_does_not_write_out(ask):
    with pytest.raises(InputError, match="a number of some 5,001 digits"):
        ask()
