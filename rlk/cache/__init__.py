"""The kernel store: a content-addressed store of directories on disk."""

from __future__ import annotations

from rlk.cache.key import CALLS, CacheKey
from rlk.cache.reader import Reader
from rlk.cache.store import Counters, Entry, Store

__all__ = ["CALLS", "CacheKey", "Counters", "Entry", "Reader", "Store"]
