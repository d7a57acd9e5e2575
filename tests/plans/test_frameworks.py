"""Framework files: what they may state, and the boxes of plans that they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.config.framework_file import MOST_BOXES, framework_names
from dsx.errors import SpecError, UnknownNameError
from dsx.plans.choices import BY_NAME, CHOICE_COLUMNS, KEY_COLUMNS
from dsx.plans.frameworks import boxes_of, broken, of_regions, read_framework

GOOD = {"name": "mine", "description": "mine", "source": "mine", "runs": [{}]}
VALUES = {"tp": [1, 2, 4], "ep": [1, 2], "pp": [1, 2, 3], "zero_stage": [0, 1, 2], "recompute": ["none", "full"]}
STRATEGIES = ("1d", "2d", "summa")


@pytest.mark.parametrize("name", framework_names())
def test_packaged_frameworks_can_be_read(name):
    framework = read_framework(name)
    assert framework.name == name and framework.source
    assert framework.unlimited == (name == "any")
    assert all(box.source for box in framework.runs if box.fix)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"runs": []}, "runs: has no entries, but at least 1 is needed"),
        ({"runs": [{}] * (MOST_BOXES + 1)}, "runs: has 33 entries, but at most 32 are needed"),
        ({"strategy": ["1d", "sumna"]}, "strategy: unknown strategy 'sumna'; did you mean 'summa'?"),
        ({"runs": [{"strategy": "3d"}]}, "framework: strategy: unknown strategy '3d'"),
        ({"fix": {"zero_stag": 1}}, "fix.zero_stag: unknown column 'zero_stag'; did you mean 'zero_stage'?"),
        ({"fix": {"global_batch_size": 1}}, "'global_batch_size' belongs to the job; expected a choice of the plan"),
        ({"fix": {"num_microbatches": 1}}, "'num_microbatches' belongs to the job"),
        ({"runs": [{"fix": {"schedule": "1f1"}}]}, "fix: schedule = '1f1' is not known; did you mean '1f1b'?"),
        ({"runs": [{"fix": {"zero_stage": 4}}]}, "fix: zero_stage = 4 must be one of 0, 1, 2, 3"),
        ({"limit": {"tp": "16"}}, "limit.tp: '16' has no known relation; did you mean '<=16'?"),
        ({"limit": {"schedule": "<=1"}}, "'schedule' holds names; expected a column of numbers"),
        (
            {"runs": [{"zero_stage": 1}]},
            "runs.0.zero_stage: unknown key (known: strategy, optimizers, fix, limit, source)",
        ),
        ({"strategy": ["1d"], "without_experts": ["2d"]}, "without_experts: '2d' is not among the strategies that are"),
        ({"with_tied_head": {"zero_stage": 4}}, "with_tied_head: zero_stage = 4 must be one of 0, 1, 2, 3"),
        ({"needs": ["zero_replica < dp"]}, "needs: zero_replica < dp: 'zero_replica' is no column of numbers; did you"),
        ({"needs": ["recompute != full"]}, "needs: recompute != full: 'recompute' is no column of numbers"),
        ({"needs": ["cp < dp"]}, "needs: cp < dp: of these columns only one belongs to the shard key (strategy, tp,"),
        ({"needs": ["cp without tp"]}, "needs: cp without tp: a framework compares numbers, as in 'pp <= 8'"),
        ({"cp_exchanges": {"any": ["ringg"]}}, "cp_exchanges: unknown exchange 'ringg'; did you mean 'ring'?"),
        ({"tp_parts": ["1d", "sumna"]}, "tp_parts: unknown strategy 'sumna'; did you mean 'summa'?"),
        (
            {"on_generation": {"volta": {"without": "a kernel", "source": "a test", "fix": {"zero_stage": 4}}}},
            "fix: zero_stage = 4 must be one of 0, 1, 2, 3",
        ),
        ({"needs": ["cp > 1 or dp > 1 or pp > 1"] * 4}, "1 boxes with 81 ways to meet needs are more than 32"),
        ({"fix": {"pp": 1}, "runs": [{"fix": {"pp": 2}}]}, "fix states 'pp' for all boxes, and one of them states it"),
    ],
)
def test_faults(content, said):
    with pytest.raises(SpecError) as error:
        read_framework(GOOD | content)
    assert said in str(error.value)


def test_a_file_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: megatron\nname: mine\nfix: {schedule: gpip, cp: 0}\n")
    with pytest.raises(SpecError) as error:
        read_framework("mine.yaml")
    first, second = str(error.value).splitlines()
    assert first.startswith("mine.yaml:3: fix: schedule = 'gpip' is not known; did you mean 'gpipe'?")
    assert second.startswith("mine.yaml:3: fix: cp = 0 must be a whole number of at least 1")
    with pytest.raises(UnknownNameError, match=r"unknown framework 'megatorn'; did you mean 'megatron'\?"):
        read_framework("megatorn")


@st.composite
def boxes(draw):
    """A box of one's own: some columns with some of their values, or a bound."""
    box = {}
    if draw(st.booleans()):
        box["strategy"] = draw(st.lists(st.sampled_from(STRATEGIES), min_size=1, unique=True))
    columns = draw(st.lists(st.sampled_from([*VALUES]), unique=True, max_size=3))
    box["fix"] = {name: draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, unique=True)) for name in columns}
    if "tp" not in columns and draw(st.booleans()):
        box["limit"] = {"tp": f"<={draw(st.sampled_from([1, 2, 4]))}"}
    return box


NEEDS = st.sampled_from(
    ["ep < tp or pp > 1", "zero_stage < pp", "tp > 1 or pp == 1 or zero_stage != pp", "ep <= 1", "tp != 2"]
)


@given(st.lists(boxes(), min_size=1, max_size=4), st.booleans(), st.lists(NEEDS, max_size=2, unique=True))
def test_the_filters_keep_the_plans_of_any_box(stated, experts, needs):
    limits = {"strategy": [*STRATEGIES], "without_experts": ["2d"], "needs": needs}
    framework = read_framework(GOOD | limits | {"runs": stated})
    names = ["strategy", *VALUES]
    values = [[*range(len(STRATEGIES))], *([BY_NAME[name].code(value) for value in VALUES[name]] for name in VALUES)]
    table = dict(zip(names, (part.ravel() for part in np.meshgrid(*values, indexing="ij")), strict=True))
    of_framework = boxes_of(framework, STRATEGIES, experts)
    keys = {name: column for name, column in table.items() if name in KEY_COLUMNS}
    choices = {name: column for name, column in table.items() if name in CHOICE_COLUMNS}
    in_boxes = of_framework.of_keys(keys)
    kept = np.zeros(len(in_boxes), dtype=bool)
    for bits in np.unique(in_boxes).tolist():
        here = in_boxes == bits
        kept[here] = of_framework.keep(bits, choices)[here]
    for row in range(0, len(kept), 7):
        plan = {name: BY_NAME[name].name_of(int(column[row])) for name, column in table.items() if name != "strategy"}
        plan["strategy"] = STRATEGIES[table["strategy"][row]]
        runs = any(not broken(box, plan) for box in framework.boxes(experts))
        assert kept[row] == runs
        held = [eval(need, {}, plan) for need in needs]
        assert not runs or all(held)


def test_megatron_recomputes_norms_that_are_modules_and_unknown_regions_are_refused():
    framework = read_framework("megatron")
    of_dense, of_experts = ["norms", "feed-forward"], ["norms", "experts", "latent-up-projection"]

    def recomputed(regions):
        return {value for box in of_regions(framework, regions).runs for value in box.fix["recompute"]}

    assert not any("norms" in value for value in recomputed(of_dense))
    assert {"none", "full", "feed-forward"} <= recomputed(of_dense)
    assert all("recompute" not in box.fix or "full" in box.fix["recompute"] for box in framework.runs[:1])
    assert of_regions(framework, of_experts) == framework
    # Unknown regions are refused.
    with pytest.raises(SpecError, match="recomputed_beside: unknown region 'norm'; did you mean 'norms'"):
        read_framework(GOOD | {"recomputed_beside": {"norm": []}})
