"""Schedules: tiles, warps, stages and layouts of kernels, none of which can change a bit of the results."""

from __future__ import annotations
