"""Models of transformers that rlk computes, whose weights ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import MethodType
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.integrations.batch import PEER
from rlk.integrations.patching import GROUPS, Patched, lay_out, patched_decoders
from rlk.integrations.tensors import no_form
from rlk.nn.config import ModelConfig
from rlk.nn.ranks import Ranks, mark_shares
from rlk.parallel.plan import (
    EMBEDDING,
    OP,
    Styles,
    already_shared,
    check_shares,
    dim_of,
    put,
    shares_heads,
    shares_of,
)
from rlk.parallel.state import mark_parts


def parallelize_patched(made: Patched, ranks: Ranks, styles: Styles) -> None:
    """Keep a rank's shares of the weights of a patched model, and let its modules compute with the others."""
    decoders = patched_decoders(made.model)
    if len(decoders) != 1 or made.model._modules.get("model") is not decoders[0]:
        found, wanted = type(made.model).__name__, "a causal language model that is exchanged whole"
        raise LaunchError(Code.ARG_VALUE, op=OP, name="model", value=found, wanted=wanted)
    (decoder,) = decoders
    if "ranks" in vars(decoder):
        raise already_shared(decoder.ranks)
    config = ModelConfig.of(decoder.config)  # with the leaves that the patch put there
    check_shares(config, ranks, styles)
    if ranks.size == 1:
        return
    put(made.model, shares_of(made.model, ranks, styles))
    made.put(made.model, "named_parameters", MethodType(_marked_parameters, made.model))
    forwards = import_module("rlk.integrations.decoders")
    at = forwards.Decoding.of(config, None, False)
    for layer, options in zip(decoder.layers, at.layers, strict=True):
        for holder, names in GROUPS:
            lay_out([getattr(getattr(layer, holder), name) for name in names])
        made.put(layer, "ranks", ranks)
        if shares_heads(styles):
            heads, key_heads = map(ranks.share, (options.heads, options.key_heads))
            own = replace(options, heads=heads, key_heads=key_heads, ranks=ranks)
            made.exchange(layer.self_attn, forwards.attention_forward(own))
    if ranks.sequence:
        for name, module in made.model.named_modules():
            if name.endswith((".self_attn", ".mlp")) and not any(x.startswith(f"{name}.") for x in styles):
                made.put(module, "ranks", ranks)
                made.exchange(module, forwards.of_all_tokens(module.forward.__func__))
    made.put(decoder, "ranks", ranks)
    for name in ("init_continuous_batching", "generate_batch"):
        made.put(made.model, name, _no_continuous_batching)
    for name, module in made.model.named_modules():
        if dims := {
            each: dim
            for each in module._parameters
            if (dim := dim_of(f"{name}.{each}", styles)) is not None
        }:
            made.put(module, "shares", dims)
            mark_parts(module, dims, ranks)
        between = ranks.sequence and _is_norm_of_tokens(name, module)
        if name in styles or name == EMBEDDING or between:  # ranks compare the ids of a whole embedding too
            made.put(module, "ranks", ranks)
    mark_shares(made.model, ranks)


def _marked_parameters(self: torch.nn.Module, *args: Any, **options: Any) -> Iterator[Any]:
    """Yield names and parameters; those of which a rank has a share are marked for `rlk.optim`.

    Copies of a model and FSDP2 put tensors without a mark into its modules.
    """
    mark_shares(self, vars(self._modules["model"])["ranks"])
    yield from type(self).named_parameters(self, *args, **options)


def _no_continuous_batching(*_: object, **__: object) -> None:
    raise no_form(PEER, "continuous batching where ranks share the model", "use rlk.nn.CausalLM.generate")


def _is_norm_of_tokens(name: str, module: torch.nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm") and ".self_attn." not in name
