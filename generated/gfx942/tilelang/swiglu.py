"""swiglu on gfx942, written by rlk 0.1.0: do not edit.

numerics: 9a391815b1326d65
schedule: tiles N=2048, 4 warps, 1 stages, unroll 1
inputs:
  gate: bf16 [T, N=12288]
  up: bf16 [T, N=12288]
outputs:
  y: bf16 [T, N=12288]
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
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def larger(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.
    same = number_of(bits_of(a) & bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(a < b, b, tl.Select(b < a, a, other)))


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = tl.alloc_var("int32", bits_of(x))
    i1 = tl.alloc_var("int32", i0 | tl.reinterpret(tl.uint32(0x80000000), "int32"))
    y2 = tl.alloc_var("float32", number_of(i1))
    y3 = tl.alloc_var("float32", larger(y2, f32(-104.0)))
    y4 = tl.alloc_var("float32", fma(y3, f32(1.44269504), f32(12582912.0)))
    y5 = tl.alloc_var("float32", y4 - f32(12582912.0))
    y6 = tl.alloc_var("float32", fma(y5, f32(-0.693147182), y3))
    y7 = tl.alloc_var("float32", fma(y5, f32(1.90465421e-09), y6))
    y8 = tl.alloc_var("float32", fma(f32(0.001381949), y7, f32(0.0083686905)))
    y9 = tl.alloc_var("float32", fma(y8, y7, f32(0.04166828)))
    y10 = tl.alloc_var("float32", fma(y9, y7, f32(0.16666521)))
    y11 = tl.alloc_var("float32", fma(y10, y7, f32(0.49999994)))
    y12 = tl.alloc_var("float32", fma(y11, y7, f32(1.0)))
    y13 = tl.alloc_var("float32", y12 * y7)
    i14 = tl.alloc_var("int32", bits_of(y4))
    i15 = tl.alloc_var("int32", i14 - tl.int32(1262485504))
    i16 = tl.alloc_var("int32", i15 >> 1)
    i17 = tl.alloc_var("int32", i16 << 23)
    i18 = tl.alloc_var("int32", i17 + tl.int32(1065353216))
    y19 = tl.alloc_var("float32", number_of(i18))
    i20 = tl.alloc_var("int32", i15 - i16)
    i21 = tl.alloc_var("int32", i20 << 23)
    i22 = tl.alloc_var("int32", i21 + tl.int32(1065353216))
    y23 = tl.alloc_var("float32", number_of(i22))
    y24 = tl.alloc_var("float32", y13 + f32(1.0))
    y25 = tl.alloc_var("float32", y24 * y19)
    y26 = tl.alloc_var("float32", y25 * y23)
    y27 = tl.alloc_var("float32", y26 + f32(1.0))
    y28 = tl.alloc_var("float32", y27 * f32(-1.0))
    y29 = tl.alloc_var("float32", fma(f32(-0.20604426), y27, f32(1.2625691)))
    y30 = tl.alloc_var("float32", fma(y29, y27, f32(-2.8429258)))
    y31 = tl.alloc_var("float32", fma(y30, y27, f32(2.7843392)))
    y32 = tl.alloc_var("float32", fma(y31, y28, f32(1.0)))
    y33 = tl.alloc_var("float32", fma(y32, y32, y32))
    y34 = tl.alloc_var("float32", fma(y31, y33, y31))
    y35 = tl.alloc_var("float32", fma(y34, y28, f32(1.0)))
    y36 = tl.alloc_var("float32", fma(y34, y35, y34))
    y37 = tl.alloc_var("float32", y27 - f32(1.0))
    y38 = tl.alloc_var("float32", y26 - y37)
    y39 = tl.alloc_var("float32", fma(y36, y27, f32(-1.0)))
    y40 = tl.alloc_var("float32", fma(y36, y38, y39))
    y41 = tl.alloc_var("float32", y36 * y19)
    y42 = tl.alloc_var("float32", fma(y13, y40, y40))
    y43 = tl.alloc_var("float32", y13 - y42)
    y44 = tl.alloc_var("float32", fma(y41, y43, y41))
    y45 = tl.alloc_var("float32", y44 * y23)
    y46 = tl.alloc_var("float32", tl.Select(x < f32(0.0), y45, y36))
    y47 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y46, x))
    return y47


@tl.prim_func
def swiglu(
    gate: memory("gate", "bfloat16"), up: memory("up", "bfloat16"), y: memory("y", "bfloat16"), gate_t_stride: tl.int64,
    up_t_stride: tl.int64, y_t_stride: tl.int64, T: tl.int32, programs: tl.int32
):
    # A block owns 1 of T, 2048 of N (rows). N: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        n = tl.alloc_local((8,), "int32")
        gate_value = tl.alloc_local((8,), "bfloat16")
        up_value = tl.alloc_local((8,), "bfloat16")
        g = tl.alloc_local((8,), "float32")
        sigmoid_g = tl.alloc_local((8,), "float32")
        silu_product = tl.alloc_local((8,), "float32")
        silu = tl.alloc_local((8,), "bfloat16")
        silu_f32 = tl.alloc_local((8,), "float32")
        up_f32 = tl.alloc_local((8,), "float32")
        y_product = tl.alloc_local((8,), "float32")
        y_product_bf16 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 6)
        t = rest
        for c in tl.unroll(8):
            n[c] = tl.truncmod(block, 6) * 2048 + thread + c * 256
            gate_value[c] = gate[tl.int64(t) * gate_t_stride + n[c]]  # model.py:27
            up_value[c] = up[tl.int64(t) * up_t_stride + n[c]]  # model.py:29
            g[c] = tl.Cast("float32", gate_value[c])  # model.py:27
            sigmoid_g[c] = portable_sigmoid(g[c])  # model.py:28
            silu_product[c] = g[c] * sigmoid_g[c]
            silu[c] = tl.Cast("bfloat16", silu_product[c])
            silu_f32[c] = tl.Cast("float32", silu[c])  # model.py:29
            up_f32[c] = tl.Cast("float32", up_value[c])
            y_product[c] = silu_f32[c] * up_f32[c]
            y_product_bf16[c] = tl.Cast("bfloat16", y_product[c])
            y[tl.int64(t) * y_t_stride + n[c]] = y_product_bf16[c]


def call(kernels, gate, up, y, T, gate_t_stride, up_t_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 6
    if programs > 0:
        kernels.swiglu((programs,), gate, up, y, gate_t_stride, up_t_stride, y_t_stride, T)
