"""Controls: a model with one thing changed, whose bits a comparison must find to differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlk.nn import CausalLM, MoE, RouteLog
from rlk.nn.config import Experts
from rlk.nn.experts import Routed, routed
from rlk.verify.views import Run, again

Product = Callable[[Tensor, Tensor], Tensor]
SHORT = 1024  # terms: f32 sums of fewer, in two orders, are seldom rounded to different 16-bit numbers


class Swapped(torch.nn.Module):
    """A linear layer by another function of x and its weight."""

    def __init__(self, like: Any, product: Product) -> None:
        super().__init__()
        self.weight, self.bias, self.leaves, self.product = like.weight, like.bias, like.leaves, product

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x, self.weight)
        return y if self.bias is None else y + self.bias


class SwappedRouter(torch.nn.Module):
    """A router whose scores are another function of x and its weight."""

    def __init__(self, like: Any, product: Product) -> None:
        super().__init__()
        self.weight, self.bias, self.product = like.weight, like.bias, product

    def forward(self, x: Tensor, at: Experts, layer: int, routes: RouteLog | None) -> Routed:
        scores = self.product(x, self.weight)
        return routed(scores if self.bias is None else scores + self.bias, at, layer, routes)


def split_k(x: Tensor, w: Tensor) -> Tensor:
    """Return x w^T by torch, in two halves of K that are added in f32."""
    first, second = _halves(x, w)
    return (first + second).to(x.dtype)


def split_k_rounded(x: Tensor, w: Tensor) -> Tensor:
    """Return the same of halves that are rounded to x's dtype first, as in a workspace of 16 bits."""
    first, second = (part.to(x.dtype).float() for part in _halves(x, w))
    return (first + second).to(x.dtype)


def _halves(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[1] // 2
    first, second = (torch.mm(x[:, s].float(), w[:, s].float().t()) for s in (slice(half), slice(half, None)))
    return first, second


def broken_layer(model: CausalLM) -> int:
    """Return the layer whose product a control replaces: one half-way."""
    return (len(model.model.layers) - 1) // 2


def swapped_product(model: CausalLM) -> tuple[Any, str]:
    """Return the module and the attribute of the product that a control replaces."""
    layer = model.model.layers[broken_layer(model)]
    return (layer.mlp, "down_proj") if model.config.experts is None else (layer.self_attn, "o_proj")


def terms_of_control(model: CausalLM) -> int:
    """Return how many terms the sums have whose order a control changes."""
    holder, name = swapped_product(model)
    terms: int = getattr(holder, name).weight.shape[1]
    return terms


def with_product(run: Run, product: Product) -> Iterator[Tensor]:
    """Run the model with another product in a layer half-way: the last of its MLP, or of its attention.

    A layer of experts has no product of all tokens; in models that have some, attentions show the order of
    sums (`rlk.verify.models.cancel_attention`).
    """
    holder, name = swapped_product(run.model)
    own = getattr(holder, name)
    setattr(holder, name, Swapped(own, product))
    try:
        yield from again(run)
    finally:
        setattr(holder, name, own)


def with_routers(run: Run, product: Product) -> Iterator[Tensor]:
    """Run the model with another product in the routers of all layers."""
    experts = run.model.config.experts
    assert experts is not None
    own = [(m, getattr(m, experts.router)) for m in run.model.modules() if isinstance(m, MoE)]
    try:
        for moe, router in own:
            setattr(moe, experts.router, SwappedRouter(router, product))
        yield from again(run)
    finally:
        for moe, router in own:
            setattr(moe, experts.router, router)


def with_leaves(run: Run, leaves: int) -> Iterator[Tensor]:
    """Run the same weights in a model of another number of leaves."""
    config, dtype = replace(run.model.config, leaves=leaves), run.model.lm_head.weight.dtype
    other = CausalLM(config, device="meta", dtype=dtype)  # without memory of its own
    other.load_state_dict(run.model.state_dict(), assign=True)
    with run.using(other):
        yield from again(run)
