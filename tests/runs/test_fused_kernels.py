"""The column that says which operators ran as one kernel."""

import pytest
from runs.tables import write

from dsx.config.assumption_set import load_assumptions
from dsx.errors import RunTableError
from dsx.runs.setups import Setup, setups
from dsx.runs.table import FUSABLE, kernels, read_runs


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("norm", {"norm"}),
        ("softmax + norm", {"norm", "softmax"}),
        ("Norm,softmax", {"norm", "softmax"}),
        ("none", set()),
    ],
)
def test_texts(text, named):
    assert kernels(text) == named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "norms",
            ["'norms' is not an operator of this column; did you mean 'norm'?", "both as 'norm + softmax', or none"],
        ),
        ("flash_attention + norm", ["'flash_attention' is not an operator"]),
        ("norm +", ["'' is not an operator"]),
        ("yes", ["'yes' is not an operator"]),
        ("none, norm", ["'none, norm' lists none with other operators"]),
    ],
)
def test_a_faulty_cell_has_its_place(tmp_path, text, words):
    table = write(tmp_path / "runs.csv", {"kernels": text})
    with pytest.raises(RunTableError) as caught:
        read_runs(table)
    for word in (f"{table}:2: kernels: ", *words):
        assert word in str(caught.value)


def test_a_default_counts_where_a_norm_or_softmax_depends_on_it(tmp_path):
    blank = {"kernels": "", "gated_mlp": "0"}
    changes = ({}, {"gated_mlp": "1"}, {"flash": "0"}, {"experts": "8", "topk": "2"})
    made = setups(read_runs(write(tmp_path / "runs.csv", *(blank | change for change in changes))))
    assert ["kernels" in setup.filled for setup in made if isinstance(setup, Setup)] == [False, True, True, True]


def test_every_operator_has_a_table_for_the_other_case():
    assert load_assumptions("default").unfused_operators.keys() == FUSABLE
