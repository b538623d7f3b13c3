"""Specs of odd shapes, each a way to ask a backend for something that it may lack."""

from __future__ import annotations

from collections.abc import Callable

from rlk.lang import Axis, L, Op, Outputs, Ragged, Scalar, Tensor, Tree, bf16, boolean, f32, i32, i64, op, u32

T = Axis("T", dynamic=True)
B = Axis("B")
M = Axis("M")
N = Axis("N")
K = Axis("K")
E = Axis("E")
G = Axis("G", dynamic=True)
V = Axis("V", chunk=256, split=8)
W = Axis("W", chunk=256)
P = Axis("P", piece=1024, dynamic=True)
R = Axis("R", chunk=1)
Q = Ragged("Q", over=B)
S = Axis("S", chunk=64, piece=512, leaf="piece", dynamic=True)

TD = Axis("T", chunk=256, dynamic=True)

ODD: dict[str, Callable[[], Op]] = {}
MENDED: dict[str, Callable[[], Op]] = {}
"""The same specs as their errors advise, by the name of the spec."""


def odd(make: Callable[[], Op]) -> Callable[[], Op]:
    """List a maker of a spec under its name."""
    ODD[make.__name__] = make
    return make


def mended(make: Callable[[], Op]) -> Callable[[], Op]:
    """List a maker of a spec that was written as an error advised."""
    MENDED[make.__name__.removesuffix("_mended")] = make
    return make


# --- contractions ---------------------------------------------------------------------------------


@odd
def computed_factor() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        y = (x.to(f32) * 2.0).to(bf16)
        return L.out(z=L.dot(y, w, over=K))

    return spec


@odd
def product_of_a_product() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, M], u: Tensor[bf16, K, M], w: Tensor[bf16, N, K]) -> Outputs:
        y = L.dot(x, u, over=M).to(bf16)
        return L.out(z=L.dot(y, w, over=K))

    return spec


@odd
def two_computed_factors() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        y = (x.to(f32) * 2.0).to(bf16)
        u = (w.to(f32) * 2.0).to(bf16)
        return L.out(z=L.dot(y, u, over=K))

    return spec


@odd
def dot_of_dot() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], u: Tensor[bf16, M, N]) -> Outputs:
        y = L.dot(x, w, over=K).to(bf16)
        return L.out(z=L.dot(y, u, over=N))

    return spec


@odd
def gram_matrix() -> Op:
    @op()
    def spec(x: Tensor[bf16, N, K], y: Tensor[bf16, M, K]) -> Outputs:
        z = L.dot(x, y, over=K)
        return L.out(z=z, s=L.sum(z, over=M, tree=Tree.halving), t=L.sum(z, over=N, tree=Tree.halving))

    return spec


@odd
def dot_and_sum_of_one_axis() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        norm = L.sum(x.to(f32) * x.to(f32), over=K, tree=Tree.halving)
        return L.out(z=L.dot(x, w, over=K) * norm)

    return spec


@odd
def dot_by_pieces_and_sum() -> Op:
    @op()
    def spec(x: Tensor[bf16, P, K], y: Tensor[bf16, P, N]) -> Outputs:
        s = L.sum(x.to(f32), over=P, tree=Tree.halving)
        return L.out(z=L.dot(x, y, over=P), s=s)

    return spec


@odd
def batched_dot() -> Op:
    @op()
    def spec(x: Tensor[bf16, B, T, K], w: Tensor[bf16, B, N, K]) -> Outputs:
        return L.out(z=L.dot(x, w, over=K, each=(B,)))

    return spec


@odd
def grouped_gemm() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, E, N, K], expert: Tensor[i32, T]) -> Outputs:
        return L.out(z=L.dot(x, w.at(expert, N, K), over=K, each=(T,)))

    return spec


@odd
def f32_dot() -> Op:
    @op()
    def spec(x: Tensor[f32, T, K], w: Tensor[f32, N, K]) -> Outputs:
        return L.out(z=L.dot(x, w, over=K))

    return spec


@odd
def matrix_times_vector() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, K]) -> Outputs:
        return L.out(z=L.dot(x, w, over=K))

    return spec


@odd
def two_dots_of_one_kernel() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], u: Tensor[bf16, M, K]) -> Outputs:
        return L.out(z=L.dot(x, w, over=K) + 0.0, y=L.dot(x, u, over=K) * 2.0)

    return spec


@odd
def gated_dots() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], u: Tensor[bf16, N, K]) -> Outputs:
        gate = L.dot(x, w, over=K)
        return L.out(z=gate * L.sigmoid(gate) * L.dot(x, u, over=K))

    return spec


@odd
def int8_weights() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[i32, N, K], scale: Tensor[f32, N]) -> Outputs:
        return L.out(z=L.dot(x, w.to(f32).to(bf16), over=K) * scale)

    return spec


@odd
def strided_factor() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        k = L.pos(K) * 2
        return L.out(z=L.dot(x.at(T, k), w, over=K))

    return spec


@odd
def masked_factor() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], keep: Tensor[boolean, T, K]) -> Outputs:
        return L.out(z=L.dot(L.where(keep, x, L.number(0.0, bf16)), w, over=K))

    return spec


@odd
def three_d_dot() -> Op:
    @op()
    def spec(x: Tensor[bf16, B, M, K], w: Tensor[bf16, N, K]) -> Outputs:
        return L.out(z=L.dot(x, w, over=K))

    return spec


@odd
def pieces_of_two_products() -> Op:
    @op()
    def spec(x: Tensor[bf16, P, K], y: Tensor[bf16, P, N], u: Tensor[bf16, P, N]) -> Outputs:
        return L.out(z=L.dot(x, y, over=P) + L.dot(x, u, over=P))

    return spec


# --- softmax and folds ----------------------------------------------------------------------------


@odd
def softmax_over_columns() -> Op:
    @op()
    def spec(x: Tensor[f32, N, M]) -> Outputs:
        top = L.max(x, over=N)
        e = L.exp(x - top)
        return L.out(y=e / L.sum(e, over=N, tree=Tree.halving))

    return spec


@odd
def softmax_over_dynamic_rows() -> Op:
    @op()
    def spec(x: Tensor[f32, T, M]) -> Outputs:
        e = L.exp(x - L.max(x, over=T))
        return L.out(y=e / L.sum(e, over=T, tree=Tree.halving))

    return spec


@odd
def softmax_of_long_rows() -> Op:
    @op()
    def spec(x: Tensor[f32, T, E]) -> Outputs:
        e = L.exp(x - L.max(x, over=E))
        return L.out(y=e / L.sum(e, over=E, tree=Tree.halving))

    return spec


@odd
def sum_over_two_axes() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N, M]) -> Outputs:
        s = L.sum(x, over=M, tree=Tree.halving)
        return L.out(y=L.sum(s, over=N, tree=Tree.halving))

    return spec


@odd
def sum_of_everything() -> Op:
    @op()
    def spec(x: Tensor[f32, N, M]) -> Outputs:
        return L.out(y=L.sum(L.sum(x, over=M, tree=Tree.halving), over=N, tree=Tree.halving))

    return spec


@odd
def nested_folds() -> Op:
    @op()
    def spec(x: Tensor[f32, T, W, V]) -> Outputs:
        total = L.total()
        for v in L.stream(V):
            inner = L.total()
            for w in L.stream(W):
                inner.absorb(x[w, v])
            total.absorb(inner.value)
        return L.out(y=total.value)

    return spec


@odd
def fold_of_a_fold() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N, V]) -> Outputs:
        total = L.total()
        for v in L.stream(V):
            total.absorb(x[v])
        return L.out(y=L.max(total.value, over=N))

    return spec


@odd
def stream_of_two_tensors() -> Op:
    @op()
    def spec(x: Tensor[f32, T, V], y: Tensor[f32, T, W]) -> Outputs:
        a, b = L.softmax_sum(), L.softmax_sum()
        for v in L.stream(V):
            a.absorb(x[v])
        for w in L.stream(W):
            b.absorb(y[w])
        return L.out(z=a.lse() - b.lse())

    return spec


@odd
def cumulative_sum() -> Op:
    @op()
    def spec(x: Tensor[f32, T, R]) -> Outputs:
        c = L.carry(0.0, T)
        for r in L.stream(R):
            now = c.value + x[r]
            c.hand(now)
            L.emit(y=now)
        return L.out()

    return spec


@odd
def cumulative_sum_by_chunks() -> Op:
    @op()
    def spec(x: Tensor[f32, T, W]) -> Outputs:
        c = L.carry(0.0, T)
        for w in L.stream(W):
            c.hand(c.value + L.sum(x[w], over=W, tree=Tree.halving))
        return L.out(y=c.value)

    return spec


@odd
def argmax_over_rows() -> Op:
    @op()
    def spec(x: Tensor[f32, W, M]) -> Outputs:
        best = L.argmax()
        for w in L.stream(W):
            best.absorb(x[w])
        return L.out(y=best.index)

    return spec


@odd
def attention_of_batches() -> Op:
    @op()
    def spec(q: Tensor[bf16, M, K], k: Tensor[bf16, S, K], v: Tensor[bf16, S, N]) -> Outputs:
        soft = L.softmax_sum()
        for s in L.stream(S):
            soft.absorb(L.dot(q, k[s], over=K), v=v[s])
        return L.out(y=soft.mean("v").to(bf16))

    return spec


@odd
def attention_of_f32() -> Op:
    @op()
    def spec(q: Tensor[f32, M, K], k: Tensor[f32, S, K], v: Tensor[bf16, S, N]) -> Outputs:
        soft = L.softmax_sum()
        for s in L.stream(S):
            soft.absorb(L.dot(q, k[s], over=K), v=v[s])
        return L.out(y=soft.mean("v").to(bf16))

    return spec


@odd
def linear_attention() -> Op:
    @op()
    def spec(q: Tensor[bf16, M, K], k: Tensor[bf16, S, K], v: Tensor[bf16, S, N]) -> Outputs:
        total = L.total()
        for s in L.stream(S):
            total.absorb(L.dot(q, k[s], over=K), by=v[s])
        return L.out(y=total.value)

    return spec


# --- memory ---------------------------------------------------------------------------------------


@odd
def gather_of_rows() -> Op:
    @op()
    def spec(table: Tensor[bf16, E, N], index: Tensor[i64, T]) -> Outputs:
        return L.out(y=table.at(index, N))

    return spec


@odd
def gather_along_columns() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N], index: Tensor[i32, T, M]) -> Outputs:
        return L.out(y=x.at(T, index))

    return spec


@odd
def scatter_of_rows() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N], index: Tensor[i64, T]) -> Outputs:
        L.place("y", (T, N), ({T: index}, x.whole()))
        return L.out()

    return spec


@odd
def placed_in_two_parts() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N], z: Tensor[f32, T, N], at: Tensor[i32, N]) -> Outputs:
        L.place("y", (T, M), ({M: L.pos(N)}, x.whole()), ({M: at.whole()}, z.whole()))
        return L.out()

    return spec


@odd
def transposed() -> Op:
    @op()
    def spec(x: Tensor[f32, N, M], like: Tensor[f32, M, N]) -> Outputs:
        L.place("y", (M, N), ({}, x.whole()))
        return L.out()

    return spec


@odd
def three_d_tile() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N, M], y: Tensor[f32, M, T]) -> Outputs:
        return L.out(z=x.whole() * y)

    return spec


@odd
def outer_product() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N], y: Tensor[f32, T, M]) -> Outputs:
        return L.out(z=L.max(x.whole() * y, over=N))

    return spec


@odd
def two_dynamic_axes() -> Op:
    @op()
    def spec(x: Tensor[f32, T, G, N]) -> Outputs:
        return L.out(y=L.sum(x, over=N, tree=Tree.halving))

    return spec


@odd
def scalar_only() -> Op:
    @op()
    def spec(a: Scalar[f32], b: Scalar[f32]) -> Outputs:
        return L.out(y=a + b)

    return spec


@odd
def bool_fill() -> Op:
    @op()
    def spec(x: Tensor[boolean, T, N], at: Tensor[i32, T, N]) -> Outputs:
        return L.out(y=x.at(T, at, fill=True))

    return spec


@odd
def random_of_every_element() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N], seed: Tensor[u32, T]) -> Outputs:
        n = L.pos(N).bits(u32)
        zero = L.number(0, u32)
        a, *_ = L.philox((n, zero, zero, zero), (seed.whole(), zero))
        return L.out(y=x.whole() * (a >> 8).to(i32).to(f32))

    return spec


@odd
def checked_elements() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N]) -> Outputs:
        L.check(L.isnan(x), "NaN")
        return L.out(y=x.whole() * 2.0)

    return spec


@odd
def sum_of_batched_products() -> Op:
    @op()
    def spec(x: Tensor[bf16, B, T, K], w: Tensor[bf16, B, N, K]) -> Outputs:
        y = L.dot(x, w, over=K, each=(B,))
        return L.out(z=L.sum(y, over=B, tree=Tree.halving))

    return spec


@odd
def sum_of_dots_by_row() -> Op:
    @op()
    def spec(
        x: Tensor[bf16, T, K], w: Tensor[bf16, V, K], y: Tensor[bf16, T, M], u: Tensor[bf16, N, M]
    ) -> Outputs:
        soft = L.softmax_sum()
        for v in L.stream(V):
            soft.absorb(L.dot(x, w[v], over=K))
        return L.out(z=L.dot(y, u, over=M) * soft.lse())

    return spec


@odd
def segments_of_rows() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N], first: Tensor[i32, B], last: Tensor[i32, B]) -> Outputs:
        total = L.total()
        for q in L.stream(Q, begin=first.whole(), end=last.whole()):
            total.absorb(L.sum(x.at(q.pos, N), over=N, tree=Tree.halving))
        return L.out(y=total.value)

    return spec


# --- as the errors advise ---------------------------------------------------------------------------


@mended
def computed_factor_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        y = (x.to(f32) * 2.0).to(bf16)
        y = L.keep(y, "y")
        return L.out(z=L.dot(y, w, over=K))

    return spec


@mended
def product_of_a_product_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, M], u: Tensor[bf16, K, M], w: Tensor[bf16, N, K]) -> Outputs:
        y = L.dot(x, u, over=M).to(bf16)
        y = L.keep(y, "y")
        return L.out(z=L.dot(y, w, over=K))

    return spec


@mended
def two_computed_factors_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        y = (x.to(f32) * 2.0).to(bf16)
        u = (w.to(f32) * 2.0).to(bf16)
        y = L.keep(y, "y")
        u = L.keep(u, "u")
        return L.out(z=L.dot(y, u, over=K))

    return spec


@mended
def dot_of_dot_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], u: Tensor[bf16, M, N]) -> Outputs:
        y = L.dot(x, w, over=K).to(bf16)
        y = L.keep(y, "y")
        return L.out(z=L.dot(y, u, over=N))

    return spec


@mended
def strided_factor_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        k = L.pos(K) * 2
        y = L.keep(x.at(T, k), "y")
        return L.out(z=L.dot(y, w, over=K))

    return spec


@mended
def int8_weights_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[i32, N, K], scale: Tensor[f32, N]) -> Outputs:
        y = L.keep(w.to(f32).to(bf16), "y")
        return L.out(z=L.dot(x, y, over=K) * scale)

    return spec


@mended
def dot_and_sum_of_one_axis_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        norm = L.sum(x.to(f32) * x.to(f32), over=K, tree=Tree.halving)
        norm = L.keep(norm, "norm")
        return L.out(z=L.dot(x, w, over=K) * norm)

    return spec


@mended
def matrix_times_vector_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, K]) -> Outputs:
        return L.out(z=L.sum(x.to(f32) * w.to(f32), over=K, tree=Tree.halving))

    return spec


@mended
def gram_matrix_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, N, K], y: Tensor[bf16, M, K]) -> Outputs:
        z = L.dot(x, y, over=K)
        z = L.keep(z, "z")
        return L.out(o=z, s=L.sum(z, over=M, tree=Tree.halving), t=L.sum(z, over=N, tree=Tree.halving))

    return spec


@mended
def gated_dots_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], u: Tensor[bf16, N, K]) -> Outputs:
        gate = L.keep(L.dot(x, w, over=K), "gate")
        return L.out(z=gate * L.sigmoid(gate) * L.dot(x, u, over=K))

    return spec


@mended
def pieces_of_two_products_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, P, K], y: Tensor[bf16, P, N], u: Tensor[bf16, P, N]) -> Outputs:
        first = L.keep(L.dot(x, y, over=P), "first")
        return L.out(z=first + L.dot(x, u, over=P))

    return spec


@mended
def softmax_over_dynamic_rows_mended() -> Op:
    @op()
    def spec(x: Tensor[f32, TD, M]) -> Outputs:
        s = L.softmax_sum()
        for t in L.stream(TD):
            s.absorb(x[t])
        return L.out(y=s.lse())

    return spec


@mended
def sum_of_batched_products_mended() -> Op:
    @op()
    def spec(x: Tensor[bf16, B, T, K], w: Tensor[bf16, B, N, K]) -> Outputs:
        y = L.dot(x, w, over=K, each=(B,))
        y = L.keep(y, "y")
        return L.out(z=L.sum(y, over=B, tree=Tree.halving))

    return spec


@mended
def sum_of_dots_by_row_mended() -> Op:
    @op()
    def spec(
        x: Tensor[bf16, T, K], w: Tensor[bf16, V, K], y: Tensor[bf16, T, M], u: Tensor[bf16, N, M]
    ) -> Outputs:
        soft = L.softmax_sum()
        for v in L.stream(V):
            soft.absorb(L.dot(x, w[v], over=K))
        lse = L.keep(soft.lse(), "lse")
        return L.out(z=L.dot(y, u, over=M) * lse)

    return spec


@mended
def bool_fill_mended() -> Op:
    @op()
    def spec(x: Tensor[boolean, T, N], at: Tensor[i32, T, N]) -> Outputs:
        inside = (at.whole() >= 0) & (at < L.extent(N))
        return L.out(y=L.where(inside, x.at(T, at), True))

    return spec


@mended
def checked_rows_mended() -> Op:
    @op()
    def spec(x: Tensor[f32, T, N]) -> Outputs:
        L.check(L.any(L.isnan(x), over=N), "NaN")
        return L.out(y=x.whole() * 2.0)

    return spec
