"""Operators of the namespace gallery, one in each module."""

from __future__ import annotations

from gallery_ops.adamw import adamw as adamw
from gallery_ops.fp8_linear import fp8_linear as fp8_linear
from gallery_ops.fp8_rows import fp8_rows as fp8_rows
from gallery_ops.int8_rows import int8_rows as int8_rows
from gallery_ops.layer_norm import layer_norm as layer_norm
from gallery_ops.linear_attention import linear_attention as linear_attention
from gallery_ops.router import router as router
from gallery_ops.smoothed_loss import smoothed_loss as smoothed_loss
from gallery_ops.swiglu_linear import swiglu_linear as swiglu_linear
from gallery_ops.w8a16 import w8a16 as w8a16
from gallery_ops.zloss_head import zloss_head as zloss_head
