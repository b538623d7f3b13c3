"""Token layouts: active tokens and their sequences, one object for all co-packed tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import (
    Outside,
    all_good,
    checked_offsets,
    misplaced,
    on_the_host,
    owners_of,
    refuse_misplaced,
    segments_of,
    some_offsets,
)
from rlk.ops.spans import Spans, several_spans
from rlk.runtime.binding.checks import (
    has_dtype,
    is_among,
    is_tensor,
    same_device,
    size,
    wrong_type,
    wrong_value,
)
from rlk.specs.packing import LENGTH, OFFSETS

Side = Literal["left", "right"]


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of tokens: packed [T] or padded [B, L]. Make one with `Layout.packed` or `Layout.padded`.

    shape: of a tensor of one number per token. active: bool of that shape, the tokens that count.
    sequence: i32 of that shape, the sequence of each token. sequences: how many there are. order: all tokens,
    i32 [tokens], the active ones first, sequence by sequence, then the others: in this order sums over tokens
    are taken, so that padded and packed inputs agree. segments: where the active tokens of each sequence
    begin and where they end in it, i32 [sequences] each. bounds: i32 or i64 [sequences, 2], where the tokens
    of each sequence begin and end in a flat row of all tokens, padding included. first, lengths: i64
    [sequences], where its first token that is no padding lies there, and how many of them it has.
    """

    shape: tuple[int, ...]
    active: torch.Tensor
    sequence: torch.Tensor
    sequences: int
    order: torch.Tensor
    segments: tuple[torch.Tensor, torch.Tensor]
    bounds: torch.Tensor
    first: torch.Tensor
    lengths: torch.Tensor

    @staticmethod
    def packed(
        cu_seqlens: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        spans: Spans | Sequence[Spans] | None = None,
        tokens: int | None = None,
        outside: Outside = "nothing",
    ) -> Layout:
        """Lay out sequences one after the other: sequence i holds tokens [cu_seqlens[i], cu_seqlens[i + 1]).

        cu_seqlens: int32 or int64 [sequences + 1], ascending from 0 to T. mask: bool [T], and-ed. spans:
        which parts of sequences count, and-ed. tokens: T, needed without a mask so that nothing waits for
        the device. outside: "padding" lets tokens before cu_seqlens[0] and behind cu_seqlens[-1] be, which
        do not count. Offsets that miss a token raise LaunchError on the host; on a device they set the error
        word, and no token counts.
        """
        op = "Layout.packed"
        checked_offsets(op, "cu_seqlens", cu_seqlens)
        if tokens is None:
            if mask is None:
                raise LaunchError(
                    Code.ARG_MISSING, op=op, name="tokens", why="when no mask says how many there are"
                )
            tokens = is_tensor(op, "mask", mask).numel()
            if outside == "nothing":
                _refuse_other_tokens(op, mask, cu_seqlens)
        tokens = size(op, "tokens", tokens)
        is_among(op, "outside", outside, ("nothing", "padding"))
        if mask is not None:
            _checked_mask(op, mask, (tokens,), "tokens")
        edges = some_offsets(op, "cu_seqlens", cu_seqlens, tokens, "tokens").contiguous()
        position = torch.arange(tokens, device=edges.device, dtype=edges.dtype)
        active = (position >= edges[0]) & (position < edges[-1])
        if on_the_host(edges):
            refuse_misplaced(op, "cu_seqlens", edges, tokens, "tokens", outside)
        elif edges.numel() > 1:
            active = active & all_good(op, misplaced(edges, tokens, outside), OFFSETS)
        sequence = owners_of(edges[1:], tokens).to(torch.int32)
        first, lengths = edges[:-1].to(torch.int64), edges.diff().to(torch.int64)
        if outside == "padding" and edges.numel() > 1:
            # padding goes to the sequence beside it, so that bounds cover all tokens
            edges = torch.cat((edges.new_zeros(1), edges[1:-1], edges.new_full((1,), tokens)))
        places = _Places((tokens,), sequence, segments_of(edges), first, lengths)
        return Layout._masked(op, places, active, mask, spans)

    @staticmethod
    def padded(
        lengths: torch.Tensor,
        L: int,
        *,
        side: Side = "right",
        mask: torch.Tensor | None = None,
        spans: Spans | Sequence[Spans] | None = None,
    ) -> Layout:
        """Lay out sequences as rows of L tokens, padded on one side.

        lengths: int32 or int64 [B], from 0 to L. side: where the padding is. mask: bool [B, L], and-ed.
        spans: which parts of sequences count, and-ed. Other lengths raise LaunchError on the host; on a
        device they set the error word, and no token counts.
        """
        op = "Layout.padded"
        is_among(op, "side", side, ("left", "right"))
        L = size(op, "L", L)
        checked_offsets(op, "lengths", lengths)
        column = torch.arange(L, device=lengths.device, dtype=lengths.dtype)
        active = column < lengths[:, None] if side == "right" else column >= L - lengths[:, None]
        bad = (lengths < 0) | (lengths > L)
        if not on_the_host(bad):
            active = active & all_good(op, bad, LENGTH)
        elif bool(bad.any()):
            value, wanted = lengths[bad].tolist(), f"0 to L = {L}"
            raise wrong_value(op, "lengths", value, wanted)
        rows = lengths.numel()
        sequence = torch.arange(rows, device=lengths.device, dtype=torch.int32)[:, None].expand(rows, L)
        edges = torch.arange(rows + 1, device=lengths.device) * L
        first = edges[:-1] if side == "right" else edges[1:] - lengths
        places = _Places((rows, L), sequence, segments_of(edges), first, lengths.to(torch.int64))
        return Layout._masked(op, places, active, mask, spans)

    @staticmethod
    def _masked(
        op: str,
        places: _Places,
        active: torch.Tensor,
        mask: torch.Tensor | None,
        spans: Spans | Sequence[Spans] | None,
    ) -> Layout:
        shape = places.shape
        if mask is not None:
            _checked_mask(op, mask, shape, "the lengths and L")
            same_device(op, "mask", mask, "layout", active.device)
            active = active & mask
        for each in several_spans(op, spans):
            same_device(op, "spans", each.begin, "layout", active.device)
            counted = each.counted(places.first, places.lengths, active.numel())
            active = active & counted.reshape(shape)
        active, sequence = active.contiguous(), places.sequence.contiguous()
        return Layout(
            shape=shape,
            active=active,
            sequence=sequence,
            sequences=places.lengths.numel(),
            order=_active_first(active.reshape(-1)),
            segments=_segments(active.reshape(-1), sequence.reshape(-1), places.lengths.numel()),
            bounds=places.bounds,
            first=places.first,
            lengths=places.lengths,
        )

    @property
    def tokens(self) -> int:
        """Return the number of tokens, active or not."""
        return self.active.numel()

    def tokens_like(self, op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of one number per token as a flat row; raise LaunchError for another shape."""
        if tuple(tensor.shape) != self.shape:
            raise LaunchError(
                Code.LAYOUT_MISMATCH, op=op, name=name, got=tuple(tensor.shape), wanted=self.shape
            )
        if tensor.layout is not torch.strided:
            raise LaunchError(Code.ARG_TYPE, op=op, name=name, wanted="dense tensor", got=tensor.layout)
        return tensor.reshape(-1)

    @property
    def position(self) -> torch.Tensor:
        """The position of each token in its sequence, i64 of the tokens' shape; out of range for padding."""
        flat = torch.arange(self.tokens, device=self.active.device).reshape(self.shape)
        if not self.sequences:
            return flat
        return flat - self.first[self.sequence.to(torch.int64)]

    def digest(self) -> str:
        """Return a hash of how long sequences are and which of their tokens count; padded and packed agree.

        Rollout and trainer can compare it: a mask that is shifted by one has another. Waits for the device.
        """
        found = (self.sequence[self.active], self.position[self.active], self.lengths)
        content = hashlib.sha256(str(self.sequences).encode())
        for part in found:
            content.update(part.to(torch.int64).cpu().contiguous().numpy().tobytes())
        return content.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of tokens, before a mask or spans say which of them are active."""

    shape: tuple[int, ...]
    sequence: torch.Tensor
    bounds: torch.Tensor
    first: torch.Tensor
    lengths: torch.Tensor


def checked_layout(op: str, layout: object) -> Layout:
    """Return a layout; raise LaunchError for anything else."""
    if not isinstance(layout, Layout):
        raise wrong_type(op, "layout", layout, "Layout")
    return layout


def _checked_mask(op: str, mask: object, shape: tuple[int, ...], by: str) -> None:
    """Raise LaunchError for what is no bool for each token, naming what says how many there are."""
    found = is_tensor(op, "mask", mask)
    has_dtype(op, "mask", found, torch.bool)
    got = tuple(found.shape)
    if got != shape:
        raise LaunchError(Code.ARG_SHAPE, op=op, name="mask", got=got, wanted=shape, why=f"by {by}")


def _refuse_other_tokens(op: str, mask: torch.Tensor, cu_seqlens: torch.Tensor) -> None:
    """Raise LaunchError for a mask of another length than offsets on the host that are good by themselves."""
    if not on_the_host(cu_seqlens) or cu_seqlens.numel() < 2:
        return
    last = int(cu_seqlens[-1])
    if last >= 0 and not bool(misplaced(cu_seqlens, last).any()):
        _checked_mask(op, mask, (last,), "cu_seqlens")


def _segments(active: torch.Tensor, owner: torch.Tensor, sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bounds of each sequence's active tokens among all active tokens, in memory order."""
    counts = torch.zeros(active.numel() + 1, device=active.device, dtype=torch.int64)
    counts[1:] = active.cumsum(0)
    numbers = torch.arange(sequences, device=owner.device, dtype=owner.dtype)
    # tokens are in order of sequences, inactive ones too
    places = (torch.searchsorted(owner, numbers, right=right) for right in (False, True))
    begin, end = (counts[place].to(torch.int32) for place in places)
    return begin, end


def _active_first(active: torch.Tensor) -> torch.Tensor:
    """Return the positions of true values in ascending order, then those of false ones."""
    count = active.to(torch.int64)
    first = count.cumsum(0) - 1
    behind = count.sum() + (1 - count).cumsum(0) - 1
    place = torch.where(active, first, behind)
    positions = torch.arange(active.numel(), device=active.device, dtype=torch.int32)
    return torch.empty_like(positions).scatter_(0, place, positions)
