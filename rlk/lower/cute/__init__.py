"""The CuTe DSL lowering for Hopper: warp-specialized kernels with TMA or cp.async producers and wgmma."""

from __future__ import annotations

from rlk.lower.cute.module import lower as lower
