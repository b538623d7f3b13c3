"""Models whose parameters are marked as shares of ranks, and what marks them anew."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch

sharing: WeakSet[Any] = WeakSet()
"""Models and layers of this process whose weights ranks share.

The `named_parameters` of rlk's own, and of patched models, marks the shares anew; Megatron's GPTModel
marks them once, when it is made.
"""


def mark_anew(model: torch.nn.Module | None = None) -> None:
    """Mark the shares of all models, and of copies of them within a module that is given.

    FSDP2 puts tensors without a mark into modules, and a wrapper's `named_parameters` does not call that of
    the model in it.
    """
    copies = () if model is None else (m for m in model.modules() if "named_parameters" in vars(m))
    for each in (*sharing, *copies):
        next(each.named_parameters(), None)
