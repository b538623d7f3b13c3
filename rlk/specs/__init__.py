"""Specs of the shipped operators, each written once for all backends."""

from __future__ import annotations

from rlk.specs import records  # so that no spec is read without its record

__all__ = ["records"]
