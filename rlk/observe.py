"""Hooks of modules, padded rows, findings as JSON, tiny models: shared by `rlk verify` and `rlk drift`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

SIGMA = 4.0  # spread of random models' logits
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "max_position_embeddings": 512, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip
"""Sizes of the built-in models: products of 2048 terms, so that another order of sums is seen."""

Before = Callable[[str, torch.nn.Module, Any, Any], Any]
After = Callable[[str, torch.nn.Module, Any, Any, Any], Any]


@contextmanager
def hooked(
    modules: Iterable[tuple[str, torch.nn.Module]], after: After | None = None, before: Before | None = None
) -> Iterator[None]:
    """Hook modules meanwhile: before(name, module, args, kwargs), and after(..., kwargs, result).

    As hooks of torch do, each returns None or what takes the place of (args, kwargs), or of the result.
    """
    with ExitStack() as stack:
        for name, module in modules:
            if before is not None:
                hook = partial(before, name)
                stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
            if after is not None:
                stack.enter_context(module.register_forward_hook(partial(after, name), with_kwargs=True))
        yield


def positions_of(mask: Tensor) -> Tensor:
    """Return the positions of tokens in padded rows, int64 [B, L], by their mask; 0 before the first."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def finite(found: Any) -> Any:
    """Return values that JSON has, at any depth: "nan", "inf" and "-inf" in place of floats it has not."""
    match found:
        case float():
            return found if math.isfinite(found) else str(found)
        case Mapping():
            return {name: finite(each) for name, each in found.items()}
        case list() | tuple():
            return [finite(each) for each in found]
    return found


def randomize(model: Any, seed: int = 0, around: float = 1.0) -> None:
    """Give a model random weights, whose logits spread by about SIGMA.

    around: the mean of its norms' weights. Parameters are drawn in their order and dtype on their device, by
    a generator of their own.
    """
    drawn: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            head = "lm_head" in name or model.lm_head.weight is p
            if name.endswith("bias"):
                mean, spread = 0.0, 0.1
            elif p.dim() == 1:
                mean, spread = around, 0.1
            else:
                mean, spread = 0.0, (SIGMA if head else 1.0) / p.shape[-1] ** 0.5
            if p.device not in drawn:
                drawn[p.device] = torch.Generator(p.device).manual_seed(seed)
            p.normal_(mean, spread, generator=drawn[p.device])
