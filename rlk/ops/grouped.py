"""The public operator of grouped products: rows sorted by expert, each with the weight of its own expert."""

from __future__ import annotations

from dataclasses import replace

import torch

from rlk.ops.linear import some_factors
from rlk.ops.offsets import all_good, looked_at, misplaced, on_the_host, refuse_misplaced, some_offsets
from rlk.ops.weight_buffers import BufferedProduct, check_buffer
from rlk.runtime.binding.checks import are_tensors, has_dims, is_choice, wrong_value
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import separate_gradients
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import call, worded
from rlk.specs import grouped as spec
from rlk.specs.packing import OFFSETS

OP = "grouped_matmul"

_BOUNDS = ("begin", "end")
for _op in (*spec.BY_LEAVES.values(), spec.grouped_weight_grad):
    worded(_op, OP, begin="offsets", end="offsets")
for _op in spec.BY_LEAVES.values():
    separate_gradients(_op, {"x": ("w", *_BOUNDS), "w": ("x", *_BOUNDS), "bias": _BOUNDS}, {})


def grouped_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    offsets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    leaves: int = 1,
    grad_leaves: int = 1,
    out_dtype: torch.dtype | None = None,
    weight_grad_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x[t] w[e]^T + bias[e] for rows sorted by expert: e is the expert whose rows t is among.

    x: [T, K], w: [E, N, K], bias: [E, N], one dtype, bf16 or f16. offsets: int32 or int64 [E + 1], on the
    device of x: rows [offsets[e], offsets[e + 1]) are those of expert e, which may have none. Returns [T, N].
    One f32 accumulator over ascending K (chain16), an f32 sum, one rounding; out_dtype=torch.float32 returns
    the f32 sum. The bits of a row are those of `matmul(x, w[e], bias=bias[e])`: they depend on the row and on
    its expert alone, not on how many rows an expert has.
    leaves: 1, 2, 4 or 8 equal pieces of K, of which each has one f32 accumulator (chain16), added pairwise,
    as of `matmul`; K must be a multiple of it. More leaves are other bits, for experts whose K ranks share.

    Differentiable in x, w and bias. The gradient of the result is rounded to the dtype of x; each gradient is
    an f32 sum, rounded once. d x: N in grad_leaves equal pieces (1, 2, 4 or 8), one chain16 each, added
    pairwise: for experts whose N ranks share. d w: the rows of an expert in pieces of 8192, counted from its
    first row, one chain16 each, added ascending. d bias: the same pieces, each the sums of 64 rows (by
    halving) in ascending order. Both are +0 where an expert has no rows.
    weight_grad_out: f32 [E, N, K], contiguous; backward adds the f32 d w to it, in place, once, and w.grad
    stays as it is; nothing is added where an expert has no rows.

    Offsets on the host must ascend from 0 to T. Those on a device are never read by the host; they are
    checked under RLK_CHECK=1, and wrong ones touch no memory outside of the tensors. Raises LaunchError.
    """
    are_tensors(OP, x=x, w=w, offsets=offsets)
    has_dims(OP, "x", x.shape, 2, "2 dims [T, K]")
    has_dims(OP, "w", w.shape, 3, "3 dims [E, N, K]")
    if out_dtype not in (None, x.dtype, torch.float32):
        raise wrong_value(OP, "out_dtype", out_dtype, f"None, {x.dtype} or torch.float32")
    if weight_grad_out is not None:
        check_buffer(w, weight_grad_out, OP)
    for name, count, size in (("leaves", leaves, x.shape[1]), ("grad_leaves", grad_leaves, w.shape[1])):
        is_choice(OP, name, count, tuple(spec.BY_LEAVES))
        if size % count:
            of = "x.shape[1]" if name == "leaves" else "w.shape[1]"
            raise wrong_value(OP, of, size, f"a multiple of {name} = {count}")
    x, w = some_factors(x, w)
    offsets = _checked(x, w, offsets)
    tensors: Tensors = {"x": x, "w": w, "begin": offsets[:-1], "end": offsets[1:]}
    if bias is not None:
        tensors["bias"] = bias
    statics = {"keep_f32": out_dtype is torch.float32, "grad_leaves": grad_leaves}
    if weight_grad_out is not None and weight_grad_out.numel():
        return buffered(leaves, tensors, statics, weight_grad_out)
    return call(spec.BY_LEAVES[leaves], tensors, {}, statics)["y"]


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


# --- the gradient of w onto a buffer ------------------------------------------------------------------------


def add_grouped_weight_gradient(
    d_y: torch.Tensor, x: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, buffer: torch.Tensor
) -> None:
    """Add d_y^T x of each expert's rows onto an f32 buffer, in place, in the order of the gradient.

    d_y: [T, N], rounded to the dtype of x. x: [T, K]. begin, end: [E]. buffer: [E, N, K], contiguous.
    """
    read = {
        "d_y": d_y.to(x.dtype).contiguous(), "x": x, "begin": begin, "end": end, "weight_grad": buffer,
    }  # fmt: skip
    invocation = invoke(spec.grouped_weight_grad, read, {}, {}, None)
    dispatch(replace(invocation, into=frozenset({"d_w"})), read | {"d_w": buffer}, {})


buffered = BufferedProduct(OP, spec.BY_LEAVES, ("x", *_BOUNDS), add_grouped_weight_gradient)
"""The same product, whose gradient of w is added onto a buffer."""
