"""Results of a model's modules in a call, by operator, for comparisons inside of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlk.observe import hooked

OPERATORS = {
    "embed_tokens": "embedding",
    "input_layernorm": "rms_norm",
    "post_attention_layernorm": "rms_norm",
    "pre_feedforward_layernorm": "rms_norm",
    "post_feedforward_layernorm": "rms_norm",
    "norm": "rms_norm",
    "self_attn": "attention",
    "mlp": "gated mlp",
}
"""By the last name of a module: the operator, or the chain of operators, whose result it returns."""
CHAINS = {
    "embedding": "embedding",
    "rms_norm": "rms_norm, with the sum of residuals",
    "attention": "matmul of q, k, v; qk_norm or rope; varlen_attention or paged_attention; matmul",
    "gated mlp": "matmul of gate, up; swiglu or geglu; matmul; or experts: route, permute, products, combine",
    "experts": "the ids that route chose in all layers of a token",
    "logits": "matmul to f32, with a softcap where the model has one",
}
"""The operators of `rlk.ops` behind each name."""


@dataclass(slots=True, eq=False)
class Trace:
    """The results of a model's modules in its latest call, by their names, in the order of the call.

    Names are those of Hugging Face without the prefix of the decoder: layers.0.self_attn.
    """

    found: dict[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[Trace]:
        """Watch a model's modules meanwhile. No product is hooked: a hooked one runs another path."""
        try:
            with hooked(modules_of(model), self._keep):
                yield self
        finally:
            self.found.clear()

    def _keep(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        if name == "embed_tokens":
            self.found.clear()  # a call begins
        y = out[0] if isinstance(out, tuple) else out
        if not torch.compiler.is_compiling():
            self.found[name] = y.detach().flatten(0, -2)

    def rows(self, count: int, rows: Tensor | None) -> dict[str, Tensor]:
        """Return the rows of `count` tokens of each module: all, or those named where there are more."""
        return {
            name: y if rows is None or len(y) == count else y[rows]
            for name, y in self.found.items()
            if len(y) == count or rows is not None
        }


def modules_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules that are watched, by their names in a trace."""
    for name, module in model.named_modules():
        if operator_of(name) is not None:
            yield name.removeprefix("model."), module


def operator_of(name: str) -> str | None:
    """Return the operator whose result a module of this name returns, None for other modules."""
    return OPERATORS.get(name.rpartition(".")[2])
