"""Token ids packed for a forward pass: padding removed, and put back into its results."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlk.errors import Code, LaunchError
from rlk.nn.tokens import WholeSequences
from rlk.ops.layout import Layout


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
        """Return x [T, ...] in the shape that was given, 0 at padding."""
        if self.rows is not None:
            count = 1
            for n in self.shape:
                count *= n
            x = x.new_zeros(count, *x.shape[1:]).index_copy(0, self.rows, x)
        return x.reshape(*self.shape, *x.shape[1:])

    def restore_next(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers [T] of the tokens behind each token, at the place of those tokens."""
        return self.restore(torch.nn.functional.pad(x[:-1], (1, 0)) if len(x) else x)


def pack_tokens(ids: torch.Tensor, layout: Layout | Packed | None) -> Packed:
    """Return the tokens of a layout without padding. Waits for the device where some may be padding.

    Packed tokens are taken as they are, so that several calls pay for it once.
    """
    if isinstance(layout, Packed):
        return layout
    if layout is None:
        rows = ids.reshape(-1, ids.shape[-1])
        lengths = torch.full((len(rows),), ids.shape[-1], device=ids.device)
        return _packed(ids, lengths, None)
    if tuple(ids.shape) != layout.shape:
        raise LaunchError(
            Code.LAYOUT_MISMATCH, op="CausalLM", name="ids", got=tuple(ids.shape), wanted=layout.shape
        )
    lengths = layout.lengths
    if int(lengths.sum()) == layout.tokens:
        return _packed(ids, lengths, None)
    at = torch.arange(layout.tokens, device=ids.device)
    inside = at - layout.first[layout.sequence.reshape(-1).to(torch.int64)]
    exists = (inside >= 0) & (inside < lengths[layout.sequence.reshape(-1).to(torch.int64)])
    return _packed(ids, lengths, exists.nonzero().flatten())


def _packed(ids: torch.Tensor, lengths: torch.Tensor, rows: torch.Tensor | None) -> Packed:
    flat = ids.reshape(-1) if rows is None else ids.reshape(-1)[rows]
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    has_next = torch.ones(len(flat), dtype=torch.bool, device=ids.device)
    if len(flat):  # an empty sequence names the last token of one before it, or of all: they have none either
        has_next[(cu[1:] - 1).to(torch.int64)] = False
    following = torch.nn.functional.pad(flat[1:], (0, 1)) if len(flat) else flat
    return Packed(flat, WholeSequences.of(cu, len(flat)), following, has_next, rows, tuple(ids.shape))
