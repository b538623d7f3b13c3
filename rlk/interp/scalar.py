"""The float operations NumPy lacks, on arrays of f32 and f64: fma, maximumNumber, minimumNumber.

The scalar `*_one` functions are for compiled code; LLVM neither contracts nor reorders them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from rlk.interp.machine_code import kept

FLOATS = (types.float32, types.float64)
SAME = {"float32": "float32", "float64": "float64"}
"""The dtype of results by that of operands, of a function of either float."""


def elementwise(function: Callable[..., Any], results: dict[str, str]) -> Callable[..., Any]:
    """Return a scalar function as one of arrays that broadcast, as NumPy's are. results: dtypes by operands'.

    It is compiled at its first call with a dtype, and kept on disk, which numba cannot do with its ufuncs:
    the loop around the function, which takes longest, would be compiled in every process.
    """
    one = numba.njit(function)

    def of_one(out: Any, x: Any) -> None:
        for i in range(len(out)):
            out[i] = one(x[i])

    def of_two(out: Any, x: Any, y: Any) -> None:
        for i in range(len(out)):
            out[i] = one(x[i], y[i])

    def of_three(out: Any, x: Any, y: Any, z: Any) -> None:
        for i in range(len(out)):
            out[i] = one(x[i], y[i], z[i])

    every = (of_one, of_two, of_three)[function.__code__.co_argcount - 1]
    loop = kept(numba.njit(nogil=True)(every))
    made = {np.dtype(taken): np.dtype(result) for taken, result in results.items()}

    @wraps(function)
    def call(*operands: Any) -> Any:
        arrays = _alike(function.__name__, operands, made)
        first = arrays[0]
        out = np.empty(first.size, made[first.dtype])
        # one layout, so that one type is compiled: contiguous, aligned and writable
        loop(out, *[x.reshape(-1) if x.flags.carray else x.flatten() for x in arrays])
        return out.reshape(first.shape)[()]

    return call


def _alike(name: str, operands: tuple[Any, ...], taken: Mapping[Any, Any]) -> Sequence[Any]:
    """Return operands as arrays of one dtype that a function takes, and of one shape."""
    arrays: Sequence[Any] = operands
    dtype = getattr(operands[0], "dtype", None)
    for x in operands:
        if type(x) is not np.ndarray or x.dtype != dtype or dtype not in taken:
            arrays = _converted(name, operands, taken)
            break
    shape = arrays[0].shape
    for x in arrays:
        if x.shape != shape:
            whole = np.broadcast(*arrays).shape
            return [x if x.shape == whole else _repeated(x, whole) for x in arrays]
    return arrays


def _converted(name: str, operands: tuple[Any, ...], taken: Mapping[Any, Any]) -> Sequence[Any]:
    given = np.result_type(*operands)
    dtype = given if given in taken else next((d for d in taken if np.can_cast(given, d)), None)
    if dtype is None:
        raise TypeError(f"{name.lstrip('_')} takes {' or '.join(map(str, taken))}, got {given}")
    return [np.asarray(x, dtype) for x in operands]


def _repeated(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a copy of an array with a shape: compiled loops take no strides, np.broadcast_to is slower."""
    made = np.empty(shape, x.dtype)
    made[...] = x
    return made


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


def _fma(a, b, c):  # type: ignore[no-untyped-def]
    return fma_one(a, b, c)


def _maximum(a, b):  # type: ignore[no-untyped-def]
    return max_one(a, b)


def _minimum(a, b):  # type: ignore[no-untyped-def]
    return min_one(a, b)


fma = elementwise(_fma, SAME)
maximum = elementwise(_maximum, SAME)
minimum = elementwise(_minimum, SAME)
