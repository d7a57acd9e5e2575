"""Problems, and what this version refuses to price."""

from dataclasses import replace
from textwrap import dedent

import pytest
from laws.spaces import SYSTEM, problem_of
from validation.cases import STRATEGIES, cluster_spec, model_spec

from dsx.config.assumption_set import load_assumptions
from dsx.errors import SpecError
from dsx.pricing.problem import make_problem

MODEL = model_spec({"l": 512, "e": 1024, "h": 8, "f": 4096, "depth": 4})
DEFAULT = load_assumptions("default")


def make(model=MODEL, assumptions=DEFAULT, strategies=("1d",), **options):
    return make_problem(model, cluster_spec(SYSTEM), assumptions, strategies, **options)


def test_tensors_sharded_over_dp_are_refused(tmp_path):
    text = (tmp_path / "fsdp.layer").absolute()
    text.write_text(
        dedent("""
            strategy fsdp
            role rs = s    role re = e    role is = s    role ie = e
            role wi = e/dp role wf = f    role uf = f    role vf = f/dp
            role ve = e    role oe = e    role wc = c    role hg = g
            role hm = m    role um = m    role vm = m/dp
        """)
    )
    with pytest.raises(SpecError, match="shards over dp, which is derived but not priced yet"):
        make(strategies=[str(text)])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("zero_stage", 4, "zero_stage = 4 must be one of 0, 1, 2, 3"),
        ("recompute", "ful", "recompute = 'ful' is not known; did you mean 'full'?"),
        ("ep", 0, "ep = 0 must be a whole number of at least 1"),
        ("tp", 2, "'fixed' cannot fix 'tp'; did you mean 'ep'? (known: ep, vpp,"),
        ("vp", 2, "'fixed' cannot fix 'vp'; did you mean 'vpp'? (known: ep, vpp,"),
    ],
)
def test_what_cannot_be_fixed(column, value, message):
    fixed = DEFAULT.model_copy(update={"fixed": DEFAULT.fixed | {column: value}})
    with pytest.raises(SpecError) as caught:
        make(assumptions=fixed)
    assert message in str(caught.value)
    assert "'default'" in str(caught.value)


def test_a_sequence_length_replaces_that_of_the_model():
    assert make().sequence_length == 512
    longer = make(sequence_length=2048)
    assert (longer.sequence_length, longer.workload.sequence_length) == (2048, 2048.0)
    assert longer.workload.forward_flops > 4 * make().workload.forward_flops


def test_reasons_have_distinct_names_and_begin_with_memory():
    names = [reason.name for reason in problem_of("default").reasons]
    assert names[:3] == ["memory", "dimension_divided_away", "host_memory"]  # bits 0 to 2 of `reject`
    assert len(set(names)) == len(names)
    alone = {reason.name for s in STRATEGIES for reason in problem_of("default", (s,)).reasons}
    assert set(names) == alone


def test_a_fingerprint_changes_only_with_what_is_derived():
    problem = make(strategies=STRATEGIES)
    assert make(strategies=STRATEGIES, sequence_length=2048).fingerprint() == problem.fingerprint()
    assert set(problem.fingerprint()) == set(STRATEGIES)
    assert len(set(problem.fingerprint().values())) == 3
    paper = make(assumptions=load_assumptions("paper-2410.00273"), strategies=STRATEGIES)
    assert not set(paper.fingerprint().values()) & set(problem.fingerprint().values())
    (layer, count) = problem.models[0].layers[0]
    without = replace(problem.models[0], layers=((replace(layer, rules=layer.rules[1:]), count),))
    assert replace(problem, models=(without, *problem.models[1:])).fingerprint() != problem.fingerprint()
