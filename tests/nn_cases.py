"""Tiny models and the comparison of their bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlk.nn import CausalLM, ModelConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "hidden_act": "silu",
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "tie_word_embeddings": False, "rope_theta": 1e6,
}  # fmt: skip


def model(device: torch.device | str = "cpu", seed: int = 0, **options: Any) -> CausalLM:
    """Return a Qwen3 with random weights, whose logits spread by about 4."""
    config = ModelConfig.of(QWEN3 | options)
    made = CausalLM(config, device="cpu").requires_grad_(False)
    drawn = torch.Generator().manual_seed(seed)
    for name, p in made.named_parameters():
        if p.dim() == 1:
            p.copy_(1 + 0.1 * torch.randn(p.shape, generator=drawn))
        else:
            spread = 4.0 if "lm_head" in name else 1.0
            p.copy_(torch.randn(p.shape, generator=drawn) * (spread / p.shape[1] ** 0.5))
    return made.to(device)


def texts(lengths: Sequence[int], vocabulary: int = 96, seed: int = 1) -> list[list[int]]:
    """Return random ids."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (n,), generator=drawn).tolist() for n in lengths]


def integers(*numbers: int, device: torch.device | str = "cpu") -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


class TorchLinear(torch.nn.Module):
    """The control: the product of torch."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.leaves = like.weight, like.bias, like.leaves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)
