"""The numerics id of a whole model: the ids of the operators that its views run, and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from rlk.digest import digest
from rlk.lang.op import Op
from rlk.nn.config import ModelConfig
from rlk.runtime.binding import selection
from rlk.runtime.binding.checks import is_device
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.binding.selection import Statics
from rlk.runtime.call.dispatch import decide
from rlk.runtime.call.entry import observed
from rlk.runtime.prefetch import without_values

NO_NUMERICS = ("model_type", "max_position_embeddings", "initializer_range", "source")
"""What a config holds that changes no bit: names, how many rows a table has, how weights are drawn."""
HEADS, WIDTH = 8, 64  # of the small model: multiples of any number of leaves


def numerics_id(
    config: ModelConfig, dtype: torch.dtype, device: torch.device | str, run: Callable[[], None]
) -> str:
    """Return the id of a model's numerics on a device, of 16 hex digits.

    run: calls every view of a model of the same options, such as `small` has, in this dtype. Its operators
    are not run: the variant of each call is what counts. Gradients are no part of it, but their orders are
    options.
    """
    on = is_device("numerics_id", device)
    options = {name: getattr(config, name) for name in config.__slots__ if name not in NO_NUMERICS}
    operators = sorted({found for _, found in operator_ids(on, run)})
    return digest({"operators": operators, "dtype": str(dtype), "options": options})[:16]


def operator_ids(device: torch.device, run: Callable[[], None]) -> set[tuple[str, str]]:
    """Return the names and ids of the operators that a function would run on a device."""
    found: set[tuple[str, str]] = set()

    def observe(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Tensors:
        invocation = selection.invoke(op, tensors, scalars, statics, math)
        found.add((op.name, decide(invocation, device).numerics_id))
        return without_values(invocation, tensors)

    with observed(observe), torch.no_grad():
        run()
    return found


def small(config: ModelConfig) -> ModelConfig:
    """Return a config that calls the same variants of operators: a layer of each kind, few rows and columns.

    Extents of weights are no part of a variant; that of a head is, where a part of it rotates.
    """
    each = [config.is_dense(i) for i in range(config.num_hidden_layers)]
    kinds = list(dict.fromkeys(zip(config.windows, config.ropes, each, strict=True)))
    experts = config.experts
    if experts is not None:
        at = tuple(i for i, (_, _, is_dense) in enumerate(kinds) if is_dense)
        experts = replace(experts, width=WIDTH, dense=at)
    return replace(
        config,
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_attention_heads=HEADS * (config.num_attention_heads // config.num_key_value_heads),
        num_key_value_heads=HEADS,
        max_position_embeddings=HEADS,
        windows=tuple(window for window, _, _ in kinds),
        ropes=tuple(rope for _, rope, _ in kinds),
        experts=experts,
    )
