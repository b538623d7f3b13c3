"""The tokens of a forward pass: which sequences they are of, and where their keys and values are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from rlk import ops
from rlk.errors import LaunchError
from rlk.nn.cache import PagedCache
from rlk.nn.experts import RouteLog
from rlk.nn.normed import head_norm
from rlk.nn.parts import heads_side_by_side
from rlk.nn.ranks import Ranks
from rlk.ops.attention import check_pages
from rlk.ops.offsets import owners_of
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.checks import has_dtype


class Tokens(Protocol):
    """Packed tokens, and attention over the keys that they see.

    positions: int [T], of each token in its sequence, the row of a rotary table. routes: where layers of
    experts note what they choose.
    """

    @property
    def positions(self) -> torch.Tensor: ...

    @property
    def routes(self) -> RouteLog | None: ...

    def attend(self, layer: int, qkv: torch.Tensor, heads: Heads, **options: Any) -> torch.Tensor:
        """Return o [T, Hq, E] of the tokens' q, k and v side by side, [T, (Hq + 2 Hk) E].

        layer: the index of the layer's keys in a cache. heads: norms and rotation of q and k. options:
        window, softcap, scale and sinks of `rlk.ops.varlen_attention`.
        """
        ...


def sizes_of(t: torch.Tensor) -> tuple[object, ...]:
    """Return what selects the code that reads a tensor."""
    return t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % VECTOR, t.is_neg()


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The heads of q, k and v side by side, and what q and k go through: norms of heads, rotation.

    q_weight, k_weight: [E], of norms with eps and profile as `rlk.ops.qk_norm` takes them, or None. cos, sin:
    of `rlk.ops.rope`, with its rotary_dim. ranks: those that share heads, of which these are a rank's own.
    """

    queries: int
    keys: int
    width: int
    q_weight: torch.Tensor | None
    k_weight: torch.Tensor | None
    eps: float
    profile: str
    cos: torch.Tensor
    sin: torch.Tensor
    rotary_dim: int | None
    ranks: Ranks | None = None

    def split(
        self, qkv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q [T, Hq, E], k and v [T, Hk, E]; q and k normalised and rotated to their positions."""
        q, k, v = heads_side_by_side(qkv, (self.queries, self.keys, self.keys), self.width)
        return *self.rotated(q, k, positions), v

    def rotated(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q [T, Hq, E] and k [T, Hk, E] normalised and rotated to their positions."""
        options = {"position_ids": positions, "rotary_dim": self.rotary_dim}
        if self.q_weight is None or self.k_weight is None:
            return ops.rope(q, k, self.cos, self.sin, **options)
        options |= {"cos": self.cos, "sin": self.sin, "eps": self.eps, "profile": self.profile}
        norm = ops.qk_norm if self.ranks is None else partial(head_norm, ranks=self.ranks)
        return norm(q, self.q_weight, **options), norm(k, self.k_weight, **options)


@dataclass(frozen=True, slots=True, eq=False)
class WholeSequences:
    """Whole sequences, one after the other: training and scoring. cu_seqlens: int32 [B + 1]."""

    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    routes: RouteLog | None = None

    @staticmethod
    def of(cu_seqlens: torch.Tensor, tokens: int) -> WholeSequences:
        """Lay out sequences [cu_seqlens[i], cu_seqlens[i + 1]) of `tokens` tokens; int32 or int64."""
        has_dtype("WholeSequences.of", "cu_seqlens", cu_seqlens, torch.int32, torch.int64)
        at = torch.arange(tokens, device=cu_seqlens.device)
        owner = owners_of(cu_seqlens[1:], tokens)
        return WholeSequences((at - cu_seqlens[owner]).to(torch.int32), cu_seqlens.to(torch.int32))

    def attend(self, layer: int, qkv: torch.Tensor, heads: Heads, **options: Any) -> torch.Tensor:
        q, k, v = heads.split(qkv, self.positions)
        return ops.varlen_attention(q, k, v, self.cu_seqlens, self.cu_seqlens, **options).o


@dataclass(frozen=True, eq=False)
class PagedTokens:
    """The newest tokens of sequences whose earlier keys and values are in pages: prefill and decode.

    cu_seqlens: int32 [B + 1] of the new tokens. context_lens: int32 [B], keys of each sequence, the new ones
    included. block_table: int32 [B, M], pages of each sequence. slots: int64 [T], where the new keys and
    values go, page * page_size + place; -1 for padding.
    """

    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    cache: PagedCache
    routes: RouteLog | None = None

    @staticmethod
    def of(
        cache: PagedCache,
        cu_seqlens: torch.Tensor,
        context_lens: torch.Tensor,
        block_table: torch.Tensor,
        tokens: int,
        *,
        op: str = "PagedTokens.of",
    ) -> PagedTokens:
        """Lay out `tokens` new tokens; on a device nothing waits for it, and sizes alone decide what runs.

        Padding fills buffers of a fixed size, as a CUDA graph has them: tokens behind cu_seqlens[-1], and
        those of a sequence whose context is 0. It is at position 0, sees nothing and changes nothing.
        Contexts that are longer than their row of the table, or shorter than their new tokens, pages outside
        of the cache and offsets that descend raise LaunchError, named as of `op`, as `ops.paged_attention`
        does: on the host, and on a device under RLK_CHECK=1. Without it they write into no other page.
        """
        try:
            check_pages(op, cu_seqlens, tokens, context_lens, block_table, cache.layer(0)[0])
        except LaunchError as error:
            raise error.reworded(
                name={"cu_seqlens_q": "cu_seqlens"}, other={"cu_seqlens_q": "cu_seqlens"}
            ) from None
        cu_seqlens = cu_seqlens.to(torch.int32)
        rows, columns = block_table.shape
        at = torch.arange(tokens, device=cu_seqlens.device)
        if rows == 0 or columns == 0:  # no sequence has a key: padding only
            positions, slots = torch.zeros_like(at), torch.full_like(at, -1)
        else:
            owner = owners_of(cu_seqlens[1:], tokens)
            positions = at - cu_seqlens[owner + 1] + context_lens[owner]
            # clamped before they are indices: bad numbers on a device must not be bad addresses
            column = (positions // cache.page_size).clamp(0, columns - 1)
            page = block_table[owner, column].to(torch.int64)
            exists = (at < cu_seqlens[-1]) & (positions >= 0) & (positions < columns * cache.page_size)
            exists &= (page >= 0) & (page < cache.pages)
            slots = page * cache.page_size + positions % cache.page_size
            slots = torch.where(exists, slots, -1)
            positions = torch.where(exists, positions, 0)
        return PagedTokens(positions.to(torch.int32), cu_seqlens, context_lens, block_table, slots, cache)

    @cached_property
    def sizes(self) -> tuple[object, ...]:
        """Return what selects the code that reads these tensors: sizes, strides, devices and alignments."""
        own = self.positions, self.cu_seqlens, self.context_lens, self.block_table, self.slots
        return tuple(map(sizes_of, (*own, self.cache.keys, self.cache.values)))

    def attend(self, layer: int, qkv: torch.Tensor, heads: Heads, **options: Any) -> torch.Tensor:
        keys, values = self.cache.layer(layer)
        q = ops.cache_qkv(
            qkv, keys, values, self.slots, q_weight=heads.q_weight, k_weight=heads.k_weight, eps=heads.eps,
            profile=heads.profile, cos=heads.cos, sin=heads.sin, position_ids=self.positions,
            rotary_dim=heads.rotary_dim,
        )  # fmt: skip
        return ops.paged_attention(
            q, keys, values, self.block_table, self.context_lens, self.cu_seqlens, **options
        ).o
