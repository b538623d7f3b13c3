"""The float operations NumPy lacks, as ufuncs over f32 and f64: fma, maximumNumber, minimumNumber.

The scalar `*_one` functions are for compiled code; LLVM neither contracts nor reorders them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numba
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

FLOATS = (types.float32, types.float64)


def ufunc(*signatures: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a scalar function a ufunc, compiled whole at its first call.

    Not signature by signature: threads of the oracle may make the first call together. Nothing is kept on
    disk: numba would compile the loop around the function, which takes longest, again.
    """

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = cache(lambda: numba.vectorize(list(signatures))(function))

        @wraps(function)
        def call(*operands: Any) -> Any:
            # NumPy's own object: numba's around it looks in Python for arrays that override it
            return compiled().ufunc(*operands)

        return call

    return make


@intrinsic
def fma_one(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Round a * b + c once; the operands must share one float type, so that no f64 creeps in."""
    if a not in FLOATS or a != b or a != c:
        raise TypingError(f"fma takes three f32 or three f64, got {a}, {b}, {c}")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), generate


@intrinsic
def as_i32_one(typingctx: Any, x: Any) -> Any:
    """Reinterpret the bits of an f32 as an i32."""
    if x != types.float32:
        raise TypingError(f"as_i32 takes an f32, got {x}")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@intrinsic
def as_f32_one(typingctx: Any, i: Any) -> Any:
    """Reinterpret the bits of an i32 as an f32."""
    if i != types.int32:
        raise TypingError(f"as_f32 takes an i32, got {i}")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@numba.njit(inline="always")
def max_one(a, b):  # type: ignore[no-untyped-def]
    """maximumNumber: a NaN loses, -0.0 < +0.0."""
    # a + b turns -0.0 and +0.0 into +0.0, and keeps -0.0 only when both are -0.0
    larger = a + b if a == b and a == 0 else (a if a > b else b)
    return b if a != a else (a if b != b else larger)


@numba.njit(inline="always")
def min_one(a, b):  # type: ignore[no-untyped-def]
    """minimumNumber: a NaN loses, -0.0 < +0.0."""
    # -((-a) + (-b)) keeps +0.0 only when both are +0.0
    smaller = -((-a) + (-b)) if a == b and a == 0 else (a if a < b else b)
    return b if a != a else (a if b != b else smaller)


@ufunc("f4(f4, f4, f4)", "f8(f8, f8, f8)")
def fma(a, b, c):  # type: ignore[no-untyped-def]
    return fma_one(a, b, c)


@ufunc("f4(f4, f4)", "f8(f8, f8)")
def maximum(a, b):  # type: ignore[no-untyped-def]
    return max_one(a, b)


@ufunc("f4(f4, f4)", "f8(f8, f8)")
def minimum(a, b):  # type: ignore[no-untyped-def]
    return min_one(a, b)
