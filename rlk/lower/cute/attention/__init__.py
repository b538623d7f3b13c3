"""The fused attention kernel (back-to-back GEMM): plan, producer, consumer, tile scheduler, masks."""

from __future__ import annotations
