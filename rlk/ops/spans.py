"""Spans of positions within sequences that count: turns, tool outputs and media."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import all_good, checked_offsets, on_the_host
from rlk.runtime.binding.checks import has_dtype, is_tensor, same_device, wrong_type, wrong_value
from rlk.specs.packing import SPAN


@dataclass(frozen=True, eq=False)
class Spans:
    """Span i is the positions [begin[i], end[i]) of sequence[i], counted from its first token.

    Positions do not know where padding is, so the same spans fit packed and padded layouts. counts: whether
    only tokens inside of spans count, or only those outside. where: bool [spans], the spans that are there.
    Make one with `loss_spans` or `modality_spans`.
    """

    sequence: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    counts: bool
    where: torch.Tensor | None = None

    def counted(self, first: torch.Tensor, lengths: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return which of a flat row of tokens count, as far as these spans say, bool [tokens].

        first, lengths: where each sequence begins in the row, and how many tokens it has. A span that leaves
        its sequence raises LaunchError on the host; on a device it sets the error word, and no token counts.
        """
        there = self.begin == self.begin if self.where is None else self.where
        known = (self.sequence >= 0) & (self.sequence < lengths.numel())
        owner = torch.where(known, self.sequence, 0).to(torch.int64)
        most = lengths[owner] if lengths.numel() else torch.zeros_like(owner)
        bad = there & ~(known & (self.begin >= 0) & (self.begin <= self.end) & (self.end <= most))
        if on_the_host(bad) and bool(bad.any()):
            _refuse(self, int(bad.to(torch.int8).argmax()))
        edges = torch.zeros(tokens + 1, dtype=torch.int32, device=first.device)
        if lengths.numel():
            one = there.to(torch.int32)
            for position, step in ((self.begin, one), (self.end, -one)):
                edges.index_add_(0, (first[owner] + position).clamp(0, tokens), step)
        inside = edges.cumsum(0)[:tokens] > 0
        counted = inside if self.counts else ~inside
        return counted if on_the_host(bad) else counted & all_good("Layout", bad, SPAN)


def several_spans(op: str, spans: object) -> tuple[Spans, ...]:
    """Return the spans of a layout, which may be none, one or several; raise LaunchError for others."""
    if spans is None or isinstance(spans, Spans):
        return () if spans is None else (spans,)
    if not isinstance(spans, (tuple, list)) or not all(isinstance(each, Spans) for each in spans):
        raise wrong_type(op, "spans", spans, "Spans, or a tuple of them")
    return tuple(spans)


def _refuse(spans: Spans, at: int) -> None:
    value = tuple(int(x[at]) for x in (spans.sequence, spans.begin, spans.end))
    wanted = "0 <= begin <= end <= the length of a sequence that is there"
    raise wrong_value("Layout", f"spans[{at}]", value, wanted)


def loss_spans(
    sequence: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, *, where: torch.Tensor | None = None
) -> Spans:
    """Return spans outside of which no token counts, such as the turns of the policy.

    sequence, begin, end: int32 or int64 [spans], positions from the first token of the sequence. where: bool
    [spans], such as `roles == ASSISTANT`: the other turns are no spans. Raises LaunchError.
    """
    return _spans("loss_spans", sequence, begin, end, where, counts=True)


def modality_spans(
    sequence: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, *, where: torch.Tensor | None = None
) -> Spans:
    """Return spans whose tokens are inactive: media embeddings, or tool outputs.

    sequence, begin, end: int32 or int64 [spans], positions from the first token of the sequence. where: bool
    [spans]: the others are no spans. Raises LaunchError.
    """
    return _spans("modality_spans", sequence, begin, end, where, counts=False)


def _spans(
    op: str,
    sequence: torch.Tensor,
    begin: torch.Tensor,
    end: torch.Tensor,
    where: torch.Tensor | None,
    *,
    counts: bool,
) -> Spans:
    for name, x in (("sequence", sequence), ("begin", begin), ("end", end)):
        if checked_offsets(op, name, x).shape != begin.shape:
            got, wanted = x.numel(), begin.numel()
            raise LaunchError(
                Code.ARG_SIZE, op=op, name=name, axis="spans", got=got, other="begin", wanted=wanted
            )
        same_device(op, name, x, "begin", begin.device)
    if where is not None:
        has_dtype(op, "where", is_tensor(op, "where", where), torch.bool)
        same_device(op, "where", where, "begin", begin.device)
        if where.shape != begin.shape:
            got, wanted = tuple(where.shape), tuple(begin.shape)
            raise LaunchError(
                Code.ARG_SIZE, op=op, name="where", axis="spans", got=got, other="begin", wanted=wanted
            )
    return Spans(sequence, begin, end, counts, where)
