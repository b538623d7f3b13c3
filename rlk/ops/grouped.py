"""The public operator of grouped products: rows sorted by expert, each with the weight of its own expert."""

from __future__ import annotations

import torch

from rlk.ops.linear import some_factors
from rlk.ops.offsets import all_good, looked_at, misplaced, on_the_host, refuse_misplaced, some_offsets
from rlk.runtime.binding.checks import are_tensors, has_dims, wrong_value
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import grouped as spec
from rlk.specs.packing import OFFSETS

OP = "grouped_matmul"

worded(spec.grouped_matmul, OP, begin="offsets", end="offsets")


def grouped_matmul(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return x[t] w[e]^T for rows sorted by expert: e is the expert whose rows t is among.

    x: [T, K], w: [E, N, K], one dtype, bf16 or f16. offsets: int32 or int64 [E + 1], on the device of x: rows
    [offsets[e], offsets[e + 1]) are those of expert e, which may have none. Returns [T, N]. One f32
    accumulator over ascending K (chain16), one rounding; out_dtype=torch.float32 returns the f32 sum. The
    bits of a row are those of `matmul(x, w[e])`: they depend on the row and on its expert's weight alone, not
    on how many rows an expert has.

    Differentiable in x and w. The gradient of the result is rounded to the dtype of x; each gradient is an
    f32 sum, rounded once. d x: one chain16 over ascending N. d w: the rows of an expert in pieces of 8192,
    counted from its first row, one chain16 each, added ascending; +0 where an expert has no rows.

    Offsets on the host must ascend from 0 to T. Those on a device are never read by the host; they are
    checked under RLK_CHECK=1, and wrong ones touch no memory outside of the tensors. Raises LaunchError.
    """
    are_tensors(OP, x=x, w=w, offsets=offsets)
    has_dims(OP, "x", x.shape, 2, "2 dims [T, K]")
    has_dims(OP, "w", w.shape, 3, "3 dims [E, N, K]")
    if out_dtype not in (None, x.dtype, torch.float32):
        raise wrong_value(OP, "out_dtype", out_dtype, f"None, {x.dtype} or torch.float32")
    x, w = some_factors(x, w)
    offsets = _checked(x, w, offsets)
    tensors: Tensors = {"x": x, "w": w, "begin": offsets[:-1], "end": offsets[1:]}
    return call(spec.grouped_matmul, tensors, {}, {"keep_f32": out_dtype is torch.float32})["y"]


def _checked(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return offsets, contiguous; refuse those that do not cut the rows of x into the experts of w."""
    rows = x.shape[0]
    found = some_offsets(OP, "offsets", offsets, rows, "rows of x")
    if found.shape[0] != w.shape[0] + 1:
        wanted = f"({w.shape[0] + 1},): one more than the experts of w"
        raise wrong_value(OP, "offsets.shape", tuple(found.shape), wanted)
    if on_the_host(found):
        refuse_misplaced(OP, "offsets", found, rows, "rows of x")
    elif looked_at(found) and len(found) > 1:
        all_good(OP, misplaced(found, rows), OFFSETS)
    return found.contiguous()
