"""Strategies that extend each other: roles, rules, what is set."""

import pytest
from notation.definitions import STANDARD, build, overlay

from dsx.errors import NotationError, SpecError
from dsx.notation.library import load_definition, load_layer, load_strategy, strategy_names
from dsx.notation.syntax import Settings

BASE = """\
strategy base
role rs = s/tp role is = s
role wf = f/tp role uf = $wf role tf = $uf(v)
require h % tp == 0 heads
require g % tp == 0 heads
require e / tp >= 128 narrow
require s >= 128 short
"""


def roles(*sources):
    return {name: str(dim) for name, dim in overlay(*sources).roles.items()}


def rules(*sources):
    """The reason of each rule, and its line in the strategy that states it."""
    return [(rule.reason, rule.place.line) for rule in overlay(*sources).rules]


def refused(place, words, *sources):
    with pytest.raises(NotationError) as caught:
        overlay(*sources)
    assert str(caught.value).startswith(f"strategy.layer:{place}: "), caught.value
    for word in words:
        assert word in str(caught.value)


def test_roles_may_be_given_as_others_and_replaced():
    assert roles(BASE) == {"rs": "s/tp", "is": "s", "wf": "f/tp", "uf": "f/tp", "tf": "v/tp"}
    assert roles("strategy a\nrole x = $y(u) role y = $z(v) role z = w/cp/tp") == {
        "x": "u/cp/tp",
        "y": "v/cp/tp",
        "z": "w/cp/tp",
    }
    # Roles replace roles and those that are given as them.
    mine = "strategy mine extends base\nrole wf = f/cp role more = $rs"
    replaced = {"wf": "f/cp", "uf": "f/cp", "tf": "v/cp", "more": "s/tp"}
    assert roles(mine, BASE) == roles(BASE) | replaced
    assert roles("strategy other extends mine\nrole uf = f", mine, BASE)["tf"] == "v"
    assert overlay(mine, BASE).name == "mine"


def test_rules_are_replaced_or_dropped_by_their_reason():
    assert rules(BASE) == [("heads", 4), ("heads", 5), ("narrow", 6), ("short", 7)]
    mine = "strategy mine extends base\n" + "\n" * 10
    mine += "require b >= 1 new\nrequire g % tp2 == 0 heads\nrequire e >= 1 narrow\nrequire f >= 1 narrow"
    assert rules(mine, BASE) == [("heads", 13), ("narrow", 14), ("narrow", 15), ("short", 7), ("new", 12)]
    other = "strategy other extends mine\n" + "\n" * 20 + "require h >= 1 new"
    assert rules(other, mine, BASE)[-1] == ("new", 22)
    assert rules("strategy same extends base", BASE) == rules(BASE)
    # Drop leaves out the rules of a reason.
    mine = "strategy mine extends base\ndrop heads drop short"
    assert rules(mine, BASE) == [("narrow", 6)]
    assert rules(f"{mine}\nrequire b >= 1 new", BASE) == [("narrow", 6), ("new", 3)]
    refused("2:6", ["'heads'"], "strategy other extends mine\ndrop heads", mine, BASE)
    # A rule of a dropped reason is not lost.
    mine = "strategy mine extends base\n" + "\n" * 10 + "drop heads\nrequire h >= 1 heads"
    assert ("heads", 13) in rules(mine, BASE)


def test_what_is_set_adds_up():
    mine = "strategy mine extends base\nset ring set core = first"
    other = "strategy other extends mine\nset copied set core = second"
    assert overlay(BASE).settings == Settings()
    found = overlay(other, mine, BASE).settings
    assert found.options == {"ring", "copied"}
    assert dict(found.blocks) == {"core": "second"}
    # An option of a layer is set by a strategy.
    layer = build(LAYER, strategy=f"{BASE}set late", blocks=BLOCKS)
    assert str(layer.tensors["output"].distribution) == "[b, s, e]"
    assert layer.name == "a"


LAYER = """\
layer a
option late
block core = plain
input x[b, $rs, e]
use $core (x = x, output = y)
output[b, $rs, e] = scale(y)       unless late
output[b, $is, e] = scale(y[b, $is, e])      when late
"""
PLAIN = "block plain\noption twice\ninput x[b, s, e]\ny[b, s, e] = gelu(x)\ny[b, s, e] = gelu(y) when twice\n"
BLOCKS = (PLAIN + "output[b, s, e] = view(y)", "block other\ninput x[b, $rs, e]\noutput[b, $rs, e] = squared_relu(x)")


@pytest.mark.parametrize(
    ("lines", "chosen", "expected"),
    [
        ("", "", "gelu view scale"),
        ("set twice", "", "gelu gelu view scale"),
        ("set core = other set twice", "", "squared_relu scale"),
        ("set core = other", "core=plain", "squared_relu scale"),  # over what is chosen
        ("set nothing", "twice", "gelu gelu view scale"),  # no layer need know it
    ],
)
def test_a_strategy_sets_options_and_block_parameters(lines, chosen, expected):
    mine = f"strategy mine extends base\nrole rs = s\n{lines}"
    layer = build(LAYER, strategy=mine, bases=[BASE], blocks=BLOCKS, chosen=chosen)
    assert [op.kind.name for op in layer.operators] == expected.split()


@pytest.mark.parametrize(
    ("place", "words", "sources"),
    [
        ("1:15", ["no strategy 'bas'"], ["strategy mine extends bas", BASE]),
        ("2:6", ["no inherited rule has the reason 'narow'", "did you mean 'narrow'?"],
         ["strategy mine extends base\ndrop narow", BASE]),
        ("2:11", ["strategy 'mine' gives no role 'wff'", "did you mean 'wf'?"],
         ["strategy mine extends base\nrole xs = $wff", BASE]),
        ("1:12", ["cannot extend itself: a extends a"], ["strategy a extends a"]),
        ("1:13", ["cannot extend itself: a extends b extends c extends b"],
         ["strategy a extends b", "strategy b extends c", "strategy c  extends b"]),
        ("2:10", ["role 'a' is given through itself: a -> a"], ["strategy mine\nrole a = $a"]),
        ("2:34", ["role 'b' is given through itself: a -> b -> c -> b"],
         ["strategy mine\nrole a = $b role b = $c role c = $b"]),
        ("3:26", ["role 'wf' is given through itself: wf -> uf -> wf"],
         ["strategy mine extends base\nrole rs = s\nrole wf = $uf", BASE]),
    ],
)  # fmt: skip
def test_faults(place, words, sources):
    refused(place, words, *sources)


def test_strategies_extend_each_other_in_moderation():
    chain = [f"strategy a{index} extends a{index + 1}" for index in range(29)] + ["strategy a29\nrole rs = s"]
    assert roles(*chain) == {"rs": "s"}
    refused("1:14", ["'a' extends a chain of more than 30 strategies"], "strategy a extends a0", *chain)


def test_strategies_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.layer").write_text("strategy mine extends 2d\nset ring\nrole rs = s/cp\ndrop sequence_too_short")
    (tmp_path / "more.layer").write_text("strategy more extends mine\nset an_option_of_my_own\n")
    mine, more, base = (load_strategy(name) for name in ("./mine.layer", "./more.layer", "2d"))
    assert mine.roles == more.roles == base.roles | {"rs": mine.roles["rs"]}
    assert {rule.reason for rule in base.rules} - {rule.reason for rule in more.rules} == {"sequence_too_short"}
    assert more.settings.options == {"ring", "an_option_of_my_own"}
    assert load_layer("transformer", "./more.layer", STANDARD).options["ring"]
    assert set(strategy_names()) >= {"2d", "2d-ring"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("set rinng", "sets 'rinng'.*did you mean 'ring'"),
        ("set cores = attention-core", "sets 'cores'.*did you mean 'core'"),
    ],
)
def test_a_misspelt_setting_is_refused(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.layer").write_text(f"strategy mine extends 2d\n{line}\n")
    (tmp_path / "more.layer").write_text("strategy more extends mine\n")
    for name in ("mine", "more"):
        with pytest.raises(SpecError, match=words):
            load_strategy(f"./{name}.layer")


def test_a_strategy_that_extends_what_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.layer").write_text("strategy mine extends transformer\n")
    with pytest.raises(NotationError, match="'transformer' is a layer, not a strategy"):
        load_strategy("./mine.layer")
    (tmp_path / "mine.layer").write_text("strategy mine extends 2e\n")
    with pytest.raises(NotationError, match=r"mine\.layer:1:15: unknown strategy '2e'; did you mean '2d'\?"):
        load_strategy("./mine.layer")


@pytest.mark.parametrize("name", ["1d", "1d-no-sp", "2d-no-sp", "2d-ring", "ulysses", "2d-expert-tp", "2d-copied-kv"])
def test_packaged_strategies_have_the_roles_of_2d(name):
    of_core = load_definition("attention-core").roles.keys() if name == "ulysses" else set()
    assert load_strategy(name).roles.keys() == load_strategy("2d").roles.keys() | of_core
