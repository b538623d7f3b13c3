"""Layers of Megatron-core's GPT model by rlk: products, norms, embedding, attention of heads.

They hold Megatron's parameters (names, shapes, initial values, attributes) and take and give its [s, b, ...]
tensors. Sums over tokens go sequence by sequence, as in `rlk.nn`: memory is [b, s, ...], and what Megatron
sees is a transposed view.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule

from rlk import nn, ops
from rlk.integrations.megatron.options import LEAVES, leaves_of, refused, scale_of
from rlk.nn.embedded import embedding_of_ranks
from rlk.nn.packed import check_ids
from rlk.nn.products import row_linear, row_linear_of_ranks, stored_linear
from rlk.nn.ranks import Ranks

Product = tuple[torch.Tensor, None]
"""A product, and no bias that its caller should add."""


def ranks_of(group: dist.ProcessGroup) -> Ranks | None:
    """Return the ranks of tensor parallelism, None for one."""
    return None if group.size() == 1 else Ranks(group, group.size(), group.rank())


def by_sequence(x: torch.Tensor) -> torch.Tensor:
    """Return tokens [b * s, ...] of x [s, b, ...], sequence by sequence; no copy where memory has them so."""
    return x.transpose(0, 1).flatten(0, 1)


def as_given(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return tokens [b * s, ...] as a view [s, b, ...], as x has them."""
    return y.unflatten(0, (x.shape[1], x.shape[0])).transpose(0, 1)


def _shared_leaves(config: Any, ranks: Ranks | None) -> int:
    leaves = leaves_of(config)
    if ranks is not None and leaves % ranks.size:
        wanted = f"a multiple of {ranks.size}, the number of ranks"
        raise refused(f"config.{LEAVES}", leaves, wanted)
    return leaves


class ColumnParallelLinear(tensor_parallel.ColumnParallelLinear):
    """x w^T + bias of a rank's own rows of w. The bias is within the product, also with skip_bias_add.

    The rows of w may be those of several weights: gate and up one behind the other (stride=2), q, k and v for
    each group of query heads (tp_comm_buffer_name="qkv"). The gradient of x has the order of
    `rlk.nn.products.merged_linear`, summed over all ranks' leaves and rounded once. Raises LaunchError.
    """

    shares: Mapping[str, int] = MappingProxyType({"weight": 0, "bias": 0})

    def __init__(self, input_size: int, output_size: int, **options: Any) -> None:
        for name in ("gather_output", "is_expert", "skip_weight_param_allocation", "disable_grad_reduce"):
            if options.get(name):
                raise refused(f"ColumnParallelLinear {name}", True, "False")
        super().__init__(input_size, output_size, **options)
        self.ranks = ranks_of(self.tp_group)
        self.leaves = _shared_leaves(self.config, self.ranks)
        rows, parts = self.output_size_per_partition, options.get("stride", 1)
        self.sizes, self.groups = (rows // parts,) * parts, 1
        if options.get("tp_comm_buffer_name") == "qkv":
            groups, size = self.config.num_query_groups, self.tp_group.size()
            if groups % size:
                raise refused("config.num_query_groups", groups, f"a multiple of {size}, the number of ranks")
            self.groups = groups // size
            keys = self.groups * self.config.kv_channels
            self.sizes = (rows - 2 * keys, keys, keys)

    def forward(
        self,
        input_: torch.Tensor,
        weight: torch.Tensor | None = None,
        runtime_gather_output: bool | None = None,
    ) -> Product:
        """Return [s, b, rows of the rank] of input_ [s, b, input_size]."""
        if runtime_gather_output:
            raise refused("ColumnParallelLinear runtime_gather_output", True, "False")
        y = stored_linear(
            by_sequence(input_), self.weight if weight is None else weight, self.bias, self.sizes,
            self.groups, self.leaves, self.ranks,
        )  # fmt: skip
        return as_given(y, input_), None


class RowParallelLinear(tensor_parallel.RowParallelLinear):
    """x w^T + bias, summed over K in leaves on all ranks. The bias is added before the only rounding."""

    shares: Mapping[str, int] = MappingProxyType({"weight": 1})

    def __init__(self, input_size: int, output_size: int, **options: Any) -> None:
        if not options.get("input_is_parallel") or options.get("is_expert"):
            raise refused("RowParallelLinear input_is_parallel", False, "True, and no expert")
        super().__init__(input_size, output_size, **options)
        self.ranks = ranks_of(self.tp_group)
        self.leaves = _shared_leaves(self.config, self.ranks)

    def forward(self, input_: torch.Tensor) -> Product:
        """Return [s, b, output_size] of the rank's columns of input_ [s, b, input_size / ranks]."""
        x = by_sequence(input_)
        if self.ranks is None:
            y = row_linear(x, self.weight, self.bias, self.leaves)
        else:
            y = row_linear_of_ranks(x, self.weight, self.bias, self.leaves, self.ranks)
        return as_given(y, input_), None


class VocabParallelEmbedding(tensor_parallel.VocabParallelEmbedding):
    """Rows of a weight of which each rank has an equal range. Its gradient adds tokens in order."""

    shares: Mapping[str, int] = MappingProxyType({"weight": 0})

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """Return [b, s, embedding_dim] of ids [b, s]."""
        ranks, ids = ranks_of(self.tp_group), input_.flatten()
        if ranks is None:
            check_ids(ids, len(self.weight), op="VocabParallelEmbedding")
            x = ops.embedding(ids, self.weight)
        else:
            x = embedding_of_ranks(ids, self.weight, ranks)
        return x.unflatten(0, input_.shape)


class RMSNorm(nn.RMSNorm):
    """`rlk.nn.RMSNorm` with Megatron's arguments, of [s, b, ..., hidden_size]."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        if config.normalization != "RMSNorm" or config.layernorm_zero_centered_gamma:
            found = "zero-centered" if config.layernorm_zero_centered_gamma else config.normalization
            raise refused("config.normalization", found, "RMSNorm, layernorm_zero_centered_gamma=False")
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the norm of x."""
        made = super().forward(by_sequence(x))
        assert isinstance(made, torch.Tensor)
        return as_given(made, x)

    def of_total(self, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of a rounded sum of two streams, and that sum; both cotangents are added in f32."""
        y, residual = super().of_total(by_sequence(total))
        return as_given(y, total), as_given(residual, total)


class CoreAttention(MegatronModule):
    """Causal attention over heads of a rank, with grouped key heads, by `rlk.ops.varlen_attention`."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        for name, found, wanted in (
            ("attn_mask_type", attn_mask_type, AttnMaskType.causal),
            ("attention_type", attention_type, "self"),
            ("attention_dropout", dropout, 0.0),
        ):
            if found != wanted:
                raise refused(f"CoreAttention {name}", found, str(wanted))
        self.scale = scale_of(config) if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """Return [s, b, Hq E] of query [s, b, Hq, E], key and value [s, b, Hk, E].

        Of packed sequences: [T, Hq E] of [T, Hq, E] and [T, Hk, E]. Raises LaunchError for another mask than
        the causal one, and for keys and values of other tokens than the query's, as of a KV cache.
        """
        if attention_bias is not None:
            raise refused("attention_bias", "a tensor", "None")
        check_mask(attention_mask)
        if attn_mask_type not in (None, AttnMaskType.causal):
            raise refused("attn_mask_type", attn_mask_type, f"{AttnMaskType.causal}, or None")
        _check_tokens(query, key, value, 2 if packed_seq_params is None else 1)
        if packed_seq_params is not None:
            offsets = offsets_of(packed_seq_params)
            return self._attend(query, key, value, offsets)
        length, batch = query.shape[:2]
        offsets = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=query.device)
        return as_given(self._attend(*map(by_sequence, (query, key, value)), offsets), query)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        return ops.varlen_attention(q, k, v, offsets, offsets, scale=self.scale).o.flatten(-2)


def _check_tokens(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dims: int) -> None:
    """Raise LaunchError for keys or values of other tokens than the query's, in so many dimensions."""
    wanted = query.shape[:dims]
    for name, x in (("key", key), ("value", value)):
        if x.shape[:dims] != wanted:
            sizes = ", ".join(map(str, wanted))
            raise refused(f"{name}.shape", list(x.shape), f"[{sizes}, ...], the query's tokens: no KV cache")


def check_mask(mask: torch.Tensor | None) -> None:
    """Raise LaunchError for an attention mask: it is not read."""
    if mask is not None:
        wanted = "None, which is causal (--no-create-attention-mask-in-dataloader of Megatron-LM)"
        raise refused("attention_mask", f"a tensor of shape {list(mask.shape)}", wanted)


def offsets_of(packed: PackedSeqParams) -> torch.Tensor:
    """Return the offsets of packed sequences. Raises LaunchError for other forms than sequences in a row."""
    q = packed.cu_seqlens_q
    if packed.qkv_format != "thd" or q is None:
        raise refused("packed_seq_params.qkv_format", packed.qkv_format, "'thd', with cu_seqlens_q")
    for name in ("cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        other = getattr(packed, name)
        if other is not None and other is not q and not torch.equal(other, q):
            raise refused(f"packed_seq_params.{name}", "other offsets", "those of cu_seqlens_q: no padding")
    if packed.cp_group is not None and packed.cp_group.size() > 1:
        raise refused("packed_seq_params.cp_group", f"{packed.cp_group.size()} ranks", "one rank")
    return q
