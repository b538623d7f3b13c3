"""How the support of a draw reaches a log-prob: as a threshold for each row, or as a bit for each token."""

from __future__ import annotations

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.checks import wrong_type
from rlk.ops.results import Csr, Support
from rlk.runtime.invocation import Tensors

WORD = 32  # bits


def kept_tokens(op: str, support: object, logits: torch.Tensor, ids: torch.Tensor) -> Tensors:
    """Return the inputs of a log-prob that restrict it to a support of the rows of ids."""
    # no `match`: torch.compile follows class patterns from torch 2.11 on
    if isinstance(support, Support):
        for name in ("threshold", "last"):
            got, wanted = tuple(getattr(support, name).shape), tuple(ids.shape)
            if got != wanted:
                raise LaunchError(
                    Code.ARG_SIZE,
                    op=op,
                    name=f"support.{name}",
                    axis="T",
                    got=got,
                    other="ids",
                    wanted=wanted,
                )
        return {"threshold": support.threshold, "last": support.last}
    if not isinstance(support, Csr):
        raise wrong_type(op, "support", support, "Support or Csr")
    rows = len(support.offsets) - 1
    if rows != ids.numel():
        raise LaunchError(
            Code.ARG_SIZE,
            op=op,
            name="support.offsets[1:]",
            axis="T",
            got=rows,
            other="ids",
            wanted=ids.numel(),
        )
    return {"words": _words(support, logits.shape[-1]).reshape(*ids.shape, -1)}


def _words(csr: Csr, vocabulary: int) -> torch.Tensor:
    """Return a bit for each token of each row, i32 [rows, ceil(vocabulary / 32)]."""
    rows, width = len(csr.offsets) - 1, -(-vocabulary // WORD)
    ids = csr.ids.to(torch.int64)
    place = torch.arange(len(ids), device=ids.device)
    row = torch.searchsorted(csr.offsets[1:].to(torch.int64), place, right=True)
    at = row * width + ids // WORD
    words = torch.zeros(rows * width, dtype=torch.int64, device=ids.device)
    # every bit is added once: integer sums have no order
    words.index_add_(0, at, torch.ones_like(ids) << ids % WORD)
    return words.to(torch.int32).reshape(rows, width)
