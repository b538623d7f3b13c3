"""Tiny random models of each family of `rlk.nn`, written and run by transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

transformers.logging.disable_progress_bar()
VOCABULARY, WINDOW, LONGEST = 96, 8, 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MIXED = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_hidden_layers=2, rope_parameters=LLAMA3),
    "mistral": lambda: transformers.MistralConfig(
        **SIZES, num_hidden_layers=2, head_dim=32, sliding_window=WINDOW
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, num_hidden_layers=2, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, num_hidden_layers=2, head_dim=32),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, num_hidden_layers=2, head_dim=32, query_pre_attn_scalar=24, layer_types=MIXED,
        sliding_window=WINDOW, attn_logit_softcapping=2.0, final_logit_softcapping=4.0,
    ),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **SIZES, num_hidden_layers=2, head_dim=256, query_pre_attn_scalar=200, layer_types=MIXED,
        sliding_window=WINDOW,
    ),
}  # fmt: skip
"""By model_type: a config with the parts that the family has beside those of Llama."""


def written(family: str, folder: Path, seed: int = 0, **other: Any) -> Path:
    """Write a random f32 model by transformers, whose logits spread over several units; return its folder."""
    config = FAMILIES[family]()
    for name, value in other.items():
        setattr(config, name, value)
    return written_of(config, folder, seed)


def written_of(config: Any, folder: Path, seed: int = 0) -> Path:
    """Write a random f32 model of a config by transformers; return its folder."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(torch.randn_like(p) * 0.2)
            elif name.endswith(("bias", "sinks")):
                p.copy_(torch.randn_like(p) * 0.5)
            elif "embed" in name or "lm_head" in name:
                p.copy_(torch.randn_like(p) * (0.5 if name.startswith("lm_head") or tied(config) else 1.0))
            else:
                p.copy_(torch.randn_like(p) * p.shape[1] ** -0.5)
    model.save_pretrained(folder)
    return folder


def tied(config: Any) -> bool:
    return bool(config.tie_word_embeddings)


def loaded(folder: Path, dtype: torch.dtype) -> Any:
    """Load a model by transformers, with eager attention."""
    found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return found.eval()


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits."""
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.detach().view(integers), b.detach().view(integers))
