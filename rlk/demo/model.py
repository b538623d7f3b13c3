"""The demo's model: Qwen3 with seeded random weights, small on a CPU, as Qwen3-0.6B on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk.demo.batch import Batch
from rlk.demo.text import Shape

# Logits of a trained model deviate by a few units; a head drawn at this scale makes these do so too.
LOGIT_SCALE = 2.5


@dataclass(frozen=True, slots=True)
class Size:
    """The model's dimensions, the samples it reads, and the type it computes in."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    dtype: torch.dtype
    shape: Shape


SMALL = Size("small", 2, 128, 384, 4, 2, 32, 32768, torch.float32, Shape(4, 4, (12, 40), (6, 48)))
REAL = Size("real", 28, 1024, 3072, 16, 8, 128, 151936, torch.bfloat16, Shape(4, 4, (64, 256), (32, 320)))
SIZES = {size.name: size for size in (SMALL, REAL)}
# for the comparison of whole models, which is of bf16
SMALL_CHAIN = Size("small", 2, 256, 768, 4, 2, 64, 32768, torch.bfloat16, Shape(2, 4, (8, 24), (6, 32)))
CHAINS = {size.name: size for size in (SMALL_CHAIN, REAL)}
"""The model whose log-probs are compared, by the size of the demo."""


def make_model(size: Size, seed: int, device: str) -> Any:
    """Build the model with random weights that depend on the seed alone."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = Qwen3ForCausalLM(shape)
    with torch.no_grad():
        model.lm_head.weight.normal_(0.0, LOGIT_SCALE / size.hidden**0.5)
    return model.to(device=device, dtype=size.dtype).eval()


def perturb(model: Any, scale: float, seed: int) -> None:
    """Add seeded noise, `scale` times its own deviation, to every matrix, in place of optimiser steps."""
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            if weight.dim() < 2:
                continue
            draw = torch.Generator(device=weight.device).manual_seed(seed * 100_003 + number)
            noise = torch.randn(weight.shape, generator=draw, device=weight.device, dtype=torch.float32)
            weight.add_((noise * (scale * weight.float().std())).to(weight.dtype))


def logits_of(model: Any, batch: Batch) -> Tensor:
    """Run the model over a padded batch: logits [B, L, V] in the model's type.

    They are a strided slice, as trainers take it: of L + 1 tokens, the last has nothing to predict.
    """
    ids = torch.cat([batch.inputs, batch.targets[:, -1:]], 1)
    seen = torch.nn.functional.pad(batch.real.long(), (0, 1), value=0)
    logits: Tensor = model(input_ids=ids, attention_mask=seen).logits
    return logits[:, :-1]
