"""Ahead-of-time compilation: wheels of kernels, and warming a store for a model."""

from __future__ import annotations
