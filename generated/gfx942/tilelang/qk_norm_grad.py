"""qk_norm_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 07fb4bd4ba8fc3c3
schedule: tiles 1, 1 warps, 3 stages, unroll 1
schedule: tiles E=32, 1 warps, 1 stages, unroll 64
schedule: tiles E=32, 1 warps, 1 stages, unroll 32
inputs:
  x: bf16 [T, H=32, E=128]
  weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
  rstd: f32 [T, H=32]
  d_y: bf16 [T, H=32, E=128]
outputs:
  d_x: bf16 [T, H=32, E=128]
  d_weight: bf16 [E=128]
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
def sum_over_e(x):
    # The sum over E, vector8.
    for c in tl.unroll(2):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(2):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(2):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.prim_func
def qk_norm_grad_1(
    x: memory("x", "bfloat16"), weight: memory("weight", "bfloat16"), cos: memory("cos", "float32"),
    sin: memory("sin", "float32"), position_ids: memory("position_ids", "int64"), rstd: memory("rstd", "float32"),
    d_y: memory("d_y", "bfloat16"), d_x: memory("d_x", "bfloat16"), sum_of_piece1: memory("sum_of_piece1", "float32"),
    T: tl.int32, P: tl.int32, rstd_t_stride: tl.int64, x_t_stride: tl.int64, x_h_stride: tl.int64,
    cos_p_stride: tl.int64, sin_p_stride: tl.int64, d_y_t_stride: tl.int64, d_y_h_stride: tl.int64,
    d_x_t_stride: tl.int64, d_x_h_stride: tl.int64, sum_of_piece1_t_piece_stride: tl.int64,
    sum_of_piece1_h_stride: tl.int64, programs: tl.int32
):
    # A block owns 1 of T.piece, 1 of H (rows). E: 128 indices, 2 to each of 64 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        e = tl.alloc_local((2,), "int32")
        weight_value = tl.alloc_local((2,), "bfloat16")
        w = tl.alloc_local((2,), "float32")
        ahead = tl.alloc_local((2,), "bool")
        e_minus_64 = tl.alloc_local((2,), "int32")
        angle = tl.alloc_local((2,), "int32")
        e_plus_64 = tl.alloc_local((2,), "int32")
        partner = tl.alloc_local((2,), "int32")
        angle_ge_0 = tl.alloc_local((2,), "bool")
        angle_lt_64 = tl.alloc_local((2,), "bool")
        cos_guard = tl.alloc_local((2,), "bool")
        total = tl.alloc_local((2,), "float32")
        x_value = tl.alloc_local((2,), "bfloat16")
        cos_guard_3 = tl.alloc_local((2,), "bool")
        cos_value = tl.alloc_local((2,), "float32")
        sin_value = tl.alloc_local((2,), "float32")
        d_y_value = tl.alloc_local((2,), "bfloat16")
        d_y_value_2 = tl.alloc_local((2,), "bfloat16")
        x_f32 = tl.alloc_local((2,), "float32")
        n = tl.alloc_local((2,), "float32")
        other = tl.alloc_local((2,), "float32")
        own = tl.alloc_local((2,), "float32")
        neg_sin = tl.alloc_local((2,), "float32")
        turned = tl.alloc_local((2,), "float32")
        own_times_cos = tl.alloc_local((2,), "float32")
        neg_turned = tl.alloc_local((2,), "float32")
        made_selected = tl.alloc_local((2,), "float32")
        made = tl.alloc_local((2,), "float32")
        made_bf16 = tl.alloc_local((2,), "bfloat16")
        g = tl.alloc_local((2,), "float32")
        gw = tl.alloc_local((2,), "float32")
        gw_times_n = tl.alloc_local((2,), "float32")
        sum_e = tl.alloc_local((2,), "float32")
        n_times_mean = tl.alloc_local((2,), "float32")
        d_x_difference = tl.alloc_local((2,), "float32")
        d_x_product = tl.alloc_local((2,), "float32")
        d_x_product_bf16 = tl.alloc_local((2,), "bfloat16")
        n_bf16 = tl.alloc_local((2,), "bfloat16")
        n_bf16_f32 = tl.alloc_local((2,), "float32")
        total_product = tl.alloc_local((2,), "float32")
        total_2 = tl.alloc_local((2,), "float32")
        total_3 = tl.alloc_local((2,), "float32")
        rest = tl.truncdiv(block, 32)
        t_piece = rest
        h = tl.truncmod(block, 32)
        for c in tl.unroll(2):  # norm.py:16
            e[c] = thread + c * 64
            weight_value[c] = weight[e[c]]
            w[c] = tl.Cast("float32", weight_value[c])
        t_piece_times_64 = tl.alloc_var("int32", t_piece * 64)  # heads.py:139
        piece_begin = tl.alloc_var("int32", tl.min(T, t_piece_times_64))
        piece_begin_plus_64 = tl.alloc_var("int32", piece_begin + 64)
        piece_end = tl.alloc_var("int32", tl.min(T, piece_begin_plus_64))
        piece_end_minus_piece_begin = tl.alloc_var("int32", piece_end - piece_begin)
        for c in tl.unroll(2):  # heads.py:71
            ahead[c] = e[c] < 64
            e_minus_64[c] = e[c] - 64  # heads.py:72
            angle[c] = tl.Select(ahead[c], e[c], e_minus_64[c])
            e_plus_64[c] = e[c] + 64
            partner[c] = tl.Select(ahead[c], e_plus_64[c], e_minus_64[c])
        P_i64 = tl.alloc_var("int64", tl.Cast("int64", P))  # heads.py:77
        for c in tl.unroll(2):
            angle_ge_0[c] = 0 <= angle[c]
            angle_lt_64[c] = angle[c] < 64
            cos_guard[c] = angle_ge_0[c] & angle_lt_64[c]
            total[c] = f32(-0.0)  # heads.py:139
        for t_step in tl.serial(0, piece_end_minus_piece_begin):
            t = tl.alloc_var("int32", piece_begin + t_step)
            rstd_value = tl.alloc_var("float32", rstd[tl.int64(t) * rstd_t_stride + h])  # heads.py:140
            position_ids_value = tl.alloc_var("int64", position_ids[t])  # heads.py:158
            for c in tl.unroll(2):  # heads.py:141
                x_value[c] = x[tl.int64(t) * x_t_stride + tl.int64(h) * x_h_stride + e[c]]
            position_ids_ge_0 = tl.alloc_var("bool", 0 <= position_ids_value)  # heads.py:77
            cos_guard_below = tl.alloc_var("bool", position_ids_value < P_i64)
            cos_guard_2 = tl.alloc_var("bool", position_ids_ge_0 & cos_guard_below)
            for c in tl.unroll(2):
                cos_guard_3[c] = cos_guard_2 & cos_guard[c]
                cos_value[c] = tl.if_then_else(
                    cos_guard_3[c], cos[position_ids_value * cos_p_stride + angle[c]], f32(float("nan"))
                )
                sin_value[c] = tl.if_then_else(
                    cos_guard_3[c], sin[position_ids_value * sin_p_stride + angle[c]], f32(float("nan"))
                )
                d_y_value[c] = d_y[tl.int64(t) * d_y_t_stride + tl.int64(h) * d_y_h_stride + partner[c]]  # heads.py:160
                d_y_value_2[c] = d_y[tl.int64(t) * d_y_t_stride + tl.int64(h) * d_y_h_stride + e[c]]  # heads.py:161
                x_f32[c] = tl.Cast("float32", x_value[c])  # heads.py:141
                n[c] = x_f32[c] * rstd_value
                other[c] = tl.Cast("float32", d_y_value[c])  # heads.py:160
                own[c] = tl.Cast("float32", d_y_value_2[c])  # heads.py:161
                neg_sin[c] = sin_value[c] * f32(-1.0)  # heads.py:82
                turned[c] = other[c] * neg_sin[c]
                own_times_cos[c] = own[c] * cos_value[c]  # heads.py:83
                neg_turned[c] = turned[c] * f32(-1.0)
                made_selected[c] = tl.Select(ahead[c], neg_turned[c], turned[c])
                made[c] = own_times_cos[c] + made_selected[c]
                made_bf16[c] = tl.Cast("bfloat16", made[c])  # heads.py:84
                g[c] = tl.Cast("float32", made_bf16[c])  # heads.py:161
                gw[c] = g[c] * w[c]  # heads.py:144
                gw_times_n[c] = gw[c] * n[c]  # heads.py:145
                sum_e[c] = gw_times_n[c]
            sum_over_e(sum_e)
            sum_e_2 = sum_e[0]
            mean = tl.alloc_var("float32", sum_e_2 / f32(128.0))
            for c in tl.unroll(2):  # heads.py:146
                n_times_mean[c] = n[c] * mean
                d_x_difference[c] = gw[c] - n_times_mean[c]
                d_x_product[c] = d_x_difference[c] * rstd_value
                d_x_product_bf16[c] = tl.Cast("bfloat16", d_x_product[c])
                d_x[tl.int64(t) * d_x_t_stride + tl.int64(h) * d_x_h_stride + e[c]] = d_x_product_bf16[c]
                n_bf16[c] = tl.Cast("bfloat16", n[c])  # heads.py:148
                n_bf16_f32[c] = tl.Cast("float32", n_bf16[c])
                total_product[c] = g[c] * n_bf16_f32[c]
                total_2[c] = total[c] + total_product[c]
                total[c] = total_2[c]
        for c in tl.unroll(2):  # heads.py:139
            total_3[c] = total[c]
            sum_of_piece1[
                tl.int64(t_piece) * sum_of_piece1_t_piece_stride + tl.int64(h) * sum_of_piece1_h_stride + e[c]
            ] = total_3[c]


@tl.prim_func
def qk_norm_grad_2(
    partials: memory("partials", "float32"), sum_of_piece1: memory("sum_of_piece1", "float32"), T: tl.int32,
    sum_of_piece1_t_piece_stride: tl.int64, sum_of_piece1_h_stride: tl.int64, partials_h_stride: tl.int64,
    programs: tl.int32
):
    # A block owns 1 of H, 32 of E (merge). E: 32 indices, 1 to each of 32 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        dw = tl.alloc_var("float32")
        rest = tl.truncdiv(block, 4)
        h = rest
        e = tl.truncmod(block, 4) * 32 + thread % 32
        writes = (thread & 32) == 0
        dw = f32(-0.0)  # heads.py:139
        for t_piece_step in tl.serial(0, ((T + 63) // 64)):
            sum_of_piece1_value = tl.alloc_var(
                "float32",
                sum_of_piece1[
                    tl.int64(t_piece_step) * sum_of_piece1_t_piece_stride + tl.int64(h) * sum_of_piece1_h_stride + e
                ]
            )
            total = tl.alloc_var("float32", dw + sum_of_piece1_value)  # heads.py:148
            dw = total
        if writes:  # heads.py:151
            partials[tl.int64(h) * partials_h_stride + e] = dw


@tl.prim_func
def qk_norm_grad_3(
    partials: memory("partials", "float32"), d_weight: memory("d_weight", "bfloat16"), partials_h_stride: tl.int64,
    programs: tl.int32
):
    # A block owns 32 of E (merge). E: 32 indices, 1 to each of 32 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        total = tl.alloc_var("float32")
        e = block * 32 + thread % 32
        writes = (thread & 32) == 0
        total = f32(-0.0)  # heads.py:167
        for h_step in tl.serial(0, 32):
            partials_value = tl.alloc_var("float32", partials[tl.int64(h_step) * partials_h_stride + e])  # heads.py:168
            total_2 = tl.alloc_var("float32", total + partials_value)
            total = total_2
        total_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", total))  # heads.py:151
        if writes:
            d_weight[e] = total_bf16


def call(
    kernels, x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, partials, d_weight, T, P, rstd_t_stride,
    x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride, d_x_h_stride,
    sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride, partials_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 32
    if programs > 0:
        kernels.qk_norm_grad_1(
            (programs,), x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, T, P, rstd_t_stride,
            x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride, d_x_h_stride,
            sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride
        )
    programs = 32 * 4
    if programs > 0:
        kernels.qk_norm_grad_2(
            (programs,), partials, sum_of_piece1, T, sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride,
            partials_h_stride
        )
    programs = 4
    if programs > 0:
        kernels.qk_norm_grad_3((programs,), partials, d_weight, partials_h_stride)
