"""Decoder layers of known models in benchmarks, and the same layer in torch with its fused parts compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import peers
from rlk.nn import DecoderLayer, ModelConfig, PagedCache, PagedTokens, WholeSequences
from rlk.nn.modules import lay_out
from rlk.nn.rotary import tables_of

PAGE = 64
Pair = tuple[Tensor, Tensor]


def config_of(
    model_type: str,
    hidden: int,
    heads: int,
    key_heads: int,
    intermediate: int,
    *,
    layers: int = 1,
    head_dim: int = 128,
    vocabulary: int = 151936,
    theta: float = 1e6,
    positions: int = 40960,
    **more: Any,
) -> ModelConfig:
    """Return the config of a model, of as many layers as are measured. more: other entries."""
    return ModelConfig.of(
        {
            "model_type": model_type,
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": head_dim,
            "rms_norm_eps": 1e-6 if model_type.startswith("qwen3") else 1e-5,
            "max_position_embeddings": positions,
            "rope_theta": theta,
            "hidden_act": "silu",
            **more,
        }
    )


def models() -> dict[str, ModelConfig]:
    """Return the models whose layers are measured."""
    return {
        "Qwen3-8B": config_of("qwen3", 4096, 32, 8, 12288),
        "Llama-3-8B": config_of("llama", 4096, 32, 8, 14336, vocabulary=128256, theta=5e5),
        "Qwen3-0.6B": config_of("qwen3", 1024, 16, 8, 3072),
    }


def weights_of(config: ModelConfig) -> int:
    """Return the number of weights in the products of a layer, of experts those that a token goes through."""
    heads = config.num_attention_heads, config.num_key_value_heads
    attention = config.head_dim * (2 * heads[0] + 2 * heads[1])
    if config.experts is not None:
        return config.hidden_size * (
            attention + config.experts.count + 3 * config.experts.k * config.experts.width
        )
    return config.hidden_size * (attention + 3 * config.intermediate_size)


def layer_of(config: ModelConfig, device: str = "cuda") -> DecoderLayer:
    """Make one layer with random weights."""
    tables = tables_of(config.ropes, config.max_position_embeddings)[0]
    layer = DecoderLayer(config, 0, tables, device=device, dtype=torch.bfloat16)
    lay_out(layer)
    return layer


def states(tokens: int, hidden: int, device: str = "cuda") -> Pair:
    """Draw what the layer before returned: its result and the residual."""
    x, residual = (torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device) for _ in range(2))
    return x, residual


def whole(batch: int, length: int, device: str = "cuda") -> WholeSequences:
    """Lay out so many sequences of one length."""
    cu = torch.arange(batch + 1, dtype=torch.int32, device=device) * length
    return WholeSequences.of(cu, batch * length)


def pages(config: ModelConfig, batch: int, context: int, device: str = "cuda") -> PagedTokens:
    """Lay out one new token of each sequence, whose other keys lie in pages in any order."""
    count = -(-context // PAGE)
    heads, width = config.num_key_value_heads, config.head_dim
    cache = PagedCache.empty(1, batch * count, PAGE, heads, width, torch.bfloat16, torch.device(device))
    for part in (cache.keys, cache.values):
        part.normal_()
    table = torch.randperm(batch * count, device=device).int().reshape(batch, count)
    lens = torch.full((batch,), context, dtype=torch.int32, device=device)
    cu = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return PagedTokens.of(cache, cu, lens, table, batch)


# --- the same layer in torch ---


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Pair:
    """The sum of two streams, and its norm."""
    total = x + residual
    return peers.plain_rms_norm(total, weight, eps), total


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of heads [T, H, E]; cos and sin [T, E / 2]."""
    a, b = x.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1)


def heads_of(
    qkv: Tensor, sizes: tuple[int, int, int], norms: Pair | None, eps: float, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of q, k and v: norms of heads where a model has them, and rotary positions."""
    heads, shared, dim = sizes
    q, k, v = qkv.unflatten(-1, (heads + 2 * shared, dim)).split((heads, shared, shared), dim=1)
    if norms is not None:
        q, k = (peers.plain_rms_norm(x, w, eps) for x, w in zip((q, k), norms, strict=True))
    return rotated(q, cos, sin), rotated(k, cos, sin), v


def trained_heads(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The same with a v of its own, so that one kernel writes the gradient of q, k and v."""
    q, k, v = heads_of(*args)
    return q, k, v.clone()


def cached_heads(slots: Tensor, keys: Tensor, values: Tensor, *args: Any) -> Tensor:
    """The same with k and v written into pages."""
    q, k, v = heads_of(*args)
    keys.view(-1, *keys.shape[-2:])[slots] = k
    values.view(-1, *values.shape[-2:])[slots] = v
    return q


def gated(gate_up: Tensor) -> Tensor:
    """SwiGLU of a merged product."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def routed(scores: Tensor, k: int) -> Pair:
    """Experts of the largest scores and their weights, renormalised, as transformers has them."""
    weights, ids = torch.topk(torch.softmax(scores, -1, dtype=torch.float32), k, -1)
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype), ids


def by_experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, k: int) -> Tensor:
    """A layer of experts by torch's grouped products: sorted rows, SwiGLU, weighted rows added."""
    weights, ids = routed(F.linear(x, router), k)
    found, order = ids.flatten().sort(stable=True)
    ends = torch.searchsorted(found, torch.arange(len(gate_up), device=x.device), right=True, out_int32=True)
    both = torch._grouped_mm(x[order // k], gate_up.mT, offs=ends)
    rows = torch._grouped_mm(gated(both), down.mT, offs=ends)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    made: Tensor = (rows[place].view(*ids.shape, -1) * weights[..., None]).sum(1)
    return made


@cache
def fused(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.compile's version of an elementwise part, one for each shape."""
    return peers.static(call)


@dataclass(frozen=True, slots=True, eq=False)
class TorchLayer:
    """The layer by cuBLAS products of merged weights, compiled elementwise parts and FlashAttention 4."""

    config: ModelConfig
    input_norm: Tensor
    qkv: Tensor
    head_norms: Pair | None
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    cos: Tensor
    sin: Tensor
    attention: Callable[..., Any]
    router: Tensor | None = None

    @staticmethod
    def of(
        config: ModelConfig,
        layer: DecoderLayer,
        *,
        grad: bool = False,
        attention: Callable[..., Any] | None = None,
    ) -> TorchLayer:
        """Copy the weights of a layer, merged. Raises Absent where FlashAttention 4 is not installed.

        attention: another one, called as FlashAttention 4 is.
        """
        if attention is None:
            attention = peers.module("flash_attn.cute.interface").flash_attn_varlen_func
        at, mlp = layer.self_attn, layer.mlp

        def joined(*modules: Any) -> Tensor:
            return torch.cat([m.weight.detach() for m in modules]).requires_grad_(grad)

        def experts(weight: Tensor) -> Tensor:
            return weight.detach().clone().requires_grad_(grad)

        cos, sin = at.options.tables.of(at.o_proj.weight)
        if config.experts is None:
            weights = joined(mlp.gate_proj, mlp.up_proj), joined(mlp.down_proj)
        else:
            weights = experts(mlp.experts.gate_up_proj), experts(mlp.experts.down_proj)
        return TorchLayer(
            config,
            joined(layer.input_layernorm),
            joined(at.q_proj, at.k_proj, at.v_proj),
            (joined(at.q_norm), joined(at.k_norm)) if config.qk_norm else None,
            joined(at.o_proj),
            joined(layer.post_attention_layernorm),
            *weights,
            cos,
            sin,
            attention,
            None if config.experts is None else joined(mlp.gate),
        )

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Return what gradients are wanted of."""
        norms, router = self.head_norms or (), () if self.router is None else (self.router,)
        return (self.input_norm, self.qkv, *norms, self.o, self.post_norm, *router, self.gate_up, self.down)

    def __call__(
        self, x: Tensor, residual: Tensor, attend: Callable[[TorchLayer, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the MLP's result and the residual; `attend` gives o of the merged product of q, k and v."""
        eps = self.config.rms_norm_eps
        x, residual = fused(add_norm)(x, residual, self.input_norm, eps)
        o = attend(self, F.linear(x, self.qkv))
        x = F.linear(o.flatten(-2), self.o)
        x, residual = fused(add_norm)(x, residual, self.post_norm, eps)
        if self.router is not None and self.config.experts is not None:
            weights = self.router, self.gate_up, self.down
            return fused(by_experts)(x, *weights, self.config.experts.k), residual
        return F.linear(fused(gated)(F.linear(x, self.gate_up)), self.down), residual

    def of_heads(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Any, ...]:
        """Return the arguments that `heads_of` takes."""
        c = self.config
        sizes = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        return qkv, sizes, self.head_norms, c.rms_norm_eps, cos, sin


def attend_whole(tokens: WholeSequences, layer: TorchLayer) -> Callable[[TorchLayer, Tensor], Tensor]:
    """Return attention among whole sequences; the rows of the rotary tables are gathered once."""
    at, cu = tokens.positions.long(), tokens.cu_seqlens
    cos, sin = layer.cos[at], layer.sin[at]

    def attend(on: TorchLayer, qkv: Tensor) -> Tensor:
        made = fused(trained_heads if qkv.requires_grad else heads_of)
        q, k, v = made(*on.of_heads(qkv, cos, sin))
        return _output(on.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True))

    return attend


def attend_pages(
    tokens: PagedTokens, layer: TorchLayer, index: int = 0, **options: Any
) -> Callable[[TorchLayer, Tensor], Tensor]:
    """Return attention over pages, into which new keys and values are written before."""
    at = tokens.positions.long()
    cos, sin = layer.cos[at], layer.sin[at]
    keys, values = tokens.cache.keys[index], tokens.cache.values[index]
    given = {
        "cu_seqlens_q": tokens.cu_seqlens,
        "seqused_k": tokens.context_lens,
        "page_table": tokens.block_table,
        "causal": True,
        **options,
    }

    def attend(on: TorchLayer, qkv: Tensor) -> Tensor:
        q = fused(cached_heads)(tokens.slots, keys, values, *on.of_heads(qkv, cos, sin))
        return _output(on.attention(q, keys, values, **given))

    return attend


def _output(made: Any) -> Tensor:
    return made[0] if isinstance(made, tuple) else made
