"""Megatron-core's GPT model (local spec) computed by rlk: its layers, a provider of them, and the model."""

from __future__ import annotations

from rlk.integrations.megatron.options import PEER, VERSIONS
from rlk.integrations.swap import known_version

try:
    from rlk.integrations.megatron.layers import (
        ColumnParallelLinear,
        CoreAttention,
        RMSNorm,
        RowParallelLinear,
        VocabParallelEmbedding,
    )
    from rlk.integrations.megatron.model import GPTModel
    from rlk.integrations.megatron.specs import (
        MLP,
        RlkSpecProvider,
        SelfAttention,
        TransformerLayer,
        rlk_layer_spec,
    )
except ImportError:
    known_version(PEER, VERSIONS)  # raises for a package that is absent, or another version
    raise

__all__ = [
    "MLP",
    "ColumnParallelLinear",
    "CoreAttention",
    "GPTModel",
    "RMSNorm",
    "RlkSpecProvider",
    "RowParallelLinear",
    "SelfAttention",
    "TransformerLayer",
    "VocabParallelEmbedding",
    "rlk_layer_spec",
]
