"""Two ways to run a portable function: on arrays, operation by operation, and as one compiled loop."""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp import scalar
from rlk.ir.portable import CONVERSIONS, definition

Array = NDArray[Any]


class ArrayMachine:
    """Runs each operation on NumPy arrays: slow, obvious, the reference of the compiled form."""

    def f32(self, value: float) -> Any:
        return np.float32(value)

    def i32(self, value: int) -> Any:
        return np.int32(value)

    def add(self, a: Any, b: Any) -> Any:
        return np.add(a, b, dtype=np.float32)

    def sub(self, a: Any, b: Any) -> Any:
        return np.subtract(a, b, dtype=np.float32)

    def mul(self, a: Any, b: Any) -> Any:
        return np.multiply(a, b, dtype=np.float32)

    def div(self, a: Any, b: Any) -> Any:
        return np.divide(a, b, dtype=np.float32)

    def inverse(self, d: Any) -> Any:
        return self.div(self.f32(1.0), d)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return scalar.fma(a, b, c)

    def min(self, a: Any, b: Any) -> Any:
        return scalar.minimum(a, b)

    def max(self, a: Any, b: Any) -> Any:
        return scalar.maximum(a, b)

    def lt(self, a: Any, b: Any) -> Any:
        return np.less(a, b)

    def eq(self, a: Any, b: Any) -> Any:
        return np.equal(a, b)

    def select(self, cond: Any, a: Any, b: Any) -> Any:
        return np.where(cond, a, b)

    def iadd(self, a: Any, b: Any) -> Any:
        return np.add(a, b, dtype=np.int32)

    def isub(self, a: Any, b: Any) -> Any:
        return np.subtract(a, b, dtype=np.int32)

    def iand(self, a: Any, b: Any) -> Any:
        return np.bitwise_and(a, b, dtype=np.int32)

    def ior(self, a: Any, b: Any) -> Any:
        return np.bitwise_or(a, b, dtype=np.int32)

    def ixor(self, a: Any, b: Any) -> Any:
        return np.bitwise_xor(a, b, dtype=np.int32)

    def shl(self, a: Any, bits: int) -> Any:
        return np.left_shift(a, np.int32(bits), dtype=np.int32)

    def sar(self, a: Any, bits: int) -> Any:
        return np.right_shift(a, np.int32(bits), dtype=np.int32)

    def ieq(self, a: Any, b: Any) -> Any:
        return np.equal(a, b)

    def as_i32(self, x: Any) -> Any:
        return np.asarray(x, np.float32).view(np.int32)

    def as_f32(self, i: Any) -> Any:
        return np.asarray(i, np.int32).view(np.float32)

    def to_f32(self, i: Any) -> Any:
        return np.asarray(i).astype(np.float32)


class TextMachine:
    """Writes one line of scalar Python per operation, for numba; a value is the name of a local."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}

    def let(self, expression: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name

    def constant(self, value: Any, key: str) -> str:
        self.constants[key] = value
        return key

    def f32(self, value: float) -> str:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return self.constant(np.float32(value), f"f_{bits:08x}")

    def i32(self, value: int) -> str:
        return self.constant(np.int32(value), f"i_{value & 0xFFFFFFFF:08x}")

    def add(self, a: str, b: str) -> str:
        return self.let(f"{a} + {b}")

    def sub(self, a: str, b: str) -> str:
        return self.let(f"{a} - {b}")

    def mul(self, a: str, b: str) -> str:
        return self.let(f"{a} * {b}")

    def div(self, a: str, b: str) -> str:
        return self.let(f"{a} / {b}")

    def inverse(self, d: str) -> str:
        return self.div(self.f32(1.0), d)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(f"fma_one({a}, {b}, {c})")

    def min(self, a: str, b: str) -> str:
        return self.let(f"min_one({a}, {b})")

    def max(self, a: str, b: str) -> str:
        return self.let(f"max_one({a}, {b})")

    def lt(self, a: str, b: str) -> str:
        return self.let(f"{a} < {b}")

    def eq(self, a: str, b: str) -> str:
        return self.let(f"{a} == {b}")

    def select(self, cond: str, a: str, b: str) -> str:
        return self.let(f"{a} if {cond} else {b}")

    # numba widens i32 to i64: every integer result is truncated, which is the wrap-around of i32

    def iadd(self, a: str, b: str) -> str:
        return self.let(f"int32({a} + {b})")

    def isub(self, a: str, b: str) -> str:
        return self.let(f"int32({a} - {b})")

    def iand(self, a: str, b: str) -> str:
        return self.let(f"int32({a} & {b})")

    def ior(self, a: str, b: str) -> str:
        return self.let(f"int32({a} | {b})")

    def ixor(self, a: str, b: str) -> str:
        return self.let(f"int32({a} ^ {b})")

    def shl(self, a: str, bits: int) -> str:
        return self.let(f"int32({a} << {bits})")

    def sar(self, a: str, bits: int) -> str:
        return self.let(f"int32({a} >> {bits})")

    def ieq(self, a: str, b: str) -> str:
        return self.let(f"{a} == {b}")

    def as_i32(self, x: str) -> str:
        return self.let(f"as_i32_one({x})")

    def as_f32(self, i: str) -> str:
        return self.let(f"as_f32_one({i})")

    def to_f32(self, i: str) -> str:
        return self.let(f"float32({i})")


SCALARS = {
    "fma_one": scalar.fma_one,
    "min_one": scalar.min_one,
    "max_one": scalar.max_one,
    "as_i32_one": scalar.as_i32_one,
    "as_f32_one": scalar.as_f32_one,
    "int32": np.int32,
    "float32": np.float32,
}


def evaluate(name: str, x: Array) -> Array:
    """Run a portable function on f32 arrays (bytes of 8-bit floats: i32), one NumPy operation at a time."""
    kind = np.int32 if name.startswith("from_") else np.float32
    with np.errstate(all="ignore"):
        y: Array = definition(name)(ArrayMachine(), np.asarray(x, kind))
    return y


def source(name: str) -> tuple[str, dict[str, Any]]:
    """Return scalar Python text of a portable function and the constants it names."""
    machine = TextMachine()
    result = definition(name)(machine, "x")
    body = "".join(f"    {line}\n" for line in machine.lines)
    return f"def {name}(x):\n{body}    return {result}\n", machine.constants


@cache
def portable(name: str) -> Callable[[Array], Array]:
    """Return a portable function as a compiled loop over f32, which is kept on disk.

    Conversions of 8-bit floats have i32 on the side of the bytes.
    """
    text, constants = source(name)
    file = f"<portable {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**SCALARS, **constants}
    exec(compile(text, file, "exec"), scope)
    kinds = ("int32", "float32") if name.startswith("from_") else ("float32", "int32")
    taken, made = kinds if name in CONVERSIONS else ("float32", "float32")
    return scalar.elementwise(scope[name], {taken: made})
