"""Every check of an operator line is an error at its place (marked ^), with the nearest right thing."""

import pytest
from notation.definitions import build, fails

HEAD = """\
layer a
input x[b, s/tp, e] v[b, s, e] w0[b, s, e/tp] r[b, s/cp/tp, e]
weight w[e, f/tp] g[e] wf[f/tp, e]
"""
PARTIAL = """\
z[b, s, f/tp] = einsum(v, w)
p[b, s, e @tp] = einsum(z, wf)
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("^y[b, s, f/tp] = einsum(x, w)", ["'s' is divided differently in one operator", "s/tp and s"]),
        ("^y[b, s, f] = einsum(v, w)", ["'f' is divided differently", "f/tp and f"]),
        ("y[b, s, f/tp] = einsum(w0, ^w)", ["'e' is divided differently", "e/tp and e"]),
        ("y[b, s/tp, e] = add(x, ^v)", ["'s' is divided differently", "s/tp and s"]),
        ("^y[b, s/cp, e] = gelu(x)", ["'s' is divided differently", "s/tp and s/cp"]),
        ("^y[b, s/tp/cp, e] = gelu(r)", ["'s' is divided differently", "s/cp/tp and s/tp/cp"]),
        ("y[b, s/tp/cp, e] = gelu(^r[b, s/tp/cp, e])", ["'r'", "s/cp/tp and s/tp/cp order their ranks differently"]),
        ("y[b, s/tp, e] = gelu(^r[b, s/tp, e])", ["'r'", "order their ranks differently"]),
    ],
)
def test_a_letter_is_divided_alike_and_ranks_keep_their_order(line, words):
    fails(HEAD + line, *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("^y[b, s, e] = einsum(z, wf)", ["'y' is a partial sum over tp", "write '@tp' (or '@*')"]),
        ("^y[b, s, e @cp] = einsum(z, wf)", ["write '@tp' (or '@*'), not '@cp'"]),
        ("^y[b, s, e @tp @cp] = einsum(z, wf)", ["write '@tp' (or '@*'), not '@tp @cp'"]),
        ("^y[b, s, f/tp @cp] = einsum(v, w)", ["'y' is stated as a partial sum (@cp)", "sums no divided dimension"]),
        ("^y[b, s, e @tp] = gelu(v)", ["'y' is stated as a partial sum (@tp)", "sums no divided dimension"]),
        ("^y[b, s, e] = scale(p)", ["'y' is a partial sum over tp"]),
        ("y[b, s, e @*] = scale(^p[b, s, e @*])", ["'@*' stands for the axes of a result"]),
        ("y[b, s, e @tp] = scale(^v[b, s, e @tp])", ["'v'", "is a partial sum over tp", "is not"]),
    ],
)
def test_a_result_is_partial_over_exactly_what_follows(line, words):
    fails(HEAD + PARTIAL + line, *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("y[b, s, e] = gelu(^p)", ["gelu is not linear", "partial sum over tp", "such as [b, s, e]"]),
        ("y[b, s, e @tp] = norm(^p, g)", ["norm is not linear", "such as [b, s, e]"]),
        ("y[b, s, e @tp] = add(v, ^p)", ["add adds a partial sum over tp to a value that is none", "once per rank"]),
        ("y[b, s, e @tp] = add(^p, v)", ["add adds a partial sum over tp", "complete the sum first"]),
        ("y[b, s @tp] = einsum(p, ^p)", ["einsum takes one partial sum; two of its arguments are"]),
    ],
)
def test_only_linear_operators_take_partial_values(line, words):
    fails(HEAD + PARTIAL + line, *words)


def test_linear_operators_take_partial_values_and_complete_a_sum_before_another():
    lines = "q[b, s, e @tp] = scale(p)\nr2[b, s, e @tp] = add(p, q)\no[b, s, e @tp] = view(r2)\n"
    lines += "t[b, s @tp] = einsum(o, g)\nu[b, s @*] = scale(t)"
    layer = build(HEAD + PARTIAL + lines)
    assert {name: layer.tensors[name].distribution.partial for name in ("q", "r2", "o", "t", "u")} == dict.fromkeys(
        ("q", "r2", "o", "t", "u"), ("tp",)
    )
    # sum_i(h_i) times sum_i(u_i) is not sum_i(h_i u_i).
    fails(
        "layer a\ninput x[b, e/tp]\nweight w[e/tp, f] u[f, n/tp, m]\nh[b, f @tp] = einsum(x, w)\n"
        "^y[b, m @tp] = einsum(h, u)",
        "sums over a dimension divided by 'tp'",
        "complete that sum first",
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("y[b, s, e] = gelu(^v[b, e, s])", ["'v' has the dimensions [b, s, e] and is read as [b, e, s]", "'view'"]),
        ("y[b, s] = gelu(^v[b, s])", ["'v' has the dimensions [b, s, e] and is read as [b, s]"]),
        ("^y[b, s, f] = gelu(v)", ["dimension 'f' of the result 'y' is in no argument of gelu", "b, e, s"]),
        ("^y[b, s, k] = einsum(v, w)", ["dimension 'k' of the result 'y' is in no argument of einsum"]),
        ("^y[b, e] = gelu(v)", ["the dimensions of the first argument", "[b, s, e], not [b, e]"]),
        ("^y[b, e, s] = gelu(v)", ["the dimensions of the first argument", "[b, s, e], not [b, e, s]"]),
        ("^y[e] = add(g, v)", ["add: dimension 'b' is not in its first argument"]),
        ("^y[b, s, s] = gelu(v)", ["'y' has the dimension 's' twice", "needs two letters"]),
        ("y[b, s, e] = gelu(^v[b, s, e, e])", ["'v' has the dimension 'e' twice"]),
        ("y[b, s/tp, e/tp] = gelu(^v[b, s/tp, e/tp])", ["'v' uses the axis 'tp' twice", "[b, s/tp, e/tp]"]),
        ("^y[b, s/tp, f/tp] = einsum(x, w)", ["'y' uses the axis 'tp' twice: [b, s/tp, f/tp]"]),
        ("y[b, s/tp, e @tp] = scale(^v[b, s/tp, e @tp])", ["'v' uses the axis 'tp' twice"]),
    ],
)
def test_dimensions_and_axes(line, words):
    fails(HEAD + line, *words)


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ("input v[b] ^v[b]", ["'v' is declared twice"]),
        ("input v[b], ^p[b @tp]", ["'p' is an input or a weight and cannot be a partial sum"]),
        ("input v[b] ^p[b/tp, s/tp]", ["'p' uses the axis 'tp' twice"]),
        ("input v[b] ^p[b, b]", ["'p' has the dimension 'b' twice"]),
        ("input v[b] p[^$rs]", ["role $rs needs a strategy"]),
    ],
)
def test_declarations(declaration, words):
    fails(f"layer a\n{declaration}\ny[b] = gelu(v)", *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "^y[b, s, e] = geluu(v)",
            ["no operator 'geluu'", "did you mean 'gelu'?", "known: add, bare_layernorm, bias, bias_dropout_add"],
        ),
        ("q2[b, s, e] = gelu(v)\ny[b, s, e] = gelu(^q2_)", ["no tensor 'q2_' above", "did you mean 'q2'?"]),
        ("^y[b, s, e] = gelu{panel}(v)", ["gelu takes no {panel}"]),
        ("^y[b, s, f/tp] = einsum{panel}(v, w)", ["einsum takes no {panel}", "did you mean 'panels'?"]),
        ("^y[b, s, f/tp] = einsum{causl}(v, w)", ["did you mean 'causal'?"]),
        ("^y[b, s, e] = gelu(v, v)", ["gelu takes (x), not 2 arguments"]),
        ("^y[b, s, f/tp] = einsum(v)", ["einsum takes (x, w), not 1 arguments"]),
        ("^y[b, s, e], z[b, s, e] = gelu(v)", ["gelu has one result; only a view has several"]),
        ("^x[b, s, e] = gelu(v)", ["'x' is assigned again before anything reads it"]),
        ("dim e = 2 * i\nq[b, s, i], ^q[b, s, i] = view(v)", ["'q' is assigned again before anything reads it"]),
    ],
)
def test_names_and_numbers(line, words):
    fails(HEAD + line, *words)


@pytest.mark.parametrize(
    ("definitions", "line", "words"),
    [
        (
            "dim m = h * k",
            "^y[b, m/tp] = view(q)",
            ["view: y and the source [b, h/tp, k, i] differ in size", "does not match"],
        ),
        ("dim m = h * k", "^y[b, m/tp, j] = view(q)", ["differ in size"]),
        ("dim m = h * k * i + 1", "^y[b, m/tp] = view(q)", ["differ in size"]),
        ("dim m = h * k / 2 * 2 * i * 3 / 3 * 2", "^y[b, m/tp] = view(q)", ["differ in size"]),
        # the divided factor is outermost, in what is merged and in what is split
        (
            "dim m = h * k * i",
            "y[b, m/tp] = view(^p)",
            ["in [b, k, h/tp, i] only the outermost factor may be divided, not h/tp"],
        ),
        ("dim l = b * h", "y[l/tp, k, i] = view(^q)", ["in [b, h/tp, k, i] only the outermost factor may be divided"]),
        (
            "dim f = d * n",
            "^y[b, n, d/tp] = view(z)",
            ["in y[b, n, d/tp] only the outermost factor may be divided, not d/tp"],
        ),
        # and the result is divided over the ranks as its source
        (
            "dim m = h * k * i",
            "^y[b, m] = view(q)",
            ["'y' [b, m] is not divided over the ranks as its source [b, h/tp, k, i] is"],
        ),
        ("dim f = d * n", "^y[b, d/cp, n] = view(z)", ["is not divided over the ranks as its source [b, f/tp] is"]),
        # a split into several tensors adds up, and each is divided as the source
        ("dim f = d + n", "y[b, d/tp], ^o[b, n] = view(z)", ["'o' [b, n] is not divided over the ranks"]),
        (
            "dim f = 2 * d",
            "^y[b, d/tp], o[b, d/tp], u[b, d/tp] = view(z)",
            ["view: y, o, u and the source [b, f/tp] differ in size"],
        ),
        ("dim f = d + n / (d - d)", "^y[b, d/tp], o[b, n/tp] = view(z)", ["divides by zero"]),
    ],
)
def test_views(definitions, line, words):
    fails(f"layer a\n{definitions}\ninput q[b, h/tp, k, i] p[b, k, h/tp, i] z[b, f/tp]\n{line}", *words)


def test_views_that_are_allowed():
    layer = build(
        "layer a\ndim m = h * k\ndim c = (h + 2*g) * k\ndim j = h / g\ndim t = s\ndim u = 1\n"
        "input x[b, s/cp, c/tp]\n"
        "q[b, s/cp, g/tp, j, k], kk[b, s/cp, g/tp, k], vv[b, s/cp, g/tp, k] = view(x)  # split a sum, then a product\n"
        "om[b, s/cp, m/tp] = view(q)                  # merge\n"
        "ot[b, m/tp, s/cp] = view(om)                 # transpose\n"
        "ou[b, m/tp, t/cp] = view(ot)                 # rename\n"
        "ov[b, u, m/tp, t/cp] = view(ou)              # a dimension of size 1\n"
    )
    assert str(layer.tensors["q"].distribution) == "[b, s/cp, g/tp, j, k]"
    assert layer.outputs == ("kk", "vv", "ov")
