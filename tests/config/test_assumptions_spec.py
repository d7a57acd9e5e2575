"""Assumption sets: the two that come with dsx, and what is refused."""

import re

import pytest

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.errors import SpecError


def test_the_packaged_sets():
    paper = load_assumptions("paper-2410.00273")
    assert paper.layers["transformer"] == "transformer-2410.00273"
    assert set(paper.layers.values()) == {"transformer-2410.00273"}
    assert {"embedding", "head"} <= set(paper.uncounted_layers)
    assert paper.set == {}
    assert paper.operators == ["standard", "arxiv-2410.00273"]
    assert paper.uncounted == ["add"]
    assert paper.fixed == {
        "zero_stage": 1, "zero_replicas": 1, "recompute": "none", "stored_layers": 0, "schedule": "1f1b", "vpp": 1,
        "offload": "none", "ep": 1,
    }  # fmt: skip
    rates = (paper.matrix_efficiency, paper.vector_efficiency, paper.hbm_efficiency, paper.net_efficiency)
    assert rates == (0.8, 0.8, 1.0, 0.7)
    assert (paper.launch_latency, paper.overhead) == (20e-6, 0.0)
    assert (paper.fused_backward_reads, paper.charge_replicated_gradients) == ("stored", False)
    assert paper.optimizer_bytes_per_parameter == 12
    assert paper.calibrated
    # The default set.
    default = load_assumptions("default")
    assert default.layers == {}
    assert (default.set, default.unfused_attention) == ({}, {"core": "unfused-attention-core"})
    assert default.gradient_bytes == 2
    assert default.charge_replicated_gradients
    assert AssumptionsSpec.model_validate(default.model_dump(mode="json")) == default


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("launch_latency", "10", "launch_latency: 10 has no unit: write for example '10 us'"),
        ("hbm_efficiency", "90", "hbm_efficiency: input should be less than or equal to 1, got 90"),
        ("fused_backward_reads", "store", "'store' is not one of stored, consumed; did you mean 'stored'?"),
        ("calibrated", "no", "calibrated: input should be a valid boolean, got 'no'"),
        ("fixed.vpp", "1.5", "fixed.vpp: 1.5 is neither a whole number nor a name"),
        ("operators", "standard", "operators: expected a list, as in [a, b], got 'standard'"),
        ("launch_latncy", "1 us", "unknown path 'launch_latncy'; did you mean 'launch_latency'?"),
        ("fixd.ep", "1", "unknown path 'fixd.ep'; did you mean 'fixed.ep'?"),
        ("algorithms.all_gather", "[rings]", "'rings' is not one of ring, hierarchical; did you mean 'ring'?"),
        ("algorithms.all_gather", "[tree]", "'tree' is not one of ring, hierarchical"),
        ("algorithms.all_gather", "[]", "has no entries, but at least 1 is needed"),
        ("tiles", "[[128]]", "tiles.0.1: is required, but missing"),
        ("protocols", "[lazy]", "'lazy' is not one of bulk, eager"),
    ],
)
def test_a_fault_names_value_rule_and_place(path, value, says):
    with pytest.raises(SpecError) as caught:
        load_assumptions("default", [(path, value)])
    assert f"--set assumptions.{path}: " in str(caught.value)
    assert says in str(caught.value)


def test_a_set_states_only_what_differs(tmp_path):
    file = tmp_path / "slow.yaml"
    file.write_text("extends: default\nname: slow\nlaunch_latency: 50 us\nfixed: {vpp: 2}\n")
    slow = load_assumptions(file)
    assert slow.launch_latency == 50e-6
    assert slow.fixed["vpp"] == 2
    assert slow.fixed == {"vpp": 2}
    # A block of ones own may lie beside its layer.
    file = tmp_path / "mine.yaml"
    file.write_text("extends: default\nname: mine\nset: {my-mixer: my-fused-mixer, fused: true}\n")
    assert load_assumptions(file).set == {"my-mixer": "my-fused-mixer", "fused": True}
    # A set finds the tables beside the file that mentions it.
    (tmp_path / "own.yaml").write_text("f:\n  arguments: [x]\n")
    (tmp_path / "mine.yaml").write_text("extends: default\nname: mine\noperators: [standard, own]\n")
    mentions = tmp_path / "sweep.yaml"
    assert load_assumptions("./mine.yaml", near=mentions).operators == ["standard", "own"]


def test_a_set_names_operator_tables_that_are_there(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: default\nname: mine\noperators: [standard, standrd]\nunfused_operators: {norm: unfused-nrm}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_assumptions(file)
    first, second = str(caught.value).splitlines()
    assert f"{file}:3: operators.1: unknown operator table 'standrd'; did you mean 'standard'?" in first
    assert f"{file}:4: unfused_operators.norm: unknown operator table 'unfused-nrm'" in second


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("unfused_operators: {norm: unfused-softmax}", "'unfused-softmax' has no operator 'norm' (it has: softmax)"),
        ("unfused_operators: {gelu: standard}", "'gelu' is not one of norm, softmax"),
        ("set: {core: unfused-atention-core}", "set.core: there is no block 'unfused-atention-core'; did you mean"),
        ("unfused_attention: {core: unfused-atention-core}", "unfused_attention.core: there is no block 'unfused-at"),
        ("set: {gated: false}", "set.gated: "),
        ("blocks: {attention-core: x}", "is no longer a key; write 'set: {core: unfused-attention-core}'"),
        ("told_apart: 0.2", "is no longer a key; write 'resolution: 0.2'"),
        ("unfused_blocks: {attention-core: other}", "is no longer a key; write 'unfused_attention: {core: unfused-"),
    ],
)  # fmt: skip
def test_a_set_says_what_can_be_meant(tmp_path, stated, says):
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: default\nname: mine\n{stated}\n")
    with pytest.raises(SpecError, match=re.escape(says)) as caught:
        load_assumptions(file)
    assert f"{file}:3: " in str(caught.value)


@pytest.mark.parametrize("effect", ["1e3", "-5"])
def test_an_effect_beyond_a_factor_of_a_hundred_is_refused(effect):
    with pytest.raises(SpecError, match=r"effects\.stack\.own"):
        load_assumptions({"extends": "uncalibrated", "name": "own", "effects": {"stack": {"own": float(effect)}}})


@pytest.mark.parametrize("key", ["<x>", "<top>", "<>", "<one>"])
def test_a_key_that_looks_like_a_tag_of_the_schema(tmp_path, key):
    file = tmp_path / "mine.yaml"
    file.write_text(f'extends: default\nname: x\nspecialise: {{"{key}": 5}}\n')
    with pytest.raises(SpecError, match=re.escape(f"mine.yaml:3: specialise.{key}: expected a section with the keys")):
        load_assumptions(str(file))
