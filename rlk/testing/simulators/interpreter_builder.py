"""Triton operations on the CPU, bit for bit as on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton._C.libtriton import ir
from triton.runtime import interpreter as base

from rlk.interp.dot import dot, integer
from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.interp.floats import float8_bits
from rlk.interp.scalar import fma
from rlk.ir.dotmodel import DotModel
from rlk.ir.types import DType
from rlk.testing.simulators.interpreter_versions import lanes_inside, load, store, validate_descriptor

Array = NDArray[Any]
TensorHandle = base.TensorHandle
_np_dtype = base._get_np_dtype
_SCALARS: dict[str, np.dtype[Any]] = {}

FLOAT8 = {"fp8e4nv": "e4m3", "fp8e5": "e5m2"}  # by sm_90's conversions from f32

# Approximate on a device (div.full, sqrt.approx, ...) and without a bit model here.
UNMODELLED = {
    "create_approx_divf": "approximate division",
    "create_cos": "tl.cos",
    "create_erf": "tl.erf",
    "create_exp": "tl.exp",
    "create_fdiv": "float division without tl.div_rn",
    "create_frem": "float remainder",
    "create_log": "tl.log",
    "create_log2": "tl.log2",
    "create_rsqrt": "tl.rsqrt",
    "create_sin": "tl.sin",
    "create_sqrt": "tl.sqrt without rn",
    "create_dot_scaled": "tl.dot_scaled",
}


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy type of a scalar, block or pointer type: Triton's own rebuilds its table each time."""
    scalar = dtype.scalar
    found = _SCALARS.get(scalar.name)
    if found is None:
        found = _SCALARS[scalar.name] = _np_dtype(scalar)
    return found


class NotModelled(NotImplementedError):
    """The operation's bits on the device are not known to the interpreter."""


class OutOfBounds(IndexError):
    """An unmasked lane points outside its argument."""


@dataclass(frozen=True, slots=True)
class Span:
    """The addresses that one tensor argument owns: [start, stop)."""

    argument: str
    start: int
    stop: int


def maximum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2019 maximumNumber: a NaN loses, -0.0 < +0.0."""
    # Two zeros: -0.0 only when both are, which is what their sum is.
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


def minimum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2019 minimumNumber: a NaN loses, -0.0 < +0.0."""
    return np.where((a == 0) & (b == 0), -(-a + -b), np.fmin(a, b))


def bf16_from_f32(x: Array) -> Array:
    """Round f32 to bf16 patterns, to nearest even; NaN becomes the quiet NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def f32_from_bf16(codes: Array) -> Array:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def saturating_integer(x: Array, dtype: np.dtype[Any]) -> Array:
    """Truncate to an integer as cvt.rzi does: out of range saturates, NaN is 0."""
    limits = np.iinfo(dtype)
    wide = np.trunc(x.astype(np.float64))
    inside = (wide >= float(limits.min)) & (wide < float(limits.max + 1))
    exact = np.where(inside, wide, 0.0).astype(dtype)
    return np.where(inside | np.isnan(wide), exact, np.where(wide > 0, limits.max, limits.min)).astype(dtype)


class FaithfulBuilder(base.InterpreterBuilder):  # type: ignore[misc]
    """Triton's interpreting builder with the device's arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        # The overflow checks double every integer operation, and a compiled kernel has none.
        self.options = base.InterpreterOptions(sanitize_overflow=False)
        self.spans: dict[str, Span] = {}
        self.reached: tuple[Span, ...] = ()  # what kernels address by numbers that they read
        self.checked = True

    # ------------------------------------------------------------------------------------- casts
    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        have, want = src.dtype.scalar, dst_type.scalar
        if have == want:
            return TensorHandle(src.data, want)
        if have == tl.bfloat16:
            return self.cast_impl(TensorHandle(f32_from_bf16(src.data), tl.float32), dst_type)
        if want == tl.bfloat16:
            if have != tl.float32:
                raise NotModelled(f"{have} -> bf16 in one step: cast to float32 first")
            return TensorHandle(bf16_from_f32(src.data), want)
        if have.is_floating() and want.is_int() and src.data.dtype.kind == "f":
            return TensorHandle(saturating_integer(src.data, numpy_dtype(want)), want)
        return TensorHandle(src.data.astype(numpy_dtype(want)), want)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        name = FLOAT8.get(dst_type.scalar.name)
        if name is not None and src.dtype.scalar == tl.float32:
            return TensorHandle(float8_bits(src.data, name), dst_type.scalar)
        raise NotModelled(f"cast {src.dtype.scalar} -> {dst_type.scalar} with a rounding mode")

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        want = dst_type.scalar
        data = np.ascontiguousarray(src.data).view(numpy_dtype(want))
        return TensorHandle(data, want, dict(src.attr))

    # --------------------------------------------------------------------------------- arithmetic
    def binary_op(self, lhs: Any, rhs: Any, op: Callable[[Array, Array], Array]) -> Any:
        dtype = lhs.dtype.scalar
        if dtype == tl.bfloat16:
            raise NotModelled(f"{op.__name__} of bf16 operands: cast to float32 first")
        out = op(lhs.data, rhs.data)
        if out.dtype == np.bool_:
            return TensorHandle(out, tl.int1)
        return TensorHandle(out.astype(numpy_dtype(dtype), copy=False), dtype)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar != tl.float32:
            raise NotModelled(f"tl.fma of {z.dtype.scalar}")
        operands = np.broadcast_arrays(x.data, y.data, z.data)
        return TensorHandle(fma(*operands), tl.float32)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        if a.dtype.scalar == b.dtype.scalar == tl.int8 and d.dtype.scalar == tl.int32:
            total = d.data.copy()
            for at in np.ndindex(total.shape[:-2]):
                total[at] = integer(a.data[at], b.data[at].T, d.data[at])
            return TensorHandle(total, tl.int32)
        model, dtype = _dot_model(a.dtype.scalar, b.dtype.scalar, d.dtype.scalar, input_precision)
        left, right = (f32_from_bf16(x.data) if x.dtype.scalar == tl.bfloat16 else x.data for x in (a, b))
        out = np.empty(d.data.shape, np.float32)
        for at in np.ndindex(out.shape[:-2]):
            out[at] = dot(left[at], right[at].T, model, dtype, d.data[at])
        return TensorHandle(out, tl.float32)

    def create_exp2(self, arg: Any) -> Any:
        if arg.dtype.scalar != tl.float32:
            raise NotModelled(f"tl.exp2 of {arg.dtype.scalar}")
        return TensorHandle(exp2_sm90(arg.data), tl.float32)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, maximum_number)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, minimum_number)

    def create_maximumf(self, lhs: Any, rhs: Any) -> Any:
        number = self.create_maxnumf(lhs, rhs)
        return TensorHandle(
            np.where(np.isnan(lhs.data) | np.isnan(rhs.data), np.nan, number.data).astype(number.data.dtype),
            number.dtype,
        )

    def create_minimumf(self, lhs: Any, rhs: Any) -> Any:
        number = self.create_minnumf(lhs, rhs)
        return TensorHandle(
            np.where(np.isnan(lhs.data) | np.isnan(rhs.data), np.nan, number.data).astype(number.data.dtype),
            number.dtype,
        )

    def create_fcmpONE(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, lambda a, b: (a < b) | (a > b))

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        return self.create_minnumf(self.create_maxnumf(arg, lo), hi)

    def create_select(self, cond: Any, lhs: Any, rhs: Any) -> Any:
        data = np.where(cond.data, lhs.data, rhs.data)
        # a pointer into one of two arguments is neither's: it may lie in any of them
        return TensorHandle(data, lhs.dtype.scalar, dict(lhs.attr) if lhs.attr == rhs.attr else {})

    def create_lshr(self, lhs: Any, rhs: Any) -> Any:
        unsigned = np.dtype(f"u{lhs.data.dtype.itemsize}")
        out = np.right_shift(lhs.data.view(unsigned), rhs.data.astype(unsigned))
        return TensorHandle(out.view(lhs.data.dtype), lhs.dtype.scalar)

    def create_ashr(self, lhs: Any, rhs: Any) -> Any:
        signed = np.dtype(f"i{lhs.data.dtype.itemsize}")
        out = np.right_shift(lhs.data.view(signed), rhs.data.astype(signed))
        return TensorHandle(out.view(lhs.data.dtype), lhs.dtype.scalar)

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        itemsize = lhs.data.dtype.itemsize
        if itemsize == 8:
            return super().create_umulhi(lhs, rhs)
        unsigned = np.dtype(f"u{itemsize}")
        a, b = (x.data.view(unsigned).astype(np.uint64) for x in (lhs, rhs))
        out = ((a * b) >> np.uint64(8 * itemsize)).astype(unsigned)
        return TensorHandle(out.view(lhs.data.dtype), lhs.dtype.scalar)

    # ------------------------------------------------------------------------------------- memory
    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *rest: Any, **more: Any) -> Any:
        self._check("load", ptrs, mask)
        dtype = ptrs.get_element_ty()
        if other is None:
            # What a masked lane reads without `other` is undefined on a device: make it show.
            poison = np.full(ptrs.data.nbytes, 0x7F, np.uint8)[: ptrs.data.size * numpy_dtype(dtype).itemsize]
            other = TensorHandle(poison.view(numpy_dtype(dtype)).reshape(ptrs.data.shape), dtype)
        return load(self, ptrs, mask, other)

    def create_make_tensor_descriptor(
        self, pointer: Any, shape: Any, strides: Any, block_shape: Any, is_signed: bool, padding: Any
    ) -> Any:
        desc = base.TensorDescHandle(pointer, shape, strides, block_shape, padding)
        validate_descriptor(desc)
        return desc

    def create_descriptor_load(self, desc: Any, indices: Any, *rest: Any) -> Any:
        if desc.padding != ir.PADDING_OPTION.PAD_ZERO:
            raise NotModelled("a tensor descriptor that pads with anything but zeros")
        ptrs, mask = self._described(desc, indices)
        dtype = ptrs.get_element_ty()
        zeros = TensorHandle(np.zeros(ptrs.data.shape, numpy_dtype(dtype)), dtype)
        return self.create_masked_load(ptrs, mask, zeros)

    def create_descriptor_store(self, desc: Any, value: Any, indices: Any) -> Any:
        ptrs, mask = self._described(desc, indices)
        return self.create_masked_store(ptrs, value, mask)

    def _described(self, desc: Any, indices: Any) -> tuple[Any, Any]:
        """Return the pointers of a descriptor's block, and which of them lie inside the shape it claims."""
        ptrs, inside = lanes_inside(desc, indices)
        ptrs.attr = dict(desc.base.attr)
        return ptrs, inside

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        self._check("store", ptrs, mask)
        return store(self, ptrs, value, mask)

    def create_atomic_rmw(self, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        self._check("atomic", ptr, mask)
        return super().create_atomic_rmw(rmw_op, ptr, val, mask, sem, scope)

    def _check(self, what: str, ptrs: Any, mask: Any) -> None:
        if not self.checked:
            return
        pointers = ptrs.data if mask.data.all() else ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]
        if not pointers.size:
            return
        size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        low, high = int(pointers.min()), int(pointers.max()) + size
        name = ptrs.attr.get("argument")
        span = self.spans.get(name) if name is not None else None
        if span is None:
            within = (*self.spans.values(), *self.reached)
            if any(s.start <= low and high <= s.stop for s in within):
                return
            raise OutOfBounds(f"{what} at 0x{low:x} is outside every argument")
        if span.start <= low and high <= span.stop:
            return
        extent = (span.stop - span.start) // size
        first, last = (low - span.start) // size, (high - span.start) // size - 1
        raise OutOfBounds(
            f"{what} of argument {span.argument!r}: unmasked lanes address elements {first}..{last}, "
            f"it has {extent}"
        )


def _dot_model(a: Any, b: Any, acc: Any, precision: Any) -> tuple[DotModel, DType]:
    """Return the model of a tl.dot and its factors' type: chain16 of 16 bits, a chain of fma of exact f32."""
    if acc == tl.float32 and a == b:
        if a in (tl.bfloat16, tl.float16):
            return DotModel.CHAIN16, DType.BF16 if a == tl.bfloat16 else DType.F16
        if a == tl.float32 and precision == ir.INPUT_PRECISION.IEEE:
            return DotModel.FMA, DType.F32
    raise NotModelled(f"tl.dot of {a} and {b} to {acc} with {precision}")


def _not_modelled(name: str) -> Callable[..., Any]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotModelled(f"{name} has no bit model in the interpreter")

    return refuse


def _keeps_argument(name: str) -> Callable[..., Any]:
    """Let a pointer remember, through `name`, which argument it was computed from."""
    original = getattr(base.InterpreterBuilder, name)
    source = 1 if name == "create_splat" else 0

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        if args[source].attr:
            out.attr = dict(args[source].attr)
        return out

    return method


for _create, _name in UNMODELLED.items():
    setattr(FaithfulBuilder, _create, _not_modelled(_name))
for _create in (
    "create_addptr",
    "create_broadcast",
    "create_expand_dims",
    "create_reshape",
    "create_splat",
    "create_trans",
    "create_unsplat",
):
    setattr(FaithfulBuilder, _create, _keeps_argument(_create))
