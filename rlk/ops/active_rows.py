"""Active rows of a call, and the order in which gradients sum over them."""

from __future__ import annotations

import torch

from rlk.runtime.binding.invocation import Scalars, Tensors


def active(tensors: Tensors, scalars: Scalars) -> torch.Tensor:
    """Return which rows are active: their id is not ignored and their mask, if any, is true."""
    counts = tensors["ids"] != scalars["ignore_index"]
    return counts & tensors["mask"] if "mask" in tensors else counts


def compacted(counts: torch.Tensor) -> torch.Tensor:
    """Return the active rows, ascending, then the others: the order of the gradient's sums over rows."""
    return torch.argsort(~counts.reshape(-1), stable=True).reshape(counts.shape)
