"""Every check of a layer is an error with file, line and column, and the nearest right thing."""

import pytest
from graph.texts import build, derived, fails

HEAD = "layer a\ninput x[b, s/tp, e] v[b, s, e] w0[b, s, e/tp] r[b, s/cp/tp, e]\nweight w[e, f/tp] g[e] wf[f/tp, e]\n"


def check(lines, line, column, *words):
    """`lines` follow a head of three lines; `line` counts from the first of them."""
    fails(HEAD + lines, 3 + line, column, *words)


@pytest.mark.parametrize(
    ("lines", "line", "column", "words"),
    [
        # a letter is divided alike in all arguments and the result
        ("y[b, s, f/tp] = einsum(x, w)", 1, 1, ["'s' is divided differently", "s/tp and s"]),
        ("y[b, s, f] = einsum(v, w)", 1, 1, ["'f' is divided differently", "f/tp and f"]),
        ("y[b, s, f/tp] = einsum(w0, w)", 1, 28, ["'e' is divided differently", "e/tp and e"]),
        ("y[b, s/tp, e] = add(x, v)", 1, 24, ["'s' is divided differently", "s/tp and s"]),
        ("y[b, s/cp, e] = gelu(x)", 1, 1, ["'s' is divided differently", "s/tp and s/cp"]),
        # s/cp/tp and s/tp/cp are different
        ("y[b, s/tp/cp, e] = gelu(r[b, s/tp/cp, e])", 1, 25, ["s/cp/tp and s/tp/cp", "order their ranks differently"]),
        # a contracted divided letter makes the result partial over exactly its axes
        (
            "z[b, s, f/tp] = einsum(v, w)\ny[b, s, e] = einsum(z, wf)",
            2,
            1,
            ["'y' is a partial sum over tp", "write '@tp' (or '@*')"],
        ),
        ("z[b, s, f/tp] = einsum(v, w)\ny[b, s, e @cp] = einsum(z, wf)", 2, 1, ["write '@tp'", "not '@cp'"]),
        ("z[b, s, f/tp] = einsum(v, w)\ny[b, s, e @tp @cp] = einsum(z, wf)", 2, 1, ["write '@tp'", "not '@tp @cp'"]),
        ("y[b, s, f/tp @cp] = einsum(v, w)", 1, 1, ["'y' is stated as a partial sum (@cp)", "nothing divided is summed"]),
        ("y[b, s, e @tp] = gelu(v)", 1, 1, ["'y' is stated as a partial sum (@tp)"]),
        # '@*' is for results only
        ("z[b, s, f/tp] = einsum(v, w)\ny[b, s, e @*] = einsum(z[b, s, f/tp @*], wf)", 2, 24, ["'@*'", "an argument states its own"]),
        # a partial sum has to be there to be taken
        ("y[b, s, e @tp] = scale(v[b, s, e @tp])", 1, 24, ["'v'", "wants a partial sum over tp", "is none"]),
        # dimensions of an argument
        ("y[b, s, e] = gelu(v[b, e, s])", 1, 19, ["'v' has the dimensions [b, s, e] and is taken as [b, e, s]", "view"]),
        ("y[b, s] = gelu(v[b, s])", 1, 16, ["'v' has the dimensions [b, s, e]"]),
        ("y[b, s, f] = gelu(v)", 1, 1, ["dimension 'f' of the result 'y' is in no argument of gelu", "b, e, s"]),
        ("y[b, e] = gelu(v)", 1, 1, ["gelu keeps its dimensions", "[b, s, e], not [b, e]"]),
        ("y[b, e, s] = gelu(v)", 1, 1, ["gelu keeps its dimensions"]),
        ("y[e] = add(g, v)", 1, 1, ["add: dimension 'b' is not in its first argument"]),
        ("y[b, s, k] = einsum(v, w)", 1, 1, ["dimension 'k' of the result 'y' is in no argument of einsum"]),
        ("y[b, s, s] = gelu(v)", 1, 1, ["'y' has the dimension 's' twice", "two letters"]),
        ("y[b, s, e] = einsum(v[b, s, e, e], w)", 1, 21, ["'v' has the dimension 'e' twice"]),
        # an axis is used once in a tensor
        ("y[b, s/tp, e/tp] = gelu(v[b, s/tp, e/tp])", 1, 25, ["'v' uses the axis 'tp' twice", "[b, s/tp, e/tp]"]),
        ("y[b, s/tp, f/tp] = einsum(x, w)", 1, 1, ["'y' uses the axis 'tp' twice"]),
        # names
        ("y[b, s, e] = geluu(v)", 1, 1, ["no operator 'geluu'", "did you mean 'gelu'?", "known: add, bias, combine"]),
        ("vv[b, s, e] = gelu(v)\ny[b, s, e] = gelu(vvv)", 2, 19, ["no tensor 'vvv' above", "did you mean 'vv'?"]),
        ("y[b, s, e] = gelu(z)\nz[b, s, e] = gelu(v)", 1, 19, ["no tensor 'z' above"]),
        ("y[b, s, e] = gelu(v[b, s/tq, e])", 1, 26, ["'tq' is no mesh axis", "did you mean 'tp'?"]),
        ("y[b, s, e] = gelu{panel}(v)", 1, 1, ["gelu takes no {panel}"]),
        ("y[b, s, f/tp] = einsum{panel}(v, w)", 1, 1, ["einsum takes no {panel}", "did you mean 'panels'?"]),
        ("y[b, s, f/tp] = einsum{causl}(v, w)", 1, 1, ["did you mean 'causal'?"]),
        ("y[b, s, $rf] = gelu(v)", 1, 9, ["role $rf needs a strategy"]),
        ("use mpl", 1, 1, ["no block 'mpl'"]),
        # numbers of arguments and results
        ("y[b, s, e] = gelu(v, v)", 1, 1, ["gelu takes (x), not 2 arguments"]),
        ("y[b, s, f/tp] = einsum(v)", 1, 1, ["einsum takes (x, w), not 1"]),
        ("y[b, s, e], z[b, s, e] = gelu(v)", 1, 1, ["gelu makes one result; only a view makes several"]),
        # one tensor, one name
        ("y[b, s, e] = gelu(v)\ny[b, s, e] = gelu(v)", 2, 1, ["'y' is made twice"]),
        ("v[b, s, e] = gelu(v)", 1, 1, ["'v' is made twice"]),
        ("input x[b]", 1, 7, ["'x' is declared twice"]),
        ("weight x[b]\ny[b] = gelu(x)", 1, 8, ["'x' is declared twice"]),
        ("input p[b @tp]\ny[b] = gelu(p[b])", 1, 7, ["'p' is given from outside and cannot be a partial sum"]),
        ("input p[b/tp, s/tp]\ny[b, s] = gelu(p[b, s])", 1, 7, ["'p' uses the axis 'tp' twice"]),
    ],
)
def test_operator_lines(lines, line, column, words):
    # A declaration is checked before it matters that nothing is made.
    check(lines if "=" in lines or "use" in lines else f"{lines}\ny[b, s, e] = gelu(v)", line, column, *words)


PARTIAL = "z[b, s, f/tp] = einsum(v, w)\np[b, s, e @tp] = einsum(z, wf)\n"


@pytest.mark.parametrize(
    ("lines", "column", "words"),
    [
        ("y[b, s, e @tp] = gelu(p)", 23, ["gelu is not linear", "partial sum over tp", "as in [b, s, e]"]),
        ("y[b, s, e @tp] = norm(p, g)", 23, ["norm is not linear"]),
        ("y[b, s, e @tp] = add(v, p)", 22, ["add adds a partial sum over tp to a value that is none", "once per rank"]),
        ("y[b, s, e @tp] = add(p, v)", 22, ["add adds a partial sum", "complete the sum first"]),
        ("y[b, s, d @tp] = einsum(p, p)", 28, ["einsum is linear in one argument; two are partial sums"]),
    ],
)
def test_partial_values(lines, column, words):
    if "d @tp" in lines:
        lines = "y[b, s @tp] = einsum(p, p)"
        column = 25
    line = 3 if not words[0].startswith("add adds") else 3
    if lines.startswith("y[b, s, e @tp] = add(v"):
        column = 22
    check(PARTIAL + lines, line, column, *words)


def test_a_sum_over_an_axis_is_completed_before_another_over_the_same():
    check(
        PARTIAL + "q[b, s @tp] = einsum(p, u[e, n/tp])",
        3,
        25,
        "no tensor 'u' above",
    )
    fails(
        "layer a\ninput x[b, e/tp]\nweight w[e/tp, f] u[f, n/tp]\nh[b, f @tp] = einsum(x, w)\ny[b @tp] = einsum(h, u)",
        5,
        1,
        "sums over a dimension divided by 'tp'",
        "complete that sum first",
    )


def test_linear_operators_take_partial_values():
    layer = build(
        HEAD
        + PARTIAL
        + "p2[b, s, e @tp] = scale(p)\np3[b, s, e @tp] = add(p, p2)\nq[b, s, d, h @tp] = view(p3)\n".replace("d, h", "e")
        + "y[b, s, n @tp] = einsum(q, u)\n".replace("n", "e").replace("u)", "ee)").replace("e @", "k @"),
    ) if False else build(HEAD + PARTIAL + "p2[b, s, e @tp] = scale(p)\np3[b, s, e @tp] = add(p, p2)\nq[b, s, e @tp] = view(p3)")
    assert {name: layer.tensors[name].distribution.partial for name in ("p", "p2", "p3", "q")} == dict.fromkeys(
        ("p", "p2", "p3", "q"), ("tp",)
    )
