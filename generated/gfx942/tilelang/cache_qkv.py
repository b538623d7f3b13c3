"""cache_qkv on gfx942, written by rlk 0.1.0: do not edit.

numerics: cfab151da164a14e
schedule: tiles J=8, 2 warps, 1 stages, unroll 1
inputs:
  qkv: bf16 [T, J=48, E=128]
  slots: i64 [T]
  q_weight: bf16 [E=128]
  k_weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  q_out: bf16 [T, H=32, E=128]
  k_out: bf16 [B, O, G=8, E=128]
  v_out: bf16 [B, O, G=8, E=128]
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
def cache_qkv(
    qkv: memory("qkv", "bfloat16"), slots: memory("slots", "int64"), q_weight: memory("q_weight", "bfloat16"),
    k_weight: memory("k_weight", "bfloat16"), cos: memory("cos", "float32"), sin: memory("sin", "float32"),
    position_ids: memory("position_ids", "int64"), q_out: memory("q_out", "bfloat16"),
    k_out: memory("k_out", "bfloat16"), v_out: memory("v_out", "bfloat16"), qkv_t_stride: tl.int64,
    qkv_j_stride: tl.int64, P: tl.int32, cos_p_stride: tl.int64, sin_p_stride: tl.int64, O: tl.int32, B: tl.int32,
    errors: memory("errors", "int32"), q_out_t_stride: tl.int64, q_out_h_stride: tl.int64, k_out_b_stride: tl.int64,
    k_out_o_stride: tl.int64, k_out_g_stride: tl.int64, v_out_b_stride: tl.int64, v_out_o_stride: tl.int64,
    v_out_g_stride: tl.int64, T: tl.int32, eps: tl.float32, programs: tl.int32
):
    # A block owns 1 of T, 8 of J (rows). E: 128 indices, 1 to each of 128 threads; J: 8 indices, 8 to each of 1
    # threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        j = tl.alloc_local((8,), "int32")
        qkv_value = tl.alloc_local((8,), "bfloat16")
        qkv_value_2 = tl.alloc_local((8,), "bfloat16")
        is_q = tl.alloc_local((8,), "bool")
        is_v = tl.alloc_local((8,), "bool")
        made = tl.alloc_local((8,), "float32")
        other = tl.alloc_local((8,), "float32")
        made_times_made = tl.alloc_local((8,), "float32")
        sum_e = tl.alloc_local((8,), "float32")
        rstd_quotient = tl.alloc_local((8,), "float32")
        rstd_sum = tl.alloc_local((8,), "float32")
        rstd = tl.alloc_local((8,), "float32")
        weight = tl.alloc_local((8,), "bfloat16")
        n = tl.alloc_local((8,), "float32")
        n_bf16 = tl.alloc_local((8,), "bfloat16")
        n_2 = tl.alloc_local((8,), "float32")
        weight_f32 = tl.alloc_local((8,), "float32")
        made_product = tl.alloc_local((8,), "float32")
        made_product_bf16 = tl.alloc_local((8,), "bfloat16")
        made_2 = tl.alloc_local((8,), "float32")
        weight_2 = tl.alloc_local((8,), "bfloat16")
        n_3 = tl.alloc_local((8,), "float32")
        n_bf16_2 = tl.alloc_local((8,), "bfloat16")
        n_4 = tl.alloc_local((8,), "float32")
        weight_f32_2 = tl.alloc_local((8,), "float32")
        other_product = tl.alloc_local((8,), "float32")
        other_product_bf16 = tl.alloc_local((8,), "bfloat16")
        other_2 = tl.alloc_local((8,), "float32")
        turned = tl.alloc_local((8,), "float32")
        made_times_cos = tl.alloc_local((8,), "float32")
        neg_turned = tl.alloc_local((8,), "float32")
        made_selected = tl.alloc_local((8,), "float32")
        made_3 = tl.alloc_local((8,), "float32")
        turned_2 = tl.alloc_local((8,), "bfloat16")
        j_minus_32 = tl.alloc_local((8,), "int32")
        not_is_q = tl.alloc_local((8,), "bool")
        not_is_v = tl.alloc_local((8,), "bool")
        k_out_guard = tl.alloc_local((8,), "bool")
        k_out_guard_2 = tl.alloc_local((8,), "bool")
        j_minus_40 = tl.alloc_local((8,), "int32")
        v_out_guard = tl.alloc_local((8,), "bool")
        rest = tl.truncdiv(block, 6)
        t = rest
        for c in tl.unroll(8):
            j[c] = tl.truncmod(block, 6) * 8 + c
        writes = thread == 0
        position_ids_value = tl.alloc_var("int64", position_ids[t])  # heads.py:277
        slots_value = tl.alloc_var("int64", slots[t])  # heads.py:215
        e = tl.alloc_var("int32", thread)  # heads.py:275
        for c in tl.unroll(8):
            qkv_value[c] = qkv[tl.int64(t) * qkv_t_stride + tl.int64(j[c]) * qkv_j_stride + e]
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
        for c in tl.unroll(8):  # heads.py:278
            qkv_value_2[c] = qkv[tl.int64(t) * qkv_t_stride + tl.int64(j[c]) * qkv_j_stride + partner]
        q_weight_value = tl.alloc_var("bfloat16", q_weight[e])  # heads.py:281
        k_weight_value = tl.alloc_var("bfloat16", k_weight[e])
        q_weight_value_2 = tl.alloc_var("bfloat16", q_weight[partner])  # heads.py:284
        k_weight_value_2 = tl.alloc_var("bfloat16", k_weight[partner])
        eps_value = tl.alloc_var("float32", eps)
        for c in tl.unroll(8):  # heads.py:274
            is_q[c] = j[c] < 32
            is_v[c] = 40 <= j[c]
            made[c] = tl.Cast("float32", qkv_value[c])  # heads.py:276
            other[c] = tl.Cast("float32", qkv_value_2[c])  # heads.py:278
            made_times_made[c] = made[c] * made[c]  # heads.py:88
            sum_e[c] = made_times_made[c]
        sum_over_e(sum_e, f32_reduce_smem, thread)
        for c in tl.unroll(8):
            rstd_quotient[c] = sum_e[c] / f32(128.0)
            rstd_sum[c] = rstd_quotient[c] + eps_value
            rstd[c] = portable_rsqrt(rstd_sum[c])
            weight[c] = tl.Select(is_q[c], q_weight_value, k_weight_value)  # heads.py:281
            n[c] = made[c] * rstd[c]  # heads.py:93
            n_bf16[c] = tl.Cast("bfloat16", n[c])  # heads.py:95
            n_2[c] = tl.Cast("float32", n_bf16[c])
            weight_f32[c] = tl.Cast("float32", weight[c])  # norm.py:16
            made_product[c] = n_2[c] * weight_f32[c]  # heads.py:96
            made_product_bf16[c] = tl.Cast("bfloat16", made_product[c])
            made_2[c] = tl.Cast("float32", made_product_bf16[c])  # heads.py:282
            weight_2[c] = tl.Select(is_q[c], q_weight_value_2, k_weight_value_2)  # heads.py:285
            n_3[c] = other[c] * rstd[c]  # heads.py:93
            n_bf16_2[c] = tl.Cast("bfloat16", n_3[c])  # heads.py:95
            n_4[c] = tl.Cast("float32", n_bf16_2[c])
            weight_f32_2[c] = tl.Cast("float32", weight_2[c])  # norm.py:16
            other_product[c] = n_4[c] * weight_f32_2[c]  # heads.py:96
            other_product_bf16[c] = tl.Cast("bfloat16", other_product[c])
            other_2[c] = tl.Cast("float32", other_product_bf16[c])  # heads.py:285
            turned[c] = other_2[c] * sin_value  # heads.py:82
            made_times_cos[c] = made_2[c] * cos_value  # heads.py:83
            neg_turned[c] = turned[c] * f32(-1.0)
            made_selected[c] = tl.Select(ahead, neg_turned[c], turned[c])
            made_3[c] = made_times_cos[c] + made_selected[c]
            turned_2[c] = tl.Cast("bfloat16", made_3[c])  # heads.py:84
        size = tl.alloc_var("int64", tl.Cast("int64", O))  # heads.py:215
        there = tl.alloc_var("bool", 0 <= slots_value)  # heads.py:216
        B_i64 = tl.alloc_var("int64", tl.Cast("int64", B))  # heads.py:217
        kept_product = tl.alloc_var("int64", B_i64 * size)
        kept_below = tl.alloc_var("bool", slots_value < kept_product)
        kept = tl.alloc_var("bool", there & kept_below)
        below = tl.alloc_var("bool", slots_value < -1)  # heads.py:218
        not_kept = tl.alloc_var("bool", tl.Not(kept))
        both = tl.alloc_var("bool", there & not_kept)
        either = tl.alloc_var("bool", below | both)
        if either & writes:
            tl.atomic_max(errors[0], 1)
            tl.atomic_max(errors[1], t + 1)
        at_2 = tl.alloc_var("int64", tl.Select(kept, slots_value, tl.int64(0)))  # heads.py:219
        at_over_size = tl.alloc_var("int64", tl.truncdiv(at_2, size))  # heads.py:220
        B_2 = tl.alloc_var("int32", tl.Cast("int32", at_over_size))
        at_mod_size = tl.alloc_var("int64", tl.truncmod(at_2, size))
        O_2 = tl.alloc_var("int32", tl.Cast("int32", at_mod_size))
        for c in tl.unroll(8):  # heads.py:288
            if is_q[c]:
                q_out[tl.int64(t) * q_out_t_stride + tl.int64(j[c]) * q_out_h_stride + e] = turned_2[c]
            j_minus_32[c] = j[c] - 32  # heads.py:289
            not_is_q[c] = tl.Not(is_q[c])
            not_is_v[c] = tl.Not(is_v[c])
            k_out_guard[c] = not_is_q[c] & not_is_v[c]
            k_out_guard_2[c] = k_out_guard[c] & kept
            if k_out_guard_2[c]:
                k_out[
                    tl.int64(B_2) * k_out_b_stride + tl.int64(O_2) * k_out_o_stride
                    + tl.int64(j_minus_32[c]) * k_out_g_stride + e
                ] = turned_2[c]
            j_minus_40[c] = j[c] - 40  # heads.py:290
            v_out_guard[c] = is_v[c] & kept
            if v_out_guard[c]:
                v_out[
                    tl.int64(B_2) * v_out_b_stride + tl.int64(O_2) * v_out_o_stride
                    + tl.int64(j_minus_40[c]) * v_out_g_stride + e
                ] = qkv_value[c]


def call(
    kernels, qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, eps, P, O, B, T, qkv_t_stride,
    qkv_j_stride, cos_p_stride, sin_p_stride, q_out_t_stride, q_out_h_stride, k_out_b_stride, k_out_o_stride,
    k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, errors
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 6
    if programs > 0:
        kernels.cache_qkv(
            (programs,), qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, qkv_t_stride,
            qkv_j_stride, P, cos_p_stride, sin_p_stride, O, B, errors, q_out_t_stride, q_out_h_stride, k_out_b_stride,
            k_out_o_stride, k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, T, eps
        )
