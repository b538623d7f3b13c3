"""The computations of a decoder layer, given its weights: what `rlk.nn` and `rlk.patch` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook

from rlk.nn.config import ModelConfig, Profile
from rlk.nn.experts import MoE
from rlk.nn.products import merged_linear, row_linear, row_linear_of_ranks
from rlk.nn.ranks import Ranks
from rlk.nn.rotary import RotaryTables
from rlk.nn.tokens import Heads, Tokens
from rlk.ops.gated import Activation, gated


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """The attention of one layer, without its weights. layer: the index of its keys in a cache.

    heads, key_heads: of this rank, where ranks share them.
    """

    layer: int
    heads: int
    key_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None
    eps: float
    norm_profile: Profile
    tables: RotaryTables
    leaves: int
    ranks: Ranks | None = None

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
            norm_profile=config.norm_profile if config.qk_norm else "hf_llama",  # of heads
            tables=tables,
            leaves=config.leaves,
        )

    def heads_of(self, module: Any, cos: torch.Tensor, sin: torch.Tensor) -> Heads:
        """Return the heads of a module of attention, which may have q_norm and k_norm, and its rotation."""
        q_norm, k_norm = map(module._modules.get, ("q_norm", "k_norm"))
        q_weight, k_weight = (None if norm is None else norm.weight for norm in (q_norm, k_norm))
        dim = self.tables.rope.dim
        return Heads(
            self.heads, self.key_heads, self.head_dim, q_weight, k_weight, self.eps, self.norm_profile,
            cos, sin, None if dim == self.head_dim else dim, self.ranks,
        )  # fmt: skip


def attention(module: Any, x: torch.Tensor, tokens: Tokens, at: AttentionOptions) -> torch.Tensor:
    """Return the attention of a layer: products, norms of heads, rotation, scores, output product.

    module: has q_proj, k_proj, v_proj, o_proj and may have q_norm and k_norm, and sinks [Hq]. x: [T, hidden].
    """
    parts = module._modules  # torch's lookup of module.q_proj takes ten times as long
    qkv = projections(x, (parts["q_proj"], parts["k_proj"], parts["v_proj"]), at.leaves)
    heads = at.heads_of(module, *at.tables.of(x))
    options = {"window": at.window, "softcap": at.softcap, "scale": at.scale}
    if (sinks := module._parameters.get("sinks")) is not None:
        options["sinks"] = sinks.float()
    o = tokens.attend(at.layer, qkv, heads, **options)
    return output(o.flatten(-2), parts["o_proj"], at.leaves)


def gated_mlp(module: Any, x: torch.Tensor, activation: Activation, leaves: int) -> torch.Tensor:
    """Return down(activation(gate(x)) * up(x)). module: has gate_proj, up_proj and down_proj."""
    parts = module._modules
    both = projections(x, (parts["gate_proj"], parts["up_proj"]), leaves)
    return output(gated(both, activation), parts["down_proj"], leaves)


def decoder_layer(
    module: Any, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens, sandwich: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the MLP's result and the residual that is to be added to it, [T, hidden] each.

    x, residual: what the layer before returned, or embeddings and None. module: has the norms, self_attn and
    mlp of a decoder layer; its norms take a residual and return its sum too. sandwich: norms follow attention
    and MLP.
    """
    announce(module, tokens)
    x, residual = (module.input_layernorm(x), x) if residual is None else module.input_layernorm(x, residual)
    return after_norm(module, x, residual, tokens, sandwich)


def announce(module: Any, tokens: Tokens) -> None:
    """Tell the ranks that share a layer how many tokens it is given; rows of one rank do not say it."""
    ranks = module.__dict__.get("ranks")
    if ranks is not None:
        ranks.tokens = len(tokens.positions)


def after_norm(
    module: Any, x: torch.Tensor, residual: torch.Tensor, tokens: Tokens, sandwich: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `decoder_layer` returns, given the norm of its input, and that input."""
    x = module.self_attn(x, tokens)
    if sandwich:
        x = module.post_attention_layernorm(x)
        x, residual = module.pre_feedforward_layernorm(x, residual)
        return module.post_feedforward_layernorm(_mlp(module, x, tokens)), residual
    x, residual = module.post_attention_layernorm(x, residual)
    return _mlp(module, x, tokens), residual


def _mlp(module: Any, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    mlp = module.mlp
    made: torch.Tensor = mlp(x, tokens.routes) if isinstance(mlp, MoE) else mlp(x)
    return made


def projections(x: torch.Tensor, modules: tuple[Any, ...], leaves: int) -> torch.Tensor:
    """Return the products of one input with several column-parallel weights, side by side.

    One product where every module is a plain linear layer; else (adapters) each module is called.
    """
    if all(plain(m) for m in modules):
        own = [m._parameters for m in modules]
        ranks = modules[0].__dict__.get("ranks")
        return merged_linear(x, [p["weight"] for p in own], [p["bias"] for p in own], leaves, ranks)
    return torch.cat([m(x) for m in modules], -1)


def output(x: torch.Tensor, module: Any, leaves: int) -> torch.Tensor:
    """Return the product with a row-parallel weight; a module with adapters or hooks is called."""
    if not plain(module):
        return module(x)
    own, ranks = module._parameters, module.__dict__.get("ranks")
    if ranks is not None:
        return row_linear_of_ranks(x, own["weight"], own["bias"], leaves, ranks)
    return row_linear(x, own["weight"], own["bias"], leaves)


def product_alone(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Declare that a forward is the product of its module's weight by `rlk.ops` and nothing else."""
    # the mark names the function that bears it: functools.wraps copies it to wrappers, which do more
    forward.product_alone = forward  # type: ignore[attr-defined]
    return forward


def plain(module: torch.nn.Module) -> bool:
    """Return whether the weight of a linear layer may be read in place of calling the layer.

    Its forward must be a `product_alone` and have no hooks, its weight a parameter of its own: adapters,
    wrappers, parametrizations and torch's own product are called.
    """
    if (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
        or "weight" not in module._parameters
        or "bias" not in module._parameters
    ):
        return False
    found = getattr(module.forward, "__func__", None)
    return found is not None and getattr(found, "product_alone", None) is found


# a graph of torch.compile cannot compare functions of modules, and would call each layer: other bits of d x;
# the attribute of torch.compiler.assume_constant_result, which imports the compiler (1.3 s)
plain._dynamo_marked_constant = True  # type: ignore[attr-defined]
