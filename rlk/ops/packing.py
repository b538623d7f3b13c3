"""Conversion of token tensors between padded rows and packed ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.layout import Layout, Side, checked_layout
from rlk.runtime.binding.checks import are_tensors, wrong_dims, wrong_value
from rlk.runtime.call.entry import call
from rlk.specs import packing as packing_spec


def pack(x: torch.Tensor, layout: Layout, *, side: Side = "right") -> torch.Tensor:
    """Return the tokens of padded rows one sequence after the other, [T, ...].

    x: [B, L, ...] of any dtype that rlk has (bf16, f16, f32, int64, int32, bool). layout: the packed one of
    the result: it says T, and how long each of the B sequences is. side: where x is padded. Tokens that the
    layout's mask leaves out are moved too; padding behind the last sequence is 0.

    A sequence longer than L raises LaunchError where lengths are on the host; on a device it sets the error
    word, and the result is 0. Differentiable in x: each token of the gradient goes back to where it came
    from. Raises LaunchError.
    """
    _movable("pack", x, 2, "[B, L, ...]", layout, 1, "packed")
    if x.shape[0] != layout.sequences:
        got, wanted = x.shape[0], layout.sequences
        raise LaunchError(
            Code.ARG_SIZE, op="pack", name="x", axis="B", got=got, other="layout", wanted=wanted
        )
    padded = _laid("pack", lambda: Layout.padded(layout.lengths, x.shape[1], side=side))
    return _moved("pack", x, 2, layout, padded)


def unpack(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return packed tokens as padded rows, [B, L, ...]; padding is 0.

    x: [T, ...] of any dtype that rlk has (bf16, f16, f32, int64, int32, bool), T the sum of the layout's
    lengths. layout: the padded one of the result: it says B, L, the side of the padding, and the lengths.

    Another T raises LaunchError where lengths are on the host; on a device it sets the error word, and the
    result is 0. Differentiable in x: each token of the gradient goes back to where it came from. Raises
    LaunchError.
    """
    _movable("unpack", x, 1, "[T, ...]", layout, 2, "padded")
    edges = torch.cat((layout.lengths.new_zeros(1), layout.lengths.cumsum(0)))
    packed = _laid("unpack", lambda: Layout.packed(edges, tokens=x.shape[0]))
    return _moved("unpack", x, 1, layout, packed)


def _movable(op: str, x: torch.Tensor, dims: int, wanted: str, layout: Layout, rank: int, form: str) -> None:
    """Refuse tensors without tokens, and a layout of the other form."""
    checked_layout(op, layout)
    are_tensors(op, x=x)
    if x.dim() < dims:
        raise wrong_dims(op, "x", x.shape, wanted)
    if len(layout.shape) != rank:
        value, form = f"of {layout.shape}", f"the {form} layout of the result"
        raise wrong_value(op, "layout", value, form)


def _laid(op: str, made: Callable[[], Layout]) -> Layout:
    """Return the layout of x, made of the result's lengths; errors are in the words of the call."""
    try:
        return made()
    except LaunchError as error:
        names = dict.fromkeys(("lengths", "cu_seqlens"), "layout")
        raise error.reworded(op=dict.fromkeys(("Layout.padded", "Layout.packed"), op), name=names) from None


def _moved(op: str, x: torch.Tensor, dims: int, to: Layout, there: Layout) -> torch.Tensor:
    """Return the tokens of x, whose first dims have the layout `there`, in the layout `to`, unmasked."""
    shape = (*to.shape, *x.shape[dims:])
    rows = x.reshape(there.tokens, math.prod(x.shape[dims:]))
    real = there.active.reshape(-1)
    source = _places(to, there)
    if there.tokens:
        source = torch.where(real[source.clamp(0, there.tokens - 1)], source, -1)
    tensors = {"source": source, "x": rows}
    spec = packing_spec.take_whole
    if x.dtype.is_floating_point and (_with_gradient(x) or torch.compiler.is_compiling()):
        spec, tensors["back"] = packing_spec.take_rows, torch.where(real, _places(there, to), -1)
    try:
        return call(spec, tensors, {}, {})["y"].reshape(shape)
    except LaunchError as error:
        names = dict.fromkeys(("source", "back"), "layout")
        raise error.reworded(op={spec.name: op}, name=names, other=names) from None


def _with_gradient(x: torch.Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _places(to: Layout, there: Layout) -> torch.Tensor:
    """Return the index of each token of a layout in another one, i64 [tokens]; -1 for padding."""
    owner, position = to.sequence.reshape(-1).to(torch.int64), to.position.reshape(-1)
    if not to.sequences:
        return torch.full_like(position, -1)
    real = (position >= 0) & (position < to.lengths[owner])
    return torch.where(real, there.first[owner] + position, -1)
