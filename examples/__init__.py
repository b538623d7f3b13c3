"""Programs that use rlk."""

from __future__ import annotations
