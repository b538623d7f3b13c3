"""Adapters to training frameworks, on top of `rlk.ops`; one is imported when its adapter is switched on."""

from __future__ import annotations
