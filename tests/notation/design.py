"""The examples of DESIGN.md section 2, word for word."""

TRANSFORMER = """\
layer transformer            # 2d: tp x cp; with cp = 1 it is 1d tensor parallelism with sequence parallelism
dim c = (h + 2*g) * k        # fused q, k, v
dim j = h / g                # query heads per key-value head
dim m = h * k                # merged heads
dim t = s                    # key positions: a dimension divided in two ways needs two letters
input  x[b, s/cp/tp, e]
weight g1[e] wqkv[e, c/tp] wo[m/tp, e] g2[e] w1[e, f/tp] w2[f/tp, e]
n1[b, s/cp/tp, e]        = norm(x, g1)
qkv[b, s/cp, c/tp]       = einsum(n1[b, s/cp, e]~, wqkv)
q[b, s/cp, g/tp, j, k], kk[b, s/cp, g/tp, k], vv[b, s/cp, g/tp, k] = view(qkv)
fuse attention
k1[b, t, g/tp, k]        = view(kk[b, s, g/tp, k]~)
v1[b, t, g/tp, k]        = view(vv[b, s, g/tp, k]~)
a[b, g/tp, j, s/cp, t]   = einsum(q, k1)
p[b, g/tp, j, s/cp, t]   = softmax(a)
o[b, s/cp, g/tp, j, k]   = einsum(p, v1)
end
om[b, s/cp, m/tp]        = view(o)
y[b, s/cp, e @tp]        = einsum(om, wo)
r[b, s/cp/tp, e]         = add(x, y[b, s/cp/tp, e])
n2[b, s/cp/tp, e]        = norm(r, g2)
z[b, s/cp, f/tp]         = einsum(n2[b, s/cp, e]~, w1)
u[b, s/cp, f/tp]         = gelu(z)
d[b, s/cp, e @tp]        = einsum(u, w2)
output[b, s/cp/tp, e]    = add(r, d[b, s/cp/tp, e])
"""

MLP_BLOCK = """\
block mlp
input  x[b, $rs, $re]
weight g[$re] w1[$wi, $wf] w2[$vf, $ve]
n[b, $rs, $re]      = norm(x, g)
z[b, $is, $wf]      = einsum{panels}(n[b, $is, $ie]~, w1[$ie, $wf])
u[b, $is, $wf]      = gelu(z)
d[b, $is, $oe @*]   = einsum{panels}(u[b, $is, $uf], w2[$uf, $oe])
output[b, $rs, $re] = add(x, d[b, $rs, $re])
"""

TWO_D = (
    "strategy 2d      rs = s/cp/tp  re = e     is = s/cp  ie = e  wi = e     wf = f/tp"
    "  uf = f/tp  vf = f/tp  ve = e     oe = e"
)
SUMMA = (
    "strategy summa   rs = s/tp2    re = e/tp  is = s/tp2 ie = e  wi = e/tp2 wf = f/tp"
    "  uf = f     vf = f/tp2 ve = e/tp  oe = e/tp"
)
STRATEGIES = (TWO_D, SUMMA)
