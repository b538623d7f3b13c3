"""Models and tokens that Megatron-core's GPT model is compared on, without Megatron-core."""

from __future__ import annotations

from typing import Any

import torch
from nn_cases import integers
from tensor_parallel_cases import tiny

from rlk.nn import CausalLM

BATCH, LENGTH, PACKED = 2, 70, (67, 0, 100)
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "num_hidden_layers": 2, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "num_hidden_layers": 1},  # biases of q, k and v
    "llama": {"model_type": "llama", "num_hidden_layers": 1, "attention_bias": True, "mlp_bias": True},
}


def policy_of(name: str) -> CausalLM:
    return tiny("qwen2", **MODELS[name])


def texts(name: str) -> torch.Tensor:
    """Return ids [b, s]: of a row for each sequence, or of packed ones."""
    shape = (1, sum(PACKED)) if name == "llama" else (BATCH, LENGTH)
    return torch.randint(96, shape, generator=torch.Generator().manual_seed(3))


def offsets() -> torch.Tensor:
    return integers(0, *torch.tensor(PACKED).cumsum(0).tolist())


def has_next(name: str) -> torch.Tensor:
    """Return which tokens [b, s] have one behind them in their sequence."""
    made = torch.ones_like(texts(name), dtype=torch.bool)
    ends = offsets()[1:].long() - 1 if name == "llama" else torch.tensor([LENGTH - 1])
    made[:, ends] = False
    return made


def factors(name: str) -> torch.Tensor:
    """Return what losses are multiplied by, [b, s]."""
    like = texts(name)
    return torch.linspace(-1, 1, like.numel()).view(like.shape)


def labels_of(name: str) -> torch.Tensor:
    """Return the token behind each, [b, s]; of the last ones no token, as their mask is 0."""
    return torch.where(has_next(name), texts(name).roll(-1, 1), -1)


def streams() -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and cotangents of a norm, f32 [s, b, 24], whose sums show every order."""
    drawn = torch.Generator().manual_seed(4)
    x, d_y = (torch.randn(LENGTH, BATCH, 24, generator=drawn) for _ in range(2))
    return x, d_y
