"""Specs whose gradients are derived: every rule of reverse mode has one."""

from __future__ import annotations

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Scalar,
    Tensor,
    Tree,
    bf16,
    boolean,
    e4m3,
    e5m2,
    f16,
    f32,
    i64,
    op,
)

T = Axis("T", chunk=1, piece=4, dynamic=True)  # rows that gradients sum over
R = Axis("R", dynamic=True)  # rows of which nothing is summed
P = Axis("P", piece=8, dynamic=True)  # rows that are contracted in pieces
Q = Axis("Q", chunk=16, dynamic=True)  # steps
N = Axis("N")
M = Axis("M")
H = Axis("H")
D = Axis("D")
V = Axis("V", chunk=4, split=2)
W = Axis("W", chunk=16, split=2)
F = DTypeVar("F", (bf16, f16, f32))
B = DTypeVar("B", (bf16, f16))


@op(saves=("x", "w"))
def functions(x: Tensor[f32, R, N], w: Tensor[f32, R, N]) -> Outputs:
    """Every elementwise function, every reduction of a row, products and quotients."""
    powers = L.exp2(x * 0.3) + L.exp(x * 0.2) + L.expm1(w) + L.k3(x * 0.5)
    logs = L.log2(abs(x) + 1.0) - L.log(x * x + 1.0) + L.log1p(w * w)
    waves = L.tanh(x) + L.erf(w) + L.sigmoid(x * w) + L.sin(x) + L.cos(w)
    roots = L.rsqrt(x * x + 0.5) / L.sqrt(w * w + 0.1) + L.floor(x)
    some = L.maximum(x, w) * L.minimum(x, 0.3) + L.clip(w, -0.5, 0.5) + L.where(x > w, x * w, -w)
    total = L.sum(x * w, over=N, tree=Tree.pairwise)
    return L.out(
        all_of=L.fma(powers, logs, waves) * roots,
        choices=some + total,
        largest=L.max(x * w, over=N),
        smallest=L.min(x, over=N),
    )


@op(saves=("z", "x"))
def statistics(z: Tensor[f32, R, V], x: Tensor[f32, R, V]) -> Outputs:
    """All that is read off the folds of a stream."""
    soft, best, total = L.softmax_sum(entropy=True), L.argmax(), L.total()
    powers = L.power_sum(entropy=True)
    for v in L.stream(V):
        soft.absorb(z[v], x=x[v] * x[v])
        powers.absorb(x[v] * 1.4426950408889634, y=z[v])
        best.absorb(z[v])
        total.absorb(z[v] * x[v])
    return L.out(
        lse=soft.lse(), entropy=soft.entropy(), mean=soft.mean("x"), best=best.max, total=total.value,
        lse_2=powers.lse(), entropy_2=powers.entropy(), mean_2=powers.mean("y"),
    )  # fmt: skip


@op(saves=("z",))
def softmax(z: Tensor[F, R, V]) -> Outputs:
    """Probabilities, from a second stream."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(z[v].to(f32))
    lse = soft.lse()
    for v in L.stream(V):
        L.emit(p=L.exp(z[v].to(f32) - lse))
    return L.out()


@op(saves=("z", "x", "mask"))
def masked(z: Tensor[f32, R, V], x: Tensor[f32, R, N], mask: Tensor[boolean, R]) -> Outputs:
    """Rows without elements, whose log-sum-exp is -inf; a table that is read at its own positions."""
    soft = L.softmax_sum()
    level = L.table(L.sum(x, over=N, tree=Tree.halving), "level").whole()
    for v in L.stream(V, when=mask):
        soft.absorb(z[v] * level)
    return L.out(loss=L.where(mask, soft.lse(), 0.0))


@op(saves=("z", "bias", "targets", "lse"), returns=("loss",))
def biased_loss(z: Tensor[F, T, V], bias: Tensor[f32, V], targets: Tensor[i64, T]) -> Outputs:
    """A cross-entropy with a bias, which is a sum over rows; the target's logit is gathered."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(z[v].to(f32) + bias[v])
    lse = soft.lse()
    return L.out(loss=lse - z.at(T, targets).to(f32), lse=lse)


@op(saves=("x", "weight", "rstd"), returns=("y",))
def norm(
    x: Tensor[F, T, H, N], weight: Tensor[F, N], bias: Tensor[F, N] | None, eps: Scalar[f32, 0.0:] = 1e-6
) -> Outputs:
    """Heads of rows over their mean square: weight and bias are summed over heads, then over rows."""
    h = x.to(f32)
    rstd = L.rsqrt(L.sum(h * h, over=N, tree=Tree.vector8) / L.extent(N).to(f32) + eps)
    y = (h * rstd) * (1.0 + weight.to(f32))
    return L.out(y=(y if bias is None else y + bias.to(f32)).to(x.dtype), rstd=rstd)


@op(saves=("x", "gate", "up"))
def gated(x: Tensor[B, P, D], gate: Tensor[B, M, D], up: Tensor[B, M, D]) -> Outputs:
    """Two products with one factor, and what is computed of them."""
    g, u = L.dot(x, gate, over=D), L.dot(x, up, over=D)
    return L.out(y=(g * L.sigmoid(g) * u).to(x.dtype))


@op(saves=("x", "w"))
def turned(x: Tensor[f32, P, D], w: Tensor[f32, M, D]) -> Outputs:
    """A product of f32 factors, written with its dims turned."""
    L.place("y", (M, P), ({}, L.dot(x, w, over=D)))
    return L.out()


@op(saves=("x", "w", "bias"))
def linear(x: Tensor[B, T, D], w: Tensor[B, M, D], bias: Tensor[B, M]) -> Outputs:
    """Rows that are contracted for one gradient, and streamed for another."""
    return L.out(y=L.tanh(L.dot(x, w, over=D) + bias.to(f32)))


@op(saves=("x", "w"))
def narrow(x: Tensor[bf16, P, D], w: Tensor[bf16, M, D]) -> Outputs:
    """Factors of eight bits: cotangents have the exponents of bf16."""
    return L.out(y=L.dot(x.to(e4m3), w.to(e5m2), over=D))


@op()
def narrowed_again(first: Tensor[f32, R, D], x: Tensor[f32, Q, R, D]) -> Outputs:
    """Sums that decay, of which eight bits are carried to the next step."""
    run = L.carry(first.to(e4m3))
    for q in L.stream(Q):
        run.hand((run.value.to(f32) * 0.5 + x[q]).to(e4m3))
    return L.out(y=run.value.to(f32))


@op()
def unit_rows(x: Tensor[bf16, R, D], w: Tensor[bf16, M, D]) -> Outputs:
    """Rows of a product, each divided by its length."""
    z = L.dot(x, w, over=D)
    return L.out(y=z * L.rsqrt(L.sum(z * z, over=M, tree=Tree.vector8)))


@op(saves=("x", "w"))
def paired(x: Tensor[B, P, M, D], w: Tensor[B, P, N, D]) -> Outputs:
    """A product for each row of an axis with pieces, whose cotangent is in memory."""
    z = L.dot(x, w, over=D, each=(P,))
    return L.out(y=z * z)


@op(saves=("x", "w"))
def head(x: Tensor[B, P, D], w: Tensor[B, W, D]) -> Outputs:
    """A log-sum-exp of products that is not saved: its axis is streamed again, and contracted."""
    soft = L.softmax_sum()
    for v in L.stream(W):
        soft.absorb(L.dot(x, w[v], over=D))
    return L.out(lse=soft.lse())


WRT = {
    functions: ("x", "w"), statistics: ("z", "x"), softmax: ("z",), masked: ("z", "x"),
    biased_loss: ("z", "bias"), norm: ("x", "weight", "bias"), gated: ("x", "gate", "up"), turned: ("x", "w"),
    linear: ("x", "w", "bias"), narrow: ("x", "w"), paired: ("x", "w"), head: ("x", "w"),
}  # fmt: skip
for _op, _names in WRT.items():
    _op.derive_vjp(*_names)
