"""Attention layers of vLLM's models whose norms of heads, rotation and cache writes are one kernel of rlk."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from vllm.model_executor.layers.attention.attention import get_attention_context

from rlk.integrations.vllm.attention import Heads, Paged
from rlk.integrations.vllm.computations import NAMESPACE, computation
from rlk.integrations.vllm.layers import Linear, RlkGemmaRMSNorm, RlkRMSNorm, Rotary

LAYERS = (
    "Gemma2Attention", "Gemma3Attention", "LlamaAttention", "MistralAttention", "Qwen2Attention",
    "Qwen3Attention",
)  # fmt: skip
"""vLLM's layers that do nothing between the products but norms of heads, rotation and attention."""
HOOK = "heads"
SPLIT, THEIRS = f"{NAMESPACE}::{HOOK}", "vllm::unified_attention_with_output"
"""Ops at which piecewise graphs are split: ours, and vLLM's that it stands for."""


@computation(
    HOOK, "an attention layer's forward",
    "(Tensor qkv, Tensor positions, Tensor(a!) output, str layer) -> ()",
    lambda *_: None,
)  # fmt: skip
def attend(qkv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor, layer: str) -> None:
    """Write the attention of tokens into output [T, Hq E].

    qkv: [T, (Hq + 2 Hk) E], before norms of heads and rotation. layer: the name of vLLM's attention, whose
    metadata and cache are those of the step.
    """
    metadata, attention, kv_cache, _ = get_attention_context(layer)
    attention.impl.attend(qkv, positions, kv_cache, metadata, output)


def forward(self: Any, positions: torch.Tensor, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return the output product of a layer's attention [T, hidden]."""
    qkv, _ = self.qkv_proj(hidden_states)
    # made outside of the op: graphs of the pieces behind it read it where it was when they were captured
    output = qkv.new_empty((qkv.shape[0], self.q_size))
    attend(qkv, positions, output, self.attn.layer_name)
    made: torch.Tensor = self.o_proj(output)[0]
    return made


@cache
def merged(layer: type) -> type:
    """Return a class of attention layers with our forward."""
    return type(f"Rlk{layer.__name__}", (layer,), {"forward": forward})


def adopt(model: torch.nn.Module, splitting_ops: list[str]) -> bool:
    """Let layers of a loaded model attend by one op, and return whether it has any that do.

    splitting_ops: those at which graphs that are captured are split, if they are.
    """
    found = False
    for module in model.modules() if not splitting_ops or SPLIT in splitting_ops else ():
        if type(module).__name__ in LAYERS and (heads := heads_of(module)) is not None:
            module.attn.impl.heads = heads
            module.__class__ = merged(type(module))
            found = True
    return found


def heads_of(layer: Any) -> Heads | None:
    """Return the norms and rotation of an attention layer; None for one with parts that are not ours."""
    norms = [getattr(layer, name, None) for name in ("q_norm", "k_norm")]
    rotary = layer.rotary_emb
    ours = (
        isinstance(layer.attn.impl, Paged)
        and isinstance(rotary, Rotary)
        and isinstance(getattr(layer.qkv_proj, "base_layer", layer.qkv_proj).quant_method, Linear)
        and all(n is None or isinstance(n, (RlkRMSNorm, RlkGemmaRMSNorm)) for n in norms)
        and not getattr(layer, "do_llama_4_scaling", False)
    )
    if not ours:
        return None
    table = rotary._match_cos_sin_cache_dtype(getattr(layer.qkv_proj, "base_layer", layer.qkv_proj).weight)
    cos, sin = table.chunk(2, -1)
    return Heads(norms[0], norms[1], cos, sin, not rotary.is_neox_style)
