"""A provider of rlk's layers for Megatron-core's specs, and the spec of a whole decoder layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import attention, mlp, transformer_layer
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec

from rlk.integrations.megatron.layers import (
    ColumnParallelLinear,
    CoreAttention,
    Product,
    RMSNorm,
    RowParallelLinear,
    as_given,
    by_sequence,
    check_mask,
)
from rlk.integrations.megatron.options import PEER, VERSIONS, check_config, refused
from rlk.integrations.swap import known_version
from rlk.integrations.tensors import no_form
from rlk.nn.rotary import RotaryTables
from rlk.nn.tokens import Heads, WholeSequences
from rlk.ops.gated import gated


class RlkSpecProvider(BackendSpecProvider):
    """The layers of rlk by the names of Megatron's protocol, which has linear layers, norms and attention.

    What Megatron computes between them (rotation, activation, residual sums, head, loss) keeps its own
    roundings: `rlk_layer_spec` and `GPTModel` exchange these too.
    """

    def column_parallel_linear(self) -> type:
        return ColumnParallelLinear

    def row_parallel_linear(self) -> type:
        return RowParallelLinear

    def fuse_layernorm_and_linear(self) -> bool:
        return False

    def column_parallel_layer_norm_linear(self) -> None:
        return None

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        return RMSNorm  # which refuses a config of other norms

    def core_attention(self) -> type:
        return CoreAttention

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool, moe_use_legacy_grouped_gemm: bool) -> Any:
        raise no_form(PEER, "a layer of experts", "use rlk.nn, or a dense model")

    def activation_func(self) -> None:
        return None


def rlk_layer_spec(config: Any) -> ModuleSpec:
    """Return the spec of a decoder layer that has the bits of `rlk.nn.DecoderLayer`, for `GPTModel`.

    config: a TransformerConfig; `config.rlk_leaves` (1, 2, 4 or 8; 1 where it is not set) is the number of
    leaves. Raises LaunchError with every option that rlk does not have; UnsupportedError for another version
    of megatron-core.
    """
    known_version(PEER, VERSIONS)
    check_config(config)
    layers = RlkSpecProvider()
    norm = layers.layer_norm(rms_norm=True)
    of_heads = layers.layer_norm(rms_norm=True, for_qk=True) if config.qk_layernorm else IdentityOp
    self_attention = attention.SelfAttentionSubmodules(
        linear_qkv=layers.column_parallel_linear(),
        core_attention=layers.core_attention(),
        linear_proj=layers.row_parallel_linear(),
        q_layernorm=of_heads,
        k_layernorm=of_heads,
    )
    return ModuleSpec(
        module=TransformerLayer,
        submodules=transformer_layer.TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=self_attention,
            ),
            pre_mlp_layernorm=norm,
            mlp=MLP,
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The sequences of a forward pass and the angles of their positions: rotary_pos_emb of the layers."""

    tokens: WholeSequences
    tables: RotaryTables

    @property
    def packed(self) -> PackedSeqParams:
        """Return the offsets of sequences as core attention takes them."""
        offsets = self.tokens.cu_seqlens
        return PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets)


class SelfAttention(attention.SelfAttention):
    """Megatron's parameters; products, norms of heads, rotation and attention of `rlk.nn`."""

    def __init__(self, config: Any, submodules: Any, layer_number: int, **options: Any) -> None:
        super().__init__(config, submodules, layer_number, **options)
        if config.qk_layernorm:
            for norm in (self.q_layernorm, self.k_layernorm):
                # every rank has the gradient of all heads, which Megatron would add over ranks
                norm.weight.average_gradients_across_tp_domain = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        rotary_pos_emb: Places,
        **others: Any,
    ) -> Product:
        """Return [s, b, hidden] of hidden_states [s, b, hidden]."""
        check_mask(attention_mask)
        check_others(others)
        tokens, tables = rotary_pos_emb.tokens, rotary_pos_emb.tables
        both, width = self.linear_qkv.sizes, self.config.kv_channels
        groups = self.linear_qkv.groups
        qkv = by_sequence(self.linear_qkv(hidden_states)[0]).unflatten(-1, (groups, -1))
        q, k, v = (
            x.flatten(-2).unflatten(-1, (-1, width)) for x in qkv.split([n // groups for n in both], -1)
        )
        q, k = self._heads(*tables.of(hidden_states), tables.rope.dim).rotated(q, k, tokens.positions)
        o = self.core_attention(
            q, k, v, None, attn_mask_type=self.attn_mask_type, packed_seq_params=rotary_pos_emb.packed
        )
        return self.linear_proj(as_given(o, hidden_states))

    def _heads(self, cos: torch.Tensor, sin: torch.Tensor, dim: int) -> Heads:
        width, config = self.config.kv_channels, self.config
        q_weight, k_weight = (
            (norm.weight if config.qk_layernorm else None) for norm in (self.q_layernorm, self.k_layernorm)
        )
        return Heads(
            self.num_attention_heads_per_partition, self.num_query_groups_per_partition, width, q_weight,
            k_weight, config.layernorm_epsilon, "hf_llama", cos, sin, None if dim == width else dim,
            self.linear_qkv.ranks,
        )  # fmt: skip


class MLP(mlp.MLP):
    """Megatron's parameters; SwiGLU by rlk."""

    def __init__(self, config: Any) -> None:
        layers = RlkSpecProvider()
        parts = mlp.MLPSubmodules(
            linear_fc1=layers.column_parallel_linear(), linear_fc2=layers.row_parallel_linear()
        )
        super().__init__(config, parts, ffn_hidden_size=config.ffn_hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> Product:
        """Return [s, b, hidden] of hidden_states [s, b, hidden]."""
        both, _ = self.linear_fc1(hidden_states)
        return self.linear_fc2(as_given(gated(by_sequence(both), "silu"), hidden_states))


_BUILDING: ContextVar[bool] = ContextVar("building", default=False)


@contextmanager
def building() -> Iterator[None]:
    """Let layers of rlk be made, by the model whose embedding, last norm, head and loss are rlk's too."""
    before = _BUILDING.set(True)
    try:
        yield
    finally:
        _BUILDING.reset(before)


class TransformerLayer(transformer_layer.TransformerLayer):
    """Megatron's modules in the order, and with the roundings and gradients, of `rlk.nn.DecoderLayer`.

    Made by `rlk.integrations.megatron.GPTModel` alone: raises LaunchError in another model.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        if not _BUILDING.get():
            wanted = (
                "rlk.integrations.megatron.GPTModel with the same arguments: Megatron's own computes "
                "embedding, last norm, head and loss, with other bits"
            )
            raise refused("the model of rlk_layer_spec(config)", "another model", wanted)
        super().__init__(*args, **options)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        rotary_pos_emb: Places,
        packed_seq_params: PackedSeqParams | None = None,  # within rotary_pos_emb
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return [s, b, hidden] of hidden_states [s, b, hidden], the residual added, and no context."""
        check_others(others)
        norm, x = self.input_layernorm, hidden_states
        # the first layer's input is no sum: its norm and its residual have separate cotangents
        x, residual = (norm(x), x) if self.layer_number == 1 else norm.of_total(x)
        x, _ = self.self_attention(x, attention_mask, rotary_pos_emb=rotary_pos_emb)
        x, residual = self.pre_mlp_layernorm.of_total(x + residual)
        x, _ = self.mlp(x)
        return x + residual, None


def check_others(given: dict[str, Any]) -> None:
    """Raise LaunchError for an argument of Megatron's layers that says something rlk does not compute."""
    for name, found in given.items():
        if found is not None:
            raise refused(name, type(found).__name__, "None")
