"""``dsx why`` of a row of a result set: it is that row that is explained."""

import json

import pytest


@pytest.fixture(scope="module")
def result_set(tmp_path_factory, command):
    """A result set whose sweep searches choices that are fixed in the assumption set."""
    from cli.conftest import MODEL, SWEEP

    place = tmp_path_factory.mktemp("searched")
    (place / "small.yaml").write_text(MODEL)
    fix = "fix: {zero_stage: [1, 3], recompute: [none, full], offload: [none, optimizer]}\n"
    (place / "sweep.yaml").write_text(SWEEP + fix)
    assert command("sweep", place / "sweep.yaml", "-o", place / "set") == 0
    return place / "set"


def test_a_row_is_explained_with_the_choices_that_its_sweep_searched(run, result_set):
    import dsx

    rows = dsx.load(result_set)
    assert len(rows) > 8
    for _, row in rows.sample(5, random_state=1).iterrows():
        found = json.loads(run("why", result_set, row.candidate, "--json").out)
        assert found["plan"]["candidate"] == row.candidate
        for name in ("zero_stage", "recompute", "offload"):
            assert found["plan"][name] == row[name]
        assert found["step_time_s"] == pytest.approx(row.step_time_s, rel=1e-5)
        assert found["peak_bytes"] == pytest.approx(row.peak_bytes, rel=1e-5)
    # The fastest beside it is the fastest of all that the sweep searched.
    fastest = rows[rows.reject == 0].step_time_s.min()
    assert found["best"]["step_time_s"] == pytest.approx(fastest, rel=1e-5)
