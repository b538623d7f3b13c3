"""Layers of a decoder as modules of torch, whose parameters have the names of Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from rlk import ops
from rlk.nn.compute import (
    AttentionOptions,
    after_norm,
    announce,
    attention,
    decoder_layer,
    gated_mlp,
    product_alone,
)
from rlk.nn.config import ModelConfig, Profile
from rlk.nn.experts import MoE
from rlk.nn.normed import norm_of_total
from rlk.nn.products import column_linear, lay_adjacent, row_linear
from rlk.nn.ranks import Ranks
from rlk.nn.replay import Replays
from rlk.nn.rotary import RotaryTables
from rlk.nn.tokens import Tokens

Parallel = Literal["columns", "rows"]


class Linear(torch.nn.Linear):
    """x w^T + bias by `rlk.ops.matmul`. weight: [out_features, in_features], bias: [out_features].

    parallel: which of its two contractions ranks may share. "columns": d x, over out_features; "rows": the
    product itself, over in_features. That one is summed in `leaves` equal pieces (1, 2, 4 or 8).
    std: of the weight that is drawn, with a bias of 0; None: both as torch draws them.
    shares: parameters of which ranks have a share each, and the dim that they share.
    """

    shares: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        parallel: Parallel = "columns",
        leaves: int = 1,
        std: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.std = std  # torch's __init__ draws
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.parallel, self.leaves = parallel, leaves

    def reset_parameters(self) -> None:
        """Draw weight and bias, as `std` says."""
        if self.std is None:
            super().reset_parameters()
            return
        torch.nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @product_alone
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        product = column_linear if self.parallel == "columns" else row_linear
        return product(x, self.weight, self.bias, self.leaves)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, parallel={self.parallel}, leaves={self.leaves}"


class RMSNorm(torch.nn.Module):
    """`rlk.ops.rms_norm` with its weight. profile: "hf_llama", "gemma" (1 + weight), "vllm" or "gpt_oss"."""

    def __init__(
        self,
        size: int,
        *,
        eps: float = 1e-6,
        profile: Profile = "hf_llama",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.eps, self.profile = eps, profile
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make it a norm without weights: 1, or 0 where 1 is added to them."""
        torch.nn.init.constant_(self.weight, 0.0 if self.profile == "gemma" else 1.0)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x [..., size]; given a residual, the norm of their rounded sum, and that sum."""
        made = ops.rms_norm(x, self.weight, residual=residual, eps=self.eps, profile=self.profile)
        return made if residual is None else (made.y, made.residual)

    def of_total(self, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `forward` returns of x and a residual, given their rounded sum; not for "vllm"."""
        return norm_of_total(total, self.weight, self.eps, self.profile)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}, profile={self.profile}"


class Embedding(torch.nn.Embedding):
    """`rlk.ops.embedding`: rows of a weight [num_embeddings, embedding_dim]. scale: of its result.

    std: of the weight that is drawn, 1 as torch's.
    shares: parameters of which ranks have a share each, and the dim that they share.
    """

    shares: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        scale: float | None = None,
        std: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.std = std  # torch's __init__ draws
        super().__init__(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.scale = scale

    def reset_parameters(self) -> None:
        """Draw the weight."""
        torch.nn.init.normal_(self.weight, std=self.std)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [..., embedding_dim] of ids [...]."""
        return self.scaled(ops.embedding(ids, self.weight))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Return embeddings times `scale`."""
        if self.scale is None:
            return x
        # the factor is rounded to the dtype first, as transformers does; one product and rounding by torch
        return x * float(torch.tensor(self.scale, dtype=x.dtype))


class Attention(torch.nn.Module):
    """Causal attention with grouped key heads, optional norms of heads, and rotary positions."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        tables: RotaryTables,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        drawn = made | {"std": config.initializer_range}
        hidden, leaves = config.hidden_size, config.leaves
        queries, keys = (
            n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
        )
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            setattr(self, name, Linear(hidden, size, config.qkv_bias, leaves=leaves, **drawn))
        self.o_proj = Linear(queries, hidden, config.o_bias, parallel="rows", leaves=leaves, **drawn)
        if config.qk_norm:
            for name in ("q_norm", "k_norm"):
                norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, profile=config.norm_profile, **made)
                setattr(self, name, norm)
        if config.sinks:
            self.sinks = torch.nn.Parameter(torch.empty(config.num_attention_heads, **made))
            torch.nn.init.normal_(self.sinks, std=config.initializer_range)
        self.options = AttentionOptions.of(config, layer, tables)

    def forward(self, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Return [T, hidden] of x [T, hidden]."""
        return attention(self, x, tokens, self.options)


class GatedMLP(torch.nn.Module):
    """down(activation(gate(x)) * up(x)): SwiGLU or GeGLU (Shazeer 2020)."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"std": config.initializer_range, "device": device, "dtype": dtype}
        hidden, inner, bias, leaves = (
            config.hidden_size, config.intermediate_size, config.mlp_bias, config.leaves
        )  # fmt: skip
        self.gate_proj = Linear(hidden, inner, bias, leaves=leaves, **made)
        self.up_proj = Linear(hidden, inner, bias, leaves=leaves, **made)
        self.down_proj = Linear(inner, hidden, bias, parallel="rows", leaves=leaves, **made)
        self.activation, self.leaves = config.activation, leaves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden] of x [T, hidden]."""
        return gated_mlp(self, x, self.activation, self.leaves)


class DecoderLayer(torch.nn.Module):
    """Attention and MLP with their norms; the sum of residuals is taken in the norm that follows it."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        tables: RotaryTables,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer, tables, device=device, dtype=dtype)
        self.mlp: GatedMLP | MoE
        if config.is_dense(layer):
            self.mlp = GatedMLP(config, device=device, dtype=dtype)
        else:
            self.mlp = MoE(config, layer, device=device, dtype=dtype)
        names = ["input_layernorm", "post_attention_layernorm"]
        if config.sandwich_norms:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in names:
            norm = RMSNorm(
                config.hidden_size,
                eps=config.rms_norm_eps,
                profile=config.norm_profile,
                device=device,
                dtype=dtype,
            )
            setattr(self, name, norm)
        self.sandwich = config.sandwich_norms
        self.ranks: Ranks | None = None
        self.replays = Replays()

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens, *, summed: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the MLP's result and the residual that is to be added to it, [T, hidden] each.

        x: what the layer before returned, or embeddings, whose residual is None. summed: x is what the layer
        before returned, both added; gradients are the same, those of a sum within the norm.
        """
        if summed:
            announce(self, tokens)
            x, residual = self.input_layernorm.of_total(x)
            return after_norm(self, x, residual, tokens, self.sandwich)
        made = self.replays.find(self, _layer, x, residual, tokens)
        return _layer(self, x, residual, tokens) if made is None else made

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> DecoderLayer:
        """Move or cast parameters; replays would keep the memory that they leave."""
        self.replays.forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def sums_alike(self) -> bool:
        """Return whether the norm of two streams is that of their rounded sum."""
        return self.input_layernorm.profile != "vllm"


def _layer(
    layer: DecoderLayer, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens
) -> tuple[torch.Tensor, torch.Tensor]:
    return decoder_layer(layer, x, residual, tokens, layer.sandwich)


def lay_out(model: torch.nn.Module) -> None:
    """Lay weights of one input behind each other in memory, so that one product reads them all.

    Bits do not depend on it. Call it again after a move that took them apart (`to(dtype)`, `load_state_dict`
    with assign=True); `CausalLM` does after `to`.
    """
    for group in merged_parameters(model):
        lay_adjacent(group)


def take_memory(model: torch.nn.Module, device: torch.device | str | None) -> None:
    """Give a model on the meta device memory on another, laid out as by `lay_out`; its content is undefined.

    Parameters that modules share stay shared, and keep their attributes.
    """
    on = torch.get_default_device() if device is None else device
    made: dict[int, torch.nn.Parameter] = {}
    before = {id(p): p for p in model.parameters()}  # kept until the end, so that no id is used again
    for group in merged_parameters(model):
        sizes = [len(p) for p in group]
        memory = torch.empty(sum(sizes), *group[0].shape[1:], dtype=group[0].dtype, device=on)
        for p, part in zip(group, memory.split(sizes), strict=True):
            made[id(p)] = torch.nn.Parameter(part, p.requires_grad)
    for key, p in before.items():
        if key not in made:
            made[key] = torch.nn.Parameter(torch.empty_like(p, device=on), p.requires_grad)
    for key, p in before.items():
        vars(made[key]).update(vars(p))
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            setattr(module, name, made[id(p)])


def merged_parameters(model: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """Yield the parameters that one product reads: weights of one input, and their biases."""
    for module in model.modules():
        if isinstance(module, Attention):
            group: tuple[Any, ...] = (module.q_proj, module.k_proj, module.v_proj)
        elif isinstance(module, GatedMLP):
            group = (module.gate_proj, module.up_proj)
        else:
            continue
        # rlk's own subclasses too, but not those that FSDP2 makes
        if all(isinstance(m, Linear) and type(m).__module__.startswith("rlk.") for m in group):
            yield [m.weight for m in group]
            if group[0].bias is not None:
                yield [m.bias for m in group]
