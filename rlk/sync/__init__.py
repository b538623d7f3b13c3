"""Digests of weights, which say on both sides of a weight sync whether the same bits arrived."""

from __future__ import annotations

from rlk.sync.compare import Difference, check, compare
from rlk.sync.digests import Digest, WeightDigest, digest
from rlk.sync.parts import Part
from rlk.sync.transfers import gathered, transfer

__all__ = [
    "Difference",
    "Digest",
    "Part",
    "WeightDigest",
    "check",
    "compare",
    "digest",
    "gathered",
    "transfer",
]
