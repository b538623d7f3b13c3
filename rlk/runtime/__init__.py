"""The runtime: dispatch, compilation, loading, and launches of kernels."""

from __future__ import annotations
