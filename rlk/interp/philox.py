"""Random bits as a pure function of key and counter: Philox 4x32-10 (Salmon et al., SC 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.ir import philox as constants

U32 = NDArray[np.uint32]
MULTIPLIER = tuple(map(np.uint64, constants.MULTIPLIERS))
WEYL = tuple(map(np.uint32, constants.WEYL))


def _product(factor: np.uint64, x: U32) -> tuple[U32, U32]:
    """Return the high and low words of a 32 x 32 bit product."""
    wide = factor * x.astype(np.uint64)
    return (wide >> np.uint64(32)).astype(np.uint32), wide.astype(np.uint32)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[U32, U32, U32, U32]:
    """Return the four words of a block; counter and key words are u32 arrays that broadcast."""
    words = np.broadcast_arrays(*(np.asarray(w, np.uint32) for w in (*counter, *key)))
    c0, c1, c2, c3, k0, k1 = words
    with np.errstate(over="ignore"):
        for _ in range(constants.ROUNDS):
            high0, low0 = _product(MULTIPLIER[0], c0)
            high1, low1 = _product(MULTIPLIER[1], c2)
            c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
            k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return c0, c1, c2, c3


def uniform(word: U32) -> NDArray[np.float32]:
    """Return the midpoints (2 k + 1) / 2**24 for 23-bit k: exact in f32, strictly between 0 and 1."""
    top = (word >> np.uint32(9)).astype(np.float32)
    return (top + np.float32(0.5)) * np.float32(2.0**-23)
