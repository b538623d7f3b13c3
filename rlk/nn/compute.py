"""The computations of a decoder layer, given its weights: what `rlk.nn` and `rlk.patch` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlk import ops
from rlk.nn.config import Activation, ModelConfig
from rlk.nn.products import joined_linear, merged_linear, row_linear
from rlk.nn.rotary import RotaryTables
from rlk.nn.tokens import Tokens
from rlk.ops.gated import gated


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """The attention of one layer, without its weights. layer: the index of its keys in a cache."""

    layer: int
    heads: int
    key_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None
    eps: float
    norm_profile: str
    tables: RotaryTables
    leaves: int

    @staticmethod
    def of(config: ModelConfig, layer: int, tables: RotaryTables) -> AttentionOptions:
        """Return the options of one layer of a model."""
        return AttentionOptions(
            layer=layer,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=config.windows[layer],
            eps=config.rms_norm_eps,
            norm_profile=config.norm_profile,
            tables=tables,
            leaves=config.leaves,
        )


def attention(module: Any, x: torch.Tensor, tokens: Tokens, at: AttentionOptions) -> torch.Tensor:
    """Return the attention of a layer: products, norms of heads, rotation, scores, output product.

    module: has q_proj, k_proj, v_proj, o_proj and may have q_norm and k_norm. x: [T, hidden].
    """
    q, k, v = projections(x, (module.q_proj, module.k_proj, module.v_proj), at.leaves)
    q = q.unflatten(-1, (at.heads, at.head_dim))
    k, v = (y.unflatten(-1, (at.key_heads, at.head_dim)) for y in (k, v))
    if getattr(module, "q_norm", None) is not None:
        q = ops.rms_norm(q, module.q_norm.weight, eps=at.eps, profile=at.norm_profile)
        k = ops.rms_norm(k, module.k_norm.weight, eps=at.eps, profile=at.norm_profile)
    cos, sin = at.tables.of(x)
    dim = at.tables.rope.dim
    part = None if dim == at.head_dim else dim
    q, k = ops.rope(q, k, cos, sin, position_ids=tokens.positions, rotary_dim=part)
    o = tokens.attend(at.layer, q, k, v, window=at.window, softcap=at.softcap, scale=at.scale)
    return output(o.flatten(-2), module.o_proj, at.leaves)


def gated_mlp(module: Any, x: torch.Tensor, activation: Activation, leaves: int) -> torch.Tensor:
    """Return down(activation(gate(x)) * up(x)). module: has gate_proj, up_proj and down_proj."""
    both = (module.gate_proj, module.up_proj)
    if all(plain(m) for m in both):
        joined = joined_linear(x, [m.weight for m in both], [m.bias for m in both], leaves)
        return output(gated(joined, activation), module.down_proj, leaves)
    gate, up = (m(x) for m in both)
    y = ops.swiglu(gate, up) if activation == "silu" else ops.geglu(gate, up, approximate="tanh")
    return output(y, module.down_proj, leaves)


def projections(x: torch.Tensor, modules: tuple[Any, ...], leaves: int) -> tuple[torch.Tensor, ...]:
    """Return the products of one input with several column-parallel weights.

    One product where every module is a plain linear layer; else (adapters) each module is called.
    """
    if all(plain(m) for m in modules):
        return merged_linear(x, [m.weight for m in modules], [m.bias for m in modules], leaves)
    return tuple(m(x) for m in modules)


def output(x: torch.Tensor, module: Any, leaves: int) -> torch.Tensor:
    """Return the product with a row-parallel weight; a module with adapters or hooks is called."""
    return row_linear(x, module.weight, module.bias, leaves) if plain(module) else module(x)


def plain(module: torch.nn.Module) -> bool:
    """Return whether a module is a linear layer whose weight may be read in place of calling it."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return isinstance(module, torch.nn.Linear) and not hooks and type(module).__name__ == "Linear"
