"""Values of a simulated thread block: one array element for each thread, with a device's rounding.

An operation that a device would not do as written is refused: a bare product of floats, which a compiler may
fuse with a sum; a branch that threads take differently; an access outside of a tensor; two threads that
write one element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlk.interp import arithmetic as ops
from rlk.interp import floats
from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.ir.types import DType

Array = NDArray[Any]


class Fault(RuntimeError):
    """A kernel does what a device would not do as written."""


class Number:
    """A value of each thread, or one of all threads: 16-bit floats are held as the f32 that they are."""

    dtype: ClassVar[DType]
    held: ClassVar[Any]
    width: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.width = 8 * cls.dtype.bytes

    def __init__(self, x: Any) -> None:
        match x:
            case Number():
                self.data = x.data if x.dtype is self.dtype else _cast(x, self.dtype)
            case float() if x == 0 and math.copysign(1, x) < 0:
                raise Fault("-0.0 as a constant: the DSL tells constants apart by value, and may write 0.0")
            case _:
                self.data = np.asarray(x, self.held)

    @classmethod
    def of(cls, data: Array) -> Any:
        made = cls.__new__(cls)
        made.data = np.asarray(data)
        assert made.data.dtype == cls.held, (cls, made.data.dtype)
        return made

    def to(self, kind: type[Number]) -> Number:
        """Convert: floats by rounding to nearest even, integers modulo 2**n."""
        return kind(self)

    def bitcast(self, kind: type[Number]) -> Number:
        bits = ops.encode(self.data, self.dtype)
        return kind.of(ops.decode(bits.view(ops.storage(kind.dtype)), kind.dtype))

    def __bool__(self) -> bool:
        return bool(_agreed(self.data, "threads disagree about a branch"))

    def __index__(self) -> int:
        return int(_agreed(self.data, "threads disagree about a number that all must share"))

    __int__ = __index__

    def __neg__(self) -> Number:
        return type(self).of(-self.data)

    def __mul__(self, other: Any) -> Number:
        if self.dtype.is_float:
            raise Fault("a product of floats without its rounding: a compiler may fuse it with a sum")
        return _binary(np.multiply, self, other)

    def __truediv__(self, other: Any) -> Number:
        return _binary(np.divide, self, other)

    def __add__(self, other: Any) -> Number:
        return _binary(np.add, self, other)

    def __sub__(self, other: Any) -> Number:
        return _binary(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Number:
        return _binary(np.subtract, type(self)(other), self)

    def __floordiv__(self, other: Any) -> Number:
        return _binary(np.floor_divide, self, other)

    def __rfloordiv__(self, other: Any) -> Number:
        return _binary(np.floor_divide, type(self)(other), self)

    def __rmod__(self, other: Any) -> Number:
        return _binary(np.remainder, type(self)(other), self)

    def __mod__(self, other: Any) -> Number:
        return _binary(np.remainder, self, other)

    def __and__(self, other: Any) -> Number:
        return _binary(np.bitwise_and, self, other)

    def __or__(self, other: Any) -> Number:
        return _binary(np.bitwise_or, self, other)

    def __xor__(self, other: Any) -> Number:
        return _binary(np.bitwise_xor, self, other)

    def __lshift__(self, other: Any) -> Number:
        return _binary(np.left_shift, self, other)

    def __rshift__(self, other: Any) -> Number:
        return _binary(np.right_shift, self, other)

    def __lt__(self, other: Any) -> Number:
        return _binary(np.less, self, other)

    def __le__(self, other: Any) -> Number:
        return _binary(np.less_equal, self, other)

    def __gt__(self, other: Any) -> Number:
        return _binary(np.greater, self, other)

    def __ge__(self, other: Any) -> Number:
        return _binary(np.greater_equal, self, other)

    def __eq__(self, other: Any) -> Any:
        return _binary(np.equal, self, other)

    def __ne__(self, other: Any) -> Any:
        return _binary(np.not_equal, self, other)

    __hash__ = None  # type: ignore[assignment]
    __radd__, __rmul__, __rand__, __ror__, __rxor__ = __add__, __mul__, __and__, __or__, __xor__


class Float32(Number):
    dtype, held = DType.F32, np.float32


class BFloat16(Number):
    dtype, held = DType.BF16, np.float32


class Float16(Number):
    dtype, held = DType.F16, np.float32


class Int32(Number):
    dtype, held = DType.I32, np.int32


class Int64(Number):
    dtype, held = DType.I64, np.int64


class Uint32(Number):
    dtype, held = DType.U32, np.uint32


class Int8(Number):
    dtype, held = DType.I8, np.int8


class Uint8(Number):
    dtype, held = DType.U8, np.uint8


class Boolean(Number):
    dtype, held = DType.BOOL, np.bool_


class Int16(Number):
    dtype, held = DType.I32, np.int32  # of masks only: no kernel computes with them


KINDS: dict[DType, type[Number]] = {
    k.dtype: k for k in (Float32, BFloat16, Float16, Int32, Int64, Uint32, Int8, Uint8, Boolean)
}


def _agreed(data: Array, otherwise: str) -> Any:
    """Return the value that all threads have; raise Fault where they differ."""
    first = data.flat[0]
    if data.ndim and np.count_nonzero(data != first):
        raise Fault(otherwise)
    return first


def _cast(x: Number, dtype: DType) -> Array:
    if dtype.is_float:
        return ops.Exact().cast(x.data.astype(np.float32), dtype)
    return ops.to_integer(x.data, dtype)


def _binary(fn: Any, a: Number, b: Any) -> Number:
    if not isinstance(b, Number):
        b = type(a)(b)
    kind = type(a)
    if type(b) is not kind:
        if {a.dtype, b.dtype} != {DType.I32, DType.I64}:
            raise Fault(f"{fn.__name__} of {a.dtype} and {b.dtype}")
        kind, a, b = Int64, Int64(a), Int64(b)
    made = fn(a.data, b.data)
    return Boolean.of(made) if made.dtype == np.bool_ else kind.of(made.astype(kind.held, copy=False))


# --- functions ---


def mul(a: Any, b: Any, *, rounding: Any) -> Any:
    """One rounding."""
    return Float32.of(Float32(a).data * Float32(b).data)


def fma(a: Any, b: Any, c: Any, *, rounding: Any) -> Any:
    """One rounding of a * b + c."""
    return Float32.of(floats.fma(Float32(a).data, Float32(b).data, Float32(c).data))


def exp2(x: Number, *, fastmath: bool) -> Any:
    """The hardware's."""
    if not fastmath:
        raise Fault("exp2 by a polynomial of the compiler's")
    return Float32.of(exp2_sm90(np.atleast_1d(x.data)).reshape(np.shape(x.data)))


def sqrt(x: Any) -> Any:
    """Correctly rounded; NaN below 0."""
    with np.errstate(invalid="ignore"):
        return Float32.of(np.sqrt(Float32(x).data))


def floor(x: Any) -> Any:
    """The largest integer that is not above x."""
    return Float32.of(np.floor(Float32(x).data))


def fmax(a: Any, b: Any) -> Any:
    return Float32.of(floats.maximum(Float32(a).data, Float32(b).data))


def fmin(a: Any, b: Any) -> Any:
    return Float32.of(floats.minimum(Float32(a).data, Float32(b).data))


def typed(x: Any, kind: Any) -> Any:
    """Return an argument as a kernel declares it: a number of the host becomes one of all threads."""
    numeric = isinstance(kind, type) and issubclass(kind, Number)
    return kind.of(np.asarray(x, kind.held)) if numeric and not isinstance(x, Number) else x


class Step(int):
    """The index of a loop of the device, which is an Int32 there and the same for all threads."""


def select(condition: Any, a: Any, b: Any) -> Number:
    """The first where a condition holds, else the second; of one type."""
    a, b = (typed(int(x), Int32) if isinstance(x, Step) else x for x in (a, b))
    if not isinstance(a, Number) or type(a) is not type(b):
        raise Fault(f"a choice between {type(a).__name__} and {type(b).__name__}")
    return type(a).of(np.where(Boolean(condition).data, a.data, b.data))


def shuffled(x: Number, *, offset: int) -> Number:
    """Return the value of the thread of the same warp whose lane differs in some bits."""
    if x.data.ndim == 0:
        return x
    lanes = np.arange(len(x.data))
    return type(x).of(x.data[lanes ^ offset])


def any_lane(condition: Any) -> bool:
    """Return whether some thread has it: warps without one do more than they would, with the same bits."""
    return bool(np.any(Boolean(condition).data))


def uniform(x: Number, count: int) -> Number:
    """Check that so many threads in a row, a warp, agree."""
    if x.data.ndim and not np.array_equal(x.data, np.repeat(x.data[::count], count)):
        raise Fault("threads of a warp disagree about what they share")
    return x


def assumed(x: Any, divisor: int) -> Any:
    """Check that a number is a multiple of another."""
    found = x.data if isinstance(x, Number) else np.asarray(int(x))
    if (found % divisor).any():
        raise Fault(f"{found} is assumed to be a multiple of {divisor}")
    return x


def least(a: Any, b: Any) -> Any:
    """The smaller of two numbers, of one thread or of the host."""
    return _pick(np.minimum, min, a, b)


def most(a: Any, b: Any) -> Any:
    """The larger of two numbers."""
    return _pick(np.maximum, max, a, b)


def _pick(fn: Any, plain: Any, a: Any, b: Any) -> Any:
    if not isinstance(a, Number) and not isinstance(b, Number):
        return plain(a, b)
    kind = type(a) if isinstance(a, Number) else type(b)
    return kind.of(fn(kind(a).data, kind(b).data))


# --- memory ---


def shared(x: Any) -> int:
    """Return an integer that all threads agree about."""
    return int(_agreed(Int64(x).data, "threads disagree about what they share"))


def whole(extent: Any) -> Any:
    """Return an extent or a stride as an integer, or those of a dim of several."""
    return tuple(map(whole, extent)) if isinstance(extent, tuple) else int(extent)


def all_differ(places: Array) -> bool:
    """Return whether no two are equal; most ascend, and need no sorting."""
    return not np.count_nonzero(places[1:] <= places[:-1]) or len(np.unique(places)) == len(places)


def _places(index: Any) -> list[Array]:
    return [Int64(part).data for part in (index if isinstance(index, tuple) else (index,))]


def _touched(where: Any, places: list[Array]) -> Array:
    on = Boolean(where).data
    shape = next((x.shape for x in (on, *places) if x.ndim), ())
    return on if on.shape == shape else np.full(shape, on)


class Order:
    """The order of the threads that run behind the kernels before theirs, which write what they read."""

    waited: ClassVar[bool] = True

    @classmethod
    def check(cls) -> None:
        if not cls.waited:
            raise Fault("device memory before the kernels that write it have ended")


class Memory:
    """A tensor in device memory: flat storage, extents and strides.

    A dim may be of two, the fastest first.
    """

    def __init__(self, flat: Array, dtype: DType, shape: Sequence[Any], strides: Sequence[Any]) -> None:
        self._flat, self.dtype = flat, dtype
        self.shape, self.strides = (tuple(map(whole, of)) for of in (shape, strides))

    @property
    def flat(self) -> Array:
        Order.check()
        return self._flat

    @property
    def element_type(self) -> type[Number]:
        return KINDS[self.dtype]

    def offsets(self, index: Any, where: Array) -> Array:
        """Return the offsets of elements; raise where one that is touched does not exist."""
        return self._offsets(_places(index), where)

    def _offsets(self, places: list[Array], where: Array) -> Array:
        if len(places) != len(self.shape):
            raise Fault(f"{len(places)} indices of a tensor of {len(self.shape)} dims")
        offset: Any = np.int64(0)
        for at, extent, stride in zip(places, self.shape, self.strides, strict=True):
            outside = at.view(np.uint64) >= np.uint64(extent)  # a negative index is a large one
            if np.count_nonzero(outside) and np.count_nonzero(outside & where):
                raise Fault(f"an index outside of [0, {extent})")
            offset = offset + at * stride
        return np.where(where, offset, 0)

    def read(self, where: Any, index: Any, other: Number | None) -> Number:
        places = _places(index)
        on = _touched(where, places)
        found = ops.decode(self.flat[self._offsets(places, on)], self.dtype)
        if other is not None:
            found = np.where(on, found, other.data).astype(found.dtype, copy=False)
        return KINDS[self.dtype].of(found)

    def write(self, where: Any, index: Any, x: Number) -> None:
        places = _places(index)
        on = _touched(where, places)
        on = on if on.shape or not x.data.shape else np.full(x.data.shape, on)
        offset = self._offsets(places, on)[on]
        if not all_differ(offset):
            raise Fault("two threads write one element")
        if x.dtype is not self.dtype:
            raise Fault(f"{x.dtype} written as {self.dtype}")
        self.flat[offset] = ops.encode(np.broadcast_to(x.data, on.shape)[on], self.dtype)

    def touched(self, where: Any, index: Any) -> Array:
        return _touched(where, _places(index))

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        return self.part(parts) if any(each is None for each in parts) else self.read(True, index, None)

    def part(self, index: tuple[Any, ...]) -> Memory:
        """Return the part of which None stands for the whole of a dim."""
        if len(index) != len(self.shape):
            raise Fault(f"{len(index)} indices of a tensor of {len(self.shape)} dims")
        at = [None if i is None else shared(i) for i in index]
        if any(i is not None and not 0 <= i < n for i, n in zip(at, self.shape, strict=True)):
            raise Fault(f"an index outside of {self.shape}")
        first = sum(i * s for i, s in zip(at, self.strides, strict=True) if i is not None)
        kept = [d for d, i in enumerate(at) if i is None]
        return Memory(
            self._flat[first:], self.dtype, [self.shape[d] for d in kept], [self.strides[d] for d in kept]
        )

    def __setitem__(self, index: Any, x: Number) -> None:
        self.write(True, index, x)


def load_where(condition: Any, memory: Memory, index: Any, other: Number) -> Number:
    return memory.read(condition, index, other)


def store_where(condition: Any, memory: Memory, index: Any, x: Number) -> None:
    memory.write(condition, index, x)


def store_pair_where(condition: Any, memory: Memory, index: Any, x: Number, y: Number) -> None:
    """Write two neighbours; the first must lie at an even element."""
    on = memory.touched(condition, index)
    if (memory.offsets(index, on)[on] % 2).any() or memory.strides[-1] != 1:
        raise Fault("a pair of elements that is not aligned")
    memory.write(condition, index, x)
    *rest, last = index if isinstance(index, tuple) else (index,)
    memory.write(condition, (*rest, last + 1), y)


def report_where(bad: Any, errors: Array, code: int, row: Any) -> None:
    """Write what was found into the error words."""
    Order.check()
    on, rows = np.broadcast_arrays(Boolean(bad).data, Int32(row).data)
    if on.any():
        errors[0] = max(errors[0], code)
        errors[1] = max(errors[1], int(rows[on].max()))
