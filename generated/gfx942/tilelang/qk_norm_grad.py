"""qk_norm_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 07fb4bd4ba8fc3c3
schedule: tiles 1, 2 warps, 3 stages, unroll 1
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
def sum_over_e(x, x_reduce_smem, thread):
    # The sum over E, vector8.
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
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
    # A block owns 1 of T.piece, 1 of H (rows). E: 128 indices, 1 to each of 128 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((1, 128), "float32", "shared")
        total = tl.alloc_var("float32")
        sum_e = tl.alloc_local((1,), "float32")
        total_3 = tl.alloc_var("float32")
        rest = tl.truncdiv(block, 32)
        t_piece = rest
        h = tl.truncmod(block, 32)
        e = tl.alloc_var("int32", thread)  # norm.py:16
        weight_value = tl.alloc_var("bfloat16", weight[e])
        w = tl.alloc_var("float32", tl.Cast("float32", weight_value))
        t_piece_times_64 = tl.alloc_var("int32", t_piece * 64)  # heads.py:139
        piece_begin = tl.alloc_var("int32", tl.min(T, t_piece_times_64))
        piece_begin_plus_64 = tl.alloc_var("int32", piece_begin + 64)
        piece_end = tl.alloc_var("int32", tl.min(T, piece_begin_plus_64))
        piece_end_minus_piece_begin = tl.alloc_var("int32", piece_end - piece_begin)
        ahead = tl.alloc_var("bool", e < 64)  # heads.py:71
        e_minus_64 = tl.alloc_var("int32", e - 64)  # heads.py:72
        angle = tl.alloc_var("int32", tl.Select(ahead, e, e_minus_64))
        e_plus_64 = tl.alloc_var("int32", e + 64)
        partner = tl.alloc_var("int32", tl.Select(ahead, e_plus_64, e_minus_64))
        P_i64 = tl.alloc_var("int64", tl.Cast("int64", P))  # heads.py:77
        angle_ge_0 = tl.alloc_var("bool", 0 <= angle)
        angle_lt_64 = tl.alloc_var("bool", angle < 64)
        cos_guard = tl.alloc_var("bool", angle_ge_0 & angle_lt_64)
        total = f32(-0.0)  # heads.py:139
        for t_step in tl.serial(0, piece_end_minus_piece_begin):
            t = tl.alloc_var("int32", piece_begin + t_step)
            rstd_value = tl.alloc_var("float32", rstd[tl.int64(t) * rstd_t_stride + h])  # heads.py:140
            position_ids_value = tl.alloc_var("int64", position_ids[t])  # heads.py:158
            # heads.py:141
            x_value = tl.alloc_var("bfloat16", x[tl.int64(t) * x_t_stride + tl.int64(h) * x_h_stride + e])
            position_ids_ge_0 = tl.alloc_var("bool", 0 <= position_ids_value)  # heads.py:77
            cos_guard_below = tl.alloc_var("bool", position_ids_value < P_i64)
            cos_guard_2 = tl.alloc_var("bool", position_ids_ge_0 & cos_guard_below)
            cos_guard_3 = tl.alloc_var("bool", cos_guard_2 & cos_guard)
            cos_value = tl.alloc_var(
                "float32",
                tl.if_then_else(cos_guard_3, cos[position_ids_value * cos_p_stride + angle], f32(float("nan")))
            )
            sin_value = tl.alloc_var(
                "float32",
                tl.if_then_else(cos_guard_3, sin[position_ids_value * sin_p_stride + angle], f32(float("nan")))
            )
            # heads.py:160
            d_y_value = tl.alloc_var("bfloat16", d_y[tl.int64(t) * d_y_t_stride + tl.int64(h) * d_y_h_stride + partner])
            # heads.py:161
            d_y_value_2 = tl.alloc_var("bfloat16", d_y[tl.int64(t) * d_y_t_stride + tl.int64(h) * d_y_h_stride + e])
            x_f32 = tl.alloc_var("float32", tl.Cast("float32", x_value))  # heads.py:141
            n = tl.alloc_var("float32", x_f32 * rstd_value)
            other = tl.alloc_var("float32", tl.Cast("float32", d_y_value))  # heads.py:160
            own = tl.alloc_var("float32", tl.Cast("float32", d_y_value_2))  # heads.py:161
            neg_sin = tl.alloc_var("float32", sin_value * f32(-1.0))  # heads.py:82
            turned = tl.alloc_var("float32", other * neg_sin)
            own_times_cos = tl.alloc_var("float32", own * cos_value)  # heads.py:83
            neg_turned = tl.alloc_var("float32", turned * f32(-1.0))
            made_selected = tl.alloc_var("float32", tl.Select(ahead, neg_turned, turned))
            made = tl.alloc_var("float32", own_times_cos + made_selected)
            made_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", made))  # heads.py:84
            g = tl.alloc_var("float32", tl.Cast("float32", made_bf16))  # heads.py:161
            gw = tl.alloc_var("float32", g * w)  # heads.py:144
            gw_times_n = tl.alloc_var("float32", gw * n)  # heads.py:145
            sum_e[0] = gw_times_n
            sum_over_e(sum_e, f32_reduce_smem, thread)
            sum_e_2 = sum_e[0]
            mean = tl.alloc_var("float32", sum_e_2 / f32(128.0))
            n_times_mean = tl.alloc_var("float32", n * mean)  # heads.py:146
            d_x_difference = tl.alloc_var("float32", gw - n_times_mean)
            d_x_product = tl.alloc_var("float32", d_x_difference * rstd_value)
            d_x_product_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", d_x_product))
            d_x[tl.int64(t) * d_x_t_stride + tl.int64(h) * d_x_h_stride + e] = d_x_product_bf16
            n_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", n))  # heads.py:148
            n_bf16_f32 = tl.alloc_var("float32", tl.Cast("float32", n_bf16))
            total_product = tl.alloc_var("float32", g * n_bf16_f32)
            total_2 = tl.alloc_var("float32", total + total_product)
            total = total_2
        total_3 = total  # heads.py:139
        sum_of_piece1[
            tl.int64(t_piece) * sum_of_piece1_t_piece_stride + tl.int64(h) * sum_of_piece1_h_stride + e
        ] = total_3


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
