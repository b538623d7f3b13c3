"""Helpers of all adapters: dtypes that rlk takes, layouts of padded rows, and the error for others."""

from __future__ import annotations

import torch

from rlk import ops
from rlk.errors import Code, UnsupportedError
from rlk.ops import Layout

SHORT = (torch.bfloat16, torch.float16)


def f32(x: torch.Tensor) -> torch.Tensor:
    """Widen 16-bit floats; others are left to the operator, which refuses what it does not take."""
    return x.float() if x.dtype in SHORT else x


def rows_of(mask: torch.Tensor) -> Layout:
    """Return the layout of padded rows [B, L] whose tokens count where a mask is not 0."""
    batch, width = mask.shape
    lengths = torch.full((batch,), width, device=mask.device)
    return Layout.padded(lengths, width, mask=mask != 0)


def entropies(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row of logits [..., V], f32."""
    ids = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    found = ops.logp(logits, ids, needs=("entropy",)).entropy
    assert found is not None
    return found


def no_form(peer: str, what: str, instead: str) -> UnsupportedError:
    """Return the error for a call of a peer that rlk.ops has no form of."""
    return UnsupportedError(Code.PEER_CALL, peer=peer, what=what, instead=instead)
