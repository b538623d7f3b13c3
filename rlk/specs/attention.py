"""Attention: keys in chunks and pieces of fixed sizes, counted from the start of their sequence."""

from __future__ import annotations

from dataclasses import dataclass
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
    bf16,
    f16,
    f32,
    i32,
    i64,
    op,
)

CHUNK, PIECE = 64, 512
LOG2E = 1.4426950408889634

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
F = DTypeVar("F", (bf16, f16))
Offsets = DTypeVar("Offsets", (i32, i64))


@op(bounds={Q: (T,)})
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
    soft = L.softmax_sum()
    for s in L.stream(S, begin=begin, end=end_k, **rows.seen(begin, causal, window)):
        z = L.dot(queries, k[s], over=E, each=(H,)) * scale
        soft.absorb(z if softcap is None else softcap * L.tanh(z * inv_softcap), o=v[s])
    return finished(soft, rows, sinks, q.dtype)


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
    """`varlen_attention` of keys and values that lie in pages: key j of a sequence in slot j mod O."""
    rows = Rows.of(begin_q, end_q, context_lens)
    queries = q.at(rows.token, H, G, E, when=rows.inside)
    soft = L.softmax_sum()
    for s in L.stream(S, begin=0, end=context_lens, **rows.seen(0, causal, window)):
        page, slot = block_table.at(B, s.pos // L.extent(O)), s.pos % L.extent(O)
        z = L.dot(queries, k_cache.at(page, slot, H, E), over=E, each=(B, H)) * scale
        z = z if softcap is None else softcap * L.tanh(z * inv_softcap)
        soft.absorb(z, o=v_cache.at(page, slot, H, W))
    return finished(soft, rows, sinks, q.dtype)


@dataclass(frozen=True, slots=True)
class Rows:
    """The queries of every sequence: where each is in the packed tensor, whether it is, and at which key."""

    token: Tile
    inside: Tile
    key: Tile

    @staticmethod
    def of(begin_q: Any, end_q: Any, keys: Tile) -> Rows:
        """Place the queries of sequences of so many keys: the last query stands at the last key."""
        begin, query = begin_q.to(i32), L.pos(Q)
        count = end_q.to(i32) - begin
        return Rows(begin + query, query < count, query + (keys - count))

    def seen(self, begin: Any, causal: bool, window: Tile | None) -> dict[str, Any]:
        """Return which keys a query sees, and where its state may be kept, as options of a stream."""
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
        largest = L.maximum(m, sinks)
        again = L.softmax_exp2((m - largest) * LOG2E)
        s = s * again + L.softmax_exp2((sinks - largest) * LOG2E)
        m, o = largest, o * again
    # x + 0.0 makes one zero of two: whether a piece that a row does not see is merged is not numerics
    mean = L.where(s == 0.0, 0.0, o / s) + 0.0
    L.place("o", (T, H, G, W), ({T: rows.token}, mean.to(dtype)), when=rows.inside)
    L.place("lse", (H, G, T), ({T: rows.token}, m + L.log(s)), when=rows.inside)
    return L.out()
