"""Token ids packed for a forward pass: padding removed, and put back into its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.nn.tokens import WholeSequences
from rlk.ops.layout import Layout
from rlk.ops.offsets import all_good, on_the_host
from rlk.runtime.binding.checks import has_dtype, is_tensor, wrong_dims, wrong_type, wrong_value
from rlk.runtime.call.autograd import transforming
from rlk.specs.packing import POSITIONS

OP = "CausalLM"


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Tokens that exist, sequence by sequence, and where they came from.

    ids: [T]. rows: int64 [T], of each token in a flat row of all tokens, None if none is padding. shape: of
    the ids that were given. next_ids: [T], the token behind each; has_next: bool [T], false for the last
    token of a sequence.
    """

    ids: torch.Tensor
    tokens: WholeSequences
    next_ids: torch.Tensor
    has_next: torch.Tensor
    rows: torch.Tensor | None
    shape: tuple[int, ...]

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, ...] in the shape that was given, 0 at padding; never write it in place (`spread`)."""
        return spread(x, self.rows, self.shape)

    def restore_next(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers [T] of the tokens behind each token, at the place of those tokens."""
        return self.restore(torch.nn.functional.pad(x[:-1], (1, 0)) if len(x) else x)


def spread(x: torch.Tensor, rows: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor:
    """Return x [T, ...] as [*shape, ...]: token i at row rows[i] (None: at row i), 0 elsewhere.

    It may be x's memory, unknown to autograd: write neither in place.
    """
    if rows is not None:
        x = x.new_zeros(prod(shape), *x.shape[1:]).index_copy(0, rows, x)
    whole = (*shape, *x.shape[1:])
    if x.shape == whole:
        return x
    if not x.requires_grad or torch.compiler.is_compiling() or transforming():
        return x.reshape(whole)
    made: torch.Tensor = _Reshaped.apply(x, whole)
    return made


class _Reshaped(torch.autograd.Function):
    """A tensor in another shape, no view for autograd: FSDP2 warns of views that a module returns.

    Both have one memory, and autograd sees no write to it through the other: neither is written in place.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        ctx.shape = x.shape
        return x.reshape(shape).detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.reshape(ctx.shape), None


def pack_tokens(ids: torch.Tensor, layout: Layout | Packed | None) -> Packed:
    """Return the tokens of a layout without padding. Waits for the device where some may be padding.

    Packed tokens are taken as they are, so that several calls pay for it once.
    """
    has_dtype(OP, "ids", is_tensor(OP, "ids", ids), torch.int64, torch.int32)
    if layout is not None and not isinstance(layout, (Layout, Packed)):
        wanted = "Layout, Packed or None (ops.Layout.packed and ops.Layout.padded make one)"
        raise wrong_type(OP, "layout", layout, wanted)
    if layout is None:
        if ids.dim() == 0:
            raise wrong_dims(OP, "ids", ids.shape, "1 or more, [T] or [B, L]")
        rows = ids.numel() // max(1, ids.shape[-1])
        lengths = torch.full((rows,), ids.shape[-1], device=ids.device)
        return _packed(ids, lengths, None)
    if tuple(ids.shape) != layout.shape:
        raise LaunchError(Code.LAYOUT_MISMATCH, op=OP, name="ids", got=tuple(ids.shape), wanted=layout.shape)
    if isinstance(layout, Packed):
        return layout
    lengths = layout.lengths
    if int(lengths.sum()) == layout.tokens:
        return _packed(ids, lengths, None)
    position = layout.position
    exists = (position >= 0) & (position < lengths[layout.sequence.to(torch.int64)])
    return _packed(ids, lengths, exists.flatten().nonzero().flatten())


LAYOUT_OF = {
    "attention_mask": 'layout=ops.Layout.padded(attention_mask.sum(1), L, side="left" or "right")',
    "position_ids": "layout=, whose sequences count their positions from 0",
    "cu_seqlens": "layout=ops.Layout.packed(cu_seqlens, tokens=T)",
    "labels": "logps(ids, layout), whose negative mean is the loss",
}
"""What takes the place of arguments of transformers' models."""


def refuse_others(op: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raise LaunchError for arguments that a call of a model does not have."""
    for name, value in given.items():
        shape = f" {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        instead = f"; in place of {name}: {LAYOUT_OF[name]}" if name in LAYOUT_OF else ""
        choices = ", ".join(known) + instead
        raise LaunchError(Code.UNKNOWN_NAME, what=f"{op}: the argument", name=name + shape, choices=choices)


def check_ids(ids: torch.Tensor, vocabulary: int, *, op: str = OP, name: str = "ids") -> None:
    """Raise LaunchError for ids outside of a vocabulary; on a device the embedding looks at them."""
    if ids.numel() and on_the_host(ids):
        low, high = (int(x) for x in ids.aminmax())
        if low < 0 or high >= vocabulary:
            wanted = f"ids from 0 to {vocabulary - 1}"
            raise wrong_value(op, name, low if low < 0 else high, wanted)


def check_tokens(packed: Packed, vocabulary: int, positions: int) -> None:
    """Raise LaunchError for ids outside of a vocabulary, or sequences longer than tables of positions.

    Offsets on a device are not waited for: a kernel looks at them, unless all tokens together fit, and sets
    the error word. Ids on a device are looked at by the embedding.
    """
    ids, offsets = packed.ids, packed.tokens.cu_seqlens
    check_ids(ids, vocabulary)
    if len(ids) <= positions:
        return
    lengths = offsets.diff()
    if not on_the_host(offsets):
        all_good(OP, lengths > positions, POSITIONS)
    elif (longest := int(lengths.max())) > positions:
        wanted = f"at most max_position_embeddings = {positions}"
        raise wrong_value(OP, "the length of a sequence", longest, wanted)


def _packed(ids: torch.Tensor, lengths: torch.Tensor, rows: torch.Tensor | None) -> Packed:
    flat = ids.reshape(-1) if rows is None else ids.reshape(-1)[rows]
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    has_next = torch.ones(len(flat), dtype=torch.bool, device=ids.device)
    if len(flat):  # an empty sequence names the last token of one before it, or of all: they have none either
        has_next[(cu[1:] - 1).to(torch.int64)] = False
    following = torch.nn.functional.pad(flat[1:], (0, 1)) if len(flat) else flat
    return Packed(flat, WholeSequences.of(cu, len(flat)), following, has_next, rows, tuple(ids.shape))
