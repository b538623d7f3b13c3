"""Installed wheels of kernels: their contents, metadata of calls, and lookup."""

from __future__ import annotations
