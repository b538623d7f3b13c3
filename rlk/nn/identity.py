"""The numerics id of a whole model: the ids of its operators and the options that they are called with."""

from __future__ import annotations

import torch

from rlk import ops
from rlk.digest import digest
from rlk.nn.config import ModelConfig

NO_NUMERICS = ("max_position_embeddings",)
"""What a config holds that changes no bit."""


def numerics_id(config: ModelConfig, device: torch.device | str) -> str:
    """Return the id of a model's numerics on a device, of 16 hex digits."""
    used = (
        ops.embedding, ops.rms_norm, ops.matmul, ops.rope, ops.varlen_attention, ops.paged_attention,
        ops.swiglu if config.activation == "silu" else ops.geglu, ops.linear_logp,
    )  # fmt: skip
    ids = {op.__name__: op.numerics_id(device) for op in used}
    options = {name: getattr(config, name) for name in config.__slots__ if name not in NO_NUMERICS}
    return digest({"operators": ids, "options": options})[:16]
