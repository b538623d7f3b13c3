"""Layers whose weights ranks share: column-parallel, row-parallel, vocabulary; norms of a rank's tokens.

Products take 16-bit factors: give linear layers dtype=torch.bfloat16 or torch.float16, since dtype=None is
torch's default, f32, which their forward passes refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from rlk.nn.compute import product_alone
from rlk.nn.embedded import embedding_of_ranks, whole_embedding_of_ranks
from rlk.nn.modules import Attention, Embedding, GatedMLP, Linear, RMSNorm
from rlk.nn.normed import norm_of_total, rms_norm_of_rows, with_weight_of_rows
from rlk.nn.products import column_linear_of_ranks, row_linear_of_ranks
from rlk.nn.ranks import Ranks, mark_shares
from rlk.nn.tokens import Tokens
from rlk.parallel.state import mark_parts
from rlk.runtime.binding.checks import wrong_value


class _OfShares(torch.nn.Module):
    """A layer that marks its shares, of copies too, for `rlk.optim`, `rlk.sync` and state dicts."""

    ranks: Ranks
    shares: Mapping[str, int]

    def _share(self, ranks: Ranks) -> None:
        self.ranks = ranks
        mark_parts(self, self.shares, ranks)
        self._mark()

    def _mark(self) -> None:
        if self.ranks.size > 1:
            mark_shares(self, self.ranks)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield names and parameters, which are marked anew."""
        self._mark()
        yield from super().named_parameters(*args, **options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mark()


class ColumnParallelLinear(_OfShares, Linear):
    """x w^T + bias of a rank's own rows of w: weight [out_features / ranks, in_features], bias likewise.

    in_features, out_features: of the whole. leaves: as of `rlk.nn.Linear`, more than 1 and a multiple of the
    number of ranks. dtype: bf16 or f16, which is not the default. The gradient of x is summed over all ranks'
    leaves, pairwise, and rounded once. Under sequence parallelism x has the rank's own tokens,
    `ranks.rows(ranks.tokens)`, and the result those of all ranks: set `ranks.tokens` where no
    `VocabParallelEmbedding` does. Raises LaunchError.
    """

    shares = MappingProxyType({"weight": 0, "bias": 0})

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        ranks: Ranks,
        leaves: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_leaves("ColumnParallelLinear", leaves, ranks, "out_features", out_features)
        own = ranks.share(out_features)
        super().__init__(in_features, own, bias, leaves=leaves, device=device, dtype=dtype)
        self._share(ranks)

    @product_alone
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features / ranks] of x [..., in_features]."""
        return column_linear_of_ranks(x, self.weight, self.bias, self.leaves, self.ranks)


class RowParallelLinear(_OfShares, Linear):
    """x w^T + bias, summed over K on all ranks: weight [out_features, in_features / ranks], bias whole.

    x: the rank's own columns [T, in_features / ranks], of all tokens. leaves, dtype: as of
    `ColumnParallelLinear`. A rank sums its leaves, ranks continue the pairwise tree, bias is added after it,
    and the sum is rounded once. Under sequence parallelism x has two dims, and the result the rank's own
    tokens. Raises LaunchError.
    """

    shares = MappingProxyType({"weight": 1})

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        ranks: Ranks,
        leaves: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_leaves("RowParallelLinear", leaves, ranks, "in_features", in_features)
        own = ranks.share(in_features)
        super().__init__(own, out_features, bias, parallel="rows", leaves=leaves, device=device, dtype=dtype)
        self._share(ranks)

    @product_alone
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out_features] of x [T, in_features / ranks]."""
        if x.dim() != 2 and self.ranks.sequence:  # tokens are the rows of two dims
            wanted = "[T, in_features / ranks], of two dims with sequence parallelism"
            raise wrong_value("RowParallelLinear", "x.shape", tuple(x.shape), wanted)
        return row_linear_of_ranks(x, self.weight, self.bias, self.leaves, self.ranks)


class VocabParallelEmbedding(_OfShares, Embedding):
    """Rows of a weight of which each rank has an equal range: weight [num_embeddings / ranks, embedding_dim].

    num_embeddings: of all ranks. Under sequence parallelism a rank gets the rows of its own tokens, and
    `ranks.tokens` is set to the number of all, which the layers after it need. Raises LaunchError.
    """

    shares = MappingProxyType({"weight": 0})

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        ranks: Ranks,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if num_embeddings % ranks.size:
            wanted = f"a multiple of {ranks.size}, the number of ranks"
            raise wrong_value("VocabParallelEmbedding", "num_embeddings", num_embeddings, wanted)
        own = ranks.share(num_embeddings)
        super().__init__(own, embedding_dim, scale=scale, device=device, dtype=dtype)
        self._share(ranks)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [T, embedding_dim] of ids [T], of the whole vocabulary and of all tokens."""
        self.ranks.tokens = len(ids)
        return self.scaled(embedding_of_ranks(ids, self.weight, self.ranks))


class SequenceParallelRMSNorm(RMSNorm):
    """`rlk.nn.RMSNorm` of the tokens that a rank has; the gradient of its weight is of all tokens.

    ranks: with sequence parallelism. profile: "hf_llama" or "gemma". Raises LaunchError.
    """

    def __init__(self, size: int, *, ranks: Ranks, **options: Any) -> None:
        super().__init__(size, **options)
        if self.profile == "vllm":
            wanted = '"hf_llama" or "gemma": a sum that stays f32 is not kept for the gradient'
            raise wrong_value("SequenceParallelRMSNorm", "profile", self.profile, wanted)
        self.ranks = ranks

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x [T, size]; given a residual, the norm of their rounded sum, and that sum."""
        y, total = rms_norm_of_rows(x, residual, self.weight, self.eps, self.profile, self.ranks)
        return y if residual is None else (y, total)

    def of_total(self, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `forward` returns of x and a residual, given their rounded sum."""
        y, residual = norm_of_total(total, self.weight.detach(), self.eps, self.profile)
        return with_weight_of_rows(y, total, self.weight, self.eps, self.profile, self.ranks), residual


# --- layers that a plan leaves out, of which every rank has all --------------------------------------------


class WholeEmbedding(Embedding):
    """`rlk.nn.Embedding` of which a rank takes the rows of its own tokens; ranks compare the ids."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, ranks: Ranks, **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, **options)
        self.ranks = ranks

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [T, embedding_dim] of ids [T] of all tokens."""
        self.ranks.tokens = len(ids)
        return self.scaled(whole_embedding_of_ranks(ids, self.weight, self.ranks))


class WholeAttention(Attention):
    """`rlk.nn`'s attention of all tokens, between norms of a rank's own ones."""

    ranks: Ranks

    def forward(self, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Return the rank's own rows [n, hidden], given x of these."""
        return self.ranks.own_rows(super().forward(self.ranks.whole(x), tokens))


class WholeGatedMLP(GatedMLP):
    """`rlk.nn`'s MLP of all tokens, between norms of a rank's own ones."""

    ranks: Ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rank's own rows [n, hidden], given x of these."""
        return self.ranks.own_rows(super().forward(self.ranks.whole(x)))


def of_all_tokens(module: Attention | GatedMLP, ranks: Ranks) -> None:
    """Let a layer with whole weights gather the tokens of all ranks, and keep the rows of this one."""
    made: Any = module
    made.__class__ = WholeAttention if isinstance(module, Attention) else WholeGatedMLP
    made.ranks = ranks


def _check_leaves(op: str, leaves: int, ranks: Ranks, name: str, extent: int) -> None:
    """Raise LaunchError for leaves that ranks cannot share, or an extent that leaves do not divide."""
    if leaves % ranks.size:
        wanted = f"a multiple of {ranks.size}, the number of ranks"
        raise wrong_value(op, "leaves", leaves, wanted)
    if extent % leaves:
        raise wrong_value(op, name, extent, f"a multiple of leaves = {leaves}")
