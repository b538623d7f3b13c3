"""Kernels of programs: compiled in worker processes, kept in stores, loaded, probed."""

from __future__ import annotations
