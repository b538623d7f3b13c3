"""The operators in float64 torch, straight from their formulas: references for accuracy."""

from __future__ import annotations
