"""Tiny layers under tiny strategies, derived from texts written in a test."""

from textwrap import dedent

from dsx.notation.build import build_layer
from dsx.notation.library import load_operators
from dsx.notation.parse import parse
from dsx.notation.selection import resolved
from dsx.notation.work import derive

TINY = """
    layer tiny
    input x[b, $s, $e]
    weight w[e, $f] v[$f, e]
    u[b, $i, $f]      = einsum{panels}(x[b, $i, e], w[e, $f])
    d[b, $i, e @*]    = einsum(u, v)
    output[b, $s, $e] = add(x, d[b, $s, $e])
"""
ONE_AXIS = """
    strategy one
    role s = s
    role i = s
    role e = e
    role f = f/tp
    require f % tp == 0   width_not_divisible
    require f / tp >= 4   too_narrow
    require b*s % tp == 0 tokens_not_divisible
"""
TWO_AXES = """
    strategy two
    role s = s/cp
    role i = s/cp
    role e = e
    role f = f/tp
    require f % tp == 0 width_not_divisible
    require s % cp == 0 length_not_divisible
"""
PANELS = """
    strategy panels
    role s = s
    role i = s
    role e = e
    role f = f/tp
    require e % panels == 0 panels_not_divisible
    require e / panels >= 2 panel_too_thin
"""
# A rule on a dimension that only some models have.
EXPERTS = """
    strategy experts
    role s = s
    role i = s
    role e = e
    role f = f/tp
    require x % tp == 0 experts_not_divisible
"""
# Experts, whole on their ranks or divided over tp too.
MIXTURE = """
    layer mixture
    dim n = 2 * b * s * ep / (x * tp * cp)
    dim t = n * tp
    input h[b, $s, e]
    weight r[e, x] w[x/ep, e, $f]
    routes[b, s/cp/tp, x]  = einsum(h[b, s/cp/tp, e], r)
    d[x, $n, e]            = dispatch(h[b, s/cp/tp, e], routes)
    u[x/ep, $a, $f]        = einsum(d[x/ep, $a, e], w)
    y[x/ep, $a, e]         = pool(u[x/ep, $a, f])
    c[b, s/cp/tp, e]       = combine(y[x, $n, e], routes)
    output[b, $s, e]       = view(c[b, $s, e])
"""
SPREAD = """
    strategy spread
    role s = s/cp/tp
    role f = f
    role n = n/ep
    role a = n
    require x % ep == 0 experts_not_divisible
"""
DIVIDED = """
    strategy divided
    role s = s/cp/tp
    role f = f/tp
    role n = t/tp/ep
    role a = t
    require x % ep == 0 experts_not_divisible
"""
_TABLE = load_operators(["standard"])


def layer(strategy, text=TINY):
    overlay = resolved(parse(dedent(strategy), "strategy.layer"), None)
    return derive(build_layer(parse(dedent(text), "tiny.layer"), overlay, _TABLE, None))
