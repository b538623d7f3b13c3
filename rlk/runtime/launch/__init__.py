"""Launches of compiled kernels: their records, the driver, and one call into it."""

from __future__ import annotations
