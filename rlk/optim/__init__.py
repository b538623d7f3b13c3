"""Optimizer steps and gradient norms whose bits do not depend on how parameters are sharded."""

from __future__ import annotations

from rlk.optim.adamw import AdamW
from rlk.optim.norm import clip_grad_norm, grad_norm

__all__ = ["AdamW", "clip_grad_norm", "grad_norm"]
