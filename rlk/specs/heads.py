"""Heads of attention between the product for q, k, v and attention itself: norm, rotation, paged cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlk.lang import (
    Axis,
    DType,
    DTypeVar,
    L,
    Outputs,
    Scalar,
    Static,
    Tensor,
    Tile,
    Tree,
    bf16,
    f16,
    f32,
    i32,
    i64,
    op,
)
from rlk.specs.norm import scale

T = Axis("T", chunk=1, piece=64, dynamic=True)
H = Axis("H")
ASCENDING = Axis("H", chunk=1)
"""Heads as the gradient of a norm's weight adds their partial sums."""
G = Axis("G")
J = Axis("J")
E = Axis("E")
C = Axis("C")
P = Axis("P", dynamic=True)
B = Axis("B", dynamic=True)
O = Axis("O", dynamic=True)  # slots of a page, as in `paged_attention`
F = DTypeVar("F", (bf16, f16, f32))
W = DTypeVar("W", (bf16, f16, f32))
Table = DTypeVar("Table", (f32, bf16, f16))
Ids = DTypeVar("Ids", (i64, i32))
Slots = DTypeVar("Slots", (i64, i32))
PROFILES = ("hf_llama", "gemma")
SLOT = "a slot outside of the cache"


@dataclass(frozen=True, slots=True)
class _Rotation:
    """The rotation of heads, element by element: the bits of `rope`.

    partner: index of the other element of a pair. ahead: whether an element is the first of its pair.
    rotated: which elements are; None: all.
    """

    cosine: Tile
    sine: Tile
    partner: Tile
    ahead: Tile
    rotated: Tile | None

    @staticmethod
    def of(cos: Any, sin: Any, position: Tile, interleaved: bool, partial: bool) -> _Rotation:
        """Return the rotation by the angles of positions i64; NaN outside of the tables."""
        e, half = L.pos(E), L.extent(C)
        if interleaved:
            ahead, angle = e % 2 == 0, e // 2
            partner = L.where(ahead, e + 1, e - 1)
        else:
            ahead = e < half
            angle, partner = L.where(ahead, e, e - half), L.where(ahead, e + half, e - half)
        rotated = None
        if partial:
            rotated = e < half + half
            angle, partner = L.where(rotated, angle, 0), L.where(rotated, partner, e)
        cosine, sine = (t.at(position, angle, fill=math.nan).to(f32) for t in (cos, sin))
        return _Rotation(cosine, sine, partner, ahead, rotated)

    def __call__(self, own: Tile, other: Tile, dtype: DType, back: bool = False) -> Tile:
        """Return own cos -+ other sin, two products and one sum each rounded, in a dtype; back: by -angle."""
        turned = other * (-self.sine if back else self.sine)
        made = own * self.cosine + L.where(self.ahead, -turned, turned)
        return (made if self.rotated is None else L.where(self.rotated, made, own)).to(dtype)


def _rstd(h: Tile, eps: Tile) -> Tile:
    return L.rsqrt(L.sum(h * h, over=E, tree=Tree.vector8) / L.extent(E).to(f32) + eps)


def _normed(h: Tile, rstd: Tile, weight: Tile, dtype: DType, profile: str) -> Tile:
    """Return a normalised element, rounded to a dtype, with the roundings of `rms_norm`."""
    n = h * rstd
    if profile != "gemma":
        n = n.to(dtype).to(f32)
    return (n * scale(weight, profile)).to(dtype)


# --- norms of q and k -----------------------------------------------------


@op(saves=("x", "weight", "cos", "sin", "position_ids", "rstd"), returns=("y",))
def qk_norm(
    x: Tensor[F, T, H, E],
    weight: Tensor[W, E],
    cos: Tensor[Table, P, C] | None,
    sin: Tensor[Table, P, C] | None,
    position_ids: Tensor[Ids, T] | None,
    eps: Scalar[f32, 0.0:] = 1e-6,
    profile: Static[PROFILES] = "hf_llama",
    interleaved: Static[False, True] = False,
    partial: Static[False, True] = False,
) -> Outputs:
    """y = x / sqrt(mean(x^2) + eps) * w of each head, and given tables its rotation.

    The bits are those of `rms_norm` and of `rope`: what is normalised is rounded to x's dtype before it is
    rotated.
    """
    h = x.to(f32)
    rstd = _rstd(h, eps)
    if cos is None:
        return L.out(y=_normed(h, rstd, weight, x.dtype, profile), rstd=rstd)
    turn = _Rotation.of(cos, sin, position_ids.to(i64), interleaved, partial)
    own = _normed(h, rstd, weight, x.dtype, profile).to(f32)
    other = x.at(T, H, turn.partner, inside=True).to(f32)
    other = _normed(other, rstd, weight.at(turn.partner, inside=True), x.dtype, profile).to(f32)
    return L.out(y=turn(own, other, x.dtype), rstd=rstd)


@qk_norm.vjp("x", "weight")
def qk_norm_grad(ctx, d_y: Tensor[F, T, H, E]) -> Outputs:
    """g = d_y rotated back and rounded; dx = rstd (g w - n mean(g w n)), dw = sum of g n, n = x rstd.

    dw: f32, for each head its tokens ascending in pieces of 64, pieces ascending; then heads ascending;
    rounded once to the weight's dtype.
    """
    dw = L.total()
    w = scale(ctx.weight, ctx.profile)
    for t in L.stream(T):
        rstd = ctx.rstd[t]
        n = ctx.x[t].to(f32) * rstd
        g = _cotangent(ctx, d_y, t)
        if ctx.wants("x"):
            gw = g * w
            mean = L.sum(gw * n, over=E, tree=Tree.vector8) / L.extent(E).to(f32)
            L.emit(d_x=((gw - n * mean) * rstd).to(d_y.dtype))
        if ctx.wants("weight"):
            dw.absorb(g * (n if ctx.profile == "gemma" else n.to(d_y.dtype).to(f32)))
    if not ctx.wants("weight"):
        return L.out()
    return L.out(d_weight=_of_heads(L.table(dw.value, "partials", (H, E))).to(ctx.weight.dtype))


def _cotangent(given: Any, d_y: Any, t: Any) -> Tile:
    """Return the cotangent of the normalised heads of a chunk of tokens, f32."""
    if given.cos is None:
        return d_y[t].to(f32)
    position = given.position_ids[t].to(i64)
    turn = _Rotation.of(given.cos, given.sin, position, given.interleaved, given.partial)
    other = d_y.at(t.pos, H, turn.partner, inside=True).to(f32)
    return turn(d_y[t].to(f32), other, d_y.dtype, back=True).to(f32)


def _of_heads(partials: Any) -> Tile:
    """Return the sum of partial sums [H, E] over heads, ascending."""
    total = L.total()
    for h in L.stream(ASCENDING):
        total.absorb(partials.at(h.pos, E, inside=True))
    return total.value


@dataclass(frozen=True, slots=True)
class _Given:
    cos: Any
    sin: Any
    position_ids: Any
    interleaved: bool
    partial: bool


@op()
def qk_norm_partials(
    d_y: Tensor[F, T, H, E],
    x: Tensor[F, T, H, E],
    cos: Tensor[Table, P, C] | None,
    sin: Tensor[Table, P, C] | None,
    position_ids: Tensor[Ids, T] | None,
    eps: Scalar[f32, 0.0:] = 1e-6,
    profile: Static[PROFILES] = "hf_llama",
    interleaved: Static[False, True] = False,
    partial: Static[False, True] = False,
) -> Outputs:
    """The f32 sum of each head [H, E] in the gradient of the weight of `qk_norm`, as one rank has them."""
    given = _Given(cos, sin, position_ids, interleaved, partial)
    dw = L.total()
    for t in L.stream(T):
        h = x[t].to(f32)
        n = h * _rstd(h, eps)
        dw.absorb(_cotangent(given, d_y, t) * (n if profile == "gemma" else n.to(x.dtype).to(f32)))
    L.place("partials", (H, E), ({}, dw.value))
    return L.out()


@op()
def sum_of_heads(partials: Tensor[f32, H, E]) -> Outputs:
    """The sum of the partial sums of all heads, ascending, as the gradient of `qk_norm` adds them."""
    return L.out(d_weight=_of_heads(partials))


# --- writes into a paged cache -----------------------------------------------------


def _places(slots: Tensor) -> tuple[dict[Axis, Tile], Tile]:  # type: ignore[valid-type]
    """Return the page and the slot in it of each token, and whether there are such; -1 is padding."""
    slot, size = slots.to(i64), L.extent(O).to(i64)
    there = slot >= 0
    kept = there & (slot < L.extent(B).to(i64) * size)
    L.check((slot < -1) | (there & ~kept), SLOT)
    at = L.where(kept, slot, 0)
    return {B: (at // size).to(i32), O: (at % size).to(i32)}, kept


@op()
def write_cache(
    k: Tensor[F, T, G, E],
    v: Tensor[F, T, G, E] | None,
    k_cache: Tensor[F, B, O, G, E],
    v_cache: Tensor[F, B, O, G, E] | None,
    slots: Tensor[Slots, T],
    cos: Tensor[Table, P, C] | None,
    sin: Tensor[Table, P, C] | None,
    position_ids: Tensor[Ids, T] | None,
    interleaved: Static[False, True] = False,
    partial: Static[False, True] = False,
) -> Outputs:
    """k_out[slot] = k, rotated if there are tables; v_out[slot] = v; slot s is s % O of page s // O.

    The outputs are the caches themselves, of which no other element is written.
    """
    places, kept = _places(slots)
    written = k.at(T, G, E)
    if cos is not None:
        turn = _Rotation.of(cos, sin, position_ids.to(i64), interleaved, partial)
        written = turn(written.to(f32), k.at(T, G, turn.partner, inside=True).to(f32), k.dtype)
    L.place("k_out", (B, O, G, E), (places, written), when=kept)
    if v is not None:
        L.place("v_out", (B, O, G, E), (places, v.at(T, G, E)), when=kept)
    return L.out()


@op()
def cache_qkv(
    qkv: Tensor[F, T, J, E],
    q: Tensor[F, T, H, E],
    k_cache: Tensor[F, B, O, G, E],
    v_cache: Tensor[F, B, O, G, E],
    slots: Tensor[Slots, T],
    q_weight: Tensor[W, E] | None,
    k_weight: Tensor[W, E] | None,
    cos: Tensor[Table, P, C] | None,
    sin: Tensor[Table, P, C] | None,
    position_ids: Tensor[Ids, T] | None,
    eps: Scalar[f32, 0.0:] = 1e-6,
    profile: Static[PROFILES] = "hf_llama",
    interleaved: Static[False, True] = False,
    partial: Static[False, True] = False,
) -> Outputs:
    """Heads of q to q_out, of k and v to the caches, of one product: `qk_norm`, then `write_cache`.

    J: H heads of q, G of k, G of v. The bits are those of these operators apart. Weights: both or none.
    """
    j = L.pos(J)
    of_k, of_v = L.extent(H), L.extent(H) + L.extent(G)
    is_q, is_v = j < of_k, j >= of_v
    own = qkv.at(T, J, E)
    made = own.to(f32)
    turn = None if cos is None else _Rotation.of(cos, sin, position_ids.to(i64), interleaved, partial)
    other = None if turn is None else qkv.at(T, J, turn.partner, inside=True).to(f32)
    if q_weight is not None:
        rstd = _rstd(made, eps)
        weight = L.where(is_q, q_weight.at(E), k_weight.at(E))
        made = _normed(made, rstd, weight, qkv.dtype, profile).to(f32)
        if turn is not None:
            pair = (w.at(turn.partner, inside=True) for w in (q_weight, k_weight))
            other = _normed(other, rstd, L.where(is_q, *pair), qkv.dtype, profile).to(f32)
    turned = made.to(qkv.dtype) if turn is None else turn(made, other, qkv.dtype)
    places, kept = _places(slots)
    L.place("q_out", (T, H, E), ({H: j}, turned), when=is_q)
    L.place("k_out", (B, O, G, E), ({**places, G: j - of_k}, turned), when=~is_q & ~is_v & kept)
    L.place("v_out", (B, O, G, E), ({**places, G: j - of_v}, own), when=is_v & kept)
    return L.out()
