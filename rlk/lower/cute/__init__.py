"""The CuTe DSL lowering for Hopper: copies by TMA, products by warpgroups, roles that meet through a ring."""

from __future__ import annotations

from rlk.lower.cute.module import lower as lower
