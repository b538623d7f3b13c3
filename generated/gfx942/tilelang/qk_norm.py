"""qk_norm on gfx942, written by rlk 0.1.0: do not edit.

numerics: b4cacf877e888f4d
schedule: tiles H=8, 2 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, H=32, E=128]
  weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  y: bf16 [T, H=32, E=128]
  rstd: f32 [T, H=32]
scalars:
  eps: f32
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
def add(a, b):
    # A term of a sum.
    return a + b


@tl.macro
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    y0 = tl.alloc_var("float32", x * f32(16777216.0))
    y1 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), y0, x))
    i2 = tl.alloc_var("int32", bits_of(y1))
    i3 = tl.alloc_var("int32", i2 >> 1)
    i4 = tl.alloc_var("int32", tl.int32(1595932665) - i3)
    y5 = tl.alloc_var("float32", number_of(i4))
    y6 = tl.alloc_var("float32", y5 * f32(-0.703952253))
    y7 = tl.alloc_var("float32", y1 * y5)
    y8 = tl.alloc_var("float32", fma(y7, y5, f32(-2.38924456)))
    y9 = tl.alloc_var("float32", y6 * y8)
    y10 = tl.alloc_var("float32", y1 * y9)
    y11 = tl.alloc_var("float32", fma(y10, y9, f32(-1.0)))
    y12 = tl.alloc_var("float32", y9 * y11)
    y13 = tl.alloc_var("float32", fma(y11, f32(0.375), f32(-0.5)))
    y14 = tl.alloc_var("float32", fma(y12, y13, y9))
    y15 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), f32(4096.0), f32(1.0)))
    y16 = tl.alloc_var("float32", y14 * y15)
    y17 = tl.alloc_var("float32", tl.Select(x == f32(float("inf")), f32(0.0), x))
    y18 = tl.alloc_var("float32", tl.Select(x < f32(float("inf")), y16, y17))
    i19 = tl.alloc_var("int32", bits_of(x))
    i20 = tl.alloc_var("int32", i19 & tl.reinterpret(tl.uint32(0x80000000), "int32"))
    i21 = tl.alloc_var("int32", i20 | tl.int32(2139095040))
    y22 = tl.alloc_var("float32", number_of(i21))
    y23 = tl.alloc_var("float32", tl.Select(x == f32(0.0), y22, y18))
    y24 = tl.alloc_var("float32", tl.Select(x < f32(0.0), f32(float("nan")), y23))
    return y24


@tl.macro
def sum_over_e(x, x_reduce_smem, thread):
    # The sum over E, vector8.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.prim_func
def qk_norm(
    x: memory("x", "bfloat16"), weight: memory("weight", "bfloat16"), cos: memory("cos", "float32"),
    sin: memory("sin", "float32"), position_ids: memory("position_ids", "int64"), y: memory("y", "bfloat16"),
    rstd: memory("rstd", "float32"), x_t_stride: tl.int64, x_h_stride: tl.int64, P: tl.int32, cos_p_stride: tl.int64,
    sin_p_stride: tl.int64, y_t_stride: tl.int64, y_h_stride: tl.int64, rstd_t_stride: tl.int64, T: tl.int32,
    eps: tl.float32, programs: tl.int32
):
    # A block owns 1 of T, 8 of H (rows). E: 128 indices, 1 to each of 128 threads; H: 8 indices, 8 to each of 1
    # threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        h = tl.alloc_local((8,), "int32")
        x_value = tl.alloc_local((8,), "bfloat16")
        x_value_2 = tl.alloc_local((8,), "bfloat16")
        h_2 = tl.alloc_local((8,), "float32")
        h_times_h = tl.alloc_local((8,), "float32")
        sum_e = tl.alloc_local((8,), "float32")
        rstd_quotient = tl.alloc_local((8,), "float32")
        rstd_sum = tl.alloc_local((8,), "float32")
        rstd_value = tl.alloc_local((8,), "float32")
        n = tl.alloc_local((8,), "float32")
        n_bf16 = tl.alloc_local((8,), "bfloat16")
        n_2 = tl.alloc_local((8,), "float32")
        own_product = tl.alloc_local((8,), "float32")
        own_product_bf16 = tl.alloc_local((8,), "bfloat16")
        own = tl.alloc_local((8,), "float32")
        other = tl.alloc_local((8,), "float32")
        n_3 = tl.alloc_local((8,), "float32")
        n_bf16_2 = tl.alloc_local((8,), "bfloat16")
        n_4 = tl.alloc_local((8,), "float32")
        other_product = tl.alloc_local((8,), "float32")
        other_product_bf16 = tl.alloc_local((8,), "bfloat16")
        other_2 = tl.alloc_local((8,), "float32")
        turned = tl.alloc_local((8,), "float32")
        own_times_cos = tl.alloc_local((8,), "float32")
        neg_turned = tl.alloc_local((8,), "float32")
        made_selected = tl.alloc_local((8,), "float32")
        made = tl.alloc_local((8,), "float32")
        made_bf16 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 4)
        t = rest
        for c in tl.unroll(8):
            h[c] = tl.truncmod(block, 4) * 8 + c
        writes = thread == 0
        position_ids_value = tl.alloc_var("int64", position_ids[t])  # heads.py:123
        e = tl.alloc_var("int32", thread)  # heads.py:119
        for c in tl.unroll(8):
            x_value[c] = x[tl.int64(t) * x_t_stride + tl.int64(h[c]) * x_h_stride + e]
        ahead = tl.alloc_var("bool", e < 64)  # heads.py:71
        e_minus_64 = tl.alloc_var("int32", e - 64)  # heads.py:72
        angle = tl.alloc_var("int32", tl.Select(ahead, e, e_minus_64))
        e_plus_64 = tl.alloc_var("int32", e + 64)
        partner = tl.alloc_var("int32", tl.Select(ahead, e_plus_64, e_minus_64))
        position_ids_ge_0 = tl.alloc_var("bool", 0 <= position_ids_value)  # heads.py:77
        P_i64 = tl.alloc_var("int64", tl.Cast("int64", P))
        cos_guard_below = tl.alloc_var("bool", position_ids_value < P_i64)
        cos_guard = tl.alloc_var("bool", position_ids_ge_0 & cos_guard_below)
        angle_ge_0 = tl.alloc_var("bool", 0 <= angle)
        angle_lt_64 = tl.alloc_var("bool", angle < 64)
        cos_guard_2 = tl.alloc_var("bool", angle_ge_0 & angle_lt_64)
        cos_guard_3 = tl.alloc_var("bool", cos_guard & cos_guard_2)
        cos_value = tl.alloc_var(
            "float32", tl.if_then_else(cos_guard_3, cos[position_ids_value * cos_p_stride + angle], f32(float("nan")))
        )
        sin_value = tl.alloc_var(
            "float32", tl.if_then_else(cos_guard_3, sin[position_ids_value * sin_p_stride + angle], f32(float("nan")))
        )
        weight_value = tl.alloc_var("bfloat16", weight[e])  # norm.py:16
        for c in tl.unroll(8):  # heads.py:125
            x_value_2[c] = x[tl.int64(t) * x_t_stride + tl.int64(h[c]) * x_h_stride + partner]
        weight_value_2 = tl.alloc_var("bfloat16", weight[partner])  # heads.py:126
        eps_value = tl.alloc_var("float32", eps)
        for c in tl.unroll(8):  # heads.py:119
            h_2[c] = tl.Cast("float32", x_value[c])
            h_times_h[c] = h_2[c] * h_2[c]  # heads.py:88
            sum_e[c] = h_times_h[c]
        sum_over_e(sum_e, f32_reduce_smem, thread)
        for c in tl.unroll(8):
            rstd_quotient[c] = sum_e[c] / f32(128.0)
            rstd_sum[c] = rstd_quotient[c] + eps_value
            rstd_value[c] = portable_rsqrt(rstd_sum[c])
            n[c] = h_2[c] * rstd_value[c]  # heads.py:93
            n_bf16[c] = tl.Cast("bfloat16", n[c])  # heads.py:95
            n_2[c] = tl.Cast("float32", n_bf16[c])
        weight_f32 = tl.alloc_var("float32", tl.Cast("float32", weight_value))  # norm.py:16
        for c in tl.unroll(8):  # heads.py:96
            own_product[c] = n_2[c] * weight_f32
            own_product_bf16[c] = tl.Cast("bfloat16", own_product[c])
            own[c] = tl.Cast("float32", own_product_bf16[c])  # heads.py:124
            other[c] = tl.Cast("float32", x_value_2[c])  # heads.py:125
            n_3[c] = other[c] * rstd_value[c]  # heads.py:93
            n_bf16_2[c] = tl.Cast("bfloat16", n_3[c])  # heads.py:95
            n_4[c] = tl.Cast("float32", n_bf16_2[c])
        weight_f32_2 = tl.alloc_var("float32", tl.Cast("float32", weight_value_2))  # norm.py:16
        for c in tl.unroll(8):  # heads.py:96
            other_product[c] = n_4[c] * weight_f32_2
            other_product_bf16[c] = tl.Cast("bfloat16", other_product[c])
            other_2[c] = tl.Cast("float32", other_product_bf16[c])  # heads.py:126
            turned[c] = other_2[c] * sin_value  # heads.py:82
            own_times_cos[c] = own[c] * cos_value  # heads.py:83
            neg_turned[c] = turned[c] * f32(-1.0)
            made_selected[c] = tl.Select(ahead, neg_turned[c], turned[c])
            made[c] = own_times_cos[c] + made_selected[c]
            made_bf16[c] = tl.Cast("bfloat16", made[c])  # heads.py:84
            y[tl.int64(t) * y_t_stride + tl.int64(h[c]) * y_h_stride + e] = made_bf16[c]  # heads.py:127
            if writes:
                rstd[tl.int64(t) * rstd_t_stride + h[c]] = rstd_value[c]


def call(
    kernels, x, weight, cos, sin, position_ids, y, rstd, eps, P, T, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride,
    y_t_stride, y_h_stride, rstd_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 4
    if programs > 0:
        kernels.qk_norm(
            (programs,), x, weight, cos, sin, position_ids, y, rstd, x_t_stride, x_h_stride, P, cos_p_stride,
            sin_p_stride, y_t_stride, y_h_stride, rstd_t_stride, T, eps
        )
