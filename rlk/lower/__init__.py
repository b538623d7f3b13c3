"""Lowerings: from tile IR and a schedule to source text, as plan, then emit."""

from __future__ import annotations
