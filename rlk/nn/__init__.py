"""Decoders on `rlk.ops`, whose log-probs have the same bits in training, prefill and decoding."""

from __future__ import annotations

from rlk.nn.cache import PagedCache
from rlk.nn.config import ModelConfig
from rlk.nn.experts import MoE, RouteLog
from rlk.nn.generate import Generation, packed_support
from rlk.nn.model import CausalLM, Decoder
from rlk.nn.modules import Attention, DecoderLayer, Embedding, GatedMLP, Linear, RMSNorm
from rlk.nn.tokens import PagedTokens, WholeSequences

__all__ = [
    "Attention",
    "CausalLM",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "GatedMLP",
    "Generation",
    "Linear",
    "MoE",
    "ModelConfig",
    "PagedCache",
    "PagedTokens",
    "RMSNorm",
    "RouteLog",
    "WholeSequences",
    "packed_support",
]
