"""policy_loss on gfx942, written by rlk 0.1.0: do not edit.

numerics: 519059d5f751f6a3
schedule: tiles 1, 2 warps, 1 stages, unroll 1
schedule: tiles 1, 8 warps, 1 stages, unroll 1
inputs:
  logp: f32 [T]
  old_logp: f32 [T]
  advantages: f32 [B]
  ref_logp: f32 [T]
  order: i32 [S]
  active: bool [T]
  sequence: i32 [T]
outputs:
  per_token: f32 [T]
  loss: f32
  count: i32
  clip_fraction: f32
  approx_kl: f32
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
def add(a, b):
    # A term of a sum.
    return a + b


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
def portable_k3(x):
    # e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative.
    y0 = tl.alloc_var("float32", smaller(x, f32(89.0)))
    y1 = tl.alloc_var("float32", larger(y0, f32(-40.0)))
    y2 = tl.alloc_var("float32", fma(y1, f32(1.44269504), f32(12582912.0)))
    i3 = tl.alloc_var("int32", bits_of(x))
    i4 = tl.alloc_var("int32", i3 & tl.int32(2147483647))
    y5 = tl.alloc_var("float32", number_of(i4))
    y6 = tl.alloc_var("float32", tl.Select(y5 < f32(0.75), f32(12582912.0), y2))
    y7 = tl.alloc_var("float32", y6 - f32(12582912.0))
    y8 = tl.alloc_var("float32", fma(y7, f32(-0.693147182), y1))
    y9 = tl.alloc_var("float32", fma(y7, f32(1.90465421e-09), y8))
    y10 = tl.alloc_var("float32", y9 * y9)
    y11 = tl.alloc_var("float32", fma(f32(2.6118526e-06), y9, f32(2.5040988e-05)))
    y12 = tl.alloc_var("float32", fma(y11, y9, f32(0.00019858872)))
    y13 = tl.alloc_var("float32", fma(y12, y9, f32(0.0013888375)))
    y14 = tl.alloc_var("float32", fma(y13, y9, f32(0.008333275)))
    y15 = tl.alloc_var("float32", fma(y14, y9, f32(0.041666668)))
    y16 = tl.alloc_var("float32", fma(y15, y9, f32(0.16666667)))
    y17 = tl.alloc_var("float32", y9 * y16)
    y18 = tl.alloc_var("float32", y10 * f32(0.5))
    y19 = tl.alloc_var("float32", fma(y10, y17, y18))
    i20 = tl.alloc_var("int32", bits_of(y6))
    i21 = tl.alloc_var("int32", i20 << 23)
    i22 = tl.alloc_var("int32", i21 + tl.int32(1056964608))
    y23 = tl.alloc_var("float32", number_of(i22))
    y24 = tl.alloc_var("float32", y23 - f32(0.5))
    y25 = tl.alloc_var("float32", fma(y0, f32(-0.5), y24))
    y26 = tl.alloc_var("float32", fma(y23, y9, y25))
    y27 = tl.alloc_var("float32", fma(y23, y19, y26))
    y28 = tl.alloc_var("float32", y27 + y27)
    y29 = tl.alloc_var("float32", tl.Select(y5 < f32(0.75), y19, y28))
    y30 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y29, x))
    return y30


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def sum_over_s_lane(x, x_reduce_smem, thread):
    # The sum over S.lane, halving.
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
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
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.macro
def sum_over_s_lane_2(x, x_reduce_smem, thread):
    # The sum over S.lane, in any order.
    for c in tl.unroll(4):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def sum_over_s_piece_lane(x, x_reduce_smem, thread):
    # The sum over S_piece.lane, halving.
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 256])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
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
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.macro
def sum_over_s_piece_lane_2(x, x_reduce_smem, thread):
    # The sum over S_piece.lane, in any order.
    for c in tl.unroll(4):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 256])


@tl.prim_func
def policy_loss_1(
    logp: memory("logp", "float32"), old_logp: memory("old_logp", "float32"),
    advantages: memory("advantages", "float32"), ref_logp: memory("ref_logp", "float32"),
    order: memory("order", "int32"), active: memory("active", "bool"), sequence: memory("sequence", "int32"),
    per_token: memory("per_token", "float32"), sum_of_piece: memory("sum_of_piece", "float32"),
    sum_of_piece1: memory("sum_of_piece1", "int32"), sum_of_piece2: memory("sum_of_piece2", "int32"),
    sum_of_piece3: memory("sum_of_piece3", "float32"), S: tl.int32, T: tl.int32, B: tl.int32, beta: tl.float32,
    surrogate_least: tl.float32, surrogate_most: tl.float32, programs: tl.int32
):
    # A block owns 1 of S.piece (rows). S.lane: 1024 indices, 8 to each of 128 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        i32_reduce_smem = tl.alloc_shared((8, 128), "int32", "shared")
        s_lane = tl.alloc_local((8,), "int32")
        total = tl.alloc_var("float32")
        total_2 = tl.alloc_var("int32")
        total_3 = tl.alloc_var("int32")
        total_4 = tl.alloc_var("float32")
        s = tl.alloc_local((8,), "int32")
        order_value = tl.alloc_local((8,), "int32")
        order_ge_0 = tl.alloc_local((8,), "bool")
        order_lt_T = tl.alloc_local((8,), "bool")
        active_guard = tl.alloc_local((8,), "bool")
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
        value = tl.alloc_local((8,), "float32")
        clipped = tl.alloc_local((8,), "bool")
        raw = tl.alloc_local((8,), "float32")
        value_2 = tl.alloc_local((8,), "float32")
        beta_times_value = tl.alloc_local((8,), "float32")
        value_3 = tl.alloc_local((8,), "float32")
        value_masked = tl.alloc_local((8,), "float32")
        loss = tl.alloc_local((8,), "float32")
        count = tl.alloc_local((8,), "int32")
        active_and_clipped = tl.alloc_local((8,), "bool")
        clipped_2 = tl.alloc_local((8,), "int32")
        neg_log_ratio = tl.alloc_local((8,), "float32")
        total_k3 = tl.alloc_local((8,), "float32")
        total_k3_masked = tl.alloc_local((8,), "float32")
        sum_s_lane = tl.alloc_local((8,), "float32")
        sum_s_lane_3 = tl.alloc_local((8,), "int32")
        sum_s_lane_5 = tl.alloc_local((8,), "int32")
        sum_s_lane_7 = tl.alloc_local((8,), "float32")
        total_9 = tl.alloc_var("float32")
        total_10 = tl.alloc_var("int32")
        total_11 = tl.alloc_var("int32")
        total_12 = tl.alloc_var("float32")
        s_2 = tl.alloc_local((8,), "int32")
        exists = tl.alloc_local((8,), "bool")
        order_value_2 = tl.alloc_local((8,), "int32")
        order_ge_0_2 = tl.alloc_local((8,), "bool")
        order_lt_T_2 = tl.alloc_local((8,), "bool")
        active_guard_2 = tl.alloc_local((8,), "bool")
        active_guard_3 = tl.alloc_local((8,), "bool")
        active_value_2 = tl.alloc_local((8,), "bool")
        sequence_value_2 = tl.alloc_local((8,), "int32")
        sequence_ge_0_2 = tl.alloc_local((8,), "bool")
        sequence_lt_B_2 = tl.alloc_local((8,), "bool")
        advantages_guard_2 = tl.alloc_local((8,), "bool")
        advantages_guard_3 = tl.alloc_local((8,), "bool")
        advantages_value_2 = tl.alloc_local((8,), "float32")
        logp_value_2 = tl.alloc_local((8,), "float32")
        old_logp_value_2 = tl.alloc_local((8,), "float32")
        ref_logp_value_2 = tl.alloc_local((8,), "float32")
        log_ratio_2 = tl.alloc_local((8,), "float32")
        ratio_3 = tl.alloc_local((8,), "float32")
        advantages_is_0_2 = tl.alloc_local((8,), "bool")
        ratio_4 = tl.alloc_local((8,), "float32")
        ratio_times_advantages_2 = tl.alloc_local((8,), "float32")
        plain_2 = tl.alloc_local((8,), "float32")
        bounded_3 = tl.alloc_local((8,), "float32")
        bounded_4 = tl.alloc_local((8,), "float32")
        bounded_times_advantages_2 = tl.alloc_local((8,), "float32")
        limited_2 = tl.alloc_local((8,), "float32")
        plain_lt_limited_2 = tl.alloc_local((8,), "bool")
        flows_2 = tl.alloc_local((8,), "bool")
        value_4 = tl.alloc_local((8,), "float32")
        clipped_3 = tl.alloc_local((8,), "bool")
        raw_2 = tl.alloc_local((8,), "float32")
        value_5 = tl.alloc_local((8,), "float32")
        beta_times_value_2 = tl.alloc_local((8,), "float32")
        value_6 = tl.alloc_local((8,), "float32")
        value_masked_2 = tl.alloc_local((8,), "float32")
        loss_2 = tl.alloc_local((8,), "float32")
        count_2 = tl.alloc_local((8,), "int32")
        active_and_clipped_2 = tl.alloc_local((8,), "bool")
        clipped_4 = tl.alloc_local((8,), "int32")
        neg_log_ratio_2 = tl.alloc_local((8,), "float32")
        total_k3_2 = tl.alloc_local((8,), "float32")
        total_k3_masked_2 = tl.alloc_local((8,), "float32")
        loss_masked = tl.alloc_local((8,), "float32")
        sum_s_lane_9 = tl.alloc_local((8,), "float32")
        count_masked = tl.alloc_local((8,), "int32")
        sum_s_lane_11 = tl.alloc_local((8,), "int32")
        clipped_masked = tl.alloc_local((8,), "int32")
        sum_s_lane_13 = tl.alloc_local((8,), "int32")
        total_k3_masked_3 = tl.alloc_local((8,), "float32")
        sum_s_lane_15 = tl.alloc_local((8,), "float32")
        s_piece = block
        writes = thread == 0
        beta_value = tl.alloc_var("float32", beta)
        surrogate_least_value = tl.alloc_var("float32", surrogate_least)
        surrogate_most_value = tl.alloc_var("float32", surrogate_most)
        s_piece_times_1024 = tl.alloc_var("int32", s_piece * 1024)  # loss.py:83
        piece_begin = tl.alloc_var("int32", tl.min(S, s_piece_times_1024))
        piece_begin_plus_1024 = tl.alloc_var("int32", piece_begin + 1024)
        piece_end = tl.alloc_var("int32", tl.min(S, piece_begin_plus_1024))
        piece_end_minus_piece_begin = tl.alloc_var("int32", piece_end - piece_begin)
        steps_sum = tl.alloc_var("int32", piece_end_minus_piece_begin + 1023)
        steps = tl.alloc_var("int32", tl.truncdiv(steps_sum, tl.int32(1024)))
        full_steps = tl.alloc_var("int32", tl.truncdiv(piece_end_minus_piece_begin, tl.int32(1024)))
        for c in tl.unroll(8):
            s_lane[c] = thread + c * 128
        total = f32(-0.0)
        total_2 = tl.int32(0)
        total_3 = tl.int32(0)
        total_4 = f32(-0.0)
        for s_step in tl.serial(0, full_steps):
            s_step_times_1024 = tl.alloc_var("int32", s_step * 1024)
            s_begin = tl.alloc_var("int32", piece_begin + s_step_times_1024)
            for c in tl.unroll(8):
                s[c] = s_begin + s_lane[c]
                order_value[c] = order[s[c]]  # loss.py:84
                order_ge_0[c] = 0 <= order_value[c]  # policy.py:140
                order_lt_T[c] = order_value[c] < T
                active_guard[c] = order_ge_0[c] & order_lt_T[c]
                active_value[c] = tl.if_then_else(active_guard[c], active[order_value[c]], tl.Cast("bool", 0))
                sequence_value[c] = tl.if_then_else(active_guard[c], sequence[order_value[c]], tl.Cast("int32", 0))
                sequence_ge_0[c] = 0 <= sequence_value[c]  # policy.py:146
                sequence_lt_B[c] = sequence_value[c] < B
                advantages_guard[c] = sequence_ge_0[c] & sequence_lt_B[c]
                advantages_value[c] = tl.if_then_else(
                    advantages_guard[c], advantages[sequence_value[c]], tl.Cast("float32", 0)
                )
                # policy.py:140
                logp_value[c] = tl.if_then_else(active_guard[c], logp[order_value[c]], tl.Cast("float32", 0))
                old_logp_value[c] = tl.if_then_else(active_guard[c], old_logp[order_value[c]], tl.Cast("float32", 0))
                ref_logp_value[c] = tl.if_then_else(active_guard[c], ref_logp[order_value[c]], tl.Cast("float32", 0))
                log_ratio[c] = logp_value[c] - old_logp_value[c]  # policy.py:191
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
                value[c] = tl.Select(flows[c], plain[c], limited[c])  # surrogates.py:68
                clipped[c] = tl.Not(flows[c])  # surrogates.py:77
                raw[c] = ref_logp_value[c] - logp_value[c]  # policy.py:331
                value_2[c] = portable_k3(raw[c])  # loss.py:23
                beta_times_value[c] = beta_value * value_2[c]  # policy.py:386
                value_3[c] = value[c] + beta_times_value[c]
                value_masked[c] = tl.Select(active_value[c], value_3[c], f32(0.0))  # policy.py:499
                per_token[order_value[c]] = value_masked[c]
                loss[c] = tl.Select(active_value[c], value_3[c], f32(-0.0))  # policy.py:500
                count[c] = tl.Cast("int32", active_value[c])
                active_and_clipped[c] = active_value[c] & clipped[c]  # policy.py:517
                clipped_2[c] = tl.Cast("int32", active_and_clipped[c])
                neg_log_ratio[c] = log_ratio[c] * f32(-1.0)  # policy.py:519
                total_k3[c] = portable_k3(neg_log_ratio[c])
                total_k3_masked[c] = tl.Select(active_value[c], total_k3[c], f32(-0.0))
                sum_s_lane[c] = loss[c]  # loss.py:86
            sum_over_s_lane(sum_s_lane, f32_reduce_smem, thread)
            sum_s_lane_2 = sum_s_lane[0]
            for c in tl.unroll(8):
                sum_s_lane_3[c] = count[c]
            sum_over_s_lane_2(sum_s_lane_3, i32_reduce_smem, thread)
            sum_s_lane_4 = sum_s_lane_3[0]
            for c in tl.unroll(8):
                sum_s_lane_5[c] = clipped_2[c]
            sum_over_s_lane_2(sum_s_lane_5, i32_reduce_smem, thread)
            sum_s_lane_6 = sum_s_lane_5[0]
            for c in tl.unroll(8):
                sum_s_lane_7[c] = total_k3_masked[c]
            sum_over_s_lane(sum_s_lane_7, f32_reduce_smem, thread)
            sum_s_lane_8 = sum_s_lane_7[0]
            total_5 = tl.alloc_var("float32", total + sum_s_lane_2)
            total_6 = tl.alloc_var("int32", total_2 + sum_s_lane_4)
            total_7 = tl.alloc_var("int32", total_3 + sum_s_lane_6)
            total_8 = tl.alloc_var("float32", total_4 + sum_s_lane_8)
            total = total_5
            total_2 = total_6
            total_3 = total_7
            total_4 = total_8
        total_9 = total  # loss.py:83
        total_10 = total_2
        total_11 = total_3
        total_12 = total_4
        for s_step_2 in tl.serial(full_steps, steps):
            s_step_times_1024_2 = tl.alloc_var("int32", s_step_2 * 1024)
            s_begin_2 = tl.alloc_var("int32", piece_begin + s_step_times_1024_2)
            for c in tl.unroll(8):
                s_2[c] = s_begin_2 + s_lane[c]
                exists[c] = s_2[c] < piece_end
                order_value_2[c] = tl.if_then_else(exists[c], order[s_2[c]], tl.Cast("int32", 0))  # loss.py:84
                order_ge_0_2[c] = 0 <= order_value_2[c]  # policy.py:140
                order_lt_T_2[c] = order_value_2[c] < T
                active_guard_2[c] = order_ge_0_2[c] & order_lt_T_2[c]
                active_guard_3[c] = exists[c] & active_guard_2[c]
                active_value_2[c] = tl.if_then_else(active_guard_3[c], active[order_value_2[c]], tl.Cast("bool", 0))
                sequence_value_2[c] = tl.if_then_else(
                    active_guard_3[c], sequence[order_value_2[c]], tl.Cast("int32", 0)
                )
                sequence_ge_0_2[c] = 0 <= sequence_value_2[c]  # policy.py:146
                sequence_lt_B_2[c] = sequence_value_2[c] < B
                advantages_guard_2[c] = sequence_ge_0_2[c] & sequence_lt_B_2[c]
                advantages_guard_3[c] = exists[c] & advantages_guard_2[c]
                advantages_value_2[c] = tl.if_then_else(
                    advantages_guard_3[c], advantages[sequence_value_2[c]], tl.Cast("float32", 0)
                )
                # policy.py:140
                logp_value_2[c] = tl.if_then_else(active_guard_3[c], logp[order_value_2[c]], tl.Cast("float32", 0))
                old_logp_value_2[c] = tl.if_then_else(
                    active_guard_3[c], old_logp[order_value_2[c]], tl.Cast("float32", 0)
                )
                ref_logp_value_2[c] = tl.if_then_else(
                    active_guard_3[c], ref_logp[order_value_2[c]], tl.Cast("float32", 0)
                )
                log_ratio_2[c] = logp_value_2[c] - old_logp_value_2[c]  # policy.py:191
                ratio_3[c] = portable_exp(log_ratio_2[c])  # policy.py:369
                advantages_is_0_2[c] = advantages_value_2[c] == f32(0.0)  # policy.py:371
                ratio_4[c] = tl.Select(advantages_is_0_2[c], f32(1.0), ratio_3[c])
                ratio_times_advantages_2[c] = ratio_4[c] * advantages_value_2[c]  # surrogates.py:58
                plain_2[c] = ratio_times_advantages_2[c] * f32(-1.0)
                bounded_3[c] = larger(ratio_4[c], surrogate_least_value)  # surrogates.py:61
                bounded_4[c] = smaller(bounded_3[c], surrogate_most_value)  # surrogates.py:63
                bounded_times_advantages_2[c] = bounded_4[c] * advantages_value_2[c]  # surrogates.py:64
                limited_2[c] = bounded_times_advantages_2[c] * f32(-1.0)
                plain_lt_limited_2[c] = plain_2[c] < limited_2[c]  # surrogates.py:67
                flows_2[c] = tl.Not(plain_lt_limited_2[c])
                value_4[c] = tl.Select(flows_2[c], plain_2[c], limited_2[c])  # surrogates.py:68
                clipped_3[c] = tl.Not(flows_2[c])  # surrogates.py:77
                raw_2[c] = ref_logp_value_2[c] - logp_value_2[c]  # policy.py:331
                value_5[c] = portable_k3(raw_2[c])  # loss.py:23
                beta_times_value_2[c] = beta_value * value_5[c]  # policy.py:386
                value_6[c] = value_4[c] + beta_times_value_2[c]
                value_masked_2[c] = tl.Select(active_value_2[c], value_6[c], f32(0.0))  # policy.py:499
                if exists[c]:
                    per_token[order_value_2[c]] = value_masked_2[c]
                loss_2[c] = tl.Select(active_value_2[c], value_6[c], f32(-0.0))  # policy.py:500
                count_2[c] = tl.Cast("int32", active_value_2[c])
                active_and_clipped_2[c] = active_value_2[c] & clipped_3[c]  # policy.py:517
                clipped_4[c] = tl.Cast("int32", active_and_clipped_2[c])
                neg_log_ratio_2[c] = log_ratio_2[c] * f32(-1.0)  # policy.py:519
                total_k3_2[c] = portable_k3(neg_log_ratio_2[c])
                total_k3_masked_2[c] = tl.Select(active_value_2[c], total_k3_2[c], f32(-0.0))
                loss_masked[c] = tl.Select(exists[c], loss_2[c], f32(-0.0))  # loss.py:86
                sum_s_lane_9[c] = loss_masked[c]
            sum_over_s_lane(sum_s_lane_9, f32_reduce_smem, thread)
            sum_s_lane_10 = sum_s_lane_9[0]
            for c in tl.unroll(8):
                count_masked[c] = tl.Select(exists[c], count_2[c], tl.int32(0))
                sum_s_lane_11[c] = count_masked[c]
            sum_over_s_lane_2(sum_s_lane_11, i32_reduce_smem, thread)
            sum_s_lane_12 = sum_s_lane_11[0]
            for c in tl.unroll(8):
                clipped_masked[c] = tl.Select(exists[c], clipped_4[c], tl.int32(0))
                sum_s_lane_13[c] = clipped_masked[c]
            sum_over_s_lane_2(sum_s_lane_13, i32_reduce_smem, thread)
            sum_s_lane_14 = sum_s_lane_13[0]
            for c in tl.unroll(8):
                total_k3_masked_3[c] = tl.Select(exists[c], total_k3_masked_2[c], f32(-0.0))
                sum_s_lane_15[c] = total_k3_masked_3[c]
            sum_over_s_lane(sum_s_lane_15, f32_reduce_smem, thread)
            sum_s_lane_16 = sum_s_lane_15[0]
            total_13 = tl.alloc_var("float32", total_9 + sum_s_lane_10)
            total_14 = tl.alloc_var("int32", total_10 + sum_s_lane_12)
            total_15 = tl.alloc_var("int32", total_11 + sum_s_lane_14)
            total_16 = tl.alloc_var("float32", total_12 + sum_s_lane_16)
            total_9 = total_13
            total_10 = total_14
            total_11 = total_15
            total_12 = total_16
        if writes:  # loss.py:83
            sum_of_piece[s_piece] = total_9
        if writes:
            sum_of_piece1[s_piece] = total_10
        if writes:
            sum_of_piece2[s_piece] = total_11
        if writes:
            sum_of_piece3[s_piece] = total_12


@tl.prim_func
def policy_loss_2(
    loss: memory("loss", "float32"), count: memory("count", "int32"), clip_fraction: memory("clip_fraction", "float32"),
    approx_kl: memory("approx_kl", "float32"), sum_of_piece: memory("sum_of_piece", "float32"),
    sum_of_piece1: memory("sum_of_piece1", "int32"), sum_of_piece2: memory("sum_of_piece2", "int32"),
    sum_of_piece3: memory("sum_of_piece3", "float32"), S: tl.int32, programs: tl.int32
):
    # A block owns everything (rows). S_piece.lane: 4096 indices, 8 to each of 512 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 512), "float32", "shared")
        i32_reduce_smem = tl.alloc_shared((8, 512), "int32", "shared")
        s_piece_lane = tl.alloc_local((8,), "int32")
        total = tl.alloc_var("float32")
        total_2 = tl.alloc_var("int32")
        total_3 = tl.alloc_var("int32")
        total_4 = tl.alloc_var("float32")
        s_piece = tl.alloc_local((8,), "int32")
        sum_of_piece_value = tl.alloc_local((8,), "float32")
        sum_of_piece1_value = tl.alloc_local((8,), "int32")
        sum_of_piece2_value = tl.alloc_local((8,), "int32")
        sum_of_piece3_value = tl.alloc_local((8,), "float32")
        sum_s_piece_lane = tl.alloc_local((8,), "float32")
        sum_s_piece_lane_3 = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_5 = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_7 = tl.alloc_local((8,), "float32")
        total_9 = tl.alloc_var("float32")
        total_10 = tl.alloc_var("int32")
        total_11 = tl.alloc_var("int32")
        total_12 = tl.alloc_var("float32")
        s_piece_2 = tl.alloc_local((8,), "int32")
        exists = tl.alloc_local((8,), "bool")
        sum_of_piece_value_2 = tl.alloc_local((8,), "float32")
        sum_of_piece1_value_2 = tl.alloc_local((8,), "int32")
        sum_of_piece2_value_2 = tl.alloc_local((8,), "int32")
        sum_of_piece3_value_2 = tl.alloc_local((8,), "float32")
        sum_of_piece_masked = tl.alloc_local((8,), "float32")
        sum_s_piece_lane_9 = tl.alloc_local((8,), "float32")
        sum_of_piece1_masked = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_11 = tl.alloc_local((8,), "int32")
        sum_of_piece2_masked = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_13 = tl.alloc_local((8,), "int32")
        sum_of_piece3_masked = tl.alloc_local((8,), "float32")
        sum_s_piece_lane_15 = tl.alloc_local((8,), "float32")
        writes = thread == 0
        s_piece_count_plus_4095 = tl.alloc_var("int32", ((S + 1023) // 1024) + 4095)  # loss.py:83
        steps = tl.alloc_var("int32", tl.truncdiv(s_piece_count_plus_4095, tl.int32(4096)))
        full_steps = tl.alloc_var("int32", tl.truncdiv(((S + 1023) // 1024), tl.int32(4096)))
        for c in tl.unroll(8):
            s_piece_lane[c] = thread + c * 512
        total = f32(-0.0)
        total_2 = tl.int32(0)
        total_3 = tl.int32(0)
        total_4 = f32(-0.0)
        for s_piece_step in tl.serial(0, full_steps):
            s_piece_step_times_4096 = tl.alloc_var("int32", s_piece_step * 4096)
            for c in tl.unroll(8):
                s_piece[c] = s_piece_step_times_4096 + s_piece_lane[c]
                sum_of_piece_value[c] = sum_of_piece[s_piece[c]]
                sum_of_piece1_value[c] = sum_of_piece1[s_piece[c]]
                sum_of_piece2_value[c] = sum_of_piece2[s_piece[c]]
                sum_of_piece3_value[c] = sum_of_piece3[s_piece[c]]
                sum_s_piece_lane[c] = sum_of_piece_value[c]  # loss.py:86
            sum_over_s_piece_lane(sum_s_piece_lane, f32_reduce_smem, thread)
            sum_s_piece_lane_2 = sum_s_piece_lane[0]
            for c in tl.unroll(8):
                sum_s_piece_lane_3[c] = sum_of_piece1_value[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_3, i32_reduce_smem, thread)
            sum_s_piece_lane_4 = sum_s_piece_lane_3[0]
            for c in tl.unroll(8):
                sum_s_piece_lane_5[c] = sum_of_piece2_value[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_5, i32_reduce_smem, thread)
            sum_s_piece_lane_6 = sum_s_piece_lane_5[0]
            for c in tl.unroll(8):
                sum_s_piece_lane_7[c] = sum_of_piece3_value[c]
            sum_over_s_piece_lane(sum_s_piece_lane_7, f32_reduce_smem, thread)
            sum_s_piece_lane_8 = sum_s_piece_lane_7[0]
            total_5 = tl.alloc_var("float32", total + sum_s_piece_lane_2)
            total_6 = tl.alloc_var("int32", total_2 + sum_s_piece_lane_4)
            total_7 = tl.alloc_var("int32", total_3 + sum_s_piece_lane_6)
            total_8 = tl.alloc_var("float32", total_4 + sum_s_piece_lane_8)
            total = total_5
            total_2 = total_6
            total_3 = total_7
            total_4 = total_8
        total_9 = total  # loss.py:83
        total_10 = total_2
        total_11 = total_3
        total_12 = total_4
        for s_piece_step_2 in tl.serial(full_steps, steps):
            s_piece_step_times_4096_2 = tl.alloc_var("int32", s_piece_step_2 * 4096)
            for c in tl.unroll(8):
                s_piece_2[c] = s_piece_step_times_4096_2 + s_piece_lane[c]
                exists[c] = s_piece_2[c] < ((S + 1023) // 1024)
                sum_of_piece_value_2[c] = tl.if_then_else(exists[c], sum_of_piece[s_piece_2[c]], tl.Cast("float32", 0))
                sum_of_piece1_value_2[c] = tl.if_then_else(exists[c], sum_of_piece1[s_piece_2[c]], tl.Cast("int32", 0))
                sum_of_piece2_value_2[c] = tl.if_then_else(exists[c], sum_of_piece2[s_piece_2[c]], tl.Cast("int32", 0))
                sum_of_piece3_value_2[c] = tl.if_then_else(
                    exists[c], sum_of_piece3[s_piece_2[c]], tl.Cast("float32", 0)
                )
                sum_of_piece_masked[c] = tl.Select(exists[c], sum_of_piece_value_2[c], f32(-0.0))  # loss.py:86
                sum_s_piece_lane_9[c] = sum_of_piece_masked[c]
            sum_over_s_piece_lane(sum_s_piece_lane_9, f32_reduce_smem, thread)
            sum_s_piece_lane_10 = sum_s_piece_lane_9[0]
            for c in tl.unroll(8):
                sum_of_piece1_masked[c] = tl.Select(exists[c], sum_of_piece1_value_2[c], tl.int32(0))
                sum_s_piece_lane_11[c] = sum_of_piece1_masked[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_11, i32_reduce_smem, thread)
            sum_s_piece_lane_12 = sum_s_piece_lane_11[0]
            for c in tl.unroll(8):
                sum_of_piece2_masked[c] = tl.Select(exists[c], sum_of_piece2_value_2[c], tl.int32(0))
                sum_s_piece_lane_13[c] = sum_of_piece2_masked[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_13, i32_reduce_smem, thread)
            sum_s_piece_lane_14 = sum_s_piece_lane_13[0]
            for c in tl.unroll(8):
                sum_of_piece3_masked[c] = tl.Select(exists[c], sum_of_piece3_value_2[c], f32(-0.0))
                sum_s_piece_lane_15[c] = sum_of_piece3_masked[c]
            sum_over_s_piece_lane(sum_s_piece_lane_15, f32_reduce_smem, thread)
            sum_s_piece_lane_16 = sum_s_piece_lane_15[0]
            total_13 = tl.alloc_var("float32", total_9 + sum_s_piece_lane_10)
            total_14 = tl.alloc_var("int32", total_10 + sum_s_piece_lane_12)
            total_15 = tl.alloc_var("int32", total_11 + sum_s_piece_lane_14)
            total_16 = tl.alloc_var("float32", total_12 + sum_s_piece_lane_16)
            total_9 = total_13
            total_10 = total_14
            total_11 = total_15
            total_12 = total_16
        total_max_1 = tl.alloc_var("int32", tl.max(total_10, tl.int32(1)))  # policy.py:566
        tokens = tl.alloc_var("float32", tl.Cast("float32", total_max_1))
        x = tl.alloc_var("float32", total_9 + f32(0.0))  # policy.py:568
        loss_value = tl.alloc_var("float32", x / tokens)  # policy.py:560
        total_f32 = tl.alloc_var("float32", tl.Cast("float32", total_11))  # policy.py:573
        clip_fraction_value = tl.alloc_var("float32", total_f32 / tokens)
        total_plus_0 = tl.alloc_var("float32", total_12 + f32(0.0))  # policy.py:575
        approx_kl_value = tl.alloc_var("float32", total_plus_0 / tokens)
        if writes:  # policy.py:473
            loss[0] = loss_value
        if writes:
            count[0] = total_10
        if writes:
            clip_fraction[0] = clip_fraction_value
        if writes:
            approx_kl[0] = approx_kl_value


def call(
    kernels, logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece, sum_of_piece1,
    sum_of_piece2, sum_of_piece3, loss, count, clip_fraction, approx_kl, beta, surrogate_least, surrogate_most, S, T, B
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((S + 1023) // 1024)
    if programs > 0:
        kernels.policy_loss_1(
            (programs,), logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece,
            sum_of_piece1, sum_of_piece2, sum_of_piece3, S, T, B, beta, surrogate_least, surrogate_most
        )
    programs = 1
    if programs > 0:
        kernels.policy_loss_2(
            (programs,), loss, count, clip_fraction, approx_kl, sum_of_piece, sum_of_piece1, sum_of_piece2,
            sum_of_piece3, S
        )
