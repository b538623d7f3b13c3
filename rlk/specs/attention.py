"""Attention: keys in chunks and pieces of fixed sizes, counted from the start of their sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Ragged,
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

CHUNK, PIECE = 64, 512
FAR = 1 << 30  # the position of a padding row: its tile's steps need no mask for it
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453

T = Axis("T", dynamic=True)  # queries, packed
B = Axis("B", dynamic=True)  # sequences
Q = Ragged("Q", over=B)  # queries of one sequence
S = Ragged("S", over=B, chunk=CHUNK, piece=PIECE, leaf="piece")  # keys of one sequence
H = Axis("H")  # heads of keys and values
G = Axis("G")  # heads of queries that share one of those
E = Axis("E")  # elements of a query and of a key
W = Axis("W")  # elements of a value
P = Axis("P", dynamic=True)  # pages of a cache
O = Axis("O")  # slots of a page
M = Axis("M", dynamic=True)  # pages that a sequence may have
J = Ragged("J", over=B)  # keys of one sequence, each with its gradient
Z = Ragged("Z", over=B, chunk=CHUNK, leaf="segment")  # keys of one sequence, on one accumulator
R = Ragged("R", over=B, chunk=CHUNK, leaf="segment")  # its queries, and heads of each that share keys
N = Axis("N", dynamic=True)  # prompts
C = Ragged("C", over=N)  # queries of all completions of one prompt
K = Ragged("K", over=N, chunk=CHUNK, piece=PIECE, leaf="piece")  # keys of one prompt
X = Axis("X", chunk=256, piece=8192, dynamic=True)  # queries of all sequences
F = DTypeVar("F", (bf16, f16))
Offsets = DTypeVar("Offsets", (i32, i64))


@op(
    saves=("q", "k", "v", "begin_q", "end_q", "begin_k", "end_k", "sinks", "o", "lse"),
    bounds={Q: (T,), Z: (S,), J: (S,), R: (T, G), X: (T,)},
)
def varlen_attention(
    q: Tensor[F, T, H, G, E],
    k: Tensor[F, S, H, E],
    v: Tensor[F, S, H, W],
    begin_q: Tensor[Offsets, B],
    end_q: Tensor[Offsets, B],
    begin_k: Tensor[Offsets, B],
    end_k: Tensor[Offsets, B],
    sinks: Tensor[f32, H, G] | None,
    scale: Scalar[f32],
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    window: Scalar[i32] | None,
    causal: Static[True, False] = True,
) -> Outputs:
    """softmax(scale q k^T) v of packed sequences, and the log of its denominator; no score is in memory."""
    begin = begin_k.to(i32)
    rows = Rows.of(begin_q, end_q, end_k.to(i32) - begin)
    queries = q.at(rows.token, H, G, E, when=rows.inside)
    soft = L.power_sum()
    for s in L.stream(S, begin=begin, end=end_k, **rows.seen(begin, causal, window)):
        z = L.dot(queries, k[s], over=E, each=(H,))
        soft.absorb(_powers(z, scale, softcap, inv_softcap), o=v[s])
    return finished(soft, rows, sinks, q.dtype)


@varlen_attention.vjp("q", "k", "v", "sinks")
def varlen_attention_grad(ctx, d_o: Tensor[F, T, H, G, W], d_lse: Tensor[f32, H, G, T] | None) -> Outputs:
    """dv = p^T d_o, dq = scale ds k, dk = scale ds^T q, of p = exp(z - lse) and ds = p (d_o v^T - delta).

    delta = sum of d_o o (halving over W) - d_lse (Dao, arXiv 2307.08691, section 3.1). p and ds are rounded
    to the dtype of q before they are contracted, and nothing else is before the results: dq is one chain16
    over the keys of a query, ascending; dk and dv are one each over the queries that see a key, ascending,
    and for each of these over the heads that share it. d_sinks = - sum of exp(sink - lse) delta over queries
    as they are packed, in chunks of 256 (halving) and pieces of 8192, ascending.
    """
    shift = delta = None
    if any(ctx.wants(name) for name in "qkv"):
        shift = L.table(-(ctx.lse * LOG2E), "shift", (T, H, G))
    if any(ctx.wants(name) for name in ("q", "k", "sinks")):
        row = L.sum(d_o.to(f32) * ctx.o.to(f32), over=W, tree=Tree.halving)
        delta = L.table(row if d_lse is None else row - d_lse, "delta")
    if ctx.wants("q"):
        _of_queries(ctx, d_o, shift, delta)
    if ctx.wants("k") or ctx.wants("v"):
        _of_keys(ctx, d_o, shift, delta)
    if ctx.wants("sinks"):
        _of_sinks(ctx, delta)
    return L.out()


def _of_queries(ctx: Any, d_o: Any, shift: Any, delta: Any) -> None:
    """Write the gradient of the queries: a loop over the keys visible to a query."""
    begin = ctx.begin_k.to(i32)
    rows = Rows.of(ctx.begin_q, ctx.end_q, ctx.end_k.to(i32) - begin)
    q = ctx.q.at(rows.token, H, G, E, when=rows.inside, inside=True)
    d = d_o.at(rows.token, H, G, W, when=rows.inside, inside=True)
    down = shift.at(rows.token, H, G, when=rows.inside, inside=True)
    own = delta.at(rows.token, H, G, when=rows.inside, inside=True)
    total = L.total()
    for s in L.stream(Z, begin=begin, end=ctx.end_k, **rows.seen(begin, ctx.causal, ctx.window)):
        k, v = ctx.k.at(s.pos, H, E, inside=True), ctx.v.at(s.pos, H, W, inside=True)
        p, slope = _weights(ctx, L.dot(q, k, over=E, each=(H,)), down)
        total.absorb(p, by=k, times=_slope(L.dot(d, v, over=W, each=(H,)) - own, slope))
    d_q = (total.value * ctx.scale).to(ctx.q.dtype)
    L.place("d_q", (T, H, G, E), ({T: rows.token}, d_q), when=rows.inside)


def _of_keys(ctx: Any, d_o: Any, shift: Any, delta: Any) -> None:
    """Write the gradients of keys and values: a loop over the queries that see a key, of all its heads."""
    begin, key = ctx.begin_k.to(i32), L.pos(J)
    count = ctx.end_k.to(i32) - begin
    token, inside = begin + key, key < count
    k, v = ctx.k.at(token, H, E, when=inside, inside=True), ctx.v.at(token, H, W, when=inside, inside=True)
    first, heads = ctx.begin_q.to(i32), L.extent(G)
    last = ctx.end_q.to(i32)
    seen = _seeing(ctx, first, key + (last - first) - count, heads, count)
    to_k, to_v = L.total(), L.total()
    for r in L.stream(R, begin=first * heads, end=last * heads, **seen):
        asks, head = r.pos // heads, r.pos % heads
        q, d = ctx.q.at(asks, H, head, E, inside=True), d_o.at(asks, H, head, W, inside=True)
        down = shift.at(asks, H, head, inside=True)
        own = delta.at(asks, H, head, inside=True) if ctx.wants("k") else None
        p, slope = _weights(ctx, L.dot(k, q, over=E, each=(H,)), down)
        if ctx.wants("v"):
            to_v.absorb(p, by=d)
        if ctx.wants("k"):
            to_k.absorb(p, by=q, times=_slope(L.dot(v, d, over=W, each=(H,)) - own, slope))
    if ctx.wants("k"):
        L.place("d_k", (S, H, E), ({S: token}, (to_k.value * ctx.scale).to(ctx.q.dtype)), when=inside)
    if ctx.wants("v"):
        L.place("d_v", (S, H, W), ({S: token}, to_v.value.to(ctx.q.dtype)), when=inside)


def _seeing(ctx: Any, begin: Tile, query: Tile, heads: Tile, keys: Tile) -> dict[str, Any]:
    """Return the bounds of the queries that see a key; query: the query at the position of the key."""
    bounds: dict[str, Any] = {}
    if ctx.causal:
        bounds["since"] = (begin + query) * heads
    if ctx.window is not None:
        bounds["until"] = (begin + query + L.minimum(ctx.window, keys)) * heads
    return bounds


def _weights(ctx: Any, product: Tile, shift: Tile) -> tuple[Tile, Tile | None]:
    """Return exp(z - lse), and the slope of z where scores are capped: 1 - tanh^2; shift: -lse log2 e."""
    if ctx.softcap is None:
        return L.softmax_exp2(L.fma(product, ctx.scale * LOG2E, shift)), None
    t = L.tanh(product * ctx.scale * ctx.inv_softcap)
    return L.softmax_exp2(L.fma(t, ctx.softcap * LOG2E, shift)), 1.0 - t * t


def _slope(of_p: Tile, of_cap: Tile | None) -> Tile:
    return of_p if of_cap is None else of_p * of_cap


def _of_sinks(ctx: Any, delta: Any) -> None:
    """Write the gradient of the sinks, whose values are 0."""
    total = L.total()
    for x in L.stream(X, begin=0, end=ctx.end_q.at(L.extent(B) - 1)):
        lse = ctx.lse.at(H, G, x.pos, inside=True)
        p = L.softmax_exp2((ctx.sinks - lse) * LOG2E)
        total.absorb(L.where(lse == -math.inf, 0.0, p) * delta.at(x.pos, H, G, inside=True))
    L.out(d_sinks=-total.value)


@op(bounds={Q: (T,), S: (M, O)})
def paged_attention(
    q: Tensor[F, T, H, G, E],
    k_cache: Tensor[F, P, O, H, E],
    v_cache: Tensor[F, P, O, H, W],
    block_table: Tensor[i32, B, M],
    context_lens: Tensor[i32, B],
    begin_q: Tensor[Offsets, B],
    end_q: Tensor[Offsets, B],
    sinks: Tensor[f32, H, G] | None,
    scale: Scalar[f32],
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    window: Scalar[i32] | None,
    causal: Static[True, False] = True,
) -> Outputs:
    """`varlen_attention` with a paged KV cache: key j of a sequence is in slot j mod O of its page j // O."""
    rows = Rows.of(begin_q, end_q, context_lens)
    queries = q.at(rows.token, H, G, E, when=rows.inside)
    soft = L.power_sum()
    for s in L.stream(S, begin=0, end=context_lens, **rows.seen(0, causal, window)):
        page, slot = block_table.at(B, s.pos // L.extent(O)), s.pos % L.extent(O)
        z = L.dot(queries, k_cache.at(page, slot, H, E), over=E, each=(B, H))
        soft.absorb(_powers(z, scale, softcap, inv_softcap), o=v_cache.at(page, slot, H, W))
    return finished(soft, rows, sinks, q.dtype)


@op(bounds={Q: (T,), C: (T,)})
def prefix_attention(
    q: Tensor[F, T, H, G, E],
    k_prefix: Tensor[F, K, H, E],
    v_prefix: Tensor[F, K, H, W],
    k: Tensor[F, S, H, E],
    v: Tensor[F, S, H, W],
    begin_prefix: Tensor[Offsets, N],
    end_prefix: Tensor[Offsets, N],
    begin_asks: Tensor[Offsets, N],
    end_asks: Tensor[Offsets, N],
    begin_shared: Tensor[Offsets, B],
    end_shared: Tensor[Offsets, B],
    begin_q: Tensor[Offsets, B],
    end_q: Tensor[Offsets, B],
    begin_k: Tensor[Offsets, B],
    end_k: Tensor[Offsets, B],
    place: Tensor[i32, T],
    sinks: Tensor[f32, H, G] | None,
    scale: Scalar[f32],
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    window: Scalar[i32] | None,
    causal: Static[True, False] = True,
) -> Outputs:
    """`varlen_attention` of sequences that begin with a shared prompt, whose whole chunks are read once.

    One stream takes these chunks with the queries of all completions of a prompt as its rows, and stores its
    states, also that of an unfinished piece; another continues from them with each completion's own keys.
    place: the position of a query among the keys of its sequence.
    """

    def score(queries: Tile, keys: Tile, *each: Axis) -> Tile:
        return _powers(L.dot(queries, keys, over=E, each=each), scale, softcap, inv_softcap)

    start, of_rows = begin_prefix.to(i32), begin_asks.to(i32)
    token, inside = of_rows + L.pos(C), L.pos(C) < end_asks.to(i32) - of_rows
    all_rows = Rows(token, inside, place.at(token, when=inside, inside=True, fill=FAR))
    asks = q.at(token, H, G, E, when=inside)
    whole = (end_prefix.to(i32) - start) // CHUNK * CHUNK
    common = L.power_sum(open=True)
    for s in L.stream(K, begin=start, end=start + whole, **all_rows.seen(start, causal, window)):
        common.absorb(score(asks, k_prefix[s], H), o=v_prefix[s])
    tables = _tables(common, all_rows)
    first, begin = begin_shared.to(i32), begin_k.to(i32)
    shared = end_shared.to(i32) - first
    keys = shared + (end_k.to(i32) - begin)
    rows = Rows.of(begin_q, end_q, keys)
    queries = q.at(rows.token, H, G, E, when=rows.inside)
    states = (x.at(rows.token, *x.axes[1:], when=rows.inside, inside=True) for x in tables)
    soft, skipped = L.power_sum(after=tuple(states)), shared // CHUNK * CHUNK
    for s in L.stream(S, begin=0, end=keys, after=skipped, **rows.seen(0, causal, window)):
        own = s.pos >= shared
        theirs, mine = (first + s.pos, H), (begin + (s.pos - shared), H)
        key, value = (
            x.at(*mine, axis, when=own, inside=True, fill=y.at(*theirs, axis, when=~own, inside=True))
            for x, y, axis in ((k, k_prefix, E), (v, v_prefix, W))
        )
        soft.absorb(score(queries, key, B, H), o=value)
    return finished(soft, rows, sinks, q.dtype)


def _powers(product: Tile, scale: Tile, softcap: Tile | None, inverse: Tile | None) -> Tile:
    """Return scores in units of ln 2, of which a weight is a power of two."""
    if softcap is None:
        return product * (scale * LOG2E)
    return L.tanh(product * scale * inverse) * (softcap * LOG2E)


def _tables(common: Any, rows: Rows) -> list[Any]:
    """Store the states of an open fold, each at the index of its row."""
    names = tuple(product(("piece", "prompt"), ("m", "s", "o")))
    return [
        L.table(x, f"{n}_of_{of}", (T, H, G, W) if n == "o" else (T, H, G), {T: rows.token}, rows.inside)
        for x, (of, n) in zip(common.states, names, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Rows:
    """The queries of every sequence: the index in the packed tensor, a mask, and the position among keys."""

    token: Tile
    inside: Tile
    key: Tile

    @staticmethod
    def of(begin_q: Any, end_q: Any, keys: Tile) -> Rows:
        """Return the rows of sequences with `keys` keys: the last query has the position of the last key."""
        begin, query = begin_q.to(i32), L.pos(Q)
        count = end_q.to(i32) - begin
        return Rows(begin + query, query < count, query + (keys - count))

    def seen(self, begin: Any, causal: bool, window: Tile | None) -> dict[str, Any]:
        """Return the bounds of the keys visible to a query, and the row of its state, as stream options."""
        bounds: dict[str, Any] = {"rows": (T, self.token, self.inside)}
        if causal:
            bounds["until"] = self.key + 1 + begin
        if window is not None:
            bounds["since"] = self.key + 1 + begin - window
        return bounds


def finished(soft: Any, rows: Rows, sinks: Any, dtype: Any) -> Outputs:
    """Divide by the denominator, which a sink adds a weight without a value to; 0 where there is no key."""
    m, s, o = soft.max, soft.sum, soft.payload("o")
    if sinks is not None:
        sinks = sinks * LOG2E
        largest = L.maximum(m, sinks)
        again = L.softmax_exp2(m - largest)
        s = s * again + L.softmax_exp2(sinks - largest)
        m, o = largest, o * again
    # x + 0.0 makes one zero of two: whether a piece that a row does not see is merged is not numerics
    mean = L.where(s == 0.0, 0.0, o / s) + 0.0
    L.place("o", (T, H, G, W), ({T: rows.token}, mean.to(dtype)), when=rows.inside)
    L.place("lse", (H, G, T), ({T: rows.token}, L.fma(m, LN2, L.log(s))), when=rows.inside)
    return L.out()
