"""The arithmetic of contractions on arrays: the exact bits of each dot model, compiled, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, assert_never

import numba
import numpy as np
from numpy.typing import NDArray

from rlk.interp.chain16 import chain16
from rlk.interp.dot_cdna import cdna2, cdna3
from rlk.interp.floats import bf16_from_bits, tree_sum
from rlk.interp.machine_code import kept
from rlk.interp.scalar import fma_one
from rlk.ir.dotmodel import FACTORS, LEAVES, DotModel
from rlk.ir.tree import Tree
from rlk.ir.types import DType

Array = NDArray[Any]
F32 = NDArray[np.float32]

NARROW = 32  # columns below which b takes the place of a: vectors advance along columns


def dot(a: Array, b: Array, model: DotModel, dtype: DType, acc: Array | None = None) -> Array:
    """Return acc[M, N] + a[M, K] b[N, K]^T as a model computes it, f32[M, N]; acc is +0.0 if not given.

    Of the model of integers acc and the result are i32.

    dtype: the factors' type, which all models but fma depend on. Operands are f32 arrays of numbers that fit
    it (as everywhere in the oracle), f16 arrays, or u16 patterns of bf16. Raises ValueError for other
    operands and for shapes that do not fit. The call holds no lock and starts no thread: callers split the
    rows as they like, the bits do not change.
    """
    if dtype not in FACTORS[model]:
        raise ValueError(f"{model.value} is no rule for factors of {dtype}")
    if model is DotModel.INTEGER:
        return integer(a, b, acc)
    x, y = _operand(a), _operand(b)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"a[M, K] and b[N, K] expected, got {list(x.shape)} and {list(y.shape)}")
    shape = (len(x), len(y))
    start = np.zeros(shape, np.float32) if acc is None else np.asarray(acc)
    if start.shape != shape or start.dtype != np.float32:
        raise ValueError(f"acc is {start.dtype}{list(start.shape)}, f32{list(shape)} expected")
    match model:
        case DotModel.CHAIN16:
            return _wide_enough(x, y, start, partial(chain16, dtype=dtype))
        case DotModel.FMA:
            return _wide_enough(x, y, start, _fma_chain)
        case DotModel.CDNA3:
            return _wide_enough(x, y, start, partial(cdna3, dtype=dtype))
        case DotModel.CDNA2:
            return _wide_enough(x, y, start, partial(cdna2, dtype=dtype))
        case _:
            assert_never(model)


def integer(a: Array, b: Array, acc: Array | None = None) -> Array:
    """Return acc[M, N] + a[M, K] b[N, K]^T of i8, i32[M, N], modulo 2**32."""
    # products of 14 bits: sums in f64 are exact for K below 2**39
    made = (np.asarray(a, np.float64) @ np.asarray(b, np.float64).T).astype(np.int64)
    return (made if acc is None else made + acc).astype(np.int32)


def leaf8(a: Array, b: Array, dtype: DType) -> F32:
    """Return a[M, K] b[N, K]^T with K in 8 leaves of ceil(K / 8), each a chain16, added by a pairwise tree.

    A leaf beyond the end of K is +0.0, the accumulator of no products.
    """
    x, y = _operand(a), _operand(b)
    size = max(1, -(-x.shape[1] // LEAVES))
    parts = [slice(i * size, (i + 1) * size) for i in range(LEAVES)]
    leaves = np.stack([dot(x[:, p], y[:, p], DotModel.CHAIN16, dtype) for p in parts])
    with np.errstate(all="ignore"):
        total: F32 = tree_sum(leaves, 0, Tree.pairwise)
    return total


def _operand(x: Array) -> F32:
    x = np.asarray(x)
    if x.dtype in (np.uint16, np.int16):
        return bf16_from_bits(x)
    if x.dtype not in (np.float16, np.float32):
        raise ValueError(f"an operand of a dot is f32, f16 or u16 patterns of bf16, not {x.dtype}")
    return x.astype(np.float32, copy=False)


def _wide_enough(a: F32, b: F32, acc: F32, advance: Callable[[F32, F32, F32], F32]) -> F32:
    """Swap a and b if b has few rows, so that the vector axis is the longer one: products commute."""
    if len(b) < NARROW < len(a):
        return np.ascontiguousarray(advance(b, a, acc.T).T)
    return advance(a, b, acc)


# --- the f32 chain -----------------------------------------------------------------------------------


def _fma_chain(a: F32, b: F32, acc: F32) -> F32:
    out = np.array(acc, np.float32, order="C")
    _compiled(_advance_fma)(np.ascontiguousarray(a), np.ascontiguousarray(b.T), out)
    return out


def _advance_fma(a: Any, b: Any, out: Any) -> None:
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            x = a[i, k]
            for n in range(b.shape[1]):
                out[i, n] = fma_one(x, b[k, n], out[i, n])


@cache
def _compiled(function: Callable[..., None]) -> Any:
    return kept(numba.njit(nogil=True, error_model="numpy")(function))
