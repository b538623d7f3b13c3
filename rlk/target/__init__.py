"""Hardware as facts: what a target can do and how much of it there is."""

from __future__ import annotations
