"""The small operators of a transformer block: gated activation, rotary embedding, token embedding."""

from __future__ import annotations

import math

from rlk.lang import Axis, DTypeVar, L, Outputs, Ragged, Static, Tensor, Tile, bf16, f16, f32, i32, i64, op

T = Axis("T", dynamic=True)
N = Axis("N")
H = Axis("H")
E = Axis("E")
C = Axis("C")
P = Axis("P", dynamic=True)
V = Axis("V")
D = Axis("D")
U = Axis("U")
S = Ragged("S", V, chunk=8)
F = DTypeVar("F", (bf16, f16, f32))
Table = DTypeVar("Table", (f32, bf16, f16))
Ids = DTypeVar("Ids", (i64, i32))


@op(saves=("gate", "up"), returns=("y",))
def swiglu(gate: Tensor[F, T, N], up: Tensor[F, T, N]) -> Outputs:
    """y = silu(gate) * up, silu rounded to the dtype first, as eager transformers do (Shazeer 2020)."""
    g = gate.to(f32)
    silu = (g * L.sigmoid(g)).to(gate.dtype)
    return L.out(y=(silu.to(f32) * up.to(f32)).to(gate.dtype))


@swiglu.vjp("gate", "up")
def swiglu_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """d gate = g up s (1 + gate (1 - s)), d up = g silu(gate), s = sigmoid(gate)."""
    g, u, d = ctx.gate.to(f32), ctx.up.to(f32), d_y.to(f32)
    s = L.sigmoid(g)
    d_gate = (d * u) * (s * (1.0 + g * (1.0 - s)))
    d_up = d * (g * s).to(ctx.gate.dtype).to(f32)
    return L.out(
        d_gate=d_gate.to(ctx.gate.dtype) if ctx.wants("gate") else None,
        d_up=d_up.to(ctx.up.dtype) if ctx.wants("up") else None,
    )


APPROXIMATE = ("tanh", "none")
GELU_SCALE, GELU_CUBE = math.sqrt(2.0 / math.pi), 0.044715


def _normal_cdf(x: Tile, approximate: str) -> tuple[Tile, Tile]:
    """Return c, the factor of x in gelu, and x dc/dx: P(X <= x) of a standard normal X, or near it by tanh.

    By tanh c is (1 + tanh z) / 2 = sigmoid(2 z), made of sigmoid(-|2 z|): neither tail cancels.
    """
    near = L.maximum(L.minimum(x, 16.0), -16.0)  # beyond, the density is 0: x^2 may be infinite
    square = near * near
    if approximate == "tanh":
        z = GELU_SCALE * (x + GELU_CUBE * (x * x * x))
        tail = L.sigmoid(-2.0 * abs(z))
        inner = 2.0 * GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * square)
        return L.where(x > 0.0, 1.0 - tail, tail), near * (tail * (1.0 - tail) * inner)
    density = math.sqrt(0.5 / math.pi) * L.exp(-0.5 * square)
    return 0.5 * (1.0 + L.erf(x * math.sqrt(0.5))), near * density


@op(saves=("gate", "up"), returns=("y",))
def geglu(gate: Tensor[F, T, N], up: Tensor[F, T, N], approximate: Static[APPROXIMATE] = "tanh") -> Outputs:
    """y = gelu(gate) * up, gelu rounded to the dtype first, as eager transformers do (Shazeer 2020).

    gelu(x) = x (1 + erf(x / sqrt 2)) / 2, or for tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
    (Hendrycks and Gimpel 2016).
    """
    g = gate.to(f32)
    cdf, _ = _normal_cdf(g, approximate)
    gelu = (g * cdf).to(gate.dtype)
    return L.out(y=(gelu.to(f32) * up.to(f32)).to(gate.dtype))


@geglu.vjp("gate", "up")
def geglu_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """d gelu = g up, d gate = d gelu gelu'(gate), d up = g gelu(gate); d gelu and gelu(gate) are rounded."""
    g, u, d = ctx.gate.to(f32), ctx.up.to(f32), d_y.to(f32)
    d_gelu = (d * u).to(ctx.gate.dtype).to(f32)
    cdf, rise = _normal_cdf(g, ctx.approximate)
    gelu = (g * cdf).to(ctx.gate.dtype)
    return L.out(
        d_gate=(d_gelu * (cdf + rise)).to(ctx.gate.dtype) if ctx.wants("gate") else None,
        d_up=(d * gelu.to(f32)).to(ctx.up.dtype) if ctx.wants("up") else None,
    )


def _rotate(
    name: str,
    x: Tensor,  # type: ignore[valid-type]
    cos: Tile,
    sin: Tile,
    interleaved: bool,
    copies: int = 0,
) -> None:
    """Write x rotated by an angle, (a cos - b sin, b cos + a sin) for each pair (a, b).

    copies: how many times C elements the copied ones are, rounded up. They are read and written along C too:
    with an axis of their own, every tile of that axis would rotate the others again.
    """
    c = L.pos(C)
    first, second = (c + c, c + c + 1) if interleaved else (c, c + L.extent(C))
    a, b = x.at(T, H, first).to(f32), x.at(T, H, second).to(f32)
    parts = [
        ({E: first}, (a * cos - b * sin).to(x.dtype)),
        ({E: second}, (b * cos + a * sin).to(x.dtype)),
    ]
    for i in range(copies):
        at = c + (2 + i) * L.extent(C)
        inside = (at < L.extent(E),) if i == copies - 1 else ()  # the last C elements may not be whole
        parts.append(({E: at}, x.at(T, H, at), *inside))
    L.place(name, (T, H, E), *parts)


def _angle(position_ids: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tile, Tile]:  # type: ignore[valid-type]
    """Return cosine and sine of each token's position; NaN outside the tables."""
    position = position_ids.to(i64)
    cosine, sine = (t.at(position, C, fill=math.nan).to(f32) for t in (cos, sin))
    return cosine, sine


@op(saves=("cos", "sin", "position_ids"), nonempty=(P,))
def rope(
    x: Tensor[F, T, H, E],
    cos: Tensor[Table, P, C],
    sin: Tensor[Table, P, C],
    position_ids: Tensor[Ids, T],
    interleaved: Static[False, True] = False,
) -> Outputs:
    """Rotate pairs of x by the angle of its position: halves (x[c], x[c + E/2]) or neighbours if interleaved.

    Su et al. 2021. f32 inside, two products and one sum each rounded, then one rounding to x's dtype.
    """
    _rotate("y", x, *_angle(position_ids, cos, sin), interleaved)
    return L.out()


@rope.vjp("x")
def rope_grad(ctx, d_y: Tensor[F, T, H, E]) -> Outputs:
    """The inverse rotation of the cotangent."""
    cosine, sine = _angle(ctx.position_ids, ctx.cos, ctx.sin)
    _rotate("d_x", d_y, cosine, -sine, ctx.interleaved)
    return L.out()


@op(saves=("cos", "sin", "position_ids"), nonempty=(P,))
def rope_partial(
    x: Tensor[F, T, H, E],
    cos: Tensor[Table, P, C],
    sin: Tensor[Table, P, C],
    position_ids: Tensor[Ids, T],
    interleaved: Static[False, True] = False,
    copies: Static[...] = 2,
) -> Outputs:
    """Rotate the first 2 C elements of x as `rope` does, and copy the others.

    copies: (E - 2 C) / C, rounded up.
    """
    _rotate("y", x, *_angle(position_ids, cos, sin), interleaved, copies)
    return L.out()


@rope_partial.vjp("x")
def rope_partial_grad(ctx, d_y: Tensor[F, T, H, E]) -> Outputs:
    """The inverse rotation of the cotangent; what was copied is copied again."""
    cosine, sine = _angle(ctx.position_ids, ctx.cos, ctx.sin)
    _rotate("d_x", d_y, cosine, -sine, ctx.interleaved, ctx.copies)
    return L.out()


@op(saves=("ids", "weight"), returns=("y",), nonempty=(V,))
def embedding(ids: Tensor[Ids, T], weight: Tensor[F, V, D]) -> Outputs:
    """y[t] = weight[ids[t]]; an id outside [0, V) gives NaN in its row and sets the device's error word.

    Its gradient: f32 sums over the tokens of an id in ascending order, in chunks of 8, rounded once.
    """
    picked = ids.to(i64)
    L.check((picked < 0) | (picked >= L.extent(V).to(i64)), "an id outside the vocabulary")
    return L.out(y=weight.at(picked, D, fill=math.nan))


@embedding.vjp("weight")
def embedding_grad(ctx, d_y: Tensor[F, T, D], order: Tensor[i64, S], segments: Tensor[i64, U]) -> Outputs:
    """d weight[v] = sum of d_y over tokens with id v, in f32, tokens ascending in chunks of 8, rounded once.

    order: the tokens sorted by id (stable); segments[v], segments[v + 1]: where id v lies in it.
    """
    total = L.total()
    v = L.pos(V)
    for s in L.stream(S, begin=segments.at(v), end=segments.at(v + 1)):
        total.absorb(d_y.at(order[s], D).to(f32))
    # an id without tokens sums to -0.0; a gradient of nothing is +0
    return L.out(d_weight=(total.value + 0.0).to(d_y.dtype))
