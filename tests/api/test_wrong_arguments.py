"""An argument of the wrong kind is refused where it enters, by an error of dsx that names it."""

import pytest
from api.small import SWEEP

import dsx
from dsx.errors import InputError, SpecError

VERBS = [dsx.best, dsx.evaluate, dsx.why, dsx.partition]


@pytest.mark.parametrize("strategy", ["", [], 5, ["1d", "2d"], b"1d", {"name": "1d"}])
@pytest.mark.parametrize("verb", VERBS)
def test_a_strategy_is_one_name(job, verb, strategy):
    with pytest.raises(InputError, match=r"--strategy .*: the name of one strategy, such as '1d', or a .layer file"):
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
