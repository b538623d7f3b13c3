"""The bits of `ex2.approx.ftz.f32` on sm_90, from a captured table of the 2**23 fractions.

`data/ex2_sm90.xz` holds, for each fraction k / 2**23, whether the hardware is one ulp above (bit 2k) or below
(bit 2k + 1) the correctly rounded 2**(k / 2**23). Captured on an H200: no mismatch over six whole binades and
10**8 random arguments.
"""

from __future__ import annotations

import hashlib
import lzma
from functools import cache
from importlib import resources
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from rlk.errors import Code, InternalError
from rlk.interp.machine_code import kept
from rlk.interp.scalar import as_f32_one, as_i32_one

STEPS = 1 << 23
DIGEST = "b2a42c4a626469c986e33e43f16f41bde9d84de94347cd9ceaa1bd68d36bcdf0"


@cache
def table() -> NDArray[np.float32]:
    """Return the hardware's 2**(k / 2**23) for k in [0, 2**23); InternalError if its sha256 is wrong."""
    packed = lzma.decompress(resources.files("rlk.interp").joinpath("data/ex2_sm90.xz").read_bytes())
    steps = np.unpackbits(np.frombuffer(packed, np.uint8)).reshape(-1, 2).astype(np.int32)
    rounded = np.exp2(np.arange(STEPS) / STEPS).astype(np.float32)
    hardware = (rounded.view(np.int32) + steps[:, 0] - steps[:, 1]).view(np.float32)
    if hashlib.sha256(hardware.tobytes()).hexdigest() != DIGEST:
        raise InternalError(Code.INTERNAL, what="the decoded table of ex2.approx has the wrong sha256")
    return hardware


def _one(fractions: Any, x: Any) -> Any:
    if x != x:
        return x
    if x >= np.float32(128):
        return np.float32(np.inf)
    if x < np.float32(-126):
        return np.float32(0)
    magnitude = abs(x)
    whole = np.int32(magnitude)
    k = np.int32((magnitude - np.float32(whole)) * np.float32(STEPS))  # exact: a power of two
    if x < 0:
        # -(whole + k / 2**23) = -(whole + 1) + (2**23 - k) / 2**23, but the hardware complements:
        # 2**23 - 1 - k
        fraction = np.float32(1) if k == 0 else fractions[np.int32(STEPS - 1) - k]
        whole = np.int32(-whole) if k == 0 else np.int32(-whole - 1)
    else:
        fraction = fractions[k]
    if whole < -126:
        return np.float32(0)
    return as_f32_one(np.int32(as_i32_one(fraction) + np.int32(whole << 23)))


@cache
def _lookup() -> Any:
    one = numba.njit(_one)

    def every(fractions: Any, x: Any, out: Any) -> None:
        for i in range(len(x)):
            out[i] = one(fractions, x[i])

    return kept(numba.njit(nogil=True)(every))


def exp2_sm90(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 2**x as the hardware does: arguments cut to 23 fraction bits, results below 2**-126 are 0."""
    x = np.asarray(x, np.float32)
    y = np.empty(x.size, np.float32)
    _lookup()(table(), x.reshape(-1), y)
    return y.reshape(x.shape)
