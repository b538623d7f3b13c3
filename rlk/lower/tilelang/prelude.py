"""Functions of generated TileLang modules: text that the lowering copies, parsed and never imported.

A module gets the functions that its kernels call, and those that they call in turn; `memory` and `f32`, which
run while a kernel is built, are in every module.
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.macro
def as_variable(x):
    # A variable: the text of a value without one is copied to each of its uses.
    variable = tl.alloc_var(x.dtype, x)
    return variable


@tl.macro
def add(a, b):
    # A term of a sum.
    return a + b


@tl.macro
def imax(a, b):
    # The maximum of integers.
    return tl.max(a, b)


@tl.macro
def imin(a, b):
    # The minimum of integers.
    return tl.min(a, b)


@tl.macro
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def magnitude(x):
    # Absolute value.
    return number_of(bits_of(x) & 0x7FFFFFFF)


@tl.macro
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def hardware_exp2(x):
    # 2**x as the hardware has it: ex2.approx.ftz.
    return tl.call_extern("float32", "rlk_exp2", x)


@tl.macro
def any_lane(condition):
    # True if it holds for some thread of the warp.
    return tl.call_extern("int32", "__any_sync", tl.uint32(0xFFFFFFFF), condition) != 0


@tl.macro
def signed_half(x):
    # LLVM makes f16(a * b) of f16(a * b + 0.0), which loses the sign of a zero.
    half = tl.alloc_var("int16", tl.reinterpret(tl.Cast("float16", x), "int16"))
    sign = tl.alloc_var("int16", tl.Cast("int16", bits_of(x) >> 16) & tl.int16(-32768))
    both = tl.alloc_var("int16", half | sign)
    return tl.reinterpret(both, "float16")


@tl.macro
def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    x0 = tl.alloc_var("uint32", c0)
    x1 = tl.alloc_var("uint32", c1)
    x2 = tl.alloc_var("uint32", c2)
    x3 = tl.alloc_var("uint32", c3)
    y0 = tl.alloc_var("uint32", k0)
    y1 = tl.alloc_var("uint32", k1)
    for _ in tl.unroll(10):
        high0 = tl.alloc_var("uint32", high_product(x0, tl.uint32(0xD2511F53)))
        high1 = tl.alloc_var("uint32", high_product(x2, tl.uint32(0xCD9E8D57)))
        low0 = tl.alloc_var("uint32", x0 * tl.uint32(0xD2511F53))
        low1 = tl.alloc_var("uint32", x2 * tl.uint32(0xCD9E8D57))
        x0 = high1 ^ x1 ^ y0
        x1 = low1
        x2 = high0 ^ x3 ^ y1
        x3 = low0
        y0 = y0 + tl.uint32(0x9E3779B9)
        y1 = y1 + tl.uint32(0xBB67AE85)
    return x0, x1, x2, x3


@tl.macro
def segment_of(begin, tile, count, each, rows):
    # Segment of a tile of rows: segment i starts at tile begin[i] * each // rows + i.
    low = tl.alloc_var("int32", 0)
    high = tl.alloc_var("int32", count)
    middle = tl.alloc_var("int32")
    while high - low > 1:
        middle = (low + high) // 2
        if tl.truncdiv(tl.Cast("int32", begin[middle]) * each, rows) + middle > tile:
            high = middle
        else:
            low = middle
    return low


@tl.macro
def high_product(a, b):
    # The upper 32 bits of an unsigned product.
    product = tl.Cast("uint64", a) * tl.Cast("uint64", b)
    return tl.Cast("uint32", tl.shift_right(product, tl.uint64(32)))
