"""Batch-invariant matrix products and their gradients: tiles may depend on M, bits do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlk.lang import Axis, DType, DTypeVar, L, Outputs, Static, Tensor, Tile, bf16, f16, f32, op

T = Axis("T", dynamic=True)
N = Axis("N")
K = Axis("K")
K2, K4, K8 = (Axis("K", split=leaves) for leaves in (2, 4, 8))
F = DTypeVar("F", (bf16, f16))

TOKENS = Axis("T", piece=8192, dynamic=True)
"""Tokens as the gradient of a weight contracts them: one f32 accumulator for each piece."""
SUMMED = Axis("T", chunk=64, piece=8192, leaf="piece", dynamic=True)
"""Tokens as the gradient of a bias adds them: the same pieces, each in chunks of 64."""


@op(saves=("x", "w", "bias"))
def matmul(
    x: Tensor[F, T, K],
    w: Tensor[F, N, K],
    bias: Tensor[F, N] | None,
    residual: Tensor[F, T, N] | None,
    keep_f32: Static[False, True] = False,
    round_product: Static[False, True] = False,
    grad_leaves: Static[1, 2, 4, 8] = 1,
) -> Outputs:
    """y = x w^T + bias + residual: one f32 accumulator over ascending K (chain16), f32 sums, one rounding.

    keep_f32: y is the f32 sum itself. round_product: x w^T + bias is rounded before residual is added.
    grad_leaves: d x contracts N in so many pieces, added pairwise; the result does not depend on it.
    """
    return _finished(L.dot(x, w, over=K), x.dtype, bias, residual, keep_f32, round_product)


@op(saves=("x", "w", "bias"))
def matmul_leaf2(
    x: Tensor[F, T, K2],
    w: Tensor[F, N, K2],
    bias: Tensor[F, N] | None,
    residual: Tensor[F, T, N] | None,
    keep_f32: Static[False, True] = False,
    round_product: Static[False, True] = False,
    grad_leaves: Static[1, 2, 4, 8] = 1,
) -> Outputs:
    """As matmul, but K in 2 pieces of ceil(K / 2), one f32 accumulator each, added."""
    return _finished(L.dot(x, w, over=K2), x.dtype, bias, residual, keep_f32, round_product)


@op(saves=("x", "w", "bias"))
def matmul_leaf4(
    x: Tensor[F, T, K4],
    w: Tensor[F, N, K4],
    bias: Tensor[F, N] | None,
    residual: Tensor[F, T, N] | None,
    keep_f32: Static[False, True] = False,
    round_product: Static[False, True] = False,
    grad_leaves: Static[1, 2, 4, 8] = 1,
) -> Outputs:
    """As matmul, but K in 4 pieces of ceil(K / 4), one f32 accumulator each, added by a pairwise tree."""
    return _finished(L.dot(x, w, over=K4), x.dtype, bias, residual, keep_f32, round_product)


@op(saves=("x", "w", "bias"))
def matmul_leaf8(
    x: Tensor[F, T, K8],
    w: Tensor[F, N, K8],
    bias: Tensor[F, N] | None,
    residual: Tensor[F, T, N] | None,
    keep_f32: Static[False, True] = False,
    round_product: Static[False, True] = False,
    grad_leaves: Static[1, 2, 4, 8] = 1,
) -> Outputs:
    """As matmul, but K in 8 pieces of ceil(K / 8), one f32 accumulator each, added by a pairwise tree."""
    return _finished(L.dot(x, w, over=K8), x.dtype, bias, residual, keep_f32, round_product)


BY_LEAVES = {1: matmul, 2: matmul_leaf2, 4: matmul_leaf4, 8: matmul_leaf8}


def _finished(
    y: Tile, dtype: DType, bias: Tile | None, residual: Tile | None, keep_f32: bool, round_product: bool
) -> Outputs:
    if bias is not None:
        y = y + bias.to(f32)
    if residual is not None:
        y = (y.to(dtype).to(f32) if round_product else y) + residual.to(f32)
    return L.out(y=y if keep_f32 else y.to(dtype))


# --- gradients ---


@matmul.vjp("x", "w", "bias", "residual")
def matmul_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """d x = dy w, d w = dy^T x, d bias = sum of dy over tokens, d residual = dy; casts pass gradients.

    dy is rounded to the dtype of x. d x: `grad_leaves` pieces of N, one f32 accumulator each, added pairwise.
    d w: one f32 accumulator for each piece of 8192 tokens, added ascending. d bias: the same pieces, in each
    the sums of 64 tokens by halving, ascending. One rounding each.
    """
    return _gradients(ctx, d_y, K)


@matmul_leaf2.vjp("x", "w", "bias", "residual")
def matmul_leaf2_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """As that of matmul: no gradient contracts K."""
    return _gradients(ctx, d_y, K2)


@matmul_leaf4.vjp("x", "w", "bias", "residual")
def matmul_leaf4_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """As that of matmul: no gradient contracts K."""
    return _gradients(ctx, d_y, K4)


@matmul_leaf8.vjp("x", "w", "bias", "residual")
def matmul_leaf8_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """As that of matmul: no gradient contracts K."""
    return _gradients(ctx, d_y, K8)


def _gradients(ctx: Any, d_y: Tile, k: Axis) -> Outputs:
    dtype = d_y.dtype
    if ctx.wants("x"):
        L.place("d_x", (T, k), ({}, _d_x(d_y, ctx.w, k, ctx.grad_leaves).to(dtype)))
    if ctx.wants("w"):
        L.place("d_w", (N, k), ({}, _d_w(d_y, ctx.x, k).to(dtype)))
    if ctx.wants("bias"):
        L.place("d_bias", (N,), ({}, _d_bias(d_y).to(dtype)))
    if ctx.wants("residual"):
        L.place("d_residual", (T, N), ({}, d_y.at(T, N)))
    return L.out()


def _d_x(d_y: Any, w: Any, k: Axis, leaves: int) -> Tile:
    over = replace(N, split=leaves) if leaves > 1 else N
    return L.dot(d_y.at(T, over), w.at(over, k), over=over)


def _d_w(d_y: Any, x: Any, k: Axis) -> Tile:
    return L.dot(d_y.at(TOKENS, N), x.at(TOKENS, k), over=TOKENS)


def _d_bias(d_y: Any) -> Tile:
    total = L.total()
    for t in L.stream(SUMMED):
        total.absorb(d_y.at(t.pos, N, inside=True).to(f32))
    return total.value


@op()
def column_sums(d_y: Tensor[F, T, N], bias_grad: Tensor[f32, N]) -> Outputs:
    """d_bias = bias_grad plus the f32 sum of d_y over tokens, in the order of matmul's gradient of bias."""
    L.place("d_bias", (N,), ({}, bias_grad + _d_bias(d_y)))
    return L.out()


@op()
def matmul_backward(
    d_y: Tensor[F, T, N],
    x: Tensor[F, T, K],
    w: Tensor[F, N, K],
    weight_grad: Tensor[f32, N, K] | None,
    wants: Static[...] = ("x", "w"),
    grad_leaves: Static[1, 2, 4, 8] = 1,
    partial: Static[False, True] = False,
) -> Outputs:
    """The gradient of `matmul` with unfinished results: one rank's part, or a running sum.

    partial: d_x is the f32 sum. weight_grad: d_w is weight_grad plus the f32 sum of all pieces of tokens.
    Otherwise the bits are those of the gradient itself.
    """
    dtype = d_y.dtype
    if "x" in wants:
        d_x = _d_x(d_y, w, K, grad_leaves)
        L.place("d_x", (T, K), ({}, d_x if partial else d_x.to(dtype)))
    if "w" in wants:
        d_w = _d_w(d_y, x, K)
        L.place("d_w", (N, K), ({}, d_w.to(dtype) if weight_grad is None else weight_grad + d_w))
    return L.out()
