"""Which tokens count, and to which sequence each belongs: one object for all co-packed tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import checked_offsets, segments_of

Side = Literal["left", "right"]


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of tokens: packed [T] or padded [B, L]. Make one with `Layout.packed` or `Layout.padded`.

    shape: of a tensor of one number per token. active: bool of that shape, the tokens that count.
    sequence: i32 of that shape, the sequence of each token. sequences: how many there are. order: all tokens,
    i32 [tokens], the active ones first, sequence by sequence, then the others: in this order sums over tokens
    are taken, so that padded and packed inputs agree. bounds: i32 or i64 [sequences, 2], where the tokens of
    each sequence begin and end in a flat row of all tokens, those that do not count included.
    """

    shape: tuple[int, ...]
    active: torch.Tensor
    sequence: torch.Tensor
    sequences: int
    order: torch.Tensor
    bounds: torch.Tensor

    @staticmethod
    def packed(
        cu_seqlens: torch.Tensor, *, mask: torch.Tensor | None = None, tokens: int | None = None
    ) -> Layout:
        """Lay out sequences one after the other: sequence i holds tokens [cu_seqlens[i], cu_seqlens[i + 1]).

        cu_seqlens: int32 or int64 [sequences + 1]. mask: bool [T], and-ed. tokens: T, needed without a mask
        so that nothing waits for the device; tokens at or beyond cu_seqlens[-1] do not count.
        """
        checked_offsets("Layout.packed", "offsets", cu_seqlens)
        if tokens is None:
            if mask is None:
                raise LaunchError(
                    Code.ARG_MISSING,
                    op="Layout.packed",
                    name="tokens",
                    why="when no mask says how many there are",
                )
            tokens = mask.numel()
        position = torch.arange(tokens, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequences = cu_seqlens.numel() - 1
        owner = torch.searchsorted(cu_seqlens[1:].contiguous(), position, right=True)
        active = (position >= cu_seqlens[0]) & (position < cu_seqlens[-1])
        sequence = owner.clamp(max=max(sequences - 1, 0)).to(torch.int32)
        bounds = segments_of(cu_seqlens)
        return Layout._masked("Layout.packed", (tokens,), active, sequence, bounds, mask)

    @staticmethod
    def padded(
        lengths: torch.Tensor, L: int, *, side: Side = "right", mask: torch.Tensor | None = None
    ) -> Layout:
        """Lay out sequences as rows of L tokens, padded on one side.

        lengths: int32 or int64 [B]. side: where the padding is. mask: bool [B, L], and-ed.
        """
        if side not in ("left", "right"):
            raise LaunchError(
                Code.ARG_VALUE, op="Layout.padded", name="side", value=side, wanted="left or right"
            )
        checked_offsets("Layout.padded", "offsets", lengths)
        column = torch.arange(L, device=lengths.device, dtype=lengths.dtype)
        active = column < lengths[:, None] if side == "right" else column >= L - lengths[:, None]
        rows = lengths.numel()
        sequence = torch.arange(rows, device=lengths.device, dtype=torch.int32)[:, None].expand(rows, L)
        edges = torch.arange(rows + 1, device=lengths.device) * L
        return Layout._masked("Layout.padded", (rows, L), active, sequence, segments_of(edges), mask)

    @staticmethod
    def _masked(
        op: str,
        shape: tuple[int, ...],
        active: torch.Tensor,
        sequence: torch.Tensor,
        bounds: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> Layout:
        if mask is not None:
            if mask.dtype is not torch.bool:
                raise LaunchError(Code.ARG_DTYPE, op=op, name="mask", got=mask.dtype, wanted=torch.bool)
            if tuple(mask.shape) != shape:
                raise LaunchError(
                    Code.ARG_SIZE,
                    op=op,
                    name="mask",
                    axis="tokens",
                    got=tuple(mask.shape),
                    other="layout",
                    wanted=shape,
                )
            active = active & mask
        active = active.contiguous()
        order = _active_first(active.reshape(-1))
        return Layout(shape, active, sequence.contiguous(), bounds.shape[0], order, bounds)

    @property
    def tokens(self) -> int:
        """How many tokens there are, active or not."""
        return self.active.numel()

    @cached_property
    def segments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the active tokens of each sequence begin and end in `order`, i32 [sequences] both."""
        owner = self.sequence.reshape(-1)
        numbers = torch.arange(self.sequences, device=owner.device, dtype=owner.dtype)
        counts = torch.zeros(self.tokens + 1, device=owner.device, dtype=torch.int64)
        counts[1:] = self.active.reshape(-1).cumsum(0)
        # tokens lie sequence by sequence, also those that are not active
        places = (torch.searchsorted(owner, numbers, right=right) for right in (False, True))
        begin, end = (counts[place].to(torch.int32) for place in places)
        return begin, end

    def tokens_like(self, op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of one number per token as a flat row; raise LaunchError for another shape."""
        if tuple(tensor.shape) != self.shape:
            raise LaunchError(
                Code.LAYOUT_MISMATCH, op=op, name=name, got=tuple(tensor.shape), wanted=self.shape
            )
        return tensor.reshape(-1)

    def digest(self) -> str:
        """Return a hash of which tokens count, and for which sequence; padded and packed forms agree.

        Waits for the device.
        """
        owners = self.sequence.reshape(-1)[self.active.reshape(-1)].cpu()
        content = hashlib.sha256(str(self.sequences).encode())
        content.update(owners.contiguous().numpy().tobytes())
        return content.hexdigest()[:16]


def _active_first(active: torch.Tensor) -> torch.Tensor:
    """Return the positions of true values in ascending order, then those of false ones."""
    count = active.to(torch.int64)
    first = count.cumsum(0) - 1
    behind = count.sum() + (1 - count).cumsum(0) - 1
    place = torch.where(active, first, behind)
    positions = torch.arange(active.numel(), device=active.device, dtype=torch.int32)
    return torch.empty_like(positions).scatter_(0, place, positions)
