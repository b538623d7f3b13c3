"""How a kernel is run: tiles, warps and placement, none of which can change a bit of its results."""

from __future__ import annotations
