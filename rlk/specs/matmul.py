"""Batch-invariant matrix products: tiles may depend on M, bits do not."""

from __future__ import annotations

from rlk.lang import Axis, DType, DTypeVar, L, Outputs, Static, Tensor, Tile, bf16, f16, f32, op

T = Axis("T", dynamic=True)
N = Axis("N")
K = Axis("K")
K8 = Axis("K", split=8)
F = DTypeVar("F", (bf16, f16))


@op()
def matmul(
    x: Tensor[F, T, K],
    w: Tensor[F, N, K],
    bias: Tensor[F, N] | None,
    residual: Tensor[F, T, N] | None,
    keep_f32: Static[False, True] = False,
) -> Outputs:
    """y = x w^T + bias + residual: one f32 accumulator over ascending K (chain16), f32 sums, one rounding.

    keep_f32: y is the f32 sum itself.
    """
    return _finished(L.dot(x, w, over=K), x.dtype, bias, residual, keep_f32)


@op()
def matmul_leaf8(
    x: Tensor[F, T, K8],
    w: Tensor[F, N, K8],
    bias: Tensor[F, N] | None,
    residual: Tensor[F, T, N] | None,
    keep_f32: Static[False, True] = False,
) -> Outputs:
    """As matmul, but K in 8 pieces of ceil(K / 8), one f32 accumulator each, added by a pairwise tree."""
    return _finished(L.dot(x, w, over=K8), x.dtype, bias, residual, keep_f32)


def _finished(y: Tile, dtype: DType, bias: Tile | None, residual: Tile | None, keep_f32: bool) -> Outputs:
    if bias is not None:
        y = y + bias.to(f32)
    if residual is not None:
        y = y + residual.to(f32)
    return L.out(y=y if keep_f32 else y.to(dtype))
