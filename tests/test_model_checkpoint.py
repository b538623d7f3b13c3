"""Checkpoints of layers change no bit of a gradient."""

from __future__ import annotations

import pytest
import torch

from rlk import ops
from rlk.nn import CausalLM, ModelConfig
from rlk.nn.normed import norm_of_total
from rlk.testing.bits import assert_same_bits, differing

SIZES = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "rope_theta": 1e4,
}
FAMILIES = {
    "qwen3": {"model_type": "qwen3", "hidden_act": "silu"},
    "gemma2": {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def step(model: CausalLM, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return hidden states and the gradients of weights."""
    hidden = model(ids)
    seed = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1)).to(hidden.dtype)
    weights = [p for n, p in model.named_parameters() if n != "lm_head.weight"]
    return [hidden.detach(), *torch.autograd.grad(hidden, weights, seed)]


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_of_layers_change_no_bit(family: str) -> None:
    torch.manual_seed(0)
    model = CausalLM(ModelConfig.of(SIZES | FAMILIES[family]))
    ids = torch.arange(12) * 7 % 40
    plain = step(model, ids)
    model.gradient_checkpointing_enable()
    for got, want in zip(step(model, ids), plain, strict=True):
        assert_same_bits(got, want)
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight.mul_(1.5).add_(0.5)
    assert all(differing(got, want) for got, want in zip(step(model, ids)[:2], plain, strict=False))


def test_gradients_added_after_the_norm_have_other_bits() -> None:
    """The control: autograd rounds both cotangents of the stream before it adds them."""
    draw = torch.Generator().manual_seed(0)
    total, weight, *seeds = (torch.randn(4, 64, generator=draw).bfloat16() for _ in range(4))
    total, weight = total.requires_grad_(), weight[0].clone()
    made = norm_of_total(total, weight, 1e-6, "hf_llama")
    (got,) = torch.autograd.grad(made, total, seeds)
    (apart,) = torch.autograd.grad(
        (ops.rms_norm(total, weight, eps=1e-6), total.view_as(total)), total, seeds
    )
    zero = torch.zeros_like(total, requires_grad=True)
    fused = ops.rms_norm(total, weight, residual=zero, eps=1e-6)
    (want,) = torch.autograd.grad((fused.y, fused.residual), total, seeds)
    assert_same_bits(got, want)
    assert differing(apart, want)
