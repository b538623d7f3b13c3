"""Schedules: tiles, warps and placement, none of which can change a bit of the results."""

from __future__ import annotations
