"""combine_rows on gfx942, written by rlk 0.1.0: do not edit.

numerics: c99f183c0bef3b61
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
inputs:
  place: i32 [T, K=8]
  rows: bf16 [R, D=2048]
  weights: f32 [T, K=8]
outputs:
  y: bf16 [T, D=2048]
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.prim_func
def combine_rows(
    place: memory("place", "int32"), rows: memory("rows", "bfloat16"), weights: memory("weights", "float32"),
    y: memory("y", "bfloat16"), place_t_stride: tl.int64, weights_t_stride: tl.int64, R: tl.int32,
    rows_r_stride: tl.int64, errors: memory("errors", "int32"), y_t_stride: tl.int64, T: tl.int32, programs: tl.int32
):
    # A block owns 1 of T, 2048 of D (rows). D: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        d = tl.alloc_local((8,), "int32")
        rows_value = tl.alloc_local((8,), "bfloat16")
        rows_value_2 = tl.alloc_local((8,), "bfloat16")
        rows_value_3 = tl.alloc_local((8,), "bfloat16")
        rows_value_4 = tl.alloc_local((8,), "bfloat16")
        rows_value_5 = tl.alloc_local((8,), "bfloat16")
        rows_value_6 = tl.alloc_local((8,), "bfloat16")
        rows_value_7 = tl.alloc_local((8,), "bfloat16")
        rows_value_8 = tl.alloc_local((8,), "bfloat16")
        rows_f32 = tl.alloc_local((8,), "float32")
        y_product = tl.alloc_local((8,), "float32")
        rows_f32_2 = tl.alloc_local((8,), "float32")
        y_product_2 = tl.alloc_local((8,), "float32")
        rows_f32_3 = tl.alloc_local((8,), "float32")
        y_product_3 = tl.alloc_local((8,), "float32")
        rows_f32_4 = tl.alloc_local((8,), "float32")
        y_product_4 = tl.alloc_local((8,), "float32")
        rows_f32_5 = tl.alloc_local((8,), "float32")
        y_product_5 = tl.alloc_local((8,), "float32")
        rows_f32_6 = tl.alloc_local((8,), "float32")
        y_product_6 = tl.alloc_local((8,), "float32")
        rows_f32_7 = tl.alloc_local((8,), "float32")
        y_product_7 = tl.alloc_local((8,), "float32")
        rows_f32_8 = tl.alloc_local((8,), "float32")
        y_product_8 = tl.alloc_local((8,), "float32")
        y_sum = tl.alloc_local((8,), "float32")
        y_sum_2 = tl.alloc_local((8,), "float32")
        y_sum_3 = tl.alloc_local((8,), "float32")
        y_sum_4 = tl.alloc_local((8,), "float32")
        y_sum_5 = tl.alloc_local((8,), "float32")
        y_sum_6 = tl.alloc_local((8,), "float32")
        y_sum_7 = tl.alloc_local((8,), "float32")
        y_sum_bf16 = tl.alloc_local((8,), "bfloat16")
        t = block
        for c in tl.unroll(8):
            d[c] = thread + c * 256
        writes = thread == 0
        place_value = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride])  # moe.py:243
        place_value_2 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 1])
        place_value_3 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 2])
        place_value_4 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 3])
        place_value_5 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 4])
        place_value_6 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 5])
        place_value_7 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 6])
        place_value_8 = tl.alloc_var("int32", place[tl.int64(t) * place_t_stride + 7])
        weights_value = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride])  # moe.py:308
        weights_value_2 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 1])
        weights_value_3 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 2])
        weights_value_4 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 3])
        weights_value_5 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 4])
        weights_value_6 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 5])
        weights_value_7 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 6])
        weights_value_8 = tl.alloc_var("float32", weights[tl.int64(t) * weights_t_stride + 7])
        place_ge_0 = tl.alloc_var("bool", 0 <= place_value)
        place_lt_R = tl.alloc_var("bool", place_value < R)
        rows_guard = tl.alloc_var("bool", place_ge_0 & place_lt_R)
        for c in tl.unroll(8):
            rows_value[c] = tl.if_then_else(
                rows_guard, rows[tl.int64(place_value) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_2 = tl.alloc_var("bool", 0 <= place_value_2)
        place_lt_R_2 = tl.alloc_var("bool", place_value_2 < R)
        rows_guard_2 = tl.alloc_var("bool", place_ge_0_2 & place_lt_R_2)
        for c in tl.unroll(8):
            rows_value_2[c] = tl.if_then_else(
                rows_guard_2, rows[tl.int64(place_value_2) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_3 = tl.alloc_var("bool", 0 <= place_value_3)
        place_lt_R_3 = tl.alloc_var("bool", place_value_3 < R)
        rows_guard_3 = tl.alloc_var("bool", place_ge_0_3 & place_lt_R_3)
        for c in tl.unroll(8):
            rows_value_3[c] = tl.if_then_else(
                rows_guard_3, rows[tl.int64(place_value_3) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_4 = tl.alloc_var("bool", 0 <= place_value_4)
        place_lt_R_4 = tl.alloc_var("bool", place_value_4 < R)
        rows_guard_4 = tl.alloc_var("bool", place_ge_0_4 & place_lt_R_4)
        for c in tl.unroll(8):
            rows_value_4[c] = tl.if_then_else(
                rows_guard_4, rows[tl.int64(place_value_4) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_5 = tl.alloc_var("bool", 0 <= place_value_5)
        place_lt_R_5 = tl.alloc_var("bool", place_value_5 < R)
        rows_guard_5 = tl.alloc_var("bool", place_ge_0_5 & place_lt_R_5)
        for c in tl.unroll(8):
            rows_value_5[c] = tl.if_then_else(
                rows_guard_5, rows[tl.int64(place_value_5) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_6 = tl.alloc_var("bool", 0 <= place_value_6)
        place_lt_R_6 = tl.alloc_var("bool", place_value_6 < R)
        rows_guard_6 = tl.alloc_var("bool", place_ge_0_6 & place_lt_R_6)
        for c in tl.unroll(8):
            rows_value_6[c] = tl.if_then_else(
                rows_guard_6, rows[tl.int64(place_value_6) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_7 = tl.alloc_var("bool", 0 <= place_value_7)
        place_lt_R_7 = tl.alloc_var("bool", place_value_7 < R)
        rows_guard_7 = tl.alloc_var("bool", place_ge_0_7 & place_lt_R_7)
        for c in tl.unroll(8):
            rows_value_7[c] = tl.if_then_else(
                rows_guard_7, rows[tl.int64(place_value_7) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_ge_0_8 = tl.alloc_var("bool", 0 <= place_value_8)
        place_lt_R_8 = tl.alloc_var("bool", place_value_8 < R)
        rows_guard_8 = tl.alloc_var("bool", place_ge_0_8 & place_lt_R_8)
        for c in tl.unroll(8):
            rows_value_8[c] = tl.if_then_else(
                rows_guard_8, rows[tl.int64(place_value_8) * rows_r_stride + d[c]], tl.Cast("bfloat16", 0)
            )
        place_le_place = tl.alloc_var("bool", place_value_2 <= place_value)  # moe.py:154
        place_le_place_2 = tl.alloc_var("bool", place_value_3 <= place_value_2)
        place_le_place_3 = tl.alloc_var("bool", place_value_4 <= place_value_3)
        place_le_place_4 = tl.alloc_var("bool", place_value_5 <= place_value_4)
        place_le_place_5 = tl.alloc_var("bool", place_value_6 <= place_value_5)
        place_le_place_6 = tl.alloc_var("bool", place_value_7 <= place_value_6)
        place_le_place_7 = tl.alloc_var("bool", place_value_8 <= place_value_7)
        either = tl.alloc_var("bool", place_le_place | place_le_place_2)  # moe.py:155
        either_2 = tl.alloc_var("bool", either | place_le_place_3)
        either_3 = tl.alloc_var("bool", either_2 | place_le_place_4)
        either_4 = tl.alloc_var("bool", either_3 | place_le_place_5)
        either_5 = tl.alloc_var("bool", either_4 | place_le_place_6)
        either_6 = tl.alloc_var("bool", either_5 | place_le_place_7)
        if either_6 & writes:
            tl.atomic_max(errors[0], 1)
            tl.atomic_max(errors[1], t + 1)
        for c in tl.unroll(8):  # moe.py:308
            rows_f32[c] = tl.Cast("float32", rows_value[c])
            y_product[c] = rows_f32[c] * weights_value
            rows_f32_2[c] = tl.Cast("float32", rows_value_2[c])
            y_product_2[c] = rows_f32_2[c] * weights_value_2
            rows_f32_3[c] = tl.Cast("float32", rows_value_3[c])
            y_product_3[c] = rows_f32_3[c] * weights_value_3
            rows_f32_4[c] = tl.Cast("float32", rows_value_4[c])
            y_product_4[c] = rows_f32_4[c] * weights_value_4
            rows_f32_5[c] = tl.Cast("float32", rows_value_5[c])
            y_product_5[c] = rows_f32_5[c] * weights_value_5
            rows_f32_6[c] = tl.Cast("float32", rows_value_6[c])
            y_product_6[c] = rows_f32_6[c] * weights_value_6
            rows_f32_7[c] = tl.Cast("float32", rows_value_7[c])
            y_product_7[c] = rows_f32_7[c] * weights_value_7
            rows_f32_8[c] = tl.Cast("float32", rows_value_8[c])
            y_product_8[c] = rows_f32_8[c] * weights_value_8
            y_sum[c] = y_product[c] + y_product_2[c]  # moe.py:230
            y_sum_2[c] = y_sum[c] + y_product_3[c]
            y_sum_3[c] = y_sum_2[c] + y_product_4[c]
            y_sum_4[c] = y_sum_3[c] + y_product_5[c]
            y_sum_5[c] = y_sum_4[c] + y_product_6[c]
            y_sum_6[c] = y_sum_5[c] + y_product_7[c]
            y_sum_7[c] = y_sum_6[c] + y_product_8[c]
            y_sum_bf16[c] = tl.Cast("bfloat16", y_sum_7[c])  # moe.py:309
            y[tl.int64(t) * y_t_stride + d[c]] = y_sum_bf16[c]


def call(kernels, place, rows, weights, y, R, T, place_t_stride, weights_t_stride, rows_r_stride, y_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 1
    if programs > 0:
        kernels.combine_rows(
            (programs,), place, rows, weights, y, place_t_stride, weights_t_stride, R, rows_r_stride, errors,
            y_t_stride, T
        )
