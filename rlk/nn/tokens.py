"""The tokens of a forward pass: which sequences they are of, and where their keys and values are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rlk import ops
from rlk.nn.cache import PagedCache


class Tokens(Protocol):
    """Packed tokens, and attention over the keys that they see.

    positions: int [T], of each token in its sequence, the row of a rotary table.
    """

    @property
    def positions(self) -> torch.Tensor: ...

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """Return o [T, Hq, E] of q [T, Hq, E] and the tokens' own k and v [T, Hk, E], given a layer's index.

        options: window, softcap and scale of `rlk.ops.varlen_attention`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WholeSequences:
    """Whole sequences, one after the other: training and scoring. cu_seqlens: int32 [B + 1]."""

    positions: torch.Tensor
    cu_seqlens: torch.Tensor

    @staticmethod
    def of(cu_seqlens: torch.Tensor, tokens: int) -> WholeSequences:
        """Lay out sequences [cu_seqlens[i], cu_seqlens[i + 1]) of `tokens` tokens."""
        at = torch.arange(tokens, device=cu_seqlens.device)
        owner = torch.searchsorted(cu_seqlens[1:].contiguous(), at, right=True).clamp(
            max=max(len(cu_seqlens) - 2, 0)
        )
        return WholeSequences((at - cu_seqlens[owner]).to(torch.int32), cu_seqlens.to(torch.int32))

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        return ops.varlen_attention(q, k, v, self.cu_seqlens, self.cu_seqlens, **options).o


@dataclass(frozen=True, slots=True, eq=False)
class PagedTokens:
    """The newest tokens of sequences whose earlier keys and values are in pages: prefill and decode.

    cu_seqlens: int32 [B + 1] of the new tokens. context_lens: int32 [B], keys of each sequence, the new ones
    included. block_table: int32 [B, M], pages of each sequence. slots: int64 [T], where the new keys and
    values go, page * page_size + place.
    """

    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    cache: PagedCache

    @staticmethod
    def of(
        cache: PagedCache,
        cu_seqlens: torch.Tensor,
        context_lens: torch.Tensor,
        block_table: torch.Tensor,
        tokens: int,
    ) -> PagedTokens:
        """Compute positions and slots of `tokens` new tokens, on the device, without waiting for it."""
        at = torch.arange(tokens, device=cu_seqlens.device)
        owner = torch.searchsorted(cu_seqlens[1:].contiguous(), at, right=True).clamp(
            max=max(len(cu_seqlens) - 2, 0)
        )
        positions = at - cu_seqlens[owner + 1] + context_lens[owner]
        page = block_table[owner, positions // cache.page_size].to(torch.int64)
        slots = page * cache.page_size + positions % cache.page_size
        return PagedTokens(
            positions.to(torch.int32),
            cu_seqlens.to(torch.int32),
            context_lens.to(torch.int32),
            block_table,
            slots,
            cache,
        )

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        keys, values = self.cache.write(layer, self.slots, k, v)
        return ops.paged_attention(
            q, keys, values, self.block_table, self.context_lens, self.cu_seqlens, **options
        ).o
