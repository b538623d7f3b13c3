"""Hardware facts: the capabilities and limits of targets."""

from __future__ import annotations
