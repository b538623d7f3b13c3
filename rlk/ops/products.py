"""Gradients of products: of a rank's part, and of a weight whose gradient is added onto an f32 buffer."""

from __future__ import annotations

from dataclasses import replace

import torch

from rlk.ops.weight_buffers import BufferedProduct
from rlk.runtime.binding.checks import wrong_value
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import separate_gradients
from rlk.runtime.call.dispatch import dispatch
from rlk.specs import matmul as spec

OP = "matmul"

for _op in spec.BY_LEAVES.values():
    # bias and residual give the shapes of their gradients alone
    separate_gradients(_op, {"x": ("w",), "w": ("x",)}, {"residual": "y"})


def add_weight_gradient(d_y: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> None:
    """Add d_y^T x onto an f32 buffer, in place; the sums of pieces of 8192 tokens are first added ascending.

    d_y: [..., N], rounded to the dtype of x. x: [..., K]. buffer: [N, K], contiguous.
    """
    tensors = {
        "d_y": d_y.to(x.dtype).contiguous(),
        "x": x,
        "weight_grad": buffer,
        "d_w": buffer,
    }
    read = {n: t for n, t in tensors.items() if n != "d_w"}
    invocation = invoke(spec.matmul_backward, read, {}, {"wants": ("w",)}, None)
    dispatch(replace(invocation, into=frozenset({"d_w"})), tensors, {})


def weight_gradient(d_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return d_y^T x in the dtype of x, rounded once; arguments as of `add_weight_gradient`."""
    tensors = {"d_y": d_y.to(x.dtype).contiguous(), "x": x}
    return dispatch(invoke(spec.matmul_backward, tensors, {}, {"wants": ("w",)}, None), tensors, {})["d_w"]


def input_gradient(d_y: torch.Tensor, w: torch.Tensor, leaves: int) -> torch.Tensor:
    """Return d_y w in the dtype of w, N in `leaves` equal pieces added pairwise, rounded once.

    d_y: [..., N], rounded to the dtype of w. w: [N, K]. Raises LaunchError.
    """
    return _input_gradient(d_y, w, leaves, partial=False)


def partial_input_gradient(d_y: torch.Tensor, w: torch.Tensor, leaves: int) -> torch.Tensor:
    """Return d_y w in f32, N in `leaves` equal pieces added pairwise: one rank's subtree of d x.

    d_y: [..., N], rounded to the dtype of w. w: [N, K], of the rank. Raises LaunchError.
    """
    return _input_gradient(d_y, w, leaves, partial=True)


def _input_gradient(d_y: torch.Tensor, w: torch.Tensor, leaves: int, partial: bool) -> torch.Tensor:
    check_pieces("w.shape[0]", w.shape[0], leaves)
    tensors = {"d_y": d_y.to(w.dtype).contiguous(), "w": w}
    statics = {"wants": ("x",), "grad_leaves": leaves, "partial": partial}
    return dispatch(invoke(spec.matmul_backward, tensors, {}, statics, None), tensors, {})["d_x"]


def check_pieces(name: str, extent: int, leaves: int) -> None:
    """Raise LaunchError for an extent that cannot be cut into equal pieces."""
    if leaves > 1 and extent % leaves:
        wanted = f"a multiple of {leaves}, the leaves that it is cut into"
        raise wrong_value(OP, name, extent, wanted)


buffered = BufferedProduct(OP, spec.BY_LEAVES, ("x",), add_weight_gradient)
"""y = x w^T whose gradient of w is added onto a buffer."""
