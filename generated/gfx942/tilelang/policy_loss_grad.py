"""policy_loss_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 06eb7cb1eb76f541
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
inputs:
  logp: f32 [T]
  old_logp: f32 [T]
  advantages: f32 [B]
  ref_logp: f32 [T]
  active: bool [T]
  sequence: i32 [T]
  count: i32
  d_loss: f32
outputs:
  d_logp: f32 [T]
scalars:
  beta: f32
  surrogate_least: f32
  surrogate_most: f32
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
def portable_exp(x):
    # e**x, with gradual underflow.
    y0 = tl.alloc_var("float32", smaller(x, f32(89.0)))
    y1 = tl.alloc_var("float32", larger(y0, f32(-104.0)))
    y2 = tl.alloc_var("float32", fma(y1, f32(1.44269504), f32(12582912.0)))
    y3 = tl.alloc_var("float32", y2 - f32(12582912.0))
    y4 = tl.alloc_var("float32", fma(y3, f32(-0.693147182), y1))
    y5 = tl.alloc_var("float32", fma(y3, f32(1.90465421e-09), y4))
    y6 = tl.alloc_var("float32", fma(f32(0.001381949), y5, f32(0.0083686905)))
    y7 = tl.alloc_var("float32", fma(y6, y5, f32(0.04166828)))
    y8 = tl.alloc_var("float32", fma(y7, y5, f32(0.16666521)))
    y9 = tl.alloc_var("float32", fma(y8, y5, f32(0.49999994)))
    y10 = tl.alloc_var("float32", fma(y9, y5, f32(1.0)))
    y11 = tl.alloc_var("float32", fma(y10, y5, f32(1.0)))
    i12 = tl.alloc_var("int32", bits_of(y2))
    i13 = tl.alloc_var("int32", i12 - tl.int32(1262485504))
    i14 = tl.alloc_var("int32", i13 >> 1)
    i15 = tl.alloc_var("int32", i14 << 23)
    i16 = tl.alloc_var("int32", i15 + tl.int32(1065353216))
    y17 = tl.alloc_var("float32", number_of(i16))
    i18 = tl.alloc_var("int32", i13 - i14)
    i19 = tl.alloc_var("int32", i18 << 23)
    i20 = tl.alloc_var("int32", i19 + tl.int32(1065353216))
    y21 = tl.alloc_var("float32", number_of(i20))
    y22 = tl.alloc_var("float32", y11 * y17)
    y23 = tl.alloc_var("float32", y22 * y21)
    y24 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y23, x))
    return y24


@tl.macro
def portable_expm1(x):
    # e**x - 1, accurate near 0; expm1(-0) = -0.
    y0 = tl.alloc_var("float32", smaller(x, f32(89.0)))
    y1 = tl.alloc_var("float32", larger(y0, f32(-30.0)))
    y2 = tl.alloc_var("float32", fma(y1, f32(1.44269504), f32(12582912.0)))
    y3 = tl.alloc_var("float32", y2 - f32(12582912.0))
    y4 = tl.alloc_var("float32", y2 - f32(12582912.0))
    y5 = tl.alloc_var("float32", fma(y4, f32(-0.693147182), y1))
    y6 = tl.alloc_var("float32", fma(y4, f32(1.90465421e-09), y5))
    y7 = tl.alloc_var("float32", y6 + f32(0.5))
    y8 = tl.alloc_var("float32", tl.Select(y3 == f32(1.0), y7, y6))
    y9 = tl.alloc_var("float32", fma(f32(0.00019764257), y6, f32(0.0013932347)))
    y10 = tl.alloc_var("float32", fma(y9, y6, f32(0.008333543)))
    y11 = tl.alloc_var("float32", fma(y10, y6, f32(0.041666493)))
    y12 = tl.alloc_var("float32", fma(y11, y6, f32(0.16666666)))
    y13 = tl.alloc_var("float32", fma(y12, y6, f32(0.5)))
    y14 = tl.alloc_var("float32", y6 * y6)
    y15 = tl.alloc_var("float32", fma(y13, y14, y8))
    i16 = tl.alloc_var("int32", bits_of(y2))
    i17 = tl.alloc_var("int32", i16 << 23)
    i18 = tl.alloc_var("int32", i17 + tl.int32(1056964608))
    y19 = tl.alloc_var("float32", number_of(i18))
    y20 = tl.alloc_var("float32", y19 - f32(0.5))
    y21 = tl.alloc_var("float32", y19 - y20)
    y22 = tl.alloc_var("float32", y21 - f32(0.5))
    y23 = tl.alloc_var("float32", fma(y15, y19, y22))
    y24 = tl.alloc_var("float32", y23 + y20)
    y25 = tl.alloc_var("float32", tl.Select(y3 == f32(1.0), y15, y24))
    y26 = tl.alloc_var("float32", y25 + y25)
    y27 = tl.alloc_var("float32", tl.Select(y3 == f32(0.0), y15, y26))
    i28 = tl.alloc_var("int32", bits_of(x))
    i29 = tl.alloc_var("int32", i28 & tl.int32(2147483647))
    y30 = tl.alloc_var("float32", number_of(i29))
    y31 = tl.alloc_var("float32", tl.Select(f32(0.0) < y30, y27, x))
    return y31


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.prim_func
def policy_loss_grad(
    logp: memory("logp", "float32"), old_logp: memory("old_logp", "float32"),
    advantages: memory("advantages", "float32"), ref_logp: memory("ref_logp", "float32"),
    active: memory("active", "bool"), sequence: memory("sequence", "int32"), count: memory("count", "int32"),
    d_loss: memory("d_loss", "float32"), d_logp: memory("d_logp", "float32"), T: tl.int32, B: tl.int32,
    beta: tl.float32, surrogate_least: tl.float32, surrogate_most: tl.float32, programs: tl.int32
):
    # A block owns 2048 of T (rows). T: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        active_value = tl.alloc_local((8,), "bool")
        sequence_value = tl.alloc_local((8,), "int32")
        sequence_ge_0 = tl.alloc_local((8,), "bool")
        sequence_lt_B = tl.alloc_local((8,), "bool")
        advantages_guard = tl.alloc_local((8,), "bool")
        advantages_value = tl.alloc_local((8,), "float32")
        logp_value = tl.alloc_local((8,), "float32")
        old_logp_value = tl.alloc_local((8,), "float32")
        ref_logp_value = tl.alloc_local((8,), "float32")
        log_ratio = tl.alloc_local((8,), "float32")
        ratio = tl.alloc_local((8,), "float32")
        advantages_is_0 = tl.alloc_local((8,), "bool")
        ratio_2 = tl.alloc_local((8,), "float32")
        ratio_times_advantages = tl.alloc_local((8,), "float32")
        plain = tl.alloc_local((8,), "float32")
        bounded = tl.alloc_local((8,), "float32")
        bounded_2 = tl.alloc_local((8,), "float32")
        bounded_times_advantages = tl.alloc_local((8,), "float32")
        limited = tl.alloc_local((8,), "float32")
        plain_lt_limited = tl.alloc_local((8,), "bool")
        flows = tl.alloc_local((8,), "bool")
        advantages_not_0 = tl.alloc_local((8,), "bool")
        slope_both = tl.alloc_local((8,), "bool")
        slope = tl.alloc_local((8,), "float32")
        raw = tl.alloc_local((8,), "float32")
        expm1_raw = tl.alloc_local((8,), "float32")
        slope_2 = tl.alloc_local((8,), "float32")
        by_logp = tl.alloc_local((8,), "float32")
        slope_3 = tl.alloc_local((8,), "float32")
        scale_times_slope = tl.alloc_local((8,), "float32")
        d_logp_value = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            t[c] = block * 2048 + thread + c * 256
            t_inside[c] = t[c] < T
        d_loss_value = tl.alloc_var("float32", d_loss[0])  # policy.py:707
        count_value = tl.alloc_var("int32", count[0])  # policy.py:550
        for c in tl.unroll(8):  # policy.py:140
            active_value[c] = tl.if_then_else(t_inside[c], active[t[c]], tl.Cast("bool", 0))
            sequence_value[c] = tl.if_then_else(t_inside[c], sequence[t[c]], tl.Cast("int32", 0))
            sequence_ge_0[c] = 0 <= sequence_value[c]  # policy.py:146
            sequence_lt_B[c] = sequence_value[c] < B
            advantages_guard[c] = sequence_ge_0[c] & sequence_lt_B[c]
            advantages_value[c] = tl.if_then_else(
                advantages_guard[c] & t_inside[c], advantages[sequence_value[c]], tl.Cast("float32", 0)
            )
            logp_value[c] = tl.if_then_else(t_inside[c], logp[t[c]], tl.Cast("float32", 0))  # policy.py:140
            old_logp_value[c] = tl.if_then_else(t_inside[c], old_logp[t[c]], tl.Cast("float32", 0))
            ref_logp_value[c] = tl.if_then_else(t_inside[c], ref_logp[t[c]], tl.Cast("float32", 0))
        beta_value = tl.alloc_var("float32", beta)
        surrogate_least_value = tl.alloc_var("float32", surrogate_least)
        surrogate_most_value = tl.alloc_var("float32", surrogate_most)
        count_max_1 = tl.alloc_var("int32", tl.max(count_value, tl.int32(1)))  # policy.py:550
        denominator = tl.alloc_var("float32", tl.Cast("float32", count_max_1))
        scale = tl.alloc_var("float32", d_loss_value / denominator)  # policy.py:560
        for c in tl.unroll(8):  # policy.py:191
            log_ratio[c] = logp_value[c] - old_logp_value[c]
            ratio[c] = portable_exp(log_ratio[c])  # policy.py:369
            advantages_is_0[c] = advantages_value[c] == f32(0.0)  # policy.py:371
            ratio_2[c] = tl.Select(advantages_is_0[c], f32(1.0), ratio[c])
            ratio_times_advantages[c] = ratio_2[c] * advantages_value[c]  # surrogates.py:58
            plain[c] = ratio_times_advantages[c] * f32(-1.0)
            bounded[c] = larger(ratio_2[c], surrogate_least_value)  # surrogates.py:61
            bounded_2[c] = smaller(bounded[c], surrogate_most_value)  # surrogates.py:63
            bounded_times_advantages[c] = bounded_2[c] * advantages_value[c]  # surrogates.py:64
            limited[c] = bounded_times_advantages[c] * f32(-1.0)
            plain_lt_limited[c] = plain[c] < limited[c]  # surrogates.py:67
            flows[c] = tl.Not(plain_lt_limited[c])
            advantages_not_0[c] = advantages_value[c] != f32(0.0)  # surrogates.py:76
            slope_both[c] = flows[c] & advantages_not_0[c]
            slope[c] = tl.Select(slope_both[c], plain[c], f32(0.0))
            raw[c] = ref_logp_value[c] - logp_value[c]  # policy.py:331
            expm1_raw[c] = portable_expm1(raw[c])  # loss.py:36
            slope_2[c] = expm1_raw[c] * f32(-1.0)
            by_logp[c] = beta_value * slope_2[c]  # policy.py:386
            slope_3[c] = slope[c] + by_logp[c]  # policy.py:457
            scale_times_slope[c] = scale * slope_3[c]  # policy.py:619
            d_logp_value[c] = tl.Select(active_value[c], scale_times_slope[c], f32(0.0))  # policy.py:600
            if t_inside[c]:  # policy.py:602
                d_logp[t[c]] = d_logp_value[c]


def call(
    kernels, logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, beta, surrogate_least,
    surrogate_most, T, B
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.policy_loss_grad(
            (programs,), logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, T, B, beta,
            surrogate_least, surrogate_most
        )
